"""Path sums on a frozen model, with paths as integers: a source and (block, component) pairs.

Two ways to add up all paths. *Enumerated*: each path by itself, sharing prefixes, so that a path
costs one component. *By order*: one stream for each number of heads, so that all paths of a deep
model cost a few frozen passes:

    X_k <- skip(X_k) + neurons(X_k) + Σ_h A[h] X_{k-1} W_V W_O
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.frozen import FrozenModel, Stream

Components = tuple[tuple[int, int], ...]


def carried(model: FrozenModel, stream: Stream, boundary: int, until: int) -> Stream:
    """A stream that stands before block ``boundary``, past the skip edges until block ``until``."""
    for block in model.blocks[boundary:until]:
        if not block.skip.is_identity:
            stream = block.skip.apply(stream)
    return stream


def boundary_of(model: FrozenModel, source: int, components: Components) -> int:
    """The first block that can read what a path writes."""
    return components[-1][0] + 1 if components else model.sources[source].entry


@dataclass
class PrefixStack:
    """The streams of one path and of all its prefixes; the next path reuses what they share."""

    model: FrozenModel
    source: int | None = None
    components: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    streams: list[Stream | None] = field(default_factory=list["Stream | None"])

    def stream(self, source: int, components: Components) -> Stream | None:
        """The stream ``[batch, pos, d_model]`` that a path writes right behind its last component.

        None for the path of ``b_U``. A constant inside a component begins with that component,
        which its start already went through.
        """
        if source != self.source:
            first = self.model.sources[source].component
            self.source = source
            self.components = [] if first is None else [first]
            self.streams = [self.model.start(source)]
        own = 0 if self.model.sources[source].component is None else 1
        shared, most = own, min(len(components), len(self.components))
        while shared < most and components[shared] == self.components[shared]:
            shared += 1
        del self.components[shared:], self.streams[shared - own + 1 :]
        for number, index in components[shared:]:
            last = self.streams[-1]
            if last is None:
                raise ValueError("the unembedding's bias passes through no component")
            before = boundary_of(self.model, source, tuple(self.components[-1:]))
            read = carried(self.model, last, before, number)
            self.components.append((number, index))
            self.streams.append(self.model.blocks[number].component(index, read))
        return self.streams[-1]

    def output(self, source: int, components: Components) -> Stream | None:
        """What the unembedding reads of a path; None for the path of ``b_U``."""
        stream, found = self.stream(source, components), self.model.sources[source]
        if stream is None or found.joins == "unembed":
            return None if stream is None else self.model.direction(stream)
        before = boundary_of(self.model, source, components)
        return self.model.read(carried(self.model, stream, before, self.model.depth))


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

    def logits(self, output: Stream | None, model: FrozenModel) -> Float[Tensor, "*lead at out"]:
        """The chosen logits of what the unembedding reads; of None: those of ``b_U``."""
        if output is None:
            if self.b_U is None:
                raise ValueError("the model has no unembedding bias")
            at = model.length if self.positions is None else len(self.positions)
            return self.b_U.expand(model.batch, at, -1)
        chosen = output if self.positions is None else output[..., self.positions, :]
        return chosen @ self.W_U


def path_logits(
    model: FrozenModel,
    paths: Iterable[tuple[int, Components]],
    positions: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
) -> Iterator[Float[Tensor, "batch at out"]]:
    """The logits ``[batch, positions, tokens]`` of each path, in the order given.

    Paths in depth-first order share prefixes: each costs one component and the unembedding.
    """
    readout = Readout.of(model, positions, tokens)
    stack = PrefixStack(model)
    for source, components in paths:
        yield readout.logits(stack.output(source, components), model)


def order_streams(model: FrozenModel) -> Iterator[Float[Tensor, "order batch pos d_model"]]:
    """Before block 0, 1, … and behind the last: the sum of all paths of each order.

    Each item is ``[order, batch, pos, d_model]``; the orders grow by one with each block that has
    heads. Constants inside heads have order 1, all other sources order 0.
    """
    streams = model.written(0)[None]
    yield streams
    for number, block in enumerate(model.blocks):
        passed, heads, neurons = block.skip.apply(streams), block.attention, block.mlp
        first = model.written(number + 1)
        if neurons is not None and neurons.size:
            passed = passed + neurons.written(neurons.moved(streams))
            constant = neurons.constant()
            if constant is not None:
                first = first + neurons.written(constant)
        later = streams.new_empty(len(streams) + int(block.heads > 0), *streams.shape[1:])
        torch.add(passed[0], first, out=later[0])
        if heads is not None and heads.size:
            moved, constant = heads.moved(streams), heads.constant()
            if constant is not None:
                moved[0] += constant
            written = heads.written(moved)
            # one more head: order k of what was read is order k + 1
            torch.add(passed[1:], written[:-1], out=later[1:-1])
            later[-1] = written[-1]
        else:
            later[1:] = passed[1:]
        streams = model.reduced(later)
        yield streams


def order_outputs(model: FrozenModel) -> Float[Tensor, "order batch pos d_model"]:
    """What the unembedding reads of all paths of each order, without ``b_U``."""
    return outputs_of(model, last_of(order_streams(model)))


def last_of(streams: Iterable[Tensor]) -> Tensor:
    """The last of several, without keeping those before it."""
    return deque(streams, maxlen=1).pop()


def outputs_of(
    model: FrozenModel, streams: Float[Tensor, "order batch pos d_model"]
) -> Float[Tensor, "order batch pos d_model"]:
    """What the unembedding reads of the last streams of each order."""
    outputs, joined = model.read(streams), model.unembedded()
    if joined is not None:
        outputs = torch.cat([(outputs[0] + model.direction(joined))[None], outputs[1:]])
    return outputs
