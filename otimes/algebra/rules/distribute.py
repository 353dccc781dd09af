"""Distribute: ``(A + B)C = AC + BC``, ``A ⊗ (W + V) = A ⊗ W + A ⊗ V``, ``c(A + B) = cA + cB``.

All sums of a product are multiplied out at once: one term for each choice of an addend from every
sum, which is how a product of layers becomes a sum over paths.

>>> from otimes.algebra import Id
>>> from otimes.algebra.kinds import head
>>> print(Distribute().apply((Id + head("1.0")) @ (Id + head("0.0"))))
Id Id + Id h[0.0] + h[1.0] Id + h[1.0] h[0.0]
>>> Distribute().why_not(head("1.0") @ head("0.0"))
'h[1.0] h[0.0] has no sum to multiply out'
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product as choices
from math import prod
from typing import Final, final

from otimes.algebra.expressions import Expr, Product, Scaled, Sum, Tensor
from otimes.algebra.rules.base import Refusal, Rule
from otimes.algebra.types import OPEN, Type, compose
from otimes.errors import LimitError

MAX_TERMS: Final = 100_000


@final
class Distribute(Rule):
    """Multiply out a product, a tensor product or a multiple of sums."""

    name = "distribute"
    identity = "(A + B)C = AC + BC"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """One addend for each choice."""
        if not isinstance(expr, Product | Tensor | Scaled):
            return Refusal(lambda: f"{expr} is neither a product nor a multiple")
        if not any(isinstance(arg, Sum) for arg in expr.children):
            return Refusal(lambda: f"{expr} has no sum to multiply out")
        addends = [arg.args if isinstance(arg, Sum) else (arg,) for arg in expr.children]
        count = prod(map(len, addends))
        if count > MAX_TERMS:
            raise LimitError(
                f"multiplied out this has {count:,} terms, more than {MAX_TERMS:,}; expand some "
                "layers or heads and keep the rest, or use .expand(), which is lazy",
                count,
                MAX_TERMS,
            )
        if isinstance(expr, Product):
            return Sum(*_words(addends))
        return Sum(*(expr.with_children(*chosen) for chosen in choices(*addends)))


def _words(addends: list[tuple[Expr, ...]]) -> list[Expr]:
    """The word of each choice; what begins alike is composed once."""
    begun: list[tuple[tuple[Expr, ...], Type]] = [((), OPEN)]
    for options in addends:
        parts = [(a.args if isinstance(a, Product) else (a,), a.type) for a in options]
        begun = [
            ((*args, *more), _composed(before, type_))
            for args, before in begun
            for more, type_ in parts
        ]
    return [args[0] if len(args) == 1 else Product.unchecked(type_, args) for args, type_ in begun]


@lru_cache(maxsize=1024)
def _composed(left: Type, right: Type) -> Type:
    whole = compose(left, right)
    assert whole is not None  # a product of sums was well typed, so each choice is
    return whole
