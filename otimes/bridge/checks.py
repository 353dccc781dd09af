"""Single checks of a certificate: an error beside its bound, and what is wrong where it fails."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from otimes.bridge.freezing import Frozen
from otimes.bridge.mlp_outputs import output_errors
from otimes.bridge.run import Run
from otimes.models.reference import Recording
from otimes.numeric.rounding import Step, worst_ratio
from otimes.numeric.scores import cap_error, score_bounds, softmax_error, sums_of_terms
from otimes.numeric.traces import PathTrace
from otimes.results.certificate import BlockCheck, Check

PAIR_LIMIT = 10_000
"""More pairs of paths than this are grouped in the scores of a head."""


def check_of(error: Tensor, bound: Tensor) -> Check:
    """Compare element by element; what exceeds its bound most is what is reported."""
    if worst_ratio(error, bound) <= 1:
        return Check(float(error.max()), float(bound.max()), holds=True)
    place = int((error / bound).nan_to_num(torch.inf).argmax())
    shown = (value.flatten()[place].nan_to_num(torch.inf) for value in (error, bound))
    return Check(*map(float, shown), holds=False)


def all_zero(logits: Check, largest: float) -> bool:
    """Whether all logits of both sides are 0, where a bound cannot be a share of the largest."""
    return logits.holds and logits.max_abs_error == largest == 0


def block_check(name: str, step: Step) -> BlockCheck:
    """A step's deviation, less what measuring it may be off, beside its local bound."""
    check = check_of((step.deviation.abs() - step.uncertainty).clamp(min=0), step.bound)
    return BlockCheck(check.max_abs_error, check.bound, check.holds, name)


def not_finite(recording: Recording, names: Sequence[str]) -> list[str]:
    """Where the judge's forward pass left the range of its numbers, at first.

    ``names`` are those of the steps: each writes a stream, the last one the logits.
    """
    places, seen = list[tuple[str, Tensor]](), set[str]()
    for name, written in zip(names, (*recording.streams, recording.uncapped_logits), strict=True):
        layer = name.partition(".")[0]
        if layer.isdigit() and layer not in seen:
            seen.add(layer)
            places.append((f"scores of layer {layer}", recording.scores[int(layer)]))
        places.append((f"block {name}", written))
    for name, values in places:
        if not bool(torch.isfinite(values).all()):
            kind = str(values.dtype).removeprefix("torch.")
            return [f"{name}: the model's forward pass overflows in {kind}: nothing can be checked"]
    return []


def score_check(
    frozen: Frozen, engine: PathTrace, distances: Sequence[Tensor], recording: Recording
) -> tuple[Check, int, list[str]]:
    """Do the score terms add up to the recorded scores?

    Args:
        frozen: the model, and how its scores read the stream.
        engine: the parts of the stream before each block.
        distances: how far the two sides' streams before each block are apart at most.
        recording: the recorded scores.

    Returns:
        The worst head's check, the number of score terms, and the heads whose check fails.
    """
    worst, pairs, wrong = Check(0.0, 0.0, holds=True), 0, list[str]()
    for layer, (number, reader) in enumerate(zip(frozen.attention, frozen.readers, strict=True)):
        parts = _score_parts(engine, number)
        stream = recording.streams[number]
        if not parts:  # all terms that could stand here are missing: their sum is 0
            parts = (torch.zeros_like(stream),)
        values, count = sums_of_terms(reader, parts)
        bounds = score_bounds(
            reader,
            # orders that are one part were added up: there are at most as many as blocks before
            count + max(len(engine.parts[number]), number + 1),
            values.dtype,
            torch.maximum(stream.double().abs(), engine.trace.magnitudes[number]),
            distances[number],
        )
        errors = (recording.scores[layer].double() - values.double()).abs()
        for head in range(values.shape[1]):
            check = check_of(errors[:, head], bounds[:, head])
            wrong += [] if check.holds else [f"{layer}.{head}"]
            worst, pairs = _worse(worst, check), pairs + count
    return worst, pairs, wrong


def pattern_check(run: Run, recording: Recording) -> tuple[Check, list[str]]:
    """Are the patterns the softmax of the scores over what may be attended to? And whose not.

    Where scores have a soft-cap, it is the softmax of the capped ones, and these are checked too.
    """
    cap = run.model.config.attention_softcap
    worst, wrong = Check(0.0, 0.0, holds=True), list[str]()
    for layer, (scores, capped, pattern) in enumerate(
        zip(recording.scores, recording.capped_scores, recording.patterns, strict=True)
    ):
        allowed = run.attended(layer)
        for head in range(pattern.shape[1]):
            error, bound = softmax_error(capped[:, head], pattern[:, head], allowed)
            check = check_of(error, bound)
            if cap is not None:
                check = _worse(check, check_of(*cap_error(scores[:, head], capped[:, head], cap)))
            wrong += [] if check.holds else [f"{layer}.{head}"]
            worst = _worse(worst, check)
    return worst, wrong


def wrong_outputs(run: Run, frozen: Frozen, recording: Recording, *, plain: bool) -> list[str]:
    """The MLPs whose recorded outputs, which are sources, are not what their weights give.

    ``plain``: computed in float64, not with about 100 bits.
    """
    found = list[str]()
    for layer, error, bound in output_errors(run, frozen, recording, plain=plain):
        check = check_of(error, bound)
        if not check.holds:
            found.append(
                f"source mlp{layer}: the recorded output is not what the MLP's weights give (off "
                f"by {check.max_abs_error:.2e}, rounding explains {check.bound:.2e})"
            )
    return found


def _worse(one: Check, other: Check) -> Check:
    """Two checks as one: the worse of two that fail, the largest of both numbers if they hold."""
    if one.holds and other.holds:
        error = max(one.max_abs_error, other.max_abs_error)
        return Check(error, max(one.bound, other.bound), holds=True)
    failed = [check for check in (one, other) if not check.holds]
    return max(failed, key=lambda check: check.max_abs_error)


def _score_parts(engine: PathTrace, number: int) -> tuple[Tensor, ...]:
    """The parts of the stream before a block whose pairs are score terms.

    Where all pairs would be too many, paths are added up by the last block that wrote; these are
    still all paths.
    """
    parts = engine.parts[number]
    if len(parts) ** 2 > PAIR_LIMIT and not engine.by_order:
        ends = [len(engine.parts[earlier]) for earlier in range(number + 1)]
    else:
        return parts
    groups = [parts[start:end] for start, end in itertools.pairwise([0, *ends])]
    return tuple(
        torch.stack([part.expand_as(group[0]) for part in group]).sum(0)
        for group in groups
        if group
    )
