"""Prove that the sum over paths is the model's own forward pass.

Two sides are compared: the judge (the reference module, which read the file by itself) and the
engine (path terms evaluated on the canonical weights at the recorded patterns). What is checked is
in :class:`~otimes.results.Certificate`, how the bounds come about in
:mod:`otimes.numeric.rounding`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import torch
from torch import Tensor

from otimes.algebra import Logits, PathSum, PathTerm
from otimes.algebra.vocabulary import component_name
from otimes.bridge.binding import Frozen, numbered
from otimes.bridge.exact import exact_plan
from otimes.bridge.run import Run
from otimes.errors import InputError, UnsupportedError
from otimes.models.reference import Recording
from otimes.numeric.diagnosis import wrong_components, wrong_paths
from otimes.numeric.modular import Plan, exact_difference
from otimes.numeric.rounding import Carried, Step, carry, recorded_trace, steps, worst_ratio
from otimes.numeric.scores import score_bound, softmax_error, sum_of_terms
from otimes.numeric.traces import PathTrace, enumerated_trace, order_trace
from otimes.results.certificate import BlockCheck, Certificate, Check, ExactCheck

ENUMERATION_LIMIT = 4096
"""More paths than this are added up by order."""

_PAIR_LIMIT = 10_000
_NAMED = 3
_DTYPES = {"float64": torch.float64, "float32": torch.float32}
# a bound above this share of the largest logit says nothing
_VACUOUS = {torch.float64: 1e-6, torch.float32: 1e-2}


def verify(
    run: Run,
    *,
    dtype: str | torch.dtype = "float64",
    exact: bool = False,
    terms: Iterable[PathTerm] | PathSum | Logits | None = None,
    enumeration_limit: int = ENUMERATION_LIMIT,
) -> Certificate:
    """Check that the path terms add up to the model's logits, within a rigorous bound.

    Args:
        run: a recorded run.
        dtype: ``float64`` or ``float32``: what both sides compute in.
        exact: also compare in rational arithmetic, where the difference is exactly zero; for up
            to 8 tokens.
        terms: the terms to add up, instead of all terms of the model's expansion: are these all,
            each once?
        enumeration_limit: with more paths than this, they are added up grouped by order.

    Returns:
        A certificate that prints as a report; ``.holds`` is the answer.

    Raises:
        UnsupportedError: for another dtype.
        InputError: for terms that are none.
        LimitError: for an exact verification that would take too long; it says how long.
    """
    number = _DTYPES.get(str(dtype).removeprefix("torch."))
    if number is None:
        raise UnsupportedError(f"cannot verify in {dtype}: use float64 or float32")
    paths = run.model.architecture.logits.expand()
    enumerated = terms is not None or paths.count <= enumeration_limit
    added = list(paths.depth_first() if terms is None else _terms(terms)) if enumerated else []
    recording = run.recording(number)
    overflow = _not_finite(recording)
    # what an exact verification would take is said before any work
    count = len(added) if enumerated else paths.count
    planned = exact_plan(run.frozen().model, count) if exact else None
    frozen = run.frozen(number)
    reasons, named = list[str](), list[str]()
    if enumerated:
        added = _known(added, run, named)
        engine = enumerated_trace(frozen.model, map(numbered, added))
        named += _missing_and_doubled(added, paths)
    else:
        engine = order_trace(frozen.model, paths.count)

    judge = recorded_trace(recording.streams, recording.logits)
    judge_steps, engine_steps = steps(frozen.model, judge), steps(frozen.model, engine.trace)
    sides = (
        carry(frozen.model, judge_steps),
        carry(frozen.model, engine_steps, any_order=True),
    )
    names = _step_names(run)
    blocks = tuple(map(_block_check, names, judge_steps))
    written = tuple(map(_block_check, names, engine_steps))
    reasons += [
        f"block {check.block}: the model's output is not its input plus the components at the "
        f"weights, biases and patterns that were frozen (off by {check.max_abs_error:.2e}, "
        f"rounding explains {check.bound:.2e})"
        for check in blocks
        if not check.holds
    ]
    reasons += [
        f"terms of {check.block}: they are not what their matrices give (off by "
        f"{check.max_abs_error:.2e}, rounding explains {check.bound:.2e})"
        + ("" if overflow else _names_of_wrong(place, added, run, frozen, engine))
        for place, check in enumerate(written)
        if not check.holds
    ]
    scores, pairs, wrong = _scores(run, frozen, engine, sides, recording)
    if not scores.holds:
        reasons.append(
            f"scores of {_few(wrong)}: the score terms do not add up to the recorded scores (off "
            f"by {scores.max_abs_error:.2e}, bound {scores.bound:.2e})"
        )
    if not torch.equal(recording.positions, run.positions):
        reasons.append("position ids: the model's are not those of the real tokens, from 0")
    patterns, wrong = _patterns(run, recording)
    if not patterns.holds:
        reasons.append(
            f"patterns of {_few(wrong)}: they are not the softmax of the recorded scores over the "
            f"positions that may be attended to (off by {patterns.max_abs_error:.2e}, bound "
            f"{patterns.bound:.2e})"
        )
    total, uncertainty = (engine.trace.logits - recording.logits).rounded()
    bound = sides[0].logits + sides[1].logits + uncertainty
    logits = _check(total.abs(), bound)
    largest = float(recording.logits.abs().max().nan_to_num(torch.inf))
    if not logits.holds:
        reasons.append(
            f"logits: the sum over paths differs from the model's logits by "
            f"{logits.max_abs_error:.2e}, bound {logits.bound:.2e}"
        )
    if not (logits.bound <= _VACUOUS[number] * largest or _all_zero(logits, largest)):
        reasons.append(
            f"the bound {logits.bound:.2e} says nothing: it is above {_VACUOUS[number]:g} of the "
            f"largest logit ({largest:.3g})"
        )
    # where the judge overflows all numbers are wrong, and one reason says it
    reasons = [*named, *(overflow or reasons), *_audit(run, frozen)]
    exact_check = None if planned is None else _exact(run, added if enumerated else None, planned)
    if exact_check is not None and not exact_check.holds:
        reasons.append(f"exact: the rational difference is {exact_check.difference}, not 0")
    config, (batch, length) = run.model.config, run.tokens.shape
    held = f"attention patterns of {config.n_layers} layers × {config.n_heads} heads"
    return Certificate(
        model=run.model.name,
        tokens=tuple(tuple(row) for row in run.tokens.tolist()),
        dtype=str(number).removeprefix("torch."),
        paths=paths.count,
        method="enumerated" if enumerated else "by order",
        checked=(
            f"logits: {batch} × {length} positions × {config.d_vocab} tokens",
            f"scores: {sum(run.model.architecture.heads)} heads, {pairs:,} score terms"
            + (" (grouped)" if not enumerated else ""),
            f"parameters: {len(run.model.weights.names())} tensors, each used once",
        ),
        blocks=blocks,
        terms=written,
        scores=scores,
        patterns=patterns,
        logits=logits,
        largest_logit=largest,
        vacuous_above=_VACUOUS[number],
        frozen=(f"{held}, as the run recorded them",) if config.n_layers else (),
        unused_parameters=run.model.weights.unused,
        exact=exact_check,
        reasons=tuple(reasons),
    )


def _check(error: Tensor, bound: Tensor) -> Check:
    """Compare element by element; what exceeds its bound most is what is reported."""
    if worst_ratio(error, bound) <= 1:
        return Check(float(error.max()), float(bound.max()), holds=True)
    place = int((error / bound).nan_to_num(torch.inf).argmax())
    shown = (value.flatten()[place].nan_to_num(torch.inf) for value in (error, bound))
    return Check(*map(float, shown), holds=False)


def _all_zero(logits: Check, largest: float) -> bool:
    """Whether all logits of both sides are 0, where a bound cannot be a share of the largest."""
    return logits.holds and logits.max_abs_error == largest == 0


def _not_finite(recording: Recording) -> list[str]:
    """Where the judge's forward pass left the range of its numbers, at first."""
    places = [("block embed", recording.streams[0])]
    for layer, scores in enumerate(recording.scores):
        places += [
            (f"scores of layer {layer}", scores),
            (f"block {layer}.attn", recording.streams[layer + 1]),
        ]
    places.append(("block unembed", recording.logits))
    for name, values in places:
        if not bool(torch.isfinite(values).all()):
            kind = str(values.dtype).removeprefix("torch.")
            return [f"{name}: the model's forward pass overflows in {kind}: nothing can be checked"]
    return []


def _step_names(run: Run) -> list[str]:
    """``embed``, ``0.attn``, ``0.mlp``, …, ``unembed``; a block of both branches is ``0``."""
    architecture = run.model.architecture
    names, seen = ["embed"], set[int]()
    for block in architecture.blocks:
        if architecture.mlp is not None and architecture.parallel:
            names.append(str(block.layer))
        else:
            names.append(f"{block.layer}.{'mlp' if block.layer in seen else 'attn'}")
        seen.add(block.layer)
    return [*names, "unembed"]


def _block_check(name: str, step: Step) -> BlockCheck:
    check = _check((step.deviation.abs() - step.uncertainty).clamp(min=0), step.bound)
    return BlockCheck(check.max_abs_error, check.bound, check.holds, name)


def _known(added: Sequence[PathTerm], run: Run, reasons: list[str]) -> list[PathTerm]:
    """The terms that are paths of this model; others are named and left out."""
    whole = run.model.architecture.logits.expand()
    strange = [term.path for term in added if not whole.contains(term)]
    if strange:
        reasons.append(f"terms that this model does not have: {_few(strange)}")
    return [term for term in added if whole.contains(term)]


def _missing_and_doubled(added: Sequence[PathTerm], paths: PathSum) -> list[str]:
    counted, reasons = Counter(added), list[str]()
    doubled = [term.path for term, times in counted.items() if times > 1]
    if doubled:
        reasons.append(f"terms that were added more than once: {_few(doubled)}")
    missing = paths.count - len(counted)
    if missing:
        named = islice((term.path for term in paths if term not in counted), _NAMED + 1)
        reasons.append(f"{missing:,} of {paths.count:,} terms are missing: {_few(list(named))}")
    return reasons


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")


def _names_of_wrong(
    step: int, added: Sequence[PathTerm], run: Run, frozen: Frozen, engine: PathTrace
) -> str:
    """The terms of a step that are wrong; its heads where terms are grouped by order."""
    if added:
        named = {numbered(term): term.path for term in added}
        wrong = islice(wrong_paths(frozen.model, map(numbered, added), step), _NAMED + 1)
        found = [named[path] for path in wrong]
    elif 0 < step <= frozen.model.depth:
        stream = engine.trace.streams[step - 1].high.to(frozen.model.dtype)
        wrong = wrong_components(frozen.model, step - 1, stream)
        grid = run.model.architecture.language.grid
        found = [component_name(grid.component(step - 1, index)) for index in wrong]
    else:
        found = []
    return f": {_few(found)}" if found else ""


def _scores(
    run: Run,
    frozen: Frozen,
    engine: PathTrace,
    sides: tuple[Carried, Carried],
    recording: Recording,
) -> tuple[Check, int, list[str]]:
    """The worst head's check, the number of score terms, and the heads whose check fails."""
    worst, pairs, wrong = Check(0.0, 0.0, holds=True), 0, list[str]()
    for layer, reader in enumerate(frozen.readers):
        parts, magnitude = engine.parts[layer], engine.trace.magnitudes[layer]
        if len(parts) ** 2 > _PAIR_LIMIT and not engine.by_order:
            parts = _grouped(engine, layer)  # by the last block that wrote: still all paths
        if not parts:  # all terms that could stand here are missing: their sum is 0
            parts = (torch.zeros_like(recording.streams[layer]),)
        distance = sides[0].streams[layer] + sides[1].streams[layer]
        for head in range(run.model.config.n_heads):
            value, count = sum_of_terms(reader, head, parts)
            bound = score_bound(
                reader,
                head,
                count + len(engine.parts[layer]),
                value.dtype,
                recording.streams[layer].double().abs(),
                magnitude,
                distance,
            )
            error = (recording.scores[layer][:, head].double() - value.double()).abs()
            check = _check(error, bound)
            wrong += [] if check.holds else [f"{layer}.{head}"]
            worst, pairs = _worse(worst, check), pairs + count
    return worst, pairs, wrong


def _patterns(run: Run, recording: Recording) -> tuple[Check, list[str]]:
    """Are the patterns the softmax of the scores over what may be attended to? And whose not."""
    allowed = run.allowed
    worst, wrong = Check(0.0, 0.0, holds=True), list[str]()
    for layer, (scores, pattern) in enumerate(
        zip(recording.scores, recording.patterns, strict=True)
    ):
        for head in range(pattern.shape[1]):
            error, bound = softmax_error(scores[:, head], pattern[:, head], allowed)
            check = _check(error, bound)
            wrong += [] if check.holds else [f"{layer}.{head}"]
            worst = _worse(worst, check)
    return worst, wrong


def _worse(one: Check, other: Check) -> Check:
    """Two checks as one: the worse of two that fail, the largest of both numbers if they hold."""
    if one.holds and other.holds:
        error = max(one.max_abs_error, other.max_abs_error)
        return Check(error, max(one.bound, other.bound), holds=True)
    failed = [check for check in (one, other) if not check.holds]
    return max(failed, key=lambda check: check.max_abs_error)


def _terms(terms: Iterable[PathTerm] | PathSum | Logits) -> list[PathTerm]:
    if isinstance(terms, Logits):
        terms = terms.expand()
    found = list[PathTerm]()
    for term in terms if isinstance(terms, Iterable) else [terms]:
        if not isinstance(term, PathTerm):
            raise InputError(
                f"terms are those of an expansion, such as paths['0.7 > 1.4'], not {term!r:.60}"
            )
        found.append(term)
    return found


def _grouped(engine: PathTrace, layer: int) -> tuple[Tensor, ...]:
    """The paths before a block, added up by the block that wrote them last."""
    groups, start = list[Tensor](), 0
    for earlier in range(layer + 1):
        fresh = engine.parts[earlier][start:]
        start = len(engine.parts[earlier])
        if fresh:
            groups.append(torch.stack([part.expand_as(fresh[0]) for part in fresh]).sum(0))
    return tuple(groups)


def _audit(run: Run, frozen: Frozen) -> list[str]:
    """Every tensor that the model has is used exactly once."""
    expected = set(run.model.weights.names())
    wrong = sorted(
        name for name in expected | set(frozen.used) if frozen.used[name] != (name in expected)
    )
    return [f"parameters not used exactly once: {_few(wrong)}"] if wrong else []


def _exact(run: Run, added: Sequence[PathTerm] | None, planned: Plan) -> ExactCheck:
    terms = run.model.architecture.logits.expand().depth_first() if added is None else added
    paths = [numbered(term) for term in terms]
    difference = exact_difference(run.frozen().model, paths, planned)
    return ExactCheck(str(difference), run.tokens.shape[1])
