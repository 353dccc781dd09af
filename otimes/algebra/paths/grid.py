"""The blocks of an architecture as bit masks: which components of a block a pattern matches.

Bit ``i`` of a block's mask stands for the ``i``-th of ``block.components()``: its heads, then its
neurons. A block with thousands of neurons is one integer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from otimes.algebra.paths.syntax import AnyComponent, Heads, Member, Mlp, OneOf
from otimes.algebra.vocabulary import Component, Neuron

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture
    from otimes.algebra.sources import Source


_ALL = -1
"""Stands for the layer of patterns that do not name one."""


def bits(mask: int) -> Iterator[int]:
    """The positions of the bits of a mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Grid:
    """The blocks of an architecture, and where its sources enter."""

    def __init__(self, architecture: Architecture) -> None:
        blocks = architecture.blocks
        self.architecture = architecture
        self.depth = len(blocks)
        self.sources: tuple[Source, ...] = architecture.sources
        self.heads = [(1 << block.heads) - 1 for block in blocks]
        """The mask of the heads of each block."""
        self.everything = [(1 << (block.heads + block.neurons)) - 1 for block in blocks]
        """The mask of all components of each block."""

    @cached_property
    def entries(self) -> tuple[int, ...]:
        """The boundary at which each source joins: before that block; the last is the output."""
        return tuple(
            source.entry if source.joins == "stream" else self.depth for source in self.sources
        )

    @cached_property
    def opening_orders(self) -> tuple[int, ...]:
        """The heads that a path has when it leaves its source: 1 for a constant inside a head."""
        return tuple(int(source.head is not None) for source in self.sources)

    def locate(self, component: Component) -> tuple[int, int]:
        """The block of a component and its bit there; the component must exist."""
        block = self.architecture.words.block_of(component)
        offset = self.heads[block].bit_length() if isinstance(component, Neuron) else 0
        return block, offset + component[1]

    def exists(self, component: Component) -> bool:
        """Whether the architecture has the component."""
        arch = self.architecture
        sizes = arch.heads if not isinstance(component, Neuron) else arch.neurons
        return 0 <= component[0] < arch.layers and 0 <= component[1] < sizes[component[0]]

    def component(self, block: int, bit: int) -> Component:
        """The component that a bit of a block stands for."""
        layer, heads = self.architecture.blocks[block].layer, self.heads[block].bit_length()
        return (layer, bit) if bit < heads else Neuron(layer, bit - heads)

    def mask(self, pattern: Member | OneOf, block: int) -> int:
        """The components of a block that a pattern matches."""
        shape = self.architecture.blocks[block]
        match pattern:
            case AnyComponent():
                return self.everything[block]
            case OneOf(members=members, excluded=excluded):
                found = 0
                for member in members:
                    found |= self.mask(member, block)
                return self.everything[block] & ~found if excluded else found
            case Heads(layer=layer, index=index):
                if layer not in (None, shape.layer):
                    return 0
                return self.heads[block] & (-1 if index is None else 1 << index)
            case Mlp(layer=layer, neuron=neuron):
                if layer != shape.layer or not shape.neurons:
                    return 0
                neurons = self.everything[block] & ~self.heads[block]
                return neurons & (-1 if neuron is None else 1 << (shape.heads + neuron))


class Classes:
    """Each block's components in classes: two of a class match the same of some patterns.

    A class's signature has bit 0 set for heads, and bit ``i + 1`` if pattern ``i`` matches.
    """

    def __init__(self, grid: Grid, patterns: Collection[Member | OneOf]) -> None:
        of_layer = dict[int, list[tuple[int, Member | OneOf]]]()
        for number, pattern in enumerate(patterns):
            # thousands of patterns may name a layer each; most blocks need not look at them
            layer = None if isinstance(pattern, AnyComponent | OneOf) else pattern.layer
            of_layer.setdefault(_ALL if layer is None else layer, []).append((number, pattern))
        self.of_block: list[list[tuple[int, int]]] = []
        """For each block, its classes as (signature, mask)."""
        self.universal = {number for number, _ in of_layer.get(_ALL, ())}
        """The patterns that match every component."""
        self.latest = [-1] * len(patterns)
        """For each pattern the last block with a component that it matches, or -1."""
        for block, shape in enumerate(grid.architecture.blocks):
            heads, everything = grid.heads[block], grid.everything[block]
            classes = [(1, heads), (0, everything & ~heads)]
            for number, pattern in (*of_layer.get(_ALL, ()), *of_layer.get(shape.layer, ())):
                matched = grid.mask(pattern, block)
                if matched != everything:
                    self.universal.discard(number)
                if not matched:
                    continue
                self.latest[number] = block
                bit = 2 << number
                classes = [
                    part
                    for signature, mask in classes
                    for part in ((signature | bit, mask & matched), (signature, mask & ~matched))
                    if part[1]
                ]
            self.of_block.append([part for part in classes if part[1]])

    def signature(self, block: int, bit: int) -> int:
        """The signature of one component."""
        return next(found for found, mask in self.of_block[block] if mask >> bit & 1)
