"""A head: ``h = (Id ⊗ W_O)(A ⊗ Id)(Id ⊗ W_V)``, both ways.

Values at each position, mixing across positions, output projection at each position (Elhage et
al. 2021, "Attention Heads as Information Movement"); with the pattern held fixed.

>>> from otimes.algebra.kinds import head
>>> print(ExpandHead().apply(head("1.0")))
(Id ⊗ W_O[1.0])(A[1.0] ⊗ Id)(Id ⊗ W_V[1.0])
>>> print(FoldHead().apply(ExpandHead().apply(head("1.0"))))
h[1.0]
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Factor
from otimes.algebra.kinds import head
from otimes.algebra.rules.defining import Fold, Unfold


@final
class ExpandHead(Unfold):
    """Write a head as its three stages."""

    name = "definition of h"
    identity = "h = (Id ⊗ W_O)(A ⊗ Id)(Id ⊗ W_V)"
    symbol = "h"


@final
class FoldHead(Fold):
    """Write the three stages as the head."""

    name = "the head"
    identity = "(Id ⊗ W_O)(A ⊗ Id)(Id ⊗ W_V) = h"
    symbol = "h"

    def named(self, label: str) -> Factor:
        """The ``h`` of a label."""
        return head(label)
