"""Like terms: ``aE + bE = (a + b)E``.

>>> from otimes.algebra import pattern
>>> A, B = pattern("A"), pattern("B")
>>> print(LikeTerms().apply(A + B + 2 * A))
3 A + B
>>> LikeTerms().why_not(A + B)
'no two addends of A + B are multiples of one another'
"""

from __future__ import annotations

from fractions import Fraction
from typing import final

from otimes.algebra.expressions import Expr, Sum
from otimes.algebra.rules.base import Refusal, Rule, coefficient, scaled, total


@final
class LikeTerms(Rule):
    """Add the coefficients of equal addends."""

    name = "like terms"
    identity = "aE + bE = (a + b)E"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """One addend for all that are multiples of one expression."""
        if not isinstance(expr, Sum):
            return Refusal(lambda: f"{expr} is not a sum")
        found = dict[Expr, Fraction]()
        for factor, arg in map(coefficient, expr.args):
            found[arg] = found.get(arg, Fraction(0)) + factor
        if len(found) == len(expr.args):
            return Refusal(lambda: f"no two addends of {expr} are multiples of one another")
        return total(scaled(factor, arg) for arg, factor in found.items())
