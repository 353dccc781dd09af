"""What analyses return: frozen dataclasses that print as reports, convert and save."""

from otimes.results.certificate import BlockCheck, Certificate, Check, ExactCheck

__all__ = ["BlockCheck", "Certificate", "Check", "ExactCheck"]
