"""Why a certificate does not hold, in words."""

from __future__ import annotations

from collections.abc import Sequence

from otimes.bridge.checks import all_zero
from otimes.bridge.term_list import few
from otimes.results.certificate import BlockCheck, Check, Identity, SourceError


def block_reason(check: BlockCheck) -> str:
    """A step of the judge that is not what its parts give."""
    return (
        f"block {check.block}: the model's output is not its input plus the components at the "
        f"weights, biases and patterns that were frozen (off by {check.max_abs_error:.2e}, "
        f"rounding explains {check.bound:.2e})"
    )


def terms_reason(check: BlockCheck) -> str:
    """A step of the engine that is not what its matrices give."""
    return (
        f"terms of {check.block}: they are not what their matrices give (off by "
        f"{check.max_abs_error:.2e}, rounding explains {check.bound:.2e})"
    )


def score_reason(scores: Check, wrong: Sequence[str]) -> str:
    """Scores that are no sums of their terms."""
    return (
        f"scores of {few(wrong)}: the score terms do not add up to the recorded scores (off "
        f"by {scores.max_abs_error:.2e}, bound {scores.bound:.2e})"
    )


def pattern_reason(patterns: Check, wrong: Sequence[str]) -> str:
    """Patterns that are no softmax of their scores."""
    return (
        f"patterns of {few(wrong)}: they are not the softmax of the recorded scores over the "
        f"positions that may be attended to (off by {patterns.max_abs_error:.2e}, bound "
        f"{patterns.bound:.2e})"
    )


def identity_reason(identity: Identity) -> str:
    """Two sides that differ modulo a prime."""
    return (
        "identity: the forward recursion and the sum over labelled paths differ modulo "
        f"{identity.primes[-1]}"
    )


def logit_reasons(
    logits: Check, measured: Check | None, largest: float, vacuous: float
) -> list[str]:
    """Logits that differ, and bounds that say nothing."""
    reasons = list[str]()
    failed = [check for check in (logits, measured) if check is not None and not check.holds]
    if failed:
        reasons.append(
            f"logits: the sum over paths differs from the model's logits by "
            f"{failed[0].max_abs_error:.2e}, bound {failed[0].bound:.2e}"
        )
    if not (logits.bound <= vacuous * largest or all_zero(logits, largest)):
        reasons.append(
            f"the bound {logits.bound:.2e} says nothing: it is above {vacuous:g} of the "
            f"largest logit ({largest:.3g})"
        )
    return reasons


def original_logits_reason(kind: str, error: SourceError) -> str:
    """Logits of the original module that differ by more than their tolerance."""
    return (
        f"logits of {kind}: its own, in {error.dtype}, are {error.max_abs_error:.2e} from "
        f"those of the canonical weights, tolerance {error.tolerance:.2e}"
    )


def unexplained_reason(name: str, share: float) -> str:
    """Where to look when logits differ and no block exceeds its bound."""
    return (
        "no block is further off than rounding explains; look first at "
        f"{name}, which is {share:.1e} of its largest value off"
    )


def original_block_reason(kind: str, check: BlockCheck) -> str:
    """A block of the original module that is not what the canonical weights give."""
    name, _, output = check.block.partition(" ")
    what = {
        "embed": "its embeddings are not",
        "unembed": "its logits are not",
    }.get(name, "what its branch wrote is not" if output else "the stream behind the block is not")
    return (
        f"original {check.block}: {what} what {kind}'s canonical weights give of the same "
        f"input (off by {check.max_abs_error:.2e}, rounding explains {check.bound:.2e})"
    )


def original_audit_reason(kind: str, names: str) -> str:
    """Parameters that one of the two has and the other has not."""
    return f"parameters of {kind} not used exactly once in the canonical weights: {names}"


def definition_reason(name: str) -> str:
    """A block of the reference module that is not the one that the original is held to."""
    return (
        f"reference {name}: the reference module's block is not the definition that the original "
        "module is compared with"
    )
