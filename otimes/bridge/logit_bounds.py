"""How far the two sides of a verification may be apart at the logits, and by which analysis.

Every analysis is rigorous. The first that says something is taken:

1. *absolute values*, for every position and token: local rounding bounds carried by ``|F|``;
2. the *adjoint*, for chosen logits, at any depth: local bounds weighted by how each logit reads
   the stream;
3. *measured deviations*, the tightest: carried by the network to all logits, or weighted by the
   adjoint.

The first two do not depend on what the engine wrote, so a change inside one term whose effect on a
checked logit exceeds twice the bound makes the certificate fail. See :mod:`otimes.numeric.apriori`
and :mod:`otimes.numeric.rounding`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otimes.numeric.apriori import absolute_bound, adjoint_bound, adjoint_bounds
from otimes.numeric.chosen import Chosen
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.gains import stream_norm
from otimes.numeric.rounding import Carried, Step, Trace, carry, plain_steps, steps

ABSOLUTE, ADJOINT, MEASURED = "absolute values", "adjoint", "measured deviations"


@dataclass(frozen=True)
class Sides:
    """Judge and engine, step by step, and how far their streams are apart at most."""

    judge: list[Step]
    engine: list[Step]
    distances: tuple[Tensor, ...]
    carried: tuple[Carried, Carried] | None


@dataclass(frozen=True)
class LogitBound:
    """The errors and bounds of the checked logits; of all logits where ``chosen`` is None.

    ``measured`` are those of all logits by measured deviations; None where that says nothing or
    would cost too much.
    """

    analysis: str
    error: Tensor
    bound: Tensor
    chosen: Chosen | None
    measured: tuple[Tensor, Tensor] | None


def measure(model: FrozenModel, judge: Trace, engine: Trace) -> Sides:
    """Measure the steps of both sides: with about 100 bits, or in float64 for chosen logits.

    The distance of the two sides' streams is what it is measured to be, or less where carried
    deviations say so: it comes from the deviations of the steps before, and these are checked by
    themselves.
    """
    apart = [(b - a).rounded() for a, b in zip(judge.streams, engine.streams, strict=True)]
    distances = tuple(value.abs() + uncertainty for value, uncertainty in apart)
    if judge.chosen is not None:
        first, second = plain_steps(model, [judge, engine])
        return Sides(first, second, distances, None)
    first, second = steps(model, judge), steps(model, engine)
    carried = (carry(model, first), carry(model, second, any_order=True))
    pairs = zip(carried[0].streams, carried[1].streams, strict=True)
    sums = (a + b for a, b in pairs)
    return Sides(first, second, tuple(map(torch.minimum, distances, sums)), carried)


def bound_logits(
    model: FrozenModel,
    traces: tuple[Trace, Trace],
    sides: Sides,
    targets: Chosen | None,
    default: Chosen,
    most: float,
) -> LogitBound:
    """The difference of both sides' logits and a bound on it.

    Args:
        model: the frozen model.
        traces: judge and engine.
        sides: their steps.
        targets: the logits that the caller wants checked, or None.
        default: the logits to choose where all would say nothing.
        most: a bound above this says nothing.
    """
    total, uncertainty = (traces[1].logits - traces[0].logits.high).rounded()
    error, chosen = total.abs(), traces[0].chosen
    if chosen is not None:
        return _weighted(model, sides, error, uncertainty, chosen, most)
    assert sides.carried is not None
    judge, engine = (side.logits for side in sides.carried)
    local = [step.bound for step in sides.engine]
    found = judge + engine + uncertainty
    # at some depth carried deviations say nothing
    measured = (error, found) if float(found.max()) <= most else None
    if targets is None:
        bound = absolute_bound(model, local) + judge + uncertainty
        if float(bound.max()) <= most:
            return LogitBound(ABSOLUTE, error, bound, None, measured)
    some = default if targets is None else targets
    bound = adjoint_bound(model, [*local[:-1], some.take(local[-1])], some)
    bound = bound + some.take(judge + uncertainty)
    if float(bound.max()) <= most:
        return LogitBound(ADJOINT, some.take(error), bound, some, measured)
    weighted = _weighted(model, sides, some.take(error), some.take(uncertainty), some, most)
    if measured is None or weighted.analysis == ADJOINT:
        return replace(weighted, measured=measured)
    if targets is None:
        return LogitBound(MEASURED, error, found, None, measured)
    return LogitBound(MEASURED, some.take(error), some.take(found), some, measured)


def _weighted(
    model: FrozenModel,
    sides: Sides,
    error: Tensor,
    uncertainty: Tensor,
    chosen: Chosen,
    most: float,
) -> LogitBound:
    """The bound on chosen logits from the adjoint and the measured distance of both sides.

    It holds at any depth: operator norms enter it with the product of two roundings alone.
    """
    whole = sides.carried is not None  # the steps are those of all logits
    pairs = list(zip(sides.judge, sides.engine, strict=True))
    both = [mine.bound + own.bound for mine, own in pairs]
    apart = [mine.apart(own) for mine, own in pairs]
    both[-1] = chosen.take(both[-1]) if whole else both[-1]
    apart[-1] = both[-1]  # reading out is not measured: the bound holds for any order
    far = [stream_norm(distance) for distance in sides.distances]
    bounds = adjoint_bounds(model, [both, apart], far, chosen)
    before, measured = (bound + uncertainty for bound in bounds)
    if float(before.max()) <= most:
        return LogitBound(ADJOINT, error, before, chosen, None)
    return LogitBound(MEASURED, error, measured, chosen, None)
