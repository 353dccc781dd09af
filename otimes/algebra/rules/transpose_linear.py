"""The transpose is linear, and twice is not at all: ``(aA + B)ᵀ = aAᵀ + Bᵀ``, ``Aᵀᵀ = A``.

A diagonal matrix is its own transpose.

>>> from otimes.algebra import pattern
>>> from otimes.algebra.kinds import diagonal
>>> A, B = pattern("A"), pattern("B")
>>> print(TransposeLinear().apply((A + 2 * B).T))
Aᵀ + (2 B)ᵀ
>>> print(TransposeLinear().apply(A.T.T), TransposeLinear().apply(diagonal("D").T))
A D
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr, Factor, Scaled, Sum, Transpose
from otimes.algebra.rules.base import Refusal, Rule


@final
class TransposeLinear(Rule):
    """Transpose a sum, a multiple, a transpose or a diagonal."""

    name = "transpose"
    identity = "(aA + B)ᵀ = aAᵀ + Bᵀ, Aᵀᵀ = A"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """Move the transpose inside, or drop it."""
        match expr:
            case Transpose(arg=Sum() as inner):
                return Sum(*map(Transpose, inner.args))
            case Transpose(arg=Scaled() as inner):
                return Scaled(inner.coefficient, Transpose(inner.arg))
            case Transpose(arg=Transpose() as inner):
                return inner.arg
            case Transpose(arg=Factor(kind="diagonal") as inner):
                return inner
            case _:
                return Refusal(
                    lambda: f"{expr} is not the transpose of a sum, multiple or transpose"
                )
