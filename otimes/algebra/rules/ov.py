"""The OV circuit: ``W_OV = W_O W_V``, both ways.

What is read at the source and written at the destination (Elhage et al. 2021, "Splitting Attention
Head terms into Circuits"); a matrix of rank d_head at most.

>>> from otimes.algebra.definitions import ov_circuit
>>> print(ExpandOV().apply(ov_circuit("1.0")))
W_O[1.0] W_V[1.0]
>>> print(FoldOV().apply(ExpandOV().apply(ov_circuit("1.0"))))
W_OV[1.0]
"""

from __future__ import annotations

from typing import final

from otimes.algebra.definitions import ov_circuit
from otimes.algebra.expressions import Factor
from otimes.algebra.rules.defining import Fold, Unfold


@final
class ExpandOV(Unfold):
    """Write ``W_OV`` as the product of its two matrices."""

    name = "definition of W_OV"
    identity = "W_OV = W_O W_V"
    symbol = "W_OV"


@final
class FoldOV(Fold):
    """Write the product of the two matrices as ``W_OV``."""

    name = "the OV circuit"
    identity = "W_O W_V = W_OV"
    symbol = "W_OV"

    def named(self, label: str) -> Factor:
        """The ``W_OV`` of a label."""
        return ov_circuit(label)
