"""Branches whose tensors are made again at each use, because they do not fit a budget together.

A branch of weights that are stored narrowly, or of patterns that are computed from a stream, holds
as much as all its tensors once they are made. These hold how each is made instead: what reads a
field gets a fresh tensor, which lives as long as the product that it is used in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from otimes.numeric.branches import FrozenHeads, FrozenNeurons
from otimes.numeric.edges import IDENTITY, FrozenEdge, cast, row
from otimes.numeric.frozen import FrozenBlock


@dataclass(frozen=True)
class Remade:
    """A tensor of known shape and dtype that ``make`` makes, the same one each time."""

    make: Callable[[], Tensor]
    shape: torch.Size
    dtype: torch.dtype

    def then(self, change: Callable[[Tensor], Tensor]) -> Remade:
        """The tensor changed, made at each use as well."""
        # only the shape is needed: a tensor without storage has it
        like = change(torch.empty(self.shape, dtype=self.dtype, device="meta"))
        return Remade(lambda: change(self.make()), like.shape, like.dtype)


Held = Tensor | Remade
"""A tensor, or how it is made."""


def changed(value: Held, change: Callable[[Tensor], Tensor]) -> Held:
    """A change of a tensor, or of how it is made."""
    return value.then(change) if isinstance(value, Remade) else change(value)


class _Fields:
    """The tensors of a branch by the names of its fields, made when they are read."""

    def _hold(self, **held: Held) -> None:
        vars(self)["_held"] = held

    def __getattr__(self, name: str) -> Tensor:
        # called for names that the instance does not have: fields of the class without a value
        held: dict[str, Held] = vars(self).get("_held", {})
        if name not in held:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        found = held[name]
        return found.make() if isinstance(found, Remade) else found


class RemadeHeads(_Fields, FrozenHeads):
    """Heads whose patterns and weights may be made again at each use."""

    def __init__(
        self,
        pattern: Held,
        W_V: Held,
        W_O: Held,
        b_V: Tensor | None = None,
        reads: FrozenEdge = IDENTITY,
        writes: FrozenEdge = IDENTITY,
    ) -> None:
        """Take each field of :class:`FrozenHeads` as a tensor, or as how it is made."""
        self._hold(pattern=pattern, W_V=W_V, W_O=W_O)
        vars(self).update(b_V=b_V, reads=reads, writes=writes)

    @property
    def size(self) -> int:
        """The number of query heads."""
        return self._held["W_O"].shape[0]

    @property
    def width(self) -> int:
        """``d_head``."""
        return self._held["W_O"].shape[1]

    @property
    def group(self) -> int:
        """How many query heads share a KV head."""
        kv = self._held["W_V"].shape[0]
        return self.size // kv if kv else 1

    def flat_values(self) -> Tensor:
        """``W_V`` of all KV heads side by side; it is not kept."""
        W_V = self.W_V
        return W_V.transpose(0, 1).reshape(W_V.shape[1], -1)

    def to(self, dtype: torch.dtype) -> FrozenHeads:
        """The heads with all tensors in ``dtype``."""
        if self._held["pattern"].dtype == dtype:
            return self
        held = {name: changed(one, lambda t: t.to(dtype)) for name, one in self._held.items()}
        edges = self.reads.to(dtype), self.writes.to(dtype)
        return RemadeHeads(held["pattern"], held["W_V"], held["W_O"], cast(self.b_V, dtype), *edges)

    def sequence(self, index: int) -> FrozenHeads:
        """The heads on one sequence of the batch."""
        held = self._held
        pattern = changed(held["pattern"], lambda pattern: row(pattern, index))
        edges = self.reads.sequence(index), self.writes.sequence(index)
        return RemadeHeads(pattern, held["W_V"], held["W_O"], self.b_V, *edges)

    _held: dict[str, Held]


class RemadeNeurons(_Fields, FrozenNeurons):
    """Neurons whose slopes and weights may be made again at each use."""

    def __init__(
        self,
        slope: Held,
        W_in: Held,
        W_out: Held,
        b_in: Tensor | None = None,
        reads: FrozenEdge = IDENTITY,
        writes: FrozenEdge = IDENTITY,
    ) -> None:
        """Take each field of :class:`FrozenNeurons` as a tensor, or as how it is made."""
        self._hold(slope=slope, W_in=W_in, W_out=W_out)
        vars(self).update(b_in=b_in, reads=reads, writes=writes)

    @property
    def size(self) -> int:
        """The number of neurons."""
        return self._held["W_in"].shape[1]

    def to(self, dtype: torch.dtype) -> FrozenNeurons:
        """The neurons with all tensors in ``dtype``."""
        if self._held["slope"].dtype == dtype:
            return self
        held = {name: changed(one, lambda t: t.to(dtype)) for name, one in self._held.items()}
        edges = self.reads.to(dtype), self.writes.to(dtype)
        return RemadeNeurons(
            held["slope"], held["W_in"], held["W_out"], cast(self.b_in, dtype), *edges
        )

    def sequence(self, index: int) -> FrozenNeurons:
        """The neurons on one sequence of the batch."""
        held = self._held
        slope = changed(held["slope"], lambda slope: row(slope, index))
        edges = self.reads.sequence(index), self.writes.sequence(index)
        return RemadeNeurons(slope, held["W_in"], held["W_out"], self.b_in, *edges)

    _held: dict[str, Held]


class RemadeBlocks(Sequence[FrozenBlock]):
    """Blocks that are changed at each use."""

    def __init__(
        self, blocks: Sequence[FrozenBlock], change: Callable[[int, FrozenBlock], FrozenBlock]
    ) -> None:
        """``change(number, block)`` makes each block."""
        self._blocks, self._change = blocks, change

    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, index: int) -> FrozenBlock: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[FrozenBlock, ...]: ...
    def __getitem__(self, index: int | slice) -> FrozenBlock | tuple[FrozenBlock, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        number = range(len(self))[index]
        return self._change(number, self._blocks[number])


def each_block(
    blocks: Sequence[FrozenBlock], change: Callable[[int, FrozenBlock], FrozenBlock]
) -> Sequence[FrozenBlock]:
    """All blocks changed: at each use where their tensors are made again, else at once."""
    remade = isinstance(blocks, RemadeBlocks) or any(
        isinstance(branch, RemadeHeads | RemadeNeurons)
        for block in blocks
        for branch in block.branches
    )
    if remade:
        return RemadeBlocks(blocks, change)
    return tuple(change(number, block) for number, block in enumerate(blocks))
