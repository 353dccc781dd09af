"""Scalars: ``(aA)(bB) = ab AB``, ``aA ⊗ bB = ab A ⊗ B``, ``a(bA) = (ab)A``, ``A + 0B = A``.

>>> from fractions import Fraction
>>> from otimes.algebra import pattern, tensor, weight
>>> A, W = pattern("A"), weight("W", "d_model", "d_model")
>>> print(PullScalar().apply(tensor(2 * A, Fraction(1, 3) * W)))
2/3 A ⊗ W
>>> print(PullScalar().apply(A + 0 * (A @ A)))
A
>>> PullScalar().why_not(A @ A)
'A A has no scalar inside'
"""

from __future__ import annotations

from math import prod
from typing import final

from otimes.algebra.expressions import Expr, Product, Scaled, Sum, Tensor
from otimes.algebra.rules.base import Refusal, Rule, coefficient, product, scaled, total


@final
class PullScalar(Rule):
    """Bring scalars to the front, multiply them, and drop ones and zeros."""

    name = "scalar"
    identity = "(aA)(bB) = ab AB"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """One scalar before the whole."""
        if isinstance(expr, Scaled):
            inner, arg = coefficient(expr.arg)
            if isinstance(expr.arg, Scaled) or expr.coefficient == 1:
                return scaled(expr.coefficient * inner, arg)
        elif isinstance(expr, Sum):
            kept = [arg for arg in expr.args if coefficient(arg)[0]]
            if 0 < len(kept) < len(expr.args):
                return total(kept)
        elif isinstance(expr, Product | Tensor):
            parts = [coefficient(arg) for arg in expr.args]
            bare = [arg for _, arg in parts]
            if any(isinstance(arg, Scaled) for arg in expr.args):
                whole = product(bare) if isinstance(expr, Product) else Tensor(*bare)
                return Scaled(prod(c for c, _ in parts), whole)
        return Refusal(lambda: f"{expr} has no scalar inside")
