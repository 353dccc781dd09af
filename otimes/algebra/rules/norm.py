"""A frozen norm: ``N = D ⊗ Γ``, both ways.

With its scales held fixed, LayerNorm or RMSNorm divides at each position by a number, the diagonal
``D = diag(1/σ_pos)``, and centres and multiplies features by ``Γ``; its bias is a source of its
own.

>>> from otimes.algebra.kinds import norm
>>> print(ExpandNorm().apply(norm("1.ln1")))
D[1.ln1] ⊗ Γ[1.ln1]
>>> print(FoldNorm().apply(ExpandNorm().apply(norm("1.ln1"))))
N[1.ln1]
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Factor
from otimes.algebra.kinds import norm
from otimes.algebra.rules.defining import Fold, Unfold


@final
class ExpandNorm(Unfold):
    """Write a frozen norm as scales and gain."""

    name = "definition of N"
    identity = "N = D ⊗ Γ"
    symbol = "N"


@final
class FoldNorm(Fold):
    """Write scales and gain as the norm."""

    name = "the norm"
    identity = "D ⊗ Γ = N"
    symbol = "N"

    def named(self, label: str) -> Factor:
        """The ``N`` of a label."""
        return norm(label)
