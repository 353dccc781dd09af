"""Prove that the sum over paths is the model's own forward pass.

Two sides are compared: the judge (the reference module, which read the file by itself) and the
engine (path terms evaluated on the canonical weights at the recorded patterns). What is checked is
in :class:`~otimes.results.Certificate`; how the bounds come about in :mod:`otimes.numeric.rounding`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from otimes.algebra import PathSum, PathTerm
from otimes.bridge.binding import Frozen, numbered
from otimes.bridge.exact import exact_difference
from otimes.bridge.run import Run
from otimes.errors import UnsupportedError
from otimes.numeric.rounding import Carried, Step, carry, recorded_trace, steps, worst_ratio
from otimes.numeric.scores import score_bound, sum_of_terms
from otimes.numeric.traces import PathTrace, enumerated_trace, order_trace, wrong_paths
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
    terms: Iterable[PathTerm] | None = None,
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
        LimitError: for an exact verification that would take too long; it says how long.
    """
    number = _DTYPES.get(str(dtype).removeprefix("torch."))
    if number is None:
        raise UnsupportedError(f"cannot verify in {dtype}: use float64 or float32")
    recording = run.recording(number)
    frozen = run.frozen(number)
    paths = run.model.architecture.logits.expand()
    enumerated = terms is not None or paths.count <= enumeration_limit
    added = list(paths.depth_first() if terms is None else terms) if enumerated else []
    reasons = list[str]()
    if enumerated:
        added = _known(added, run, reasons)
        engine = enumerated_trace(frozen.model, map(numbered, added))
        reasons += _missing_and_doubled(added, paths)
    else:
        engine = order_trace(frozen.model, paths.count)

    judge = recorded_trace(recording.streams, recording.logits)
    judge_steps, engine_steps = steps(frozen.model, judge), steps(frozen.model, engine.trace)
    sides = carry(frozen.model, judge_steps), carry(frozen.model, engine_steps)
    blocks = tuple(_block_check(step) for step in judge_steps)
    written = tuple(_block_check(step) for step in engine_steps)
    reasons += [
        f"block {check.block}: the model's output is not its input plus the components "
        f"(off by {check.max_abs_error:.2e}, rounding explains {check.bound:.2e})"
        for check in blocks
        if not check.holds
    ]
    reasons += [
        f"terms of {check.block}: they are not what their matrices give (off by "
        f"{check.max_abs_error:.2e}, rounding explains {check.bound:.2e})"
        + _names_of_wrong(check.block, added, frozen)
        for check in written
        if not check.holds
    ]
    scores, pairs = _scores(run, frozen, engine, sides, recording.scores, recording.streams)
    if not scores.holds:
        reasons.append(
            f"scores: the score terms do not add up to the recorded scores (off by "
            f"{scores.max_abs_error:.2e}, bound {scores.bound:.2e})"
        )
    total, uncertainty = (engine.trace.logits - recording.logits).rounded()
    bound = sides[0].logits + sides[1].logits + uncertainty
    logits = _check(total.abs(), bound)
    largest = float(recording.logits.abs().max())
    if not logits.holds:
        reasons.append(
            f"logits: the sum over paths differs from the model's logits by "
            f"{logits.max_abs_error:.2e}, bound {logits.bound:.2e}"
        )
    if not logits.bound <= _VACUOUS[number] * largest and logits.bound > 1e-250:
        reasons.append(
            f"the bound {logits.bound:.2e} says nothing: it is above {_VACUOUS[number]:g} of the "
            f"largest logit ({largest:.3g})"
        )
    reasons += _audit(run, frozen)
    exact_check = _exact(run, added) if exact else None
    if exact_check is not None and not exact_check.holds:
        reasons.append(f"exact: the rational difference is {exact_check.difference}, not 0")
    config, (batch, length) = run.model.config, run.tokens.shape
    return Certificate(
        model=run.model.path.name,
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
        logits=logits,
        largest_logit=largest,
        vacuous_above=_VACUOUS[number],
        frozen=(
            f"attention patterns of {config.n_layers} layers × {config.n_heads} heads, "
            "as the run recorded them",
        )
        if config.n_layers
        else (),
        unused_parameters=run.model.weights.unused,
        exact=exact_check,
        reasons=tuple(reasons),
    )


def _check(error: Tensor, bound: Tensor) -> Check:
    """Compare element by element; what exceeds its bound most is what is reported."""
    if worst_ratio(error, bound) <= 1:
        return Check(float(error.max()), float(bound.max()), holds=True)
    place = int((error / bound).nan_to_num(torch.inf).argmax())
    return Check(float(error.flatten()[place]), float(bound.flatten()[place]), holds=False)


def _block_check(step: Step) -> BlockCheck:
    check = _check((step.deviation.abs() - step.uncertainty).clamp(min=0), step.bound)
    return BlockCheck(check.max_abs_error, check.bound, check.holds, step.name)


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


def _names_of_wrong(block: str, added: Sequence[PathTerm], frozen: Frozen) -> str:
    layer, _, kind = block.partition(".")
    if kind != "attn":
        return ""
    by_number = {numbered(term): term.path for term in added}
    wrong = wrong_paths(frozen.model, map(numbered, added), int(layer))
    return f": {_few([by_number[path] for path in wrong])}" if wrong else ""


def _scores(
    run: Run,
    frozen: Frozen,
    engine: PathTrace,
    sides: tuple[Carried, Carried],
    recorded: Sequence[Tensor],
    streams: Sequence[Tensor],
) -> tuple[Check, int]:
    """All heads' sums of score terms against the recorded scores, and the number of terms."""
    worst, pairs = Check(0.0, 0.0, holds=True), 0
    for layer, reader in enumerate(frozen.readers):
        parts = engine.parts[layer]
        if len(parts) ** 2 > _PAIR_LIMIT:  # by the last block that wrote: still all paths
            parts = _grouped(engine, layer)
        distance = sides[0].streams[layer] + sides[1].streams[layer]
        for head in range(run.model.config.n_heads):
            value, count = sum_of_terms(reader, head, parts)
            bound = score_bound(
                reader,
                head,
                count + len(engine.parts[layer]),
                value.dtype,
                streams[layer].double().abs(),
                engine.trace.magnitudes[layer],
                distance,
            )
            check = _check((recorded[layer][:, head].double() - value.double()).abs(), bound)
            pairs += count
            if not check.holds and (worst.holds or check.max_abs_error > worst.max_abs_error):
                worst = check
            elif worst.holds:
                worst = Check(
                    max(worst.max_abs_error, check.max_abs_error),
                    max(worst.bound, check.bound),
                    holds=True,
                )
    return worst, pairs


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


def _exact(run: Run, added: Sequence[PathTerm]) -> ExactCheck:
    paths = added or list(run.model.architecture.logits.expand().depth_first())
    difference = exact_difference(run.frozen().model, [numbered(term) for term in paths])
    return ExactCheck(str(difference), run.tokens.shape[1])
