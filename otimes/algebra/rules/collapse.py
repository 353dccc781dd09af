"""Collapse: write an expression as the one symbol that was defined to stand for it.

Substitution read from right to left. It keeps some heads of a layer and gathers the rest under a
name, so that an expansion shows what is asked and stays exact:

>>> from otimes.algebra import Id
>>> from otimes.algebra.kinds import head, operator
>>> H = operator("H", ("pos", "pos"), ("d_model", "d_model"), label="0")
>>> rest = Collapse(H, head("0.1") + head("0.2"))
>>> print(rest.apply(Id + head("0.0") + head("0.1") + head("0.2")))
Id + h[0.0] + H[0]
>>> rest.why_not(Id + head("0.1"))
'Id + h[0.1] does not contain h[0.1] + h[0.2]'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from otimes.algebra.definitions import Definitions
from otimes.algebra.expressions import Expr, Factor, Product, Sum
from otimes.algebra.rules.base import Refusal, Rule, total
from otimes.algebra.rules.defining import replaced_run


@final
@dataclass(frozen=True)
class Collapse(Rule):
    """Replace ``meaning`` by ``symbol``: the whole, neighbours in a word, or addends of a sum."""

    symbol: Factor
    meaning: Expr

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name of the rule with its symbol."""
        return f"collapse {self.symbol}"

    @property
    def identity(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The equation that is used."""
        return f"{self.meaning} = {self.symbol}"

    @property
    def definitions(self) -> Definitions:
        """The symbol and its meaning."""
        return {self.symbol: self.meaning}

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The expression with the symbol in the meaning's place."""
        if expr == self.meaning:
            return self.symbol
        if isinstance(expr, Product) and isinstance(self.meaning, Product):
            word = replaced_run(expr.args, self.meaning.args, self.symbol)
            if word is not None:
                return Product(*word)
        if isinstance(expr, Sum):
            parts = self.meaning.args if isinstance(self.meaning, Sum) else (self.meaning,)
            rest = list(expr.args)
            at = len(rest)
            for part in parts:
                if part not in rest:
                    break
                at = min(at, rest.index(part))
                rest.remove(part)
            else:
                return total([*rest[:at], self.symbol, *rest[at:]])
        return Refusal(lambda: f"{expr} does not contain {self.meaning}")

    __str__ = Rule.__str__
