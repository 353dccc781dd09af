"""How far a computation of the frozen network is from the exact one: rigorous bounds.

Two sides compute the same network: the judge, whose streams were recorded, and the engine, whose
streams are sums over paths. Each is described by a :class:`Trace`. For each step (embedding,
blocks, unembedding) the *deviation* ``δ = output - F(input)`` is measured and must be within the
local rounding bound ``γ_n |F|(|input|)``: that is the check of the step. It is measured with about
100 bits (:func:`steps`), or in float64 with a bound on the measurement's own rounding
(:func:`plain_steps`), which costs a tenth of that.

Because the network is affine, the exact error at the logits is the sum of the deviations carried
through the exact later blocks. Bounds that use nothing but the local bounds are in
:mod:`otimes.numeric.apriori`. :func:`carry` is tighter: the measured deviations are carried by the
computed operator,

    e <- F_linear(e) + δ

and only what is still unknown (the error of measuring, the rounding of carrying: about 1e-16 of
the deviations) goes through absolute values, ``tail <- |F_linear|(tail) + …``, or through operator
norms, whichever is less. Absolute values alone grow by a large factor with each layer; these bounds
grow like the real errors.

The last step of the engine's side, reading the terms out and adding them up, is bounded and not
measured there: the bound holds for the terms added in any order. A deviation beyond its own bound
is a mistake and not rounding; it counts with its bound, so that it shows at the logits as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from otimes.numeric.chosen import Chosen
from otimes.numeric.extended import SAFETY, UNDERFLOW, Extended
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.gains import linear_gain, stream_norm
from otimes.numeric.magnitudes import (
    absolute_logits,
    absolute_read,
    block_magnitude,
    edge_roundings,
    gamma,
    linear_block,
    logits_magnitude,
    logits_roundings,
    roundings,
    source_magnitude,
    underflow,
    unit_roundoff,
)
from otimes.numeric.measured import entering, exact_block, exact_logits, exact_source


@dataclass(frozen=True)
class Trace:
    """One side's computation, in ``dtype``.

    ``streams[l]`` is its input of block l, the last one what the unembedding reads (each
    ``[batch, pos, d_model]``), and ``logits``, all of them or the ``chosen`` ones. ``magnitudes``
    are the sums of the absolute values of the parts that were added up to give the streams.
    ``parts`` is how many parts the logits are a sum of, 1 for a module that adds up its stream and
    reads it out once. ``alone`` says that each component was computed by itself.
    """

    dtype: torch.dtype
    streams: tuple[Extended, ...]
    magnitudes: tuple[Tensor, ...]
    logits: Extended
    parts: int = 1
    alone: bool = False
    chosen: Chosen | None = None


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

    @property
    def within_bound(self) -> Tensor:
        """The deviation, as far as it is rounding: what is beyond the bound is a mistake."""
        return self.deviation.clamp(-self.bound, self.bound)

    def apart(self, other: Step) -> Tensor:
        """How far the deviations of two sides are apart at most, as far as they are rounding."""
        difference = (self.within_bound - other.within_bound).abs()
        measured = (difference + self.uncertainty + other.uncertainty) * SAFETY
        return torch.minimum(measured, self.bound + other.bound)


def worst_ratio(error: Tensor, bound: Tensor) -> float:
    """The largest ``error / bound``, infinite where either is not finite."""
    if not bool(torch.isfinite(error).all() and torch.isfinite(bound).all()):
        return float("inf")
    return float((error / bound).max()) if error.numel() else 0.0


def recorded_trace(
    streams: tuple[Tensor, ...], logits: Tensor, chosen: Chosen | None = None
) -> Trace:
    """The trace of a module that added its parts up itself, at all logits or the chosen ones."""
    return Trace(
        logits.dtype,
        tuple(Extended.of(stream) for stream in streams),
        tuple(stream.double().abs() for stream in streams),
        Extended.of(logits if chosen is None else chosen.take(logits)),
        chosen=chosen,
    )


def steps(model: FrozenModel, trace: Trace) -> list[Step]:
    """Measure each step of a trace: ``embed``, the blocks by their numbers, ``unembed``."""
    found = [_embedding(model, trace)]
    for number in range(model.depth):
        difference = trace.streams[number + 1] - exact_block(model, number, trace.streams[number])
        size = block_magnitude(model, number, trace.magnitudes[number])
        count = roundings(model, number, alone=trace.alone)
        found.append(_step(str(number), trace, difference, size, count))
    return [*found, _unembedding(model, trace)]


def plain_steps(model: FrozenModel, traces: Sequence[Trace]) -> list[list[Step]]:
    """:func:`steps` of several traces, with the blocks measured in float64.

    The float64 value of ``F(input)`` is off by at most ``γ_n |F|(|input|)`` itself, which is the
    step's uncertainty. All traces go through a block together.
    """
    unit, wide = unit_roundoff(torch.float64), model.to(torch.float64)
    found = [[_embedding(model, trace)] for trace in traces]
    for number in range(model.depth):
        inputs = torch.stack([trace.streams[number].high for trace in traces])
        values = linear_block(model.blocks[number], inputs)
        values = values + wide.added(number + 1)
        # the largest of all traces: one product serves all, and they differ little
        sizes = torch.stack([*(trace.magnitudes[number] for trace in traces), *inputs.abs()])
        size = block_magnitude(model, number, sizes.amax(0))
        relative = gamma(roundings(model, number) + 3, unit)
        for mine, trace, value in zip(found, traces, values, strict=True):
            count = roundings(model, number, alone=trace.alone)
            step = _step(str(number), trace, trace.streams[number + 1] - value, size, count)
            own = (step.uncertainty + relative * size) * SAFETY + UNDERFLOW
            mine.append(Step(step.name, step.deviation, own, step.bound))
    return [[*mine, _unembedding(model, trace)] for mine, trace in zip(found, traces, strict=True)]


def _step(name: str, trace: Trace, difference: Extended, magnitude: Tensor, count: int) -> Step:
    value, uncertainty = difference.rounded()
    bound = gamma(count, unit_roundoff(trace.dtype)) * magnitude
    return Step(name, value, uncertainty, bound * SAFETY + underflow(trace.dtype))


def _embedding(model: FrozenModel, trace: Trace) -> Step:
    exact, magnitude = Extended.of(torch.zeros_like(trace.streams[0].high)), trace.magnitudes[0]
    count = 1
    for source in entering(model, 0):
        exact = exact_source(source, exact)
        magnitude = magnitude + source_magnitude(source)
        count += sum(edge_roundings(part.edge, model.W_U.shape[0]) + 1 for part in source.parts)
    return _step("embed", trace, trace.streams[0] - exact, magnitude, count)


def _unembedding(model: FrozenModel, trace: Trace) -> Step:
    difference = trace.logits - exact_logits(model, trace.streams[-1], trace.chosen)
    magnitude = logits_magnitude(model, trace.magnitudes[-1], trace.chosen)
    return _step("unembed", trace, difference, magnitude, logits_roundings(model, trace.parts))


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
    rounding = [step.within_bound for step in measured]
    error, tail = rounding[0], measured[0].uncertainty
    streams = [error.abs() + tail]
    for number, block in enumerate(model.blocks):
        own, uncertainty = rounding[number + 1], measured[number + 1].uncertainty
        # one product for both: [2, batch, pos, d_model]
        sizes = linear_block(block, torch.stack([error.abs(), tail]), absolute=True)
        lost = gamma(roundings(model, number) + 1, unit) * (sizes[0] + own.abs())
        fresh = (uncertainty + lost + UNDERFLOW) * SAFETY
        through = linear_gain(block) * stream_norm(tail) + stream_norm(fresh)
        tail = torch.minimum(sizes[1] + fresh, through) * SAFETY
        error = linear_block(block, error) + own
        streams.append(error.abs() + tail)
    last = measured[-1]
    readout = torch.zeros_like(last.deviation) if any_order else rounding[-1]
    read = model.multiplier * model.final.to(torch.float64).apply(error)
    carried = read @ model.W_U.double() + readout
    size = absolute_logits(model, absolute_read(model, error.abs()))
    lost = gamma(logits_roundings(model), unit) * (size + readout.abs())
    rest = absolute_logits(model, absolute_read(model, tail)) + lost
    rest = rest + (last.bound if any_order else last.uncertainty)
    return Carried(tuple(streams), carried.abs() + rest * SAFETY + UNDERFLOW)
