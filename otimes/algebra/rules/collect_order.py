"""Collect by order: the paths through no head, through one, and so on.

Order counts the heads of a path (Elhage et al. 2021, "Path Expansion of Logits"):

>>> from otimes.algebra import Id
>>> from otimes.algebra.kinds import head
>>> a, b = head("0.0"), head("1.0")
>>> print(CollectOrder().apply(Id + b @ a + a + b))
Id + (h[0.0] + h[1.0]) + h[1.0] h[0.0]
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr
from otimes.algebra.rules.base import Refusal, Rule
from otimes.algebra.rules.collecting import by_order


@final
class CollectOrder(Rule):
    """Group the addends that go through equally many heads."""

    name = "collect by order"
    identity = "A + (B + C) = (A + B) + C, A + B = B + A"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """A sum for each order, lowest first."""
        return by_order(expr)
