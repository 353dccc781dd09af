"""What the rules of definitions share: a symbol is replaced by its definition, or back.

The definitions are those of :mod:`otimes.algebra.definitions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from otimes.algebra.definitions import definition, shared
from otimes.algebra.expressions import Expr, Factor, Product
from otimes.algebra.rules.base import Refusal, Rule, product


class Unfold(Rule):
    """Replace the symbol called ``symbol`` by what it stands for."""

    symbol: ClassVar[str]

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The definition of the symbol; inside a word it is written flat."""
        if isinstance(expr, Factor):
            meaning = definition(expr) if expr.name == self.symbol else None
            return Refusal(lambda: f"{expr} is not a {self.symbol}") if meaning is None else meaning
        if isinstance(expr, Product):
            parts = [
                self.attempt(arg) if isinstance(arg, Factor) else Refusal() for arg in expr.args
            ]
            if not all(isinstance(part, Refusal) for part in parts):
                chosen = zip(parts, expr.args, strict=True)
                return product(old if isinstance(new, Refusal) else new for new, old in chosen)
        return Refusal(lambda: f"{expr} has no {self.symbol} at its top")


class Fold(Rule):
    """Replace what a symbol called ``symbol`` stands for by the symbol."""

    symbol: ClassVar[str]

    def named(self, label: str) -> Factor:
        """The symbol of a label."""
        raise NotImplementedError

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The symbol, for the whole or for neighbours in a word."""
        for symbol in self._candidates(expr):
            meaning = definition(symbol)
            if expr == meaning:
                return symbol
            if isinstance(expr, Product) and isinstance(meaning, Product):
                folded = replaced_run(expr.args, meaning.args, symbol)
                if folded is not None:
                    return Product(*folded)
        known = definition(self.named(""))
        return Refusal(lambda: f"{expr} has no {known} of one label side by side")

    def _candidates(self, expr: Expr) -> Iterator[Factor]:
        """The symbols of all labels, also as those of heads that share a key-value head."""
        labels = list(dict.fromkeys(factor.label for factor in expr.factors))
        groups = [label for label in labels if ".kv" in label]
        for label in labels:
            yield self.named(label)
            layer = label.partition(".")[0]
            for group in groups:
                if group.startswith(f"{layer}.kv"):
                    yield shared(self.named(label), group)


def replaced_run(
    word: tuple[Expr, ...], run: tuple[Expr, ...], symbol: Expr
) -> tuple[Expr, ...] | None:
    """The word with each occurrence of ``run`` replaced; None where there is none."""
    found = list[Expr]()
    k = occurrences = 0
    while k < len(word):
        if word[k : k + len(run)] == run:
            found.append(symbol)
            k += len(run)
            occurrences += 1
        else:
            found.append(word[k])
            k += 1
    return tuple(found) if occurrences else None
