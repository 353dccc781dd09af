"""The frozen model as linear operators: integers and tensors, no symbols.

With the patterns, norm scales and slopes of a recorded run held fixed, block ``l`` is the affine
map

    F_l(x) = skip(x) + Σ_c component_c(x) + Σ_c constant_c + (what other sources write after it)

on streams ``x [batch, pos, d_model]``. A head alone is ``x -> A[h] x W_V W_O``, which is ``(A ⊗
W_OV) x``, between the edges that its branch reads and writes through. The logits are

    (μ e_final(x) + what joins behind the final norm) W_U + b_U.

Blocks are numbered as the algebra numbers them: one a layer, or one for each branch of a layer
where both branches have components and do not read the same stream. The components of a block are
its heads, then its neurons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.branches import Branch, FrozenHeads, FrozenNeurons, Moved
from otimes.numeric.edges import IDENTITY, FrozenEdge, Stream, cast, magnitude, row

__all__ = [
    "Branch",
    "FrozenBlock",
    "FrozenEdge",
    "FrozenHeads",
    "FrozenModel",
    "FrozenNeurons",
    "FrozenSource",
    "Moved",
    "Stream",
]

Joins = Literal["stream", "unembed", "logits"]


@dataclass(frozen=True)
class FrozenBlock:
    """One step of the stream: its branches beside its skip edge."""

    attention: FrozenHeads | None = None
    mlp: FrozenNeurons | None = None
    skip: FrozenEdge = IDENTITY

    @cached_property
    def branches(self) -> tuple[Branch, ...]:
        """The branches that have components, heads first."""
        return tuple(b for b in (self.attention, self.mlp) if b is not None and b.size)

    @property
    def heads(self) -> int:
        """The number of heads."""
        return 0 if self.attention is None else self.attention.size

    @property
    def components(self) -> int:
        """The number of heads and neurons."""
        return sum(branch.size for branch in self.branches)

    def of(self, index: int) -> tuple[Branch, int]:
        """The branch of a component and its number there."""
        if index < self.heads:
            assert self.attention is not None
            return self.attention, index
        if self.mlp is None or index >= self.components:
            raise IndexError(f"no component {index}: the block has {self.components}")
        return self.mlp, index - self.heads

    def component(self, index: int, stream: Stream) -> Stream:
        """What a component alone writes when it reads ``stream``, without its constant."""
        branch, number = self.of(index)
        return branch.component(number, stream)

    def component_constant(self, index: int) -> Stream:
        """What a component writes of the constant that it adds inside itself."""
        branch, number = self.of(index)
        return branch.component_constant(number)

    def written(self, stream: Stream) -> Stream:
        """What all components write when they read ``stream``, without constants."""
        parts = [branch.written(branch.moved(stream)) for branch in self.branches]
        return sum(parts[1:], parts[0]) if parts else torch.zeros_like(stream)

    def apply(self, stream: Stream) -> Stream:
        """The block's linear map: skip edge and components, without constants."""
        through = self.skip.apply(stream)
        for branch in self.branches:
            through = through + branch.written(branch.moved(stream))
        return through

    def adjoint(self, gradient: Stream) -> Stream:
        """The adjoint of :meth:`apply`: the gradient of what is read, given that of the output."""
        back = self.skip.adjoint(gradient)
        for branch in self.branches:
            back = back + branch.moved_adjoint(branch.written_adjoint(gradient))
        return back

    def constant(self) -> Stream | None:
        """What all components write of their own constants; None where they have none."""
        found: Stream | None = None
        for branch in self.branches:
            moved = branch.constant()
            if moved is not None:
                written = branch.written(moved)
                found = written if found is None else found + written
        return found

    def absolute(self) -> FrozenBlock:
        """The block for magnitudes: the absolute value of every factor."""
        return FrozenBlock(
            None if self.attention is None else self.attention.absolute(),
            None if self.mlp is None else self.mlp.absolute(),
            self.skip.absolute(),
        )

    def to(self, dtype: torch.dtype) -> FrozenBlock:
        """The block with all tensors in ``dtype``."""
        return FrozenBlock(
            None if self.attention is None else self.attention.to(dtype),
            None if self.mlp is None else self.mlp.to(dtype),
            self.skip.to(dtype),
        )

    def sequence(self, index: int) -> FrozenBlock:
        """The block on one sequence of the batch."""
        return FrozenBlock(
            None if self.attention is None else self.attention.sequence(index),
            None if self.mlp is None else self.mlp.sequence(index),
            self.skip.sequence(index),
        )


@dataclass(frozen=True)
class FrozenPart:
    """A vector at each position, ``[batch or 1, pos or 1, d_model]``, and the edge behind it."""

    stream: Float[Tensor, "rows places d_model"]
    edge: FrozenEdge = IDENTITY

    @property
    def written(self) -> Float[Tensor, "batch places d_model"]:
        """What the part adds to the stream."""
        return self.edge.apply(self.stream)


@dataclass(frozen=True)
class FrozenSource:
    """What a source writes, and where.

    It adds the sum of its ``parts`` before block ``entry`` (the number of blocks: behind the last
    one), or behind the final norm where it ``joins`` the unembedding. A constant inside a
    component has that ``component`` (block, index) and no parts; its ``entry`` is behind its block.
    The unembedding's bias ``joins`` the logits, has no parts and adds ``b_U`` to them.
    """

    entry: int
    parts: tuple[FrozenPart, ...] = ()
    component: tuple[int, int] | None = None
    joins: Joins = "stream"

    @staticmethod
    def of(entry: int, stream: Tensor, joins: Joins = "stream") -> FrozenSource:
        """A source that writes one stream as it is."""
        return FrozenSource(entry, (FrozenPart(stream),), None, joins)

    def absolute(self) -> FrozenSource:
        """The source's magnitude."""
        return replace(
            self, parts=tuple(FrozenPart(p.stream.abs(), p.edge.absolute()) for p in self.parts)
        )


@dataclass(frozen=True)
class FrozenModel:
    """All blocks, all sources, the final edge, ``W_U [d_model, d_vocab]`` and ``b_U [d_vocab]``.

    ``final`` is the norm before the unembedding; ``multiplier`` multiplies what is unembedded.
    """

    blocks: Sequence[FrozenBlock]
    sources: tuple[FrozenSource, ...]
    W_U: Float[Tensor, "d_model d_vocab"]
    b_U: Float[Tensor, " d_vocab"] | None
    batch: int
    length: int
    final: FrozenEdge = IDENTITY
    multiplier: float = 1.0

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all its tensors."""
        return self.W_U.dtype

    def zeros(self) -> Stream:
        """A stream of zeros ``[batch, pos, d_model]``."""
        return self.W_U.new_zeros(self.batch, self.length, self.W_U.shape[0])

    def start(self, number: int) -> Stream | None:
        """What source ``number`` writes, in full shape; None for the unembedding's bias."""
        source = self.sources[number]
        if source.component is not None:
            block, index = source.component
            return self.blocks[block].component_constant(index).expand_as(self.zeros())
        if source.joins == "logits":
            return None
        return _total(source, self.zeros())

    def written(self, entry: int) -> Stream:
        """What sources that are no component's constant add before block ``entry``."""
        total = self.zeros()
        for source in self.sources:
            if source.entry == entry and source.component is None and source.joins == "stream":
                total = _total(source, total)
        return total

    def unembedded(self) -> Stream | None:
        """What sources add behind the final norm; None where there is no such source."""
        found = [source for source in self.sources if source.joins == "unembed"]
        total = self.zeros()
        for source in found:
            total = _total(source, total)
        return total if found else None

    def added(self, entry: int) -> Stream:
        """All that is added before block ``entry``: sources, and constants of components."""
        total = self.written(entry)
        constant = self.blocks[entry - 1].constant() if entry else None
        return total if constant is None else total + constant

    def forward(self) -> list[Stream]:
        """The streams before every block and behind the last: ``depth + 1`` of them."""
        streams = [self.added(0)]
        for number, block in enumerate(self.blocks):
            streams.append(block.apply(streams[-1]) + self.added(number + 1))
        return streams

    def read(self, stream: Stream) -> Stream:
        """What the unembedding reads of the last stream: ``μ e_final(x)``."""
        return self._multiplied(self.final.apply(stream))

    def direction(self, weights: Float[Tensor, "*lead d_model"]) -> Tensor:
        """``μ u``: what stands behind the norm, or a direction of the unembedding, multiplied."""
        return self._multiplied(weights)

    def _multiplied(self, value: Tensor) -> Tensor:
        return value if self.multiplier == 1 else value * self.multiplier

    def reduced(self, stream: Stream) -> Stream:
        """A stream as later blocks may read it: as it is; residues are reduced."""
        return stream

    def to(self, dtype: torch.dtype) -> FrozenModel:
        """The model with all tensors in ``dtype``."""
        return replace(
            self,
            blocks=tuple(block.to(dtype) for block in self.blocks),
            sources=tuple(
                replace(
                    source,
                    parts=tuple(
                        FrozenPart(part.stream.to(dtype), part.edge.to(dtype))
                        for part in source.parts
                    ),
                )
                for source in self.sources
            ),
            W_U=self.W_U.to(dtype),
            b_U=cast(self.b_U, dtype),
            final=self.final.to(dtype),
        )

    def absolute(self) -> FrozenModel:
        """The model for magnitudes: the absolute value of every factor and source."""
        return replace(
            self,
            blocks=tuple(block.absolute() for block in self.blocks),
            sources=tuple(source.absolute() for source in self.sources),
            W_U=self.W_U.abs(),
            b_U=magnitude(self.b_U),
            final=self.final.absolute(),
            multiplier=abs(self.multiplier),
        )

    def sequence(self, index: int) -> FrozenModel:
        """The model on one sequence of the batch."""
        return replace(
            self,
            blocks=tuple(block.sequence(index) for block in self.blocks),
            sources=tuple(
                replace(
                    source,
                    parts=tuple(
                        FrozenPart(row(part.stream, index), part.edge.sequence(index))
                        for part in source.parts
                    ),
                )
                for source in self.sources
            ),
            batch=1,
            final=self.final.sequence(index),
        )


def _total(source: FrozenSource, onto: Stream) -> Stream:
    for part in source.parts:
        onto = onto + part.written
    return onto
