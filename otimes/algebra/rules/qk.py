"""The QK circuit: ``W_QK = W_Qᵀ W_K``, both ways.

A bilinear form on the stream, queries on its left (Elhage et al. 2021, "Splitting Attention Head
terms into Circuits").

>>> from otimes.algebra.definitions import qk_circuit
>>> print(ExpandQK().apply(qk_circuit("1.0")))
W_Q[1.0]ᵀ W_K[1.0]
>>> print(FoldQK().apply(ExpandQK().apply(qk_circuit("1.0"))))
W_QK[1.0]
"""

from __future__ import annotations

from typing import final

from otimes.algebra.definitions import qk_circuit
from otimes.algebra.expressions import Factor
from otimes.algebra.rules.defining import Fold, Unfold


@final
class ExpandQK(Unfold):
    """Write ``W_QK`` as the product of its two matrices."""

    name = "definition of W_QK"
    identity = "W_QK = W_Qᵀ W_K"
    symbol = "W_QK"


@final
class FoldQK(Fold):
    """Write the product of the two matrices as ``W_QK``."""

    name = "the QK circuit"
    identity = "W_Qᵀ W_K = W_QK"
    symbol = "W_QK"

    def named(self, label: str) -> Factor:
        """The ``W_QK`` of a label."""
        return qk_circuit(label)
