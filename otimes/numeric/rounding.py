"""How far a computation of the frozen network is from the exact one: rigorous bounds.

Two sides compute the same network: the judge, whose streams were recorded, and the engine, whose
streams are sums over paths. Each is described by a :class:`Trace`. For each step (embedding,
blocks, unembedding) the *deviation* ``δ = output - F(input)`` is measured with about 100 bits and
must be within the local rounding bound ``γ_n |F|(|input|)`` (Higham 2002, "Accuracy and Stability
of Numerical Algorithms", section 3.5): that is the check of the step.

The last step of the engine's side, reading the terms out and adding them up, is bounded and not
measured: the bound holds for the terms added in any order. A deviation beyond its own bound is a
mistake and not rounding; it counts with its bound, so that it shows at the logits as well.

Because the network is affine, the exact error at the logits is the sum of the deviations carried
through the exact later blocks. The measured deviations are carried by the computed operator,

    e <- F_linear(e) + δ

and only what is still unknown (the error of measuring, the rounding of carrying: about 1e-16 of
the deviations) goes through absolute values, ``tail <- |F_linear|(tail) + …``. Bounds by absolute
values alone grow by a large factor with each layer; these grow like the real errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from otimes.numeric.extended import SAFETY, UNDERFLOW, Extended, reciprocal
from otimes.numeric.frozen import (
    FrozenBlock,
    FrozenEdge,
    FrozenHeads,
    FrozenModel,
    FrozenNeurons,
    FrozenPart,
    FrozenSource,
)


def unit_roundoff(dtype: torch.dtype) -> float:
    """2^-53 for float64, 2^-24 for float32."""
    return torch.finfo(dtype).eps / 2


def underflow(dtype: torch.dtype) -> float:
    """More than the underflows of one step can add up to."""
    return UNDERFLOW if dtype == torch.float64 else 1e-30


def gamma(count: int, unit: float) -> float:
    """``γ_n = n u / (1 - n u)``: the relative error of n roundings."""
    return count * unit / (1 - count * unit)


@dataclass(frozen=True)
class Trace:
    """One side's computation, in ``dtype``.

    ``streams[l]`` is its input of block l, the last one what the unembedding reads (each
    ``[batch, pos, d_model]``), and ``logits``. ``magnitudes`` are the sums of the absolute values
    of the parts that were added up to give the streams. ``parts`` is how many parts the logits are
    a sum of, 1 for a module that adds up its stream and reads it out once.
    """

    dtype: torch.dtype
    streams: tuple[Extended, ...]
    magnitudes: tuple[Tensor, ...]
    logits: Extended
    parts: int = 1


@dataclass(frozen=True)
class Step:
    """A step's measured deviation, its rigorous local bound, and the error of measuring it."""

    name: str
    deviation: Tensor
    uncertainty: Tensor
    bound: Tensor

    @property
    def excess(self) -> float:
        """The largest ratio of deviation to bound; the step holds when it is at most 1."""
        return worst_ratio(self.deviation.abs() - self.uncertainty, self.bound)


def worst_ratio(error: Tensor, bound: Tensor) -> float:
    """The largest ``error / bound``, infinite where either is not finite."""
    if not bool(torch.isfinite(error).all() and torch.isfinite(bound).all()):
        return float("inf")
    return float((error / bound).max()) if error.numel() else 0.0


def recorded_trace(streams: tuple[Tensor, ...], logits: Tensor) -> Trace:
    """The trace of a module that added its parts up itself."""
    return Trace(
        logits.dtype,
        tuple(Extended.of(stream) for stream in streams),
        tuple(stream.double().abs() for stream in streams),
        Extended.of(logits),
    )


def exact_edge(edge: FrozenEdge, stream: Extended) -> Extended:
    """``μ (D ⊗ Γ) x`` with about 100 bits; the mean is an exact sum over ``d_model``."""
    if edge.centred:
        ones = torch.ones(stream.high.shape[-1], 1, dtype=torch.float64)
        mean = (stream @ ones).times(reciprocal(len(ones)))
        stream = stream - mean.expand_as(stream.high)
    if edge.scale is not None:
        stream = stream.times(edge.scale.double()[..., None])
    if edge.gain is not None:
        stream = stream.times(edge.gain.double())
    if edge.multiplier != 1:
        stream = stream.times(torch.tensor(edge.multiplier, dtype=torch.float64))
    return stream


def exact_source(source: FrozenSource, onto: Extended) -> Extended:
    """What a source writes, added to a stream."""
    for part in source.parts:
        wide = part.stream.double().expand_as(onto.high)
        onto = onto + exact_edge(part.edge, Extended.of(wide))
    return onto


def exact_block(model: FrozenModel, number: int, stream: Extended) -> Extended:
    """``F_l`` of a stream, with about 100 bits."""
    block = model.blocks[number]
    total = exact_edge(block.skip, stream)
    for source in entering(model, number + 1):
        total = exact_source(source, total)
    for branch in block.branches:
        read = exact_edge(branch.reads, stream)
        if branch.reads.bias is not None:
            read = read + branch.reads.bias.double().expand_as(read.high)
        if isinstance(branch, FrozenHeads):
            written = _exact_heads(branch, read)
        else:
            assert isinstance(branch, FrozenNeurons)
            written = _exact_neurons(branch, read)
        total = total + exact_edge(branch.writes, written)
    return total


def entering(model: FrozenModel, entry: int) -> list[FrozenSource]:
    """The sources that write to the stream before a block and are no component's constant."""
    return [s for s in model.sources if s.entry == entry and s.joins == "stream" and s.parts]


def _exact_heads(heads: FrozenHeads, read: Extended) -> Extended:
    spread = Extended(*(part[:, None] for part in (read.high, read.low, read.error)))
    value = spread @ _per_head(heads, heads.W_V)
    if heads.b_V is not None:
        value = value + _per_head(heads, heads.b_V)[:, None, :].expand_as(value.high)
    return (Extended.of(heads.pattern) @ value @ heads.W_O.double()).sum(1)


def _per_head(heads: FrozenHeads, weight: Tensor) -> Tensor:
    return weight.double().repeat_interleave(heads.group, dim=0)


def _exact_neurons(neurons: FrozenNeurons, read: Extended) -> Extended:
    value = read @ neurons.W_in.double()
    if neurons.b_in is not None:
        value = value + neurons.b_in.double().expand_as(value.high)
    return value.times(neurons.slope.double()) @ neurons.W_out.double()


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


def edge_roundings(edge: FrozenEdge, d_model: int) -> int:
    """At most so many roundings lie between an edge's input and its output."""
    return edge.roundings + (d_model if edge.centred else 0)


def roundings(model: FrozenModel, number: int) -> int:
    """At most so many roundings lie between an input of block ``number`` and its output."""
    block, d_model = model.blocks[number], model.W_U.shape[0]
    count = d_model + model.length + 8 + edge_roundings(block.skip, d_model)
    for branch in block.branches:
        count += branch.size * (branch.width + 2)
        count += edge_roundings(branch.reads, d_model) + edge_roundings(branch.writes, d_model)
    for source in entering(model, number + 1):
        count += sum(edge_roundings(part.edge, d_model) + 1 for part in source.parts)
    return count


def steps(model: FrozenModel, trace: Trace) -> list[Step]:
    """Measure each step of a trace: ``embed``, the blocks by their numbers, ``unembed``."""
    unit, least = unit_roundoff(trace.dtype), underflow(trace.dtype)
    found, d_model = list[Step](), model.W_U.shape[0]

    def measure(name: str, difference: Extended, magnitude: Tensor, count: int) -> None:
        value, uncertainty = difference.rounded()
        bound = (gamma(count, unit) * magnitude) * SAFETY + least
        found.append(Step(name, value, uncertainty, bound))

    exact, magnitude = Extended.of(torch.zeros_like(trace.streams[0].high)), trace.magnitudes[0]
    count = 1
    for source in entering(model, 0):
        exact = exact_source(source, exact)
        magnitude = magnitude + source_magnitude(source)
        count += sum(edge_roundings(part.edge, d_model) + 1 for part in source.parts)
    measure("embed", trace.streams[0] - exact, magnitude, count)
    for number in range(model.depth):
        measure(
            str(number),
            trace.streams[number + 1] - exact_block(model, number, trace.streams[number]),
            block_magnitude(model, number, trace.magnitudes[number]),
            roundings(model, number),
        )
    logits, magnitude = exact_logits(model, trace.streams[-1], trace.magnitudes[-1])
    count = d_model + edge_roundings(model.final, d_model) + trace.parts + 6
    measure("unembed", trace.logits - logits, magnitude, count)
    return found


def exact_logits(
    model: FrozenModel, stream: Extended, magnitude: Tensor
) -> tuple[Extended, Tensor]:
    """The logits of the last stream with about 100 bits, and their magnitude."""
    read, size = exact_edge(model.final, stream), absolute_read(model, magnitude)
    for source in model.sources:
        if source.joins == "unembed":
            read = exact_source(source, read)
            size = size + abs(model.multiplier) * source_magnitude(source)
    if model.multiplier != 1:
        read = read.times(torch.tensor(model.multiplier, dtype=torch.float64))
    W_U = model.W_U.double()
    logits, size = read @ W_U, size @ W_U.abs()
    if model.b_U is not None:
        logits = logits + model.b_U.double().expand_as(logits.high)
        size = size + model.b_U.double().abs()
    return logits, size


def absolute_read(model: FrozenModel, magnitude: Tensor) -> Tensor:
    """What the unembedding reads, for magnitudes, in float64."""
    return abs(model.multiplier) * model.final.to(torch.float64).absolute().apply(magnitude)


@dataclass(frozen=True)
class Carried:
    """How far each stream, and the logits, are at most from the exact network's."""

    streams: tuple[Tensor, ...]
    logits: Tensor


def carry(model: FrozenModel, measured: list[Step], *, any_order: bool = False) -> Carried:
    """Carry deviations through the later blocks; see the module's text.

    With ``any_order`` the last step counts with its bound instead of its measured deviation.
    """
    unit = unit_roundoff(torch.float64)
    rounding = [step.deviation.clamp(-step.bound, step.bound) for step in measured]
    error, tail = rounding[0], measured[0].uncertainty
    streams = [error.abs() + tail]
    for number, block in enumerate(model.blocks):
        own, uncertainty = rounding[number + 1], measured[number + 1].uncertainty
        magnitude = linear_block(block, error.abs(), absolute=True)
        lost = gamma(roundings(model, number) + 1, unit) * (magnitude + own.abs())
        error = linear_block(block, error) + own
        tail = linear_block(block, tail, absolute=True) + uncertainty + lost + UNDERFLOW
        tail = tail * SAFETY
        streams.append(error.abs() + tail)
    W_U, last = model.W_U.double(), measured[-1]
    readout = torch.zeros_like(last.deviation) if any_order else rounding[-1]
    read = model.multiplier * model.final.to(torch.float64).apply(error)
    carried = read @ W_U + readout
    count = W_U.shape[0] + edge_roundings(model.final, W_U.shape[0]) + 4
    size = absolute_read(model, error.abs()) @ W_U.abs()
    lost = gamma(count, unit) * (size + readout.abs())
    rest = absolute_read(model, tail) @ W_U.abs() + lost
    rest = rest + (last.bound if any_order else last.uncertainty)
    return Carried(tuple(streams), carried.abs() + rest * SAFETY + UNDERFLOW)
