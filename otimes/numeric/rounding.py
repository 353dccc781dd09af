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

from otimes.numeric.extended import SAFETY, UNDERFLOW, Extended
from otimes.numeric.frozen import FrozenBlock, FrozenModel


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


def exact_block(model: FrozenModel, layer: int, stream: Extended) -> Extended:
    """``F_l`` of a stream, with about 100 bits."""
    block = model.blocks[layer]
    total = stream + model.written(layer + 1)
    if block.heads == 0:
        return total
    spread = Extended(*(part[:, None] for part in (stream.high, stream.low, stream.error)))
    value = spread @ _per_head(block, block.W_V)
    if block.b_V is not None:
        value = value + _per_head(block, block.b_V)[:, None, :]
    moved = Extended.of(block.pattern) @ value @ block.W_O.double()
    return total + moved.sum(1)


def _per_head(block: FrozenBlock, weight: Tensor) -> Tensor:
    return weight.double().repeat_interleave(block.group, dim=0)


def linear_block(block: FrozenBlock, stream: Tensor, *, absolute: bool = False) -> Tensor:
    """``F_l`` without its constants, in float64; ``absolute``: with every factor's magnitude."""
    pattern, W_O, W_V = block.pattern.double(), block.W_O.double(), _per_head(block, block.W_V)
    if absolute:
        pattern, W_O, W_V = pattern.abs(), W_O.abs(), W_V.abs()
    # [batch, 1, src, d_model] x [head, d_model, d_head]
    return stream + (pattern @ (stream[:, None] @ W_V) @ W_O).sum(1)


def block_magnitude(model: FrozenModel, layer: int, magnitude: Tensor) -> Tensor:
    """``F_l`` of a magnitude, with the absolute value of every factor and constant."""
    block = model.blocks[layer]
    total = linear_block(block, magnitude, absolute=True)
    if block.b_V is not None:
        bias = _per_head(block, block.b_V).abs()[:, None, :]  # [head, 1, d_head]
        total = total + (block.pattern.double().abs().sum(-1, keepdim=True) * bias).matmul(
            block.W_O.double().abs()
        ).sum(1)
    return total + model.written(layer + 1).double().abs()


def roundings(model: FrozenModel, layer: int) -> int:
    """At most so many roundings lie between an input of block ``layer`` and its output."""
    block = model.blocks[layer]
    d_model, d_head = block.W_V.shape[1:]
    return d_model + model.length + block.heads * (d_head + 2) + 8


def steps(model: FrozenModel, trace: Trace) -> list[Step]:
    """Measure each step of a trace: ``embed``, ``0.attn``, …, ``unembed``."""
    unit, least = unit_roundoff(trace.dtype), underflow(trace.dtype)
    found = list[Step]()

    def measure(name: str, difference: Extended, magnitude: Tensor, count: int) -> None:
        value, uncertainty = difference.rounded()
        bound = (gamma(count, unit) * magnitude) * SAFETY + least
        found.append(Step(name, value, uncertainty, bound))

    entering = [
        source.stream.double()
        for source in model.sources
        if source.entry == 0 and source.stream is not None
    ]
    exact, magnitude = Extended.of(torch.zeros_like(trace.streams[0].high)), trace.magnitudes[0]
    for stream in entering:
        exact, magnitude = exact + stream.expand_as(exact.high), magnitude + stream.abs()
    measure("embed", trace.streams[0] - exact, magnitude, len(entering) + 1)
    for layer in range(len(model.blocks)):
        measure(
            f"{layer}.attn",
            trace.streams[layer + 1] - exact_block(model, layer, trace.streams[layer]),
            block_magnitude(model, layer, trace.magnitudes[layer]),
            roundings(model, layer),
        )
    W_U = model.W_U.double()
    logits, magnitude = trace.streams[-1] @ W_U, trace.magnitudes[-1] @ W_U.abs()
    if model.b_U is not None:
        logits = logits + model.b_U.double().expand_as(logits.high)
        magnitude = magnitude + model.b_U.double().abs()
    measure("unembed", trace.logits - logits, magnitude, W_U.shape[0] + trace.parts + 4)
    return found


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
    for layer, block in enumerate(model.blocks):
        own, uncertainty = rounding[layer + 1], measured[layer + 1].uncertainty
        magnitude = linear_block(block, error.abs(), absolute=True)
        lost = gamma(roundings(model, layer) + 1, unit) * (magnitude + own.abs())
        error = linear_block(block, error) + own
        tail = linear_block(block, tail, absolute=True) + uncertainty + lost + UNDERFLOW
        tail = tail * SAFETY
        streams.append(error.abs() + tail)
    W_U, last = model.W_U.double(), measured[-1]
    readout = torch.zeros_like(last.deviation) if any_order else rounding[-1]
    carried = error @ W_U + readout
    lost = gamma(W_U.shape[0] + 2, unit) * (error.abs() @ W_U.abs() + readout.abs())
    rest = tail @ W_U.abs() + lost + (last.bound if any_order else last.uncertainty)
    return Carried(tuple(streams), carried.abs() + rest * SAFETY + UNDERFLOW)
