"""Split: ``A ⊗ W = (A ⊗ Id)(Id ⊗ W)``, the mixed product read from right to left.

What a head does in one slot and in the other are two separate steps, in either order:

>>> from otimes.algebra import pattern, tensor, weight
>>> print(Split().apply(tensor(pattern("A"), weight("W", "d_model", "d_model"))))
(A ⊗ Id)(Id ⊗ W)
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr, Id, Product, Tensor
from otimes.algebra.rules.base import Refusal, Rule


@final
class Split(Rule):
    """Take a tensor product apart into one step for each slot."""

    name = "split"
    identity = "A ⊗ W = (A ⊗ Id)(Id ⊗ W)"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """One factor for each slot that is no identity."""
        if not isinstance(expr, Tensor):
            return Refusal(lambda: f"{expr} is not a tensor product")
        busy = [k for k, arg in enumerate(expr.args) if arg is not Id]
        if len(busy) < 2:
            return Refusal(lambda: f"{expr} acts on one slot alone")
        return Product(
            *(Tensor(*(arg if k == j else Id for j, arg in enumerate(expr.args))) for k in busy)
        )
