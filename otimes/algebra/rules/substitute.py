"""Substitute: a symbol such as the stream ``x[1]`` by what it stands for, ``x[0] + Σ h x[0]``.

Each layer reads what all earlier ones wrote, so the stream after a layer is the stream before it
and what the layer's heads added (Elhage et al. 2021, "Two-Layer Attention-Only Transformers"):

>>> from otimes.algebra import Id, Product, vector
>>> from otimes.algebra.kinds import head
>>> x0, x1 = (vector("x", "pos", "d_model", label=layer) for layer in "01")
>>> stream = Substitute(x1, Product(Id + head("0.0"), x0))
>>> print(stream.apply(head("1.0") @ x1))
h[1.0] (Id + h[0.0]) x[0]
>>> stream.why_not(x0)
'x[0] does not have x[1] at its top'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from otimes.algebra.definitions import Definitions
from otimes.algebra.expressions import Expr, Factor, Product
from otimes.algebra.rules.base import Refusal, Rule, product


@final
@dataclass(frozen=True)
class Substitute(Rule):
    """Replace ``symbol`` by ``meaning``, which fits its type."""

    symbol: Factor
    meaning: Expr

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name of the rule with its symbol."""
        return f"substitute {self.symbol}"

    @property
    def identity(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The equation that is used."""
        return f"{self.symbol} = {self.meaning}"

    @property
    def definitions(self) -> Definitions:
        """The symbol and its meaning."""
        return {self.symbol: self.meaning}

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The meaning; inside a word it is written flat."""
        if expr == self.symbol:
            return self.meaning
        if isinstance(expr, Product) and self.symbol in expr.args:
            return product(self.meaning if arg == self.symbol else arg for arg in expr.args)
        return Refusal(lambda: f"{expr} does not have {self.symbol} at its top")

    __str__ = Rule.__str__
