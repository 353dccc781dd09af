"""Transpose of a product: ``(AB)ᵀ = BᵀAᵀ``.

>>> from otimes.algebra import weight
>>> W_Q, W_E = weight("W_Q", "d_head", "d_model"), weight("W_E", "d_model", "vocab")
>>> print(TransposeProduct().apply((W_Q @ W_E).T))
W_Eᵀ W_Qᵀ
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr, Product, Transpose
from otimes.algebra.rules.base import Refusal, Rule


@final
class TransposeProduct(Rule):
    """Transpose the factors and reverse their order."""

    name = "transpose of a product"
    identity = "(AB)ᵀ = BᵀAᵀ"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The transposed factors from the last to the first."""
        if isinstance(expr, Transpose) and isinstance(expr.arg, Product):
            return Product(*map(Transpose, expr.arg.args[::-1]))
        return Refusal(lambda: f"{expr} is not the transpose of a product")
