"""Which path, or which head, is wrong where the terms of a step are not what their matrices give.

Each path is compared by itself with its own prefix sent through its last factor with about 100
bits, so what is wrong before it does not count again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from otimes.numeric.extended import Extended
from otimes.numeric.frozen import FrozenBlock, FrozenModel, Stream
from otimes.numeric.paths import Heads, PrefixStack, Readout
from otimes.numeric.rounding import gamma, roundings, underflow, unit_roundoff, worst_ratio


def wrong_paths(
    model: FrozenModel, paths: Iterable[tuple[int, Heads]], step: int
) -> Iterator[tuple[int, Heads]]:
    """The paths that are wrong in a step.

    Step 0 is the embedding, step ``l + 1`` is block ``l`` (paths that end there) and the last one
    the unembedding (all paths).
    """
    last = len(model.blocks) + 1
    stack, readout = PrefixStack(model), Readout.of(model, None, None)
    for source, heads in paths:
        if step == last:
            stream = stack.stream(source, heads)
            value = readout.logits(stream, model)
            exact, bound = _read_out(model, stream)
        elif step == (heads[-1][0] + 1 if heads else model.sources[source].entry):
            before = None if _starts_here(model, source, heads) else heads[:-1]
            prefix = None if before is None else stack.stream(source, before)
            value = stack.stream(source, heads)
            if value is None:
                continue
            exact, bound = _written(model, source, heads, prefix)
        else:
            continue
        if _differs(exact, value, bound):
            yield source, heads


def wrong_heads(model: FrozenModel, layer: int, stream: Stream) -> list[int]:
    """The heads of a block that do not do to ``stream`` what their matrices say."""
    block, found = model.blocks[layer], list[int]()
    for index in range(block.heads):
        exact, bound = _through(model, layer, index, stream)
        wrong = _differs(exact, block.head(index, stream), bound)
        if block.b_V is not None:
            exact, bound = _moved(model, layer, index, *_bias(model, block, index))
            wrong = wrong or _differs(exact, block.value_bias(index), bound)
        if wrong:
            found.append(index)
    return found


def _starts_here(model: FrozenModel, source: int, heads: Heads) -> bool:
    return not heads or (len(heads) == 1 and model.sources[source].head is not None)


def _differs(exact: Extended, value: Tensor, bound: Tensor) -> bool:
    difference, uncertainty = (exact - value.expand_as(exact.high)).rounded()
    return worst_ratio(difference.abs() - uncertainty, bound) > 1


def _written(
    model: FrozenModel, source: int, heads: Heads, prefix: Stream | None
) -> tuple[Extended, Tensor]:
    """What a path writes, given what its last head read, and a bound on roundings."""
    if prefix is not None:
        return _through(model, *heads[-1], prefix)
    if heads:
        layer, index = heads[-1]
        return _moved(model, layer, index, *_bias(model, model.blocks[layer], index))
    stream = model.sources[source].stream
    like = torch.zeros(model.batch, model.length, model.W_U.shape[0], dtype=torch.float64)
    exact = like if stream is None else stream.double().expand_as(like)
    return Extended.of(exact), like + underflow(model.dtype)


def _through(model: FrozenModel, layer: int, index: int, stream: Stream) -> tuple[Extended, Tensor]:
    block = model.blocks[layer]
    W_V = block.W_V[index // block.group].double()
    value, size = Extended.of(stream) @ W_V, stream.double().abs() @ W_V.abs()
    return _moved(model, layer, index, value, size)


def _bias(model: FrozenModel, block: FrozenBlock, index: int) -> tuple[Extended, Tensor]:
    assert block.b_V is not None
    bias = block.b_V[index // block.group].double().expand(model.batch, model.length, -1)
    return Extended.of(bias), bias.abs()


def _moved(
    model: FrozenModel, layer: int, index: int, value: Extended, size: Tensor
) -> tuple[Extended, Tensor]:
    block = model.blocks[layer]
    pattern, W_O = block.pattern[:, index].double(), block.W_O[index].double()
    relative = gamma(roundings(model, layer), unit_roundoff(model.dtype))
    bound = relative * (pattern.abs() @ size @ W_O.abs()) + underflow(model.dtype)
    return Extended.of(pattern) @ value @ W_O, bound


def _read_out(model: FrozenModel, stream: Stream | None) -> tuple[Extended, Tensor]:
    W_U, least = model.W_U.double(), underflow(model.dtype)
    if stream is None:
        bias = torch.zeros(W_U.shape[1]) if model.b_U is None else model.b_U
        exact = bias.double().expand(model.batch, model.length, -1)
        return Extended.of(exact), torch.full_like(exact, least)
    relative = gamma(W_U.shape[0] + 2, unit_roundoff(model.dtype))
    return Extended.of(stream) @ W_U, relative * (stream.double().abs() @ W_U.abs()) + least
