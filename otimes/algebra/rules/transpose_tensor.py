"""Transpose of a tensor product: ``(A ⊗ B)ᵀ = Aᵀ ⊗ Bᵀ``; the slots keep their order.

>>> from otimes.algebra import pattern, tensor, weight
>>> print(TransposeTensor().apply(tensor(pattern("A"), weight("W", "d_model", "vocab")).T))
Aᵀ ⊗ Wᵀ
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr, Tensor, Transpose
from otimes.algebra.rules.base import Refusal, Rule


@final
class TransposeTensor(Rule):
    """Transpose in each slot."""

    name = "transpose of a tensor product"
    identity = "(A ⊗ B)ᵀ = Aᵀ ⊗ Bᵀ"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The transposed slots, in their order."""
        if isinstance(expr, Transpose) and isinstance(expr.arg, Tensor):
            return Tensor(*map(Transpose, expr.arg.args))
        return Refusal(lambda: f"{expr} is not the transpose of a tensor product")
