"""The words of paths: which factors a path's components, norms and skip edges contribute.

What a component contributes is looked up, not built: a word is made of known parts, so that
millions of terms can be written. The parts are type-checked where they are made.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from otimes.algebra.expressions import Expr, Factor, Id, Product
from otimes.algebra.layout import EMPTY, Block, Word, norm_word, unembedding
from otimes.algebra.types import Type
from otimes.algebra.vocabulary import Component, Neuron, component_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otimes.algebra.architecture import Architecture
    from otimes.algebra.sources import Source


class _Names(dict[Component, str]):
    """The name of each component, made when first asked for."""

    def __missing__(self, component: Component) -> str:
        name = self[component] = component_name(component)
        return name


class _Parts(dict[Component, tuple[Expr, ...]]):
    """One side of what each component contributes, made when first asked for."""

    def __init__(self, words: Words, side: int) -> None:
        super().__init__()
        self._words, self._side = words, side

    def __missing__(self, component: Component) -> tuple[Expr, ...]:
        block = self._words.blocks[self._words.block_of(component)]
        part = self[component] = block.word(component)[self._side]
        return part


class Words:
    """The words of all paths of one architecture."""

    def __init__(self, arch: Architecture) -> None:
        """Prepare the parts that are common to all paths."""
        self.blocks: tuple[Block, ...] = arch.blocks
        self.names = _Names()
        self.parts = (_Parts(self, 0), _Parts(self, 1))
        unembed = unembedding(arch)
        final = norm_word("final" if arch.final_norm else None)
        self.tails: dict[str, Word] = {
            "stream": final.then(unembed),
            "unembed": unembed,
            "logits": EMPTY,
        }
        self.skips_move = any(block.skip != EMPTY for block in self.blocks)
        self._blocks_of_heads = dict[int, int]()
        self._blocks_of_neurons = dict[int, int]()
        for number, block in enumerate(self.blocks):
            if block.heads:
                self._blocks_of_heads[block.layer] = number
            if block.neurons:
                self._blocks_of_neurons[block.layer] = number
        self._types = dict[tuple[Type, Type], Type]()

    def block_of(self, component: Component) -> int:
        """The number of the block that a component stands in."""
        if isinstance(component, Neuron):
            return self._blocks_of_neurons[component.layer]
        return self._blocks_of_heads[component[0]]

    def pattern(self, source: Source, components: tuple[Component, ...]) -> Expr:
        """The pattern word of a path."""
        return self._product(self._side(0, source, components))

    def weight(self, source: Source, components: tuple[Component, ...]) -> Expr:
        """The weight word of a path."""
        return self._product(self._side(1, source, components))

    def attention(self, source: Source, components: tuple[Component, ...]) -> Expr:
        """The pattern word without the scales of norms."""
        side = self._side(0, source, components)
        return self._product(
            tuple(f for f in side if not (isinstance(f, Factor) and f.name == "D"))
        )

    def _side(
        self, side: int, source: Source, components: tuple[Component, ...]
    ) -> tuple[Expr, ...]:
        parts = self.parts[side]
        # a constant inside a head brings that head's factors itself
        later = components if source.component is None else components[1:]
        if not self.skips_move or source.joins != "stream":
            middle: Iterable[tuple[Expr, ...]] = [parts[c] for c in reversed(later)]
        else:
            chosen = {self.block_of(component): component for component in later}
            middle = (
                parts[chosen[number]] if number in chosen else self.blocks[number].skip[side]
                for number in reversed(range(source.entry, len(self.blocks)))
            )
        own = source.weight if side else source.pattern
        return (*self.tails[source.joins][side], *chain.from_iterable(middle), *own)

    def _product(self, factors: tuple[Expr, ...]) -> Expr:
        if len(factors) < 2:
            return factors[0] if factors else Id
        ends = factors[0].type, factors[-1].type
        type_ = self._types.get(ends)
        if type_ is None:
            checked = Product(*factors)
            self._types[ends] = checked.type
            return checked
        return Product.unchecked(type_, factors)
