"""Collect by pattern: ``A ⊗ W + A ⊗ V = A ⊗ (W + V)``.

One pattern, all that is moved with it:

>>> from otimes.algebra import pattern, tensor, weight
>>> A, B = pattern("A"), pattern("B")
>>> W, V = weight("W", "d_model", "d_model"), weight("V", "d_model", "d_model")
>>> print(CollectPattern().apply(tensor(A, W) + tensor(A, V) + tensor(B, V)))
A ⊗ (W + V) + B ⊗ V
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr
from otimes.algebra.rules.base import Refusal, Rule
from otimes.algebra.rules.collecting import by_slot


@final
class CollectPattern(Rule):
    """Group the addends that have one pattern."""

    name = "collect by pattern"
    identity = "A ⊗ W + A ⊗ V = A ⊗ (W + V)"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """One addend for each pattern."""
        return by_slot(expr, 0)
