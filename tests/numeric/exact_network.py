"""A frozen model of any shape in fractions, as the obvious recursion over components."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from torch import Tensor

from otimes.numeric.edges import FrozenEdge
from otimes.numeric.frozen import FrozenHeads, FrozenModel, FrozenNeurons, FrozenSource
from tests.kit import fractions

NOTHING = Fraction(0)


@dataclass(frozen=True)
class Exact:
    """Streams before each block and behind the last, and logits, as arrays of fractions."""

    streams: list[np.ndarray]
    logits: np.ndarray


def edge(found: FrozenEdge, x: np.ndarray) -> np.ndarray:
    """``μ D (x C) diag(g)``; the mean is exactly a sum over d_model, divided by it."""
    if found.centred:
        x = x - x.sum(-1, keepdims=True) / Fraction(x.shape[-1])
    x = x if found.scale is None else x * fractions(found.scale)[..., None]
    x = x if found.gain is None else x * fractions(found.gain)
    return x * Fraction(found.multiplier)


def or_zero(value: Tensor | None) -> np.ndarray | Fraction:
    return NOTHING if value is None else fractions(value)


def block(model: FrozenModel, number: int, x: np.ndarray) -> np.ndarray:
    """``F_l`` with all its constants and the sources that enter behind it."""
    found = model.blocks[number]
    total = edge(found.skip, x)
    for branch in found.branches:
        read = edge(branch.reads, x) + or_zero(branch.reads.bias)
        if isinstance(branch, FrozenHeads):
            for h in range(branch.size):
                kv = h // branch.group
                value = read @ fractions(branch.W_V[kv])
                value = value + (NOTHING if branch.b_V is None else fractions(branch.b_V[kv]))
                patterns = fractions(branch.pattern[:, h])
                moved = np.stack([a @ v for a, v in zip(patterns, value, strict=True)])
                total = total + edge(branch.writes, moved @ fractions(branch.W_O[h]))
        else:
            assert isinstance(branch, FrozenNeurons)
            value = (read @ fractions(branch.W_in) + or_zero(branch.b_in)) * fractions(branch.slope)
            total = total + edge(branch.writes, value @ fractions(branch.W_out))
    return total + entering(model, number + 1)


def source_value(model: FrozenModel, source: FrozenSource) -> np.ndarray:
    shape = (model.batch, model.length, model.W_U.shape[0])
    total = np.full(shape, NOTHING)
    for part in source.parts:
        total = total + edge(part.edge, np.broadcast_to(fractions(part.stream), shape))
    return total


def entering(model: FrozenModel, entry: int) -> np.ndarray | Fraction:
    found = [s for s in model.sources if s.entry == entry and s.joins == "stream"]
    return sum((source_value(model, source) for source in found), NOTHING)


def unembedded(model: FrozenModel, x: np.ndarray) -> np.ndarray:
    read = edge(model.final, x)
    for source in model.sources:
        if source.joins == "unembed":
            read = read + source_value(model, source)
    return Fraction(model.multiplier) * read @ fractions(model.W_U) + or_zero(model.b_U)


def exact_network(model: FrozenModel) -> Exact:
    streams = [np.full((model.batch, model.length, model.W_U.shape[0]), NOTHING)]
    streams[0] = streams[0] + entering(model, 0)
    for number in range(model.depth):
        streams.append(block(model, number, streams[-1]))
    return Exact(streams, unembedded(model, streams[-1]))
