"""The engine's side of a verification: sums over paths as traces, with their parts.

A trace's stream before block l is the sum of the streams of all paths that end before it, added
with compensation, so that what is measured is the rounding of the parts and not of the sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from otimes.numeric.chosen import Chosen, of_bias, unembed
from otimes.numeric.extended import Extended, sum_of
from otimes.numeric.frozen import FrozenModel, Stream
from otimes.numeric.paths import (
    Components,
    PrefixStack,
    Readout,
    boundary_of,
    order_streams,
    outputs_of,
)
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


def enumerated_trace(
    model: FrozenModel, paths: Iterable[tuple[int, Components]], chosen: Chosen | None = None
) -> PathTrace:
    """Evaluate each path by itself, in the model's dtype, and add them all up.

    With ``chosen`` these logits alone are read out.
    """
    like = model.zeros()
    ending: list[list[Stream]] = [[] for _ in range(model.depth + 1)]
    last = _Adder(like)  # what no block reads need not be kept
    nothing = unembed(like, model.W_U, chosen) * 0  # the shape of what is read out
    logits, stack, count = Extended.of(nothing.double()), PrefixStack(model), 0
    readout = Readout.of(model, None, None)
    for source, components in paths:
        count += 1
        stream = stack.stream(source, components)
        output = stack.output(source, components)
        if chosen is None:
            logits = logits + readout.logits(output, model)
        elif output is not None:
            logits = logits + unembed(output, model.W_U, chosen)
        elif model.b_U is not None:
            logits = logits + of_bias(model.b_U, chosen)
        if stream is not None and model.sources[source].joins == "stream":
            boundary = boundary_of(model, source, components)
            if boundary == model.depth:
                last.add(stream)
            else:
                ending[boundary].append(stream)
    standing = list[tuple[Stream, ...]]()
    streams, magnitudes = list[Extended](), list[Tensor]()
    adder = _Adder(like)
    for boundary, ended in enumerate(ending):
        if boundary and not model.blocks[boundary - 1].skip.is_identity:
            passed = [model.blocks[boundary - 1].skip.apply(part) for part in standing[-1]]
            adder = _Adder(like)
            for part in passed:
                adder.add(part)
        else:
            passed = list(standing[-1]) if boundary else []
        for part in ended:
            adder.add(part)
        standing.append((*passed, *ended))
        streams.append(adder.total)
        magnitudes.append(adder.magnitude)
    streams[-1], magnitudes[-1] = streams[-1] + last.total, magnitudes[-1] + last.magnitude
    trace = Trace(
        model.dtype, tuple(streams), tuple(magnitudes), logits, count, alone=True, chosen=chosen
    )
    return PathTrace(trace, tuple(standing[:-1]), count)


def order_trace(model: FrozenModel, count: int, chosen: Chosen | None = None) -> PathTrace:
    """Add up all ``count`` paths grouped by order: one stream for each number of heads.

    With ``chosen`` these logits alone are read out, and all orders but the first are one part.
    """
    streams, magnitudes, parts = list[Extended](), list[Tensor](), list[tuple[Stream, ...]]()
    orders = model.zeros()[None]
    for orders in order_streams(model):
        total, magnitude = sum_of(orders.unbind())
        streams.append(total)
        magnitudes.append(magnitude)
        if chosen is None or len(orders) == 1:
            parts.append(tuple(orders))
        else:
            parts.append((orders[0].clone(), orders[1:].sum(0)))
    outputs = outputs_of(model, orders)
    logits = Extended.of(unembed(outputs[0], model.W_U, chosen))
    for output in outputs[1:]:
        logits = logits + unembed(output, model.W_U, chosen)
    if model.b_U is not None:
        logits = logits + of_bias(model.b_U, chosen).expand_as(logits.high)
    trace = Trace(
        model.dtype, tuple(streams), tuple(magnitudes), logits, len(outputs) + 1, chosen=chosen
    )
    return PathTrace(trace, tuple(parts[:-1]), count, by_order=True)
