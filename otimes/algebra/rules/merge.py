"""Merge: ``A ⊗ W + A' ⊗ W = (A + A') ⊗ W``, where exactly one slot is different.

>>> from otimes.algebra import pattern, tensor, weight
>>> A, B = pattern("A"), pattern("B")
>>> W, V = weight("W", "d_model", "d_model"), weight("V", "d_model", "d_model")
>>> print(Merge().apply(tensor(A, W) + tensor(B, W)))
(A + B) ⊗ W
>>> Merge().why_not(tensor(A, W) + tensor(B, V))
'no two addends agree in all slots but one: A ⊗ W and B ⊗ V differ in 2'
"""

from __future__ import annotations

from itertools import combinations
from typing import final

from otimes.algebra.expressions import Expr, Sum, Tensor
from otimes.algebra.rules.base import Refusal, Rule, coefficient, scaled, total


@final
class Merge(Rule):
    """Add two tensor products in the one slot where they differ."""

    name = "merge"
    identity = "A ⊗ W + A' ⊗ W = (A + A') ⊗ W"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """Merge the first pair that can be."""
        if not isinstance(expr, Sum):
            return Refusal(lambda: f"{expr} is not a sum")
        near: tuple[Tensor, Tensor, int] | None = None
        for i, j in combinations(range(len(expr.args)), 2):
            (a, left), (b, right) = coefficient(expr.args[i]), coefficient(expr.args[j])
            if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
                continue
            differ = [
                k for k, (x, y) in enumerate(zip(left.args, right.args, strict=True)) if x != y
            ]
            if len(differ) != 1:
                near = left, right, len(differ)
                continue
            slots = list(left.args)
            slots[differ[0]] = Sum(
                scaled(a, left.args[differ[0]]), scaled(b, right.args[differ[0]])
            )
            addends = list(expr.args)
            addends[i] = Tensor(*slots)
            del addends[j]
            return total(addends)
        if near is None:
            return Refusal(lambda: f"{expr} has no two tensor products")
        left, right, number = near
        how = f"differ in {number}" if number else "are like terms"
        return Refusal(f"no two addends agree in all slots but one: {left} and {right} {how}")
