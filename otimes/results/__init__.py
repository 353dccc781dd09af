"""What analyses return: frozen dataclasses that print as reports, convert and save."""

from otimes.results.attribution import Attribution, AttributionRow, Interval
from otimes.results.causal import CausalEffect, CausalEffects
from otimes.results.certificate import (
    BlockCheck,
    Certificate,
    Check,
    ExactCheck,
    Identity,
    SourceError,
)
from otimes.results.scores import ScoreAttribution, ScoreShare
from otimes.results.shares import LogitShares, TermShare

__all__ = [
    "Attribution",
    "AttributionRow",
    "BlockCheck",
    "CausalEffect",
    "CausalEffects",
    "Certificate",
    "Check",
    "ExactCheck",
    "Identity",
    "Interval",
    "LogitShares",
    "ScoreAttribution",
    "ScoreShare",
    "SourceError",
    "TermShare",
]
