"""What analyses return: frozen dataclasses that print as reports, convert and save."""

from otimes.results.certificate import BlockCheck, Certificate, Check, ExactCheck, Identity
from otimes.results.shares import LogitShares, TermShare

__all__ = [
    "BlockCheck",
    "Certificate",
    "Check",
    "ExactCheck",
    "Identity",
    "LogitShares",
    "TermShare",
]
