"""The engine's side of a verification: sums over paths as traces, with their parts.

A trace's stream before block l is the sum of the streams of all paths that end before it, added
with compensation, so that what is measured is the rounding of the parts and not of the sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from otimes.numeric.extended import Extended
from otimes.numeric.frozen import FrozenModel, Stream
from otimes.numeric.paths import Heads, PrefixStack, Readout, order_streams
from otimes.numeric.rounding import Trace


@dataclass(frozen=True)
class PathTrace:
    """A trace, the parts that stand before each block, and how many paths were added up.

    ``parts[l]`` are the streams whose sum is the input of block l: one for each path, or one for
    each order where ``by_order`` says so.
    """

    trace: Trace
    parts: tuple[tuple[Stream, ...], ...]
    count: int
    by_order: bool = False


class _Adder:
    def __init__(self, like: Tensor) -> None:
        self.total = Extended.of(torch.zeros_like(like, dtype=torch.float64))
        self.magnitude = torch.zeros_like(like, dtype=torch.float64)

    def add(self, part: Tensor) -> None:
        self.total = self.total + part
        self.magnitude = self.magnitude + part.double().abs()


def enumerated_trace(model: FrozenModel, paths: Iterable[tuple[int, Heads]]) -> PathTrace:
    """Evaluate each path by itself, in the model's dtype, and add them all up."""
    depth = len(model.blocks)
    like = model.written(0)
    ending = [_Adder(like) for _ in range(depth + 1)]  # by the first block that can read the path
    parts: list[list[Stream]] = [[] for _ in range(depth + 1)]
    logits = Extended.of(like.new_zeros(model.batch, model.length, model.W_U.shape[1]).double())
    stack, readout, count = PrefixStack(model), Readout.of(model, None, None), 0
    for source, heads in paths:
        count += 1
        stream = stack.stream(source, heads)
        logits = logits + readout.logits(stream, model)
        if stream is not None:
            entry = heads[-1][0] + 1 if heads else model.sources[source].entry
            ending[entry].add(stream)
            if entry < depth:
                parts[entry].append(stream)
    streams, magnitudes, standing = [ending[0].total], [ending[0].magnitude], [tuple(parts[0])]
    for entry in range(1, depth + 1):
        streams.append(streams[-1] + ending[entry].total)
        magnitudes.append(magnitudes[-1] + ending[entry].magnitude)
        standing.append((*standing[-1], *parts[entry]))
    trace = Trace(model.dtype, tuple(streams), tuple(magnitudes), logits, count)
    return PathTrace(trace, tuple(standing[:depth]), count)


def order_trace(model: FrozenModel, count: int) -> PathTrace:
    """Add up all ``count`` paths grouped by order: one stream for each number of heads."""
    readout = Readout.of(model, None, None)
    streams, magnitudes, parts = list[Extended](), list[Tensor](), list[tuple[Stream, ...]]()
    orders = list[Stream]()
    for orders in order_streams(model):
        adder = _Adder(orders[0])
        for stream in orders:
            adder.add(stream)
        streams.append(adder.total)
        magnitudes.append(adder.magnitude)
        parts.append(tuple(orders))
    logits = Extended.of(readout.logits(orders[0], model))
    for stream in orders[1:]:
        logits = logits + readout.logits(stream, model)
    if model.b_U is not None:
        logits = logits + readout.logits(None, model)
    trace = Trace(model.dtype, tuple(streams), tuple(magnitudes), logits, len(orders) + 1)
    return PathTrace(trace, tuple(parts[:-1]), count, by_order=True)
