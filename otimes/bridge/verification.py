"""Prove that the sum over paths is the model's own forward pass.

Two sides are compared: the judge (the reference module, which read the file by itself) and the
engine (path terms evaluated on the canonical weights at the recorded patterns). What is checked is
in :class:`~otimes.results.Certificate`, how the bounds come about in
:mod:`otimes.bridge.logit_bounds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import torch

from otimes.algebra import Logits, PathSum, PathTerm
from otimes.bridge.binding import numbered
from otimes.bridge.checks import (
    block_check,
    check_of,
    not_finite,
    pattern_check,
    wrong_outputs,
)
from otimes.bridge.checks import score_check as check_scores
from otimes.bridge.chosen import LARGEST, chosen_targets, in_words
from otimes.bridge.exact import exact_plan
from otimes.bridge.freezing import Frozen
from otimes.bridge.logit_bounds import Sides, bound_logits, measure
from otimes.bridge.memory import recording_to_verify
from otimes.bridge.original_checks import check_original
from otimes.bridge.reasons import (
    block_reason,
    identity_reason,
    logit_reasons,
    pattern_reason,
    score_reason,
    terms_reason,
)
from otimes.bridge.run import Run
from otimes.bridge.term_list import (
    few,
    known_terms,
    missing_and_doubled,
    named_numbers,
    names_of_wrong,
    path_terms,
)
from otimes.errors import InputError, UnsupportedError
from otimes.models.reference import Recording
from otimes.numeric.chosen import Chosen
from otimes.numeric.identity import PathNumbers, degree, draw_prime, identity_holds
from otimes.numeric.modular import Plan, exact_difference
from otimes.numeric.rounding import recorded_trace
from otimes.numeric.traces import PathTrace, enumerated_trace, order_trace
from otimes.results.certificate import Certificate, Check, ExactCheck, Identity

ENUMERATION_LIMIT = 4096
"""More paths than this are added up by order."""

FULL_LIMIT = 10**9
"""Where all logits take more multiplications than this, named targets are checked.

A weight takes one for each position, and about as many as 32 positions to be cut into slices whose
products have no rounding error.
"""

_DTYPES = {"float64": torch.float64, "float32": torch.float32}
# a bound above this share of the largest logit says nothing
_VACUOUS = {torch.float64: 1e-6, torch.float32: 1e-2}


def verify(
    run: Run,
    *,
    dtype: str | torch.dtype = "float64",
    exact: bool = False,
    terms: Iterable[PathTerm] | PathSum | Logits | None = None,
    targets: Iterable[tuple[int, int]] | None = None,
    primes: int = 2,
    seed: int = 0,
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
        targets: (position, token id) pairs whose logits are checked, in every sequence; a position
            may count from the end. By default all logits, and the 10 largest at the last position
            where that would take more than ``FULL_LIMIT`` multiplications or say nothing.
        primes: modulo so many random primes the identity is checked; 0 leaves it out.
        seed: of the random primes and labels.
        enumeration_limit: with more paths than this, they are added up grouped by order.

    Returns:
        A certificate that prints as a report; ``.holds`` is the answer.

    Raises:
        UnsupportedError: for another dtype.
        InputError: for terms that are none, targets out of range, or a negative number of primes.
        LimitError: for an exact verification that would take too long, and for one that would
            take too much memory; it says how long or how much.
    """
    number = _number(dtype)
    if primes < 0:
        raise InputError(f"the number of primes is at least 0, not {primes}")
    asked = None if targets is None else chosen_targets(run, targets)
    paths = run.model.architecture.logits.expand()
    enumerated = terms is not None or paths.count <= enumeration_limit
    added = list(paths.depth_first() if terms is None else path_terms(terms)) if enumerated else []
    # what it would take is said before any work
    each, count = (len(added), len(added)) if enumerated else (None, paths.count)
    large, names = _is_large(run), _step_names(run)
    recording = recording_to_verify(run, each, number, large=large)
    overflow = not_finite(recording, names)
    planned = exact_plan(run.frozen().model, count) if exact else None
    # before the engine has streams of its own: it takes a copy of the module
    original = check_original(run, recording, number)
    frozen = run.frozen(number)
    # terms add up before a soft-cap
    model, recorded = frozen.model, recording.uncapped_logits
    default = Chosen.largest(recorded, LARGEST)
    chosen = (default if asked is None else asked) if large else None
    named = list[str]()
    if enumerated:
        added = known_terms(added, run, named)
        engine = enumerated_trace(model, map(numbered, added), chosen)
        named += missing_and_doubled(added, paths)
    else:
        engine = order_trace(model, paths.count, chosen)
    judge = recorded_trace(recording.streams, recorded, chosen)
    sides = measure(model, judge, engine.trace)
    blocks = tuple(map(block_check, names, sides.judge))
    written = tuple(map(block_check, names, sides.engine))
    reasons = [block_reason(check) for check in blocks if not check.holds]
    reasons += [
        terms_reason(check)
        + ("" if overflow else names_of_wrong(place, added, run, frozen, engine))
        for place, check in enumerate(written)
        if not check.holds
    ]
    reasons += wrong_outputs(run, frozen, recording, plain=large)
    scores, pairs, patterns = _attention(run, frozen, engine, sides, recording, reasons)
    largest = float(recorded.abs().max().nan_to_num(torch.inf))
    found = bound_logits(
        model, (judge, engine.trace), sides, asked, default, _VACUOUS[number] * largest
    )
    logits = check_of(found.error, found.bound)
    measured = None if found.measured is None else check_of(*found.measured)
    reasons += logit_reasons(logits, measured, largest, _VACUOUS[number])
    # where the judge overflows all numbers are wrong, and one reason says it
    reasons = [*named, *(overflow or [*original.reasons, *reasons]), *_audit(run, frozen)]
    identity = None
    if primes and not overflow:
        identity = _identity(run, frozen, added if enumerated else None, primes, seed)
        reasons += [] if identity.holds else [identity_reason(identity)]
    exact_check = None if planned is None else _exact(run, added if enumerated else None, planned)
    if exact_check is not None and not exact_check.holds:
        reasons.append(f"exact: the rational difference is {exact_check.difference}, not 0")
    return Certificate(
        model=run.model.name,
        tokens=tuple(tuple(row) for row in run.tokens.tolist()),
        dtype=str(number).removeprefix("torch."),
        paths=paths.count,
        method="enumerated" if enumerated else "by order",
        checked=(
            in_words(recorded, found.chosen, default),
            f"scores: {sum(run.model.architecture.heads)} heads, {pairs:,} score terms"
            + (" (grouped)" if not enumerated else ""),
            f"parameters: {len(run.model.weights.names())} tensors, each used once",
            *original.checked,
        ),
        blocks=blocks,
        terms=written,
        scores=scores,
        patterns=patterns,
        logits=logits,
        analysis=found.analysis,
        measured=measured,
        largest_logit=largest,
        vacuous_above=_VACUOUS[number],
        frozen=run.held_fixed,
        unused_parameters=run.model.weights.unused,
        identity=identity,
        exact=exact_check,
        reasons=tuple(reasons),
        source=original.kind,
        source_blocks=original.blocks,
        source_errors=original.errors,
    )


def _number(dtype: str | torch.dtype) -> torch.dtype:
    found = _DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise UnsupportedError(f"cannot verify in {dtype}: use float64 or float32")
    return found


def _is_large(run: Run) -> bool:
    """Whether named logits are checked, and in float64."""
    weights = sum(tensor.numel() for tensor in run.model.weights.tensors().values())
    return (run.tokens.numel() + 32) * weights > FULL_LIMIT


def _step_names(run: Run) -> list[str]:
    """``embed``, ``0.attn``, ``0.mlp``, …, ``unembed``; a block of both branches is ``0``."""
    return ["embed", *(block.name for block in run.model.architecture.blocks), "unembed"]


def _attention(
    run: Run,
    frozen: Frozen,
    engine: PathTrace,
    sides: Sides,
    recording: Recording,
    reasons: list[str],
) -> tuple[Check, int, Check]:
    """The checks of scores, with the number of their terms, and of patterns."""
    scores, pairs, wrong = check_scores(frozen, engine, sides.distances, recording)
    reasons += [] if scores.holds else [score_reason(scores, wrong)]
    if not torch.equal(recording.positions, run.positions):
        reasons.append("position ids: the model's are not those of the real tokens, from 0")
    patterns, wrong = pattern_check(run, recording)
    reasons += [] if patterns.holds else [pattern_reason(patterns, wrong)]
    return scores, pairs, patterns


def _audit(run: Run, frozen: Frozen) -> list[str]:
    """Every tensor that the model has is used exactly once."""
    expected = set(run.model.weights.names())
    wrong = sorted(
        name for name in expected | set(frozen.used) if frozen.used[name] != (name in expected)
    )
    return [f"parameters not used exactly once: {few(wrong)}"] if wrong else []


def _identity(
    run: Run, frozen: Frozen, added: Sequence[PathTerm] | None, primes: int, seed: int
) -> Identity:
    """Compare both sides modulo random primes, up to the first that fails."""
    random = Random(seed)  # noqa: S311 - nothing is kept secret
    used, holds = list[int](), True
    pairs: list[tuple[PathNumbers, PathNumbers]] | None = None
    if added is not None:
        names = named_numbers(run, frozen, (term.path for term in added))
        pairs = list(zip(names, map(numbered, added), strict=True))
    while holds and len(used) < primes:
        used.append(draw_prime(frozen.model, random))
        holds = identity_holds(frozen.model, used[-1], random, pairs)
    return Identity(holds, tuple(used), degree(frozen.model))


def _exact(run: Run, added: Sequence[PathTerm] | None, planned: Plan) -> ExactCheck:
    terms = run.model.architecture.logits.expand().depth_first() if added is None else added
    paths = [numbered(term) for term in terms]
    difference = exact_difference(run.frozen().model, paths, planned)
    return ExactCheck(str(difference), run.tokens.shape[1])
