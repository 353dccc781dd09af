"""Rotations cancel: ``RᵀR = RRᵀ = Id``.

>>> from otimes.algebra import weight
>>> from otimes.algebra.kinds import rotation
>>> R, W_U, W_E = (
...     rotation("R"),
...     weight("W_U", "vocab", "d_model"),
...     weight("W_E", "d_model", "vocab"),
... )
>>> print(CancelRotation().apply(W_U @ R.T @ R @ W_E))
W_U Id W_E
>>> CancelRotation().why_not(R @ R)
'no rotation meets its transpose in R R'
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr, Factor, Id, Product, Transpose
from otimes.algebra.rules.base import Refusal, Rule


@final
class CancelRotation(Rule):
    """Replace a rotation beside its transpose by the identity."""

    name = "a rotation cancels"
    identity = "RᵀR = RRᵀ = Id"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The word with each such pair replaced."""
        if not isinstance(expr, Product):
            return Refusal(lambda: f"{expr} is not a product")
        word = list[Expr]()
        for arg in expr.args:
            if word and (_is_inverse(word[-1], arg) or _is_inverse(arg, word[-1])):
                word[-1] = Id
            else:
                word.append(arg)
        if len(word) == len(expr.args):
            return Refusal(lambda: f"no rotation meets its transpose in {expr}")
        return word[0] if len(word) == 1 else Product(*word)


def _is_inverse(left: Expr, right: Expr) -> bool:
    return (
        isinstance(right, Factor)
        and right.kind == "rotation"
        and isinstance(left, Transpose)
        and left.arg is right
    )
