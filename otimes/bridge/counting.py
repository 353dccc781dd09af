"""How many paths there are in each group of a partition, as exact integers.

With ``C_b`` components in block b, the number of paths that stand before it is

    N_{b+1} = N_b (1 + C_b) + (constants inside its components) + (sources that enter behind it)

and a path that stands before block b has ``Π_{b' >= b} (1 + C_b')`` continuations to the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from otimes.algebra import Architecture
from otimes.algebra.vocabulary import component_name


@dataclass(frozen=True)
class Counts:
    """Counts of paths of an architecture; blocks, components and sources by their numbers."""

    architecture: Architecture

    @cached_property
    def _sizes(self) -> list[int]:
        return [block.heads + block.neurons for block in self.architecture.blocks]

    @cached_property
    def _starting(self) -> dict[tuple[int, int], int]:
        """The source inside each component that has a constant of its own."""
        grid = self.architecture.language.grid
        return {
            grid.locate(source.component): number
            for number, source in enumerate(self.architecture.sources)
            if source.component is not None
        }

    @cached_property
    def before(self) -> list[int]:
        """The number of paths that stand before each block, and at last before the output."""
        sources = self.architecture.sources
        entering = [0] * (len(self._sizes) + 1)
        for source in sources:
            if source.joins == "stream":
                entering[source.entry] += 1
        found = [entering[0]]
        for size, fresh in zip(self._sizes, entering[1:], strict=True):
            found.append(found[-1] * (1 + size) + fresh)
        return found

    @cached_property
    def after(self) -> list[int]:
        """The number of continuations from before each block, and at last from the output: 1."""
        found = [1]
        for size in reversed(self._sizes):
            found.append(found[-1] * (1 + size))
        return found[::-1]

    @cached_property
    def pairs_into(self) -> list[int]:
        """For each block the number of pairs of a component with one of an earlier block."""
        found, earlier = list[int](), 0
        for size in self._sizes:
            found.append(earlier * size)
            earlier += size
        return found

    def enters(self, source: int, block: int) -> bool:
        """Whether a block can read a source directly."""
        found = self.architecture.sources[source]
        return found.joins == "stream" and found.component is None and found.entry <= block

    def reads(self, component: tuple[int, int], source: int) -> bool:
        """Whether paths of a source can have a component as their first."""
        own = self._starting.get(component) == source
        return own or self.enters(source, component[0])

    def of_source(self, number: int) -> int:
        """Paths that start at a source."""
        source = self.architecture.sources[number]
        return self.after[source.entry] if source.joins == "stream" else 1

    def into(self, block: int, index: int) -> int:
        """Paths that end in a component."""
        return self.before[block] + ((block, index) in self._starting)

    def through(self, block: int, index: int) -> int:
        """Paths that pass through a component."""
        return self.into(block, index) * self.after[block + 1]

    @property
    def direct(self) -> int:
        """Paths without a component."""
        return sum(source.component is None for source in self.architecture.sources)

    def name(self, block: int, index: int) -> str:
        """``1.4`` or ``mlp3.n17``."""
        return component_name(self.architecture.language.grid.component(block, index))
