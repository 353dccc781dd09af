"""What analyses return: frozen dataclasses that print as reports, convert and save."""

from otimes.results.causal import CausalEffect, CausalEffects
from otimes.results.certificate import BlockCheck, Certificate, Check, ExactCheck
from otimes.results.scores import ScoreAttribution, ScoreShare
from otimes.results.shares import LogitShares, TermShare

__all__ = [
    "BlockCheck",
    "CausalEffect",
    "CausalEffects",
    "Certificate",
    "Check",
    "ExactCheck",
    "LogitShares",
    "ScoreAttribution",
    "ScoreShare",
    "TermShare",
]
