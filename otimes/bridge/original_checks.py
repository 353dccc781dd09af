"""The original module as the judge of what was made of its weights.

It runs by itself, and its blocks are watched: on the input that each block really had, the model's
definition at the canonical weights must give what the block really wrote, within a rigorous bound
that uses the coarsest rounding inside that block. So a family's table that is wrong is named by
layer and branch. Attention patterns are recomputed, whatever the module's implementation of
attention, and checked with the output that they lead to. The logits are compared at the end, a
measured difference beside a tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otimes.algebra.layout import ATTENTION
from otimes.bridge.checks import check_of
from otimes.bridge.layers import Layers, Units
from otimes.bridge.loading.families.table import FLOAT32_PARTS
from otimes.bridge.loading.original import Original, OriginalRecording
from otimes.bridge.loading.state import unwrapped
from otimes.bridge.loading.weights import Weights
from otimes.bridge.reasons import (
    definition_reason,
    original_audit_reason,
    original_block_reason,
    original_logits_reason,
    unexplained_reason,
)
from otimes.bridge.run import Run
from otimes.bridge.term_list import few
from otimes.errors import UnsupportedError
from otimes.models.reference import Recording
from otimes.numeric.magnitudes import unit_roundoff
from otimes.numeric.nearby import Nearby
from otimes.results.certificate import BlockCheck, Check, SourceError

TOLERANCES = {
    torch.float64: 1e-4,
    torch.float32: 1e-3,
    torch.float16: 5e-2,
    torch.bfloat16: 3e-1,
}
"""How far logits of an original may be off by its dtype, as a share of the largest.

In float64 it is that of float32, in which many modules compute norms and the softmax all the same.
"""
AMPLIFIED = 32
"""How many times what float32 does to the reference's own logits an original's may be off."""
AMPLIFIED_AT_MOST = 1e-2
"""And no more than this share of the largest, in float64 and float32."""


@dataclass(frozen=True)
class OriginalChecks:
    """What the original module says: its blocks, its logits in each dtype, and what is wrong."""

    kind: str | None = None
    blocks: tuple[BlockCheck, ...] = ()
    errors: tuple[SourceError, ...] = ()
    reasons: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()


def check_original(run: Run, recording: Recording, dtype: torch.dtype) -> OriginalChecks:
    """Judge a run by the original module, where there is one.

    Args:
        run: the run.
        recording: what the reference module did, in ``dtype``.
        dtype: what the original's blocks are compared in; the next one that it can run in where it
            cannot run in this.

    Raises:
        UnsupportedError: it cannot run at all.
    """
    original = run.model.original
    if original is None:
        return OriginalChecks()
    judged, errors, refused = OriginalChecks(), list[SourceError](), list[UnsupportedError]()
    for number in _dtypes(run, dtype):
        try:
            recorded = original.record(run.tokens, run.mask, number)
        except UnsupportedError as error:  # such as code that makes float32 tensors of its own
            refused.append(error)
            continue
        errors.append(logits_error(run, recorded, number))
        if len(errors) == 1:
            judged = _judged(run, original, recorded, errors[0], number)
            again = other_definition(run, recording, dtype) if recorded.streams else []
            judged = replace(judged, reasons=(*judged.reasons, *again))
    original.release()
    if not errors:
        raise refused[0]
    checked = f"original: {original.kind}, {judged.checked[0]}, logits in {len(errors)} dtypes"
    if errors[0].dtype != str(dtype).removeprefix("torch."):
        checked += f", not in {str(dtype).removeprefix('torch.')}, in which it does not run"
    if run.model.weights.sources:
        checked += f", {len(run.model.weights.sources)} parameters, each used once"
    return replace(judged, kind=original.kind, errors=tuple(errors), checked=(checked,))


def _judged(
    run: Run,
    original: Original,
    recorded: OriginalRecording,
    error: SourceError,
    dtype: torch.dtype,
) -> OriginalChecks:
    """What a pass in one dtype says: blocks, logits and parameters."""
    reasons = [] if error.holds else [original_logits_reason(original.kind, error)]
    audit = _audit(original, run.model.weights, dtype)
    if not recorded.streams:
        nothing = "no blocks, its modules are not known"
        return OriginalChecks(reasons=(*reasons, *audit), checked=(nothing,))
    found = _blocks(Layers(run, _units(original, dtype)), recorded, recorded.streams)
    wrong = [original_block_reason(original.kind, check) for check in found if not check.holds]
    sizes = _sizes(recorded)
    if reasons and not wrong:
        reasons = [f"{reasons[0]}; {unexplained_reason(*_furthest(found, sizes))}"]
    # where absolute values cancel much, a bound may be as large as what is bounded
    empty = [c for c in found if c.bound > sizes.get(c.block, math.inf)]
    checked = f"{len(found)} places" + (
        f" ({len(empty)} of them within bounds above all that was written there)" if empty else ""
    )
    return OriginalChecks(
        blocks=tuple(found), reasons=(*wrong, *reasons, *audit), checked=(checked,)
    )


def _dtypes(run: Run, dtype: torch.dtype) -> list[torch.dtype]:
    """What the error of the logits is measured in: the certificate's dtype first."""
    stored = {tensor.dtype for tensor in run.model.weights.tensors().values()}
    others = {torch.float64, torch.float32, torch.bfloat16, *stored} - {dtype}
    return [dtype, *sorted(others, key=lambda one: (-one.itemsize, str(one)))]


def _units(original: Original, dtype: torch.dtype) -> Units:
    """How the original rounds in a dtype, in the places that it computes in float32 anyway."""
    own = unit_roundoff(torch.float64)
    plain = unit_roundoff(dtype) + own
    coarse = max(plain, unit_roundoff(torch.float32) + own)
    inside = original.float32
    of = {name: coarse if name in inside else plain for name in FLOAT32_PARTS}
    return Units(plain, of["norms"], of["angles"], of["scores"], of["softmax"])


def _blocks(
    layers: Layers, recorded: OriginalRecording, streams: Sequence[Tensor]
) -> list[BlockCheck]:
    """Each block on its recorded input, with the branches by themselves."""
    run, real = layers.run, _real(layers.run)

    def check(name: str, value: Nearby, written: Tensor) -> BlockCheck:
        found = _check([(value, written)], real)
        return BlockCheck(found.max_abs_error, found.bound, found.holds, name)

    found = [check("embed", layers.embedded(), streams[0])]
    for number, block in enumerate(run.model.architecture.blocks):
        layer, outputs = block.layer, dict[str, Nearby]()
        for branch in block.branches:
            seen = recorded.attention_outputs if branch == ATTENTION else recorded.mlp_outputs
            value = layers.output(layer, branch, streams[number])
            found.append(check(f"{layer}.{branch} output", value, seen[layer]))
            outputs[branch] = Nearby.exact(seen[layer])
        value = layers.joined(layer, streams[number], outputs)
        found.append(check(block.name, value, streams[number + 1]))
    logits = ((value, recorded.logits[rows]) for rows, value in layers.logits(streams[-1]))
    last = _check(logits, real)
    return [*found, BlockCheck(last.max_abs_error, last.bound, last.holds, "unembed")]


def _sizes(recorded: OriginalRecording) -> dict[str, float]:
    """The largest value that was written at each place, but for the streams behind blocks."""
    written = {"embed": recorded.streams[0], "unembed": recorded.logits}
    for branch, outputs in (("attn", recorded.attention_outputs), ("mlp", recorded.mlp_outputs)):
        written |= {f"{layer}.{branch} output": value for layer, value in enumerate(outputs)}
    return {name: float(value.abs().max()) for name, value in written.items()}


def _furthest(found: Sequence[BlockCheck], sizes: Mapping[str, float]) -> tuple[str, float]:
    """The place that is furthest off, as a share of the largest value written there."""
    shares = {
        check.block: check.max_abs_error / max(sizes[check.block], 1e-300)
        for check in found
        if check.block in sizes
    }
    return max(shares.items(), key=lambda pair: pair[1])


def other_definition(run: Run, recording: Recording, dtype: torch.dtype) -> list[str]:
    """What of the reference module's own run is not the definition that the original is held to."""
    unit = unit_roundoff(dtype) + unit_roundoff(torch.float64)
    layers, streams = Layers(run, Units(unit, unit, unit, unit, unit)), recording.streams
    real, wrong = _real(run), list[str]()

    def compare(name: str, value: Nearby, written: Tensor) -> None:
        if not _check([(value, written)], real).holds:
            wrong.append(name)

    compare("embed", layers.embedded(), streams[0])
    for number, block in enumerate(run.model.architecture.blocks):
        stream = streams[number]
        outputs = {one: layers.output(block.layer, one, stream) for one in block.branches}
        compare(block.name, layers.joined(block.layer, stream, outputs), streams[number + 1])
    logits = ((value, recording.logits[rows]) for rows, value in layers.logits(streams[-1]))
    if not _check(logits, real).holds:
        wrong.append("unembed")
    return [definition_reason(name) for name in wrong]


def _audit(original: Original, weights: Weights, dtype: torch.dtype) -> list[str]:
    """The parameters of the original that the canonical weights were not made of."""
    if not weights.sources:  # its tensors were named by hand
        return []
    module = original.module(dtype)
    names = set(unwrapped(dict(module.named_parameters()), ""))
    whole = set(unwrapped(module.state_dict(), ""))
    used = {name if name in whole else original.renamed.get(name, name) for name in weights.sources}
    left = sorted(names - {*used, *weights.unused})
    gone = sorted(used - whole)
    return [original_audit_reason(original.kind, few(found)) for found in (left, gone) if found]


def _check(pairs: Iterable[tuple[Nearby, Tensor]], real: Tensor) -> Check:
    """A value beside what a module wrote, at real tokens; the worst of all parts."""
    worst, start = Check(0.0, 0.0, holds=True), 0
    for value, written in pairs:
        rows = real[:, start : start + value.value.shape[1]]
        start += value.value.shape[1]
        error = (value.value - written.double()).abs()[rows]
        check = check_of(error, value.distance[rows])
        if worst.holds and check.holds:
            worst = Check(
                max(worst.max_abs_error, check.max_abs_error),
                max(worst.bound, check.bound),
                holds=True,
            )
        elif worst.holds or (not check.holds and check.max_abs_error > worst.max_abs_error):
            worst = check
    return worst


def _real(run: Run) -> Tensor:
    return torch.ones_like(run.tokens, dtype=torch.bool) if run.mask is None else run.mask


def logits_error(run: Run, recorded: OriginalRecording, dtype: torch.dtype) -> SourceError:
    """The original's logits in a dtype beside those of the canonical weights, at real tokens."""
    real = _real(run)
    own, theirs = run.logits[real], recorded.logits[real].double()
    error = float((own - theirs).abs().max().nan_to_num(torch.inf))
    largest = float(own.abs().max().nan_to_num(0.0))
    tolerance = TOLERANCES[dtype] * largest
    if error > tolerance and dtype in (torch.float64, torch.float32):
        # a network that amplifies rounding does so in the reference module too
        apart = float((run.recording(torch.float32).logits[real].double() - own).abs().max())
        most = min(AMPLIFIED * apart, AMPLIFIED_AT_MOST * largest)
        tolerance = max(tolerance, most)
    return SourceError(str(dtype).removeprefix("torch."), error, tolerance)
