"""Path sums on a frozen model, with paths as integers: a source and (block, head) pairs.

Two ways to add up all paths. *Enumerated*: each path by itself, sharing prefixes, so that a path
costs one head. *By order*: one stream for each number of heads, so that all paths of a deep model
cost a few frozen passes:

    X_k <- X_k + Σ_h A[h] X_{k-1} W_V W_O
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.frozen import FrozenModel, Stream

Heads = tuple[tuple[int, int], ...]


@dataclass
class PrefixStack:
    """The streams of one path and of all its prefixes; the next path reuses what they share."""

    model: FrozenModel
    source: int | None = None
    heads: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    streams: list[Stream | None] = field(default_factory=list["Stream | None"])

    def stream(self, source: int, heads: Heads) -> Stream | None:
        """The stream ``[batch, pos, d_model]`` that a path writes; None for ``b_U``'s path.

        A value bias's path begins with its own head, which its start already went through.
        """
        if source != self.source:
            first = self.model.sources[source].head
            self.source = source
            self.heads = [] if first is None else [first]
            self.streams = [self.model.start(source)]
        own = 0 if self.model.sources[source].head is None else 1
        shared = own
        while shared < min(len(heads), len(self.heads)) and heads[shared] == self.heads[shared]:
            shared += 1
        del self.heads[shared:], self.streams[shared - own + 1 :]
        for layer, index in heads[shared:]:
            last = self.streams[-1]
            if last is None:
                raise ValueError("the unembedding's bias passes through no head")
            self.heads.append((layer, index))
            self.streams.append(self.model.blocks[layer].head(index, last))
        return self.streams[-1]


@dataclass(frozen=True)
class Readout:
    """The columns of the unembedding and the positions that a caller wants."""

    W_U: Float[Tensor, "d_model chosen"]
    b_U: Float[Tensor, " chosen"] | None
    positions: list[int] | None

    @staticmethod
    def of(
        model: FrozenModel, positions: Sequence[int] | None, tokens: Sequence[int] | None
    ) -> Readout:
        """Choose positions (from 0) and token ids; None is all of them."""
        W_U, b_U = model.W_U, model.b_U
        if tokens is not None:
            W_U = W_U[:, list(tokens)]
            b_U = None if b_U is None else b_U[list(tokens)]
        return Readout(W_U, b_U, None if positions is None else list(positions))

    def logits(self, stream: Stream | None, model: FrozenModel) -> Float[Tensor, "batch at out"]:
        """What a path's stream adds to the chosen logits."""
        if stream is None:
            if self.b_U is None:
                raise ValueError("the model has no unembedding bias")
            at = model.length if self.positions is None else len(self.positions)
            return self.b_U.expand(model.batch, at, -1)
        chosen = stream if self.positions is None else stream[:, self.positions]
        return chosen @ self.W_U


def path_logits(
    model: FrozenModel,
    paths: Iterable[tuple[int, Heads]],
    positions: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
) -> Iterator[Float[Tensor, "batch at out"]]:
    """The logits ``[batch, positions, tokens]`` of each path, in the order given.

    Paths in depth-first order share prefixes: each costs one head and the unembedding.
    """
    readout = Readout.of(model, positions, tokens)
    stack = PrefixStack(model)
    for source, heads in paths:
        yield readout.logits(stack.stream(source, heads), model)


def order_streams(model: FrozenModel) -> Iterator[list[Stream]]:
    """Before block 0, 1, … and before the unembedding: the sum of all paths of each order.

    Each item is a list of ``[batch, pos, d_model]``, one for order 0, 1, …
    """
    streams = [model.written(0)]
    yield streams
    for layer, block in enumerate(model.blocks):
        grown = [*streams, torch.zeros_like(streams[0])]
        for index in range(block.heads):
            for order, stream in enumerate(streams):
                grown[order + 1] = grown[order + 1] + block.head(index, stream)
            if block.b_V is not None:
                grown[1] = grown[1] + block.value_bias(index)
        grown[0] = grown[0] + model.written(layer + 1)
        streams = grown
        yield streams
