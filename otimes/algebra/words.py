"""The words of paths: which factors a path's components, norms and skip edges contribute.

What a component contributes is looked up, not built: a word is made of known parts, so that
millions of terms can be written. The parts are type-checked where they are made.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from otimes.algebra.expressions import Expr, Factor, Id, Product, word
from otimes.algebra.layout import EMPTY, Block, Word, norm_word, product, unembedding
from otimes.algebra.types import D_MODEL, POS, VOCAB, Type
from otimes.algebra.vocabulary import Component, Neuron, component_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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


class _Singles(dict[Component, Expr]):
    """The one factor of each component, where every component contributes one."""

    def __init__(self, parts: _Parts) -> None:
        super().__init__()
        self._parts = parts

    def __missing__(self, component: Component) -> Expr:
        (factor,) = self._parts[component]
        self[component] = factor
        return factor


Spelling = tuple[tuple[Expr, ...], tuple[Expr, ...], tuple[Type, Type]]
"""The factors of a path's pattern and weight words, the earliest first, and the words' types."""


class _Ends(NamedTuple):
    """What all paths from one source have in common, on one side."""

    tail: tuple[Expr, ...]
    own: tuple[Expr, ...]
    reversing: slice
    """Later components first; a constant inside a head brings that head's factors itself."""
    type: Type
    """That of the word, where it has two factors or more."""


def _logit_tails(arch: Architecture) -> dict[str, Word]:
    unembed = unembedding(arch)
    final = norm_word("final" if arch.final_norm else None)
    return {"stream": final.then(unembed), "unembed": unembed, "logits": EMPTY}


class Words:
    """The words of all paths of one architecture.

    Args:
        arch: the architecture.
        tails: what stands behind the last block, by what a source joins; by default the final norm
            and the unembedding.
        codomain: the space that the weight words end in.
    """

    def __init__(
        self, arch: Architecture, tails: Mapping[str, Word] | None = None, codomain: str = VOCAB
    ) -> None:
        self.blocks: tuple[Block, ...] = arch.blocks
        # one object for each component: looking up a key that is the same object is quick
        self.components = tuple(block.components() for block in arch.blocks)
        self.names = _Names()
        self._parts = (_Parts(self, 0), _Parts(self, 1))
        self.tails: Mapping[str, Word] = _logit_tails(arch) if tails is None else tails
        self._codomain = codomain
        self.skips_move = any(block.skip != EMPTY for block in self.blocks)
        plain = arch.norm is None and arch.mlp != "frozen" and "residual" not in arch.multipliers
        # how to look up a component's one factor on either side; None where there are several
        self._single = (
            tuple(_Singles(parts).__getitem__ for parts in self._parts) if plain else None
        )
        self._blocks_of_heads = dict[int, int]()
        self._blocks_of_neurons = dict[int, int]()
        for number, block in enumerate(self.blocks):
            if block.heads:
                self._blocks_of_heads[block.layer] = number
            if block.neurons:
                self._blocks_of_neurons[block.layer] = number
        self._ends: tuple[dict[str, _Ends], dict[str, _Ends]] = ({}, {})
        for source in arch.sources:
            for side in (0, 1):
                self._ends[side][source.name] = self._ends_of(side, source)

    def _ends_of(self, side: int, source: Source) -> _Ends:
        tail, own = self.tails[source.joins][side], (source.pattern, source.weight)[side]
        inside = source.component is not None
        reversing = slice(None, 0 if inside else None, -1)
        slots = own[-1].type.slots if own else None
        domain = slots[0][1] if slots and slots[0] else D_MODEL
        type_ = Type.of((POS, POS) if side == 0 else (self._codomain, domain))
        return _Ends(tail, own, reversing, type_)

    def block_of(self, component: Component) -> int:
        """The number of the block that a component stands in."""
        if isinstance(component, Neuron):
            return self._blocks_of_neurons[component.layer]
        return self._blocks_of_heads[component[0]]

    def attention(self, source: Source, components: tuple[Component, ...]) -> Expr:
        """The pattern word without the scales of norms."""
        whole = self.word(0, source, components)
        factors = whole.args if isinstance(whole, Product) else (whole,)
        return product([f for f in factors if not (isinstance(f, Factor) and f.name == "D")])

    def word(self, side: int, source: Source, components: tuple[Component, ...]) -> Expr:
        """The pattern word (``side`` 0) or the weight word (1) of a path."""
        tail, own, reversing, type_ = self._ends[side][source.name]
        if self._single is not None:
            factors = (*tail, *map(self._single[side], components[reversing]), *own)
            if len(factors) > 1:
                return word(type_, factors)
            return factors[0] if factors else Id
        middle = self._general(side, source, components[reversing])
        factors = (*tail, *itertools.chain.from_iterable(middle), *own)
        if len(factors) > 1:
            return Product.unchecked(type_, factors)
        return factors[0] if factors else Id

    def spellings(
        self, source: Source, choices: Sequence[Sequence[Component]]
    ) -> Iterator[Spelling | None]:
        """The factors of all paths with these choices, in step with the product of the choices.

        None where it would not be faster to look up one by one what components contribute: where
        that is several factors, or one component alone is chosen among several.
        """
        if self._single is None or sum(len(chosen) > 1 for chosen in choices) < 2:
            return itertools.repeat(None)
        inside = source.component is not None  # the source's own words have its factors
        spelt: list[Iterator[tuple[Expr, ...]]] = []
        types = list[Type]()
        for side, single in enumerate(self._single):
            tail, own, _, type_ = self._ends[side][source.name]
            before, behind = ([[f] for f in reversed(factors)] for factors in (own, tail))
            middle = [map(single, chosen) for chosen in choices[inside:]]
            spelt.append(itertools.product(*before, *middle, *behind))
            types.append(type_)
        return zip(*spelt, itertools.repeat(tuple(types)))

    def _general(
        self, side: int, source: Source, latest_first: tuple[Component, ...]
    ) -> Iterable[tuple[Expr, ...]]:
        """What components and skip edges contribute, the latest first."""
        parts = self._parts[side]
        if not self.skips_move or source.joins != "stream":
            return [parts[component] for component in latest_first]
        chosen = {self.block_of(component): component for component in latest_first}
        return [
            parts[chosen[number]] if number in chosen else self.blocks[number].skip[side]
            for number in reversed(range(source.entry, len(self.blocks)))
        ]
