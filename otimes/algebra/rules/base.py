"""What a rule is: an identity that applies to an expression, or says why not.

A rule looks at the top of an expression alone; :mod:`otimes.algebra.places` applies it inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import ClassVar, Literal, final

from otimes.algebra.definitions import NONE, Definitions
from otimes.algebra.expressions import Expr, Product, Scaled, Sum
from otimes.errors import UnsupportedError

Preserves = Literal["value", "spectrum", "gauge"]
"""``value``: both sides are one map. ``spectrum``: only the nonzero eigenvalues are the same.
``gauge``: the weights change, what the model computes does not."""


@final
class Refusal:
    """Why a rule does not apply, as a sentence without its full stop.

    Most refusals are never read, and expressions are long: a text may be given as a function.
    """

    __slots__ = ("_reason",)

    def __init__(self, reason: str | Callable[[], str] = "") -> None:
        """Keep the reason, or what will say it."""
        self._reason = reason

    def __str__(self) -> str:
        return self._reason if isinstance(self._reason, str) else self._reason()


class Rule(ABC):
    """An identity of the algebra; subclasses are final and hold no state beside their arguments."""

    name: ClassVar[str]
    identity: ClassVar[str]
    preserves: ClassVar[Preserves] = "value"

    @abstractmethod
    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The rewritten expression, or why this rule does not apply to the top of ``expr``."""

    @property
    def definitions(self) -> Definitions:
        """What this rule takes symbols to stand for, beside the built-in definitions."""
        return NONE

    def why_not(self, expr: Expr) -> str | None:
        """Why the rule does not apply; None where it does."""
        result = self.attempt(expr)
        return str(result) if isinstance(result, Refusal) else None

    def apply(self, expr: Expr) -> Expr:
        """The rewritten expression.

        Raises:
            UnsupportedError: with the rule's reason, where it does not apply.
        """
        result = self.attempt(expr)
        if isinstance(result, Refusal):
            raise UnsupportedError(
                f"the rule {self.name!r}, {self.identity}, does not apply to {expr}: {result}"
            )
        return result

    def __str__(self) -> str:
        return f"{self.name}: {self.identity}"


def product(factors: Iterable[Expr]) -> Expr:
    """A word, written flat: products among the factors are spliced in, one factor stands alone."""
    flat = [x for f in factors for x in (f.args if isinstance(f, Product) else (f,))]
    return flat[0] if len(flat) == 1 else Product(*flat)


def total(addends: Iterable[Expr]) -> Expr:
    """A sum; one addend stands alone."""
    listed = list(addends)
    return listed[0] if len(listed) == 1 else Sum(*listed)


def coefficient(expr: Expr) -> tuple[Fraction, Expr]:
    """The coefficient of an addend, 1 where none is written, and the rest."""
    return (expr.coefficient, expr.arg) if isinstance(expr, Scaled) else (Fraction(1), expr)


def scaled(factor: Fraction, expr: Expr) -> Expr:
    """A multiple; once an expression is the expression."""
    return expr if factor == 1 else Scaled(factor, expr)
