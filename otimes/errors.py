"""Every error that otimes raises on purpose: one base class, few kinds, each carrying its data.

A message says what failed, shows both sides where there are two, and what to do.
"""

from __future__ import annotations


class OtimesError(Exception):
    """The base of all errors of otimes; the command line turns it into ``error: …`` and exit 2."""


class TypeMismatchError(OtimesError):
    """A product, sum or tensor product whose spaces do not fit: of ``left`` and ``right``."""

    def __init__(self, message: str, left: object = None, right: object = None) -> None:
        super().__init__(message)
        self.left, self.right = left, right


def _pointer(text: str, position: int) -> str:
    """A line of text and a caret below a character; what does not print is escaped."""
    shown = [c if c.isprintable() else c.encode("unicode_escape").decode() for c in text]
    return f"  {''.join(shown)}\n  {' ' * len(''.join(shown[:position]))}^"


class NotationError(OtimesError):
    """A text that does not parse; ``position`` is the offending character's index in ``text``."""

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(f"{message}\n{_pointer(text, position)}")
        self.text, self.position = text, position


class UnknownComponentError(OtimesError):
    """A head, source or symbol that the architecture does not have; ``name`` is what was asked."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class UnknownPathPartError(NotationError, UnknownComponentError):
    """A head, neuron or source in a path expression that the architecture does not have."""

    def __init__(self, message: str, name: str, text: str, position: int) -> None:
        OtimesError.__init__(self, f"{message}\n{_pointer(text, position)}")
        self.name, self.text, self.position = name, text, position


class LimitError(OtimesError):
    """More than a stated limit: ``count`` is what it would take, ``limit`` what is allowed."""

    def __init__(self, message: str, count: int, limit: int) -> None:
        super().__init__(message)
        self.count, self.limit = count, limit


class CheckpointError(OtimesError):
    """Weights that cannot be used: missing, truncated, hostile, of the wrong shape, not finite."""


class InputError(OtimesError):
    """Tokens, text, positions or options that the model cannot take."""


class UnsupportedError(OtimesError):
    """Something well-formed that otimes does not do; the message names what it does instead."""
