"""Nodes of the path tree, and the children of a node as arrays that become nodes when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from otimes.numeric.paths import Components
from otimes.numeric.prefixes import Reading

ANY = -1
"""In a node's id: whatever source, and whatever comes before the components."""

Guide = Callable[[Reading, Float[Tensor, "n component"]], Float[Tensor, "n component"]]
"""Gives a number for each child that a component begins, of the reading and the child's value."""


@dataclass(frozen=True)
class Node:
    """A complete path, or (``source`` is :data:`ANY`) all paths that end with ``components``.

    ``components`` are (block, number) pairs, earliest first; ``count`` is how many paths the node
    stands for, ``value`` what they add to the target.
    """

    source: int
    components: Components
    value: float
    count: int

    @property
    def complete(self) -> bool:
        """Whether it is one path."""
        return self.source != ANY

    @property
    def id(self) -> tuple[int, ...]:
        """The source, then block and number of each component: integers alone."""
        return (self.source, *(number for pair in self.components for number in pair))


@dataclass(frozen=True)
class Children(Sequence[Node]):
    """The children of a suffix, largest absolute value first, made into nodes when asked for.

    ``parts`` are ``(source, block, number)``: of complete paths that reach the suffix directly,
    block and number are -1. Equal values stand in the order of the blocks from the output.
    ``guides`` are a guide's numbers, 0 for complete paths; None where there was no guide. The
    ``counter`` counts the paths of a suffix.
    """

    suffix: Components
    parts: Int[Tensor, "child 3"]
    values: Float[Tensor, " child"]
    guides: Float[Tensor, " child"] | None
    counter: Callable[[Components], int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | Sequence[Node]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        source, components = self.name(index)
        count = self.counter(components) if source == ANY else 1
        return Node(source, components, float(self.values[index]), count)

    def name(self, index: int) -> tuple[int, Components]:
        """The source (or :data:`ANY`) and the components of a child."""
        source, block, number = self.parts[index].tolist()
        return source, self.suffix if block < 0 else ((block, number), *self.suffix)

    def remainder(self, shown: int) -> float:
        """What all children but the first ``shown`` add up to."""
        return float(self.values[shown:].sum())


class Gathered:
    """Collects the children of one suffix."""

    def __init__(self, *, guided: bool) -> None:
        self._paths = list[tuple[int, float]]()
        self._parts, self._values = list[Tensor](), list[Tensor]()
        self._guides: list[Tensor] | None = [] if guided else None

    def add_path(self, source: int, value: float) -> None:
        """Add a complete path that reaches the suffix directly."""
        self._paths.append((source, value))

    def add_components(
        self,
        reading: Reading,
        exists: Bool[Tensor, " component"],
        sources: Int[Tensor, " component"],
        values: Float[Tensor, " component"],
        guides: Float[Tensor, " component"] | None,
    ) -> None:
        """Add the children that the components of a branch begin, but those without a path."""
        chosen = exists.nonzero().flatten()
        blocks = torch.full_like(chosen, reading.block)
        self._parts.append(torch.stack([sources[chosen], blocks, reading.first + chosen], 1))
        self._values.append(values[chosen])
        if self._guides is not None and guides is not None:
            self._guides.append(torch.where(sources >= 0, 0.0, guides.double())[chosen])

    def children(self, suffix: Components, counter: Callable[[Components], int]) -> Children:
        """All that was added, largest absolute value first."""
        parts = [torch.tensor([(source, -1, -1) for source, _ in self._paths]).reshape(-1, 3)]
        values = [torch.tensor([value for _, value in self._paths], dtype=torch.float64)]
        # of a model on another device, numbers come to the host once for each suffix
        parts += [part.cpu() for part in self._parts]
        values += [part.double().cpu() for part in self._values]
        value = torch.cat(values)
        order = value.abs().argsort(descending=True, stable=True)
        guides = None
        if self._guides is not None:
            none = torch.zeros(len(self._paths), dtype=torch.float64)
            guides = torch.cat([none, *(part.cpu() for part in self._guides)])[order]
        return Children(suffix, torch.cat(parts).long()[order], value[order], guides, counter)
