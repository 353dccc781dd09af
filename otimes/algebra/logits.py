"""The logits of an architecture: one unexpanded expression that knows how to expand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from otimes.algebra.expressions import Expr, Id, Product, Sum, tensor
from otimes.algebra.held import Held, displayed, held_in, with_held
from otimes.algebra.layout import block_operator, norm_word, total, unembedding
from otimes.algebra.printing import in_form
from otimes.algebra.vocabulary import MULTIPLIERS, W_U

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture
    from otimes.algebra.derivations import Derivation
    from otimes.algebra.expansion import PathSum

NESTED_LAYERS: Final = 24
"""Up to how many layers several sources are nested as the stream is; beyond, the sum is flat."""
LINE: Final = 400
"""About how many characters of LaTeX stand in one line of a long product."""


@dataclass(frozen=True)
class Logits:
    """The logits of an architecture as one expression that knows how to expand."""

    architecture: Architecture

    @cached_property
    def expression(self) -> Expr:
        """The product of sums.

        With one source it is an operator on the tokens, ``U (Id + Σ heads) … E``; with several it
        is a sum over the input vectors, nested as the stream is. Beyond :data:`NESTED_LAYERS`
        layers that sum is flat, (readout · blocks behind) · what is written there, so that its
        depth does not grow with the layers; the value is the same.
        """
        arch = self.architecture
        operators = [block_operator(arch, block) for block in arch.blocks]
        tail = _tail(arch)
        if len(arch.sources) == 1:
            source = arch.sources[0]
            factors = [factor for block in reversed(operators) for factor in block]
            embedding = source.written
            assert isinstance(embedding, Product)
            return Product(*tail, *factors, embedding.args[0])
        written: dict[int, list[Expr]] = {entry: [] for entry in range(len(operators) + 1)}
        after: dict[str, list[Expr]] = {"unembed": [], "logits": []}
        for source in arch.sources:
            if source.joins == "stream":
                written[source.entry].append(source.written)
            else:
                after[source.joins].append(source.written)
        if arch.layers > NESTED_LAYERS:
            return _flat(arch, operators, written, after)
        stream = total(written[0])
        for number, factors in enumerate(operators):
            through = Product(*factors, *_factors(stream)) if factors else stream
            stream = total([*_addends(through), *written[number + 1]])
        unembed = [tensor(Id, factor) for factor in unembedding(arch).weight]
        if after["unembed"]:
            normed = total([Product(*tail[len(unembed) :], *_factors(stream)), *after["unembed"]])
            logits = Product(*unembed, normed)
        else:
            logits = Product(*tail, *_factors(stream))
        return total([logits, *after["logits"]])

    def expand(self) -> PathSum:
        """The lazy sum over paths: knows its count, iterates over named terms."""
        from otimes.algebra.expansion import PathSum

        return PathSum(self.architecture)

    def derive(self) -> Derivation:
        """The derivation of the sum over paths from the forward pass, step by step."""
        from otimes.algebra.paper import derive_logits

        return derive_logits(self.architecture)

    def __str__(self) -> str:
        return str(self.expression)

    @property
    def latex(self) -> str:
        """LaTeX of the factored form, and in a line below it what of it is held fixed."""
        return with_held(self._over_lines(), self.held)

    def _over_lines(self) -> str:
        """The formula; a long product over lines of an ``aligned`` environment."""
        whole = self.expression.latex
        if len(whole) <= LINE or not isinstance(self.expression, Product):
            return whole
        lines = [""]
        for factor in self.expression.args:
            shown = in_form(factor, as_latex=True)
            if lines[-1] and len(lines[-1]) + len(shown) > LINE:
                lines.append("")
            lines[-1] += shown
        return r" \\ & \quad ".join(lines)

    @property
    def held(self) -> tuple[Held, ...]:
        """What is held fixed at a run's values."""
        return held_in(self.expression.factors)

    def _repr_latex_(self) -> str:
        return displayed(self.latex)


def _tail(arch: Architecture) -> list[Expr]:
    """Unembedding and final norm, one factor each."""
    tail = list[Expr]()
    if "logits" in arch.multipliers:
        tail.append(tensor(Id, MULTIPLIERS["logits"]))
    tail.append(tensor(Id, W_U))
    if arch.final_norm:
        tail.append(norm_word("final").expression)
    return tail


def _flat(
    arch: Architecture,
    operators: list[tuple[Expr, ...]],
    written: dict[int, list[Expr]],
    after: dict[str, list[Expr]],
) -> Expr:
    """One addend for each place where something is written: what it goes through, what it is."""
    addends = list[Expr]()
    before = tail = tuple(_tail(arch))
    for entry in range(len(operators), -1, -1):
        if written[entry]:
            here = _factors(total(written[entry]))
            # blocks map the stream to the stream, so the type is that without them
            addends.append(Product.unchecked(Product(*tail, *here).type, (*before, *here)))
        if entry:
            before += operators[entry - 1]
    addends.reverse()
    if after["unembed"]:
        unembed = [tensor(Id, factor) for factor in unembedding(arch).weight]
        addends.append(Product(*unembed, *_factors(total(after["unembed"]))))
    return total([*addends, *after["logits"]])


def _factors(expr: Expr) -> tuple[Expr, ...]:
    return expr.args if isinstance(expr, Product) else (expr,)


def _addends(expr: Expr) -> tuple[Expr, ...]:
    # an Id block leaves the stream a sum, which takes what is written next as one more addend
    return expr.args if isinstance(expr, Sum) else (expr,)
