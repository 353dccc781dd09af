"""Collect by weight: ``A ⊗ W + B ⊗ W = (A + B) ⊗ W``.

One matrix, all patterns that move it:

>>> from otimes.algebra import pattern, tensor, weight
>>> A, B = pattern("A"), pattern("B")
>>> W, V = weight("W", "d_model", "d_model"), weight("V", "d_model", "d_model")
>>> print(CollectWeight().apply(tensor(A, W) + tensor(A, V) + tensor(B, V)))
A ⊗ W + (A + B) ⊗ V
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr
from otimes.algebra.rules.base import Refusal, Rule
from otimes.algebra.rules.collecting import by_slot


@final
class CollectWeight(Rule):
    """Group the addends that have one weight."""

    name = "collect by weight"
    identity = "A ⊗ W + B ⊗ W = (A + B) ⊗ W"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """One addend for each weight."""
        return by_slot(expr, 1)
