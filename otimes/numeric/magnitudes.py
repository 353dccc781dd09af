"""What a priori bounds on rounding are made of: counts of roundings, and absolute values.

A sum of products with at most n roundings between any input and its output is off by at most
``γ_n`` times the same sum of absolute values, whatever the order of summation and with or without
fused multiply-add (Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 3.5).
"""

from __future__ import annotations

import torch
from torch import Tensor

from otimes.numeric.chosen import Chosen, of_bias, unembed
from otimes.numeric.edges import FrozenEdge
from otimes.numeric.extended import UNDERFLOW
from otimes.numeric.frozen import FrozenBlock, FrozenModel, FrozenPart, FrozenSource
from otimes.numeric.measured import entering


def unit_roundoff(dtype: torch.dtype) -> float:
    """2^-53 for float64, 2^-24 for float32."""
    return torch.finfo(dtype).eps / 2


def underflow(dtype: torch.dtype) -> float:
    """More than the underflows of one step can add up to."""
    return UNDERFLOW if dtype == torch.float64 else 1e-30


def gamma(count: int, unit: float) -> float:
    """``γ_n = n u / (1 - n u)``: the relative error of n roundings."""
    return count * unit / (1 - count * unit)


def edge_roundings(edge: FrozenEdge, d_model: int) -> int:
    """At most so many roundings lie between an edge's input and its output."""
    return edge.roundings + (d_model if edge.centred else 0)


def roundings(model: FrozenModel, number: int, *, alone: bool = False) -> int:
    """At most so many roundings lie between an input of block ``number`` and its output.

    ``alone``: where each component is computed by itself and its value kept apart.
    """
    block, d_model = model.blocks[number], model.W_U.shape[0]
    count = d_model + model.length + 8 + edge_roundings(block.skip, d_model)
    for branch in block.branches:
        count += (1 if alone else branch.size) * (branch.width + 2)
        count += edge_roundings(branch.reads, d_model) + edge_roundings(branch.writes, d_model)
    for source in entering(model, number + 1):
        count += sum(edge_roundings(part.edge, d_model) + 1 for part in source.parts)
    return count


def linear_block(block: FrozenBlock, stream: Tensor, *, absolute: bool = False) -> Tensor:
    """``F_l`` without its constants, in float64; ``absolute``: with every factor's magnitude."""
    block = block.to(torch.float64)
    return (block.absolute() if absolute else block).apply(stream)


def block_magnitude(model: FrozenModel, number: int, magnitude: Tensor) -> Tensor:
    """``F_l`` of a magnitude, with the absolute value of every factor and constant."""
    block = model.blocks[number].to(torch.float64).absolute()
    total, constant = block.apply(magnitude), block.constant()
    if constant is not None:
        total = total + constant
    for source in entering(model, number + 1):
        total = total + source_magnitude(source)
    return total


def source_magnitude(source: FrozenSource) -> Tensor:
    """The magnitude of what a source writes, in float64."""
    parts = [
        FrozenPart(part.stream.double().abs(), part.edge.to(torch.float64).absolute()).written
        for part in source.parts
    ]
    return sum(parts[1:], parts[0])


def absolute_read(model: FrozenModel, magnitude: Tensor) -> Tensor:
    """What the unembedding reads, for magnitudes, in float64."""
    return abs(model.multiplier) * model.final.to(torch.float64).absolute().apply(magnitude)


def logits_magnitude(model: FrozenModel, magnitude: Tensor, chosen: Chosen | None = None) -> Tensor:
    """The logits of a last stream's magnitude, with the absolute value of every factor."""
    size = absolute_read(model, magnitude)
    for source in model.sources:
        if source.joins == "unembed":
            size = size + abs(model.multiplier) * source_magnitude(source)
    found = absolute_logits(model, size, chosen)
    return found if model.b_U is None else found + of_bias(model.b_U, chosen).double().abs()


def absolute_logits(model: FrozenModel, read: Tensor, chosen: Chosen | None = None) -> Tensor:
    """``|read| |W_U|`` in float64."""
    if chosen is None:
        return read @ model.W_U.double().abs()
    columns = model.W_U[:, chosen.tokens].double().abs()
    own = Chosen(chosen.rows, chosen.positions, torch.arange(len(chosen)))
    return unembed(read, columns, own)


def logits_roundings(model: FrozenModel, parts: int = 1) -> int:
    """At most so many roundings lie between the last stream and the logits, in ``parts`` parts."""
    d_model = model.W_U.shape[0]
    return d_model + edge_roundings(model.final, d_model) + parts + 6
