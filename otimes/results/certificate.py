"""The certificate: how a verification ended, with every error beside its bound."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from otimes.results.saved import Saved, finite, read, write

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Check:
    """One comparison: the largest absolute error beside its bound, in the unit of what it is.

    Where an error exceeds its bound, the pair is that of the place where it does so most.
    """

    max_abs_error: float
    bound: float
    holds: bool


@dataclass(frozen=True)
class BlockCheck(Check):
    """The check of one step: ``embed``, ``0.attn``, …, ``unembed``."""

    block: str


@dataclass(frozen=True)
class ExactCheck:
    """Rational arithmetic: the largest difference, an exact fraction as text, over ``tokens``."""

    difference: str
    tokens: int

    @property
    def holds(self) -> bool:
        """Whether the difference is exactly zero."""
        return self.difference == "0"


@dataclass(frozen=True)
class Identity:
    """Forward recursion and sum over labelled paths as polynomials, modulo random primes.

    ``degree`` is that of the polynomials in the labels: unequal ones agree modulo one prime with a
    probability of at most degree / prime.
    """

    holds: bool
    primes: tuple[int, ...]
    degree: int

    @property
    def false_pass(self) -> float:
        """At most so likely do polynomials that differ modulo each prime pass nevertheless."""
        return math.prod(min(1.0, self.degree / prime) for prime in self.primes)


@dataclass(frozen=True)
class SourceError:
    """The original module's own logits, computed in ``dtype``, against the canonical weights'.

    ``max_abs_error`` is measured at real tokens, through a soft-cap where there is one;
    ``tolerance`` is what rounding in that dtype may come to, by experience and not by proof.
    """

    dtype: str
    max_abs_error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the error is within its tolerance."""
        return self.max_abs_error <= self.tolerance


@dataclass(frozen=True)
class Certificate:
    """Whether the sum over paths is the model's own forward pass.

    Attributes:
        model: the name of the checkpoint.
        tokens: the ids that were run, ``[batch][pos]``.
        dtype: what both sides computed in.
        paths: the exact number of paths of the model.
        method: ``enumerated`` (each path by itself) or ``by order`` (grouped by number of heads).
        checked: what was compared, in words.
        blocks: the judge's steps: input and exact components against its output.
        terms: the engine's steps: what its path terms wrote against exact components.
        scores: the sums of score terms against the recorded scores before the softmax.
        patterns: the softmax of the recorded scores, masked, against the recorded patterns.
        logits: the sum over paths against the judge's logits, in logits, where ``checked`` says.
        analysis: where their bound comes from: ``absolute values`` or the ``adjoint`` of the
            checked logits (neither depends on what was measured), or ``measured deviations``.
        measured: all logits against the measured deviations carried through the network, which is
            tighter; None where that would cost too much.
        largest_logit: the largest absolute logit; a bound above ``vacuous_above`` times this says
            nothing and does not hold.
        source: what the weights came from, such as ``LlamaForCausalLM``; None: there is no
            original module.
        source_blocks: the original module's blocks, and the outputs of their branches: what it
            wrote against the canonical weights' components on the same input.
        source_errors: the original module's logits by the dtype that it computes in, that of the
            certificate first.
        frozen: what was held fixed.
        unused_parameters: tensors of the file that the model does not have.
        identity: the comparison of both sides modulo primes, or None where it was left out.
        exact: the rational verification, or None.
        reasons: why it does not hold; empty when it does.
    """

    model: str
    tokens: tuple[tuple[int, ...], ...]
    dtype: str
    paths: int
    method: str
    checked: tuple[str, ...]
    blocks: tuple[BlockCheck, ...]
    terms: tuple[BlockCheck, ...]
    scores: Check
    patterns: Check
    logits: Check
    analysis: str
    measured: Check | None
    largest_logit: float
    vacuous_above: float
    frozen: tuple[str, ...]
    unused_parameters: tuple[str, ...]
    identity: Identity | None
    exact: ExactCheck | None
    reasons: tuple[str, ...]
    source: str | None = None
    source_blocks: tuple[BlockCheck, ...] = ()
    source_errors: tuple[SourceError, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every check holds and the bound says something."""
        return not self.reasons

    @property
    def max_abs_error(self) -> float:
        """The largest difference between the sum over paths and the model's checked logits."""
        return self.logits.max_abs_error

    @property
    def bound(self) -> float:
        """The rigorous bound on that difference."""
        return self.logits.bound

    @property
    def source_error(self) -> SourceError | None:
        """That of the certificate's own dtype; None where there is no original module."""
        return self.source_errors[0] if self.source_errors else None

    def to_json(self) -> dict[str, Any]:
        """The object that ``otimes verify --json`` prints; null stands for what is not finite."""
        error = self.source_error
        shown = {
            "holds": self.holds,
            "model": self.model,
            "tokens": list(self.tokens[0]) if len(self.tokens) == 1 else [*map(list, self.tokens)],
            "dtype": self.dtype,
            "paths": str(self.paths),
            "method": self.method,
            "checked": list(self.checked),
            "max_abs_error": self.max_abs_error,
            "bound": self.bound,
            "analysis": self.analysis,
            "measured": None if self.measured is None else _pair(self.measured),
            "largest_logit": self.largest_logit,
            "blocks": [_pair(check, block=check.block) for check in self.blocks],
            "terms": [_pair(check, block=check.block) for check in self.terms],
            "scores": _pair(self.scores),
            "patterns": _pair(self.patterns),
            "identity": None if self.identity is None else _identity(self.identity),
            "source": self.source,
            "source_blocks": [_pair(check, block=check.block) for check in self.source_blocks],
            "source_max_abs_error": None if error is None else error.max_abs_error,
            "source_tolerance": None if error is None else error.tolerance,
            "source_errors": [asdict(one) for one in self.source_errors],
            "frozen": list(self.frozen),
            "unused_parameters": list(self.unused_parameters),
            "exact": None if self.exact is None else asdict(self.exact),
        }
        found = shown if self.holds else {**shown, "reason": "; ".join(self.reasons)}
        return cast("dict[str, Any]", finite(found))

    def save(self, path: str | Path) -> None:
        """Write the certificate as JSON; :meth:`load` reads it without the model."""
        write(path, asdict(self))

    @staticmethod
    def load(path: str | Path) -> Certificate:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: if the file is not a saved certificate.
        """
        return read(path, "certificate", _certificate)

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each check: side, block, max_abs_error, bound, holds."""
        import pandas

        rows = [
            *(("judge", check.block, check) for check in self.blocks),
            *(("terms", check.block, check) for check in self.terms),
            ("sum", "scores", self.scores),
            ("judge", "patterns", self.patterns),
            ("sum", "logits", self.logits),
            *([] if self.measured is None else [("sum", "logits, measured", self.measured)]),
            *(("original", check.block, check) for check in self.source_blocks),
        ]
        return pandas.DataFrame(
            [
                {
                    "side": side,
                    "block": block,
                    "max_abs_error": check.max_abs_error,
                    "bound": check.bound,
                    "holds": check.holds,
                }
                for side, block, check in rows
            ]
        )

    def __repr__(self) -> str:
        head = f"Certificate for {self.model}: " + ("holds" if self.holds else "DOES NOT HOLD")
        lines = [
            head,
            "=" * len(head),
            f"{self.paths:,} paths, {self.method}, in {self.dtype}",
            *(f"checked  {line}" for line in self.checked),
            *(f"frozen   {line}" for line in self.frozen),
            "",
            f"{'':24}{'error':>10}{'bound':>12}",
            *(_row(f"block {check.block}", check) for check in self.blocks),
            *(_row(f"terms {check.block}", check) for check in self.terms),
            *(_row(f"original {check.block}", check) for check in self.source_blocks),
            _row("scores", self.scores),
            _row("patterns", self.patterns),
            _row("logits", self.logits),
            *([] if self.measured is None else [_row("logits, measured", self.measured)]),
            f"bound    on logits by {self.analysis}",
            f"the largest logit is {self.largest_logit:.4g}",
        ]
        lines += [f"original {_source_in_words(error)}" for error in self.source_errors]
        if self.identity is not None:
            lines.append(f"identity {_identity_in_words(self.identity)}")
        if self.exact is not None:
            lines.append(
                f"exact    difference {self.exact.difference} over {self.exact.tokens} tokens, "
                "in rational arithmetic"
            )
        if self.unused_parameters:
            lines.append(f"unused   {', '.join(self.unused_parameters)}")
        lines += [f"reason   {reason}" for reason in self.reasons]
        return "\n".join(lines)


def _check(saved: Saved) -> Check:
    return Check(saved.number("max_abs_error"), saved.number("bound"), saved.get("holds", bool))


def _block(saved: Saved) -> BlockCheck:
    check = _check(saved)
    return BlockCheck(check.max_abs_error, check.bound, check.holds, saved.get("block", str))


def _source_error(saved: Saved) -> SourceError:
    return SourceError(
        saved.get("dtype", str), saved.number("max_abs_error"), saved.number("tolerance")
    )


def _exact(saved: Saved) -> ExactCheck:
    return ExactCheck(saved.get("difference", str), saved.get("tokens", int))


def _saved_identity(saved: Saved) -> Identity:
    return Identity(saved.get("holds", bool), saved.integers("primes"), saved.get("degree", int))


def _certificate(saved: Saved) -> Certificate:
    exact, identity = saved.value["exact"], saved.value["identity"]
    measured = saved.value["measured"]
    return Certificate(
        model=saved.get("model", str),
        tokens=tuple(
            tuple(Saved({"tokens": token}).get("tokens", int) for token in row)
            for row in saved.get("tokens", list)
        ),
        dtype=saved.get("dtype", str),
        paths=saved.get("paths", int),
        method=saved.get("method", str),
        checked=saved.texts("checked"),
        blocks=tuple(_block(check) for check in saved.objects("blocks")),
        terms=tuple(_block(check) for check in saved.objects("terms")),
        scores=_check(Saved(saved.value["scores"])),
        patterns=_check(Saved(saved.value["patterns"])),
        logits=_check(Saved(saved.value["logits"])),
        analysis=saved.get("analysis", str),
        measured=None if measured is None else _check(Saved(measured)),
        largest_logit=saved.number("largest_logit"),
        vacuous_above=saved.number("vacuous_above"),
        frozen=saved.texts("frozen"),
        unused_parameters=saved.texts("unused_parameters"),
        identity=None if identity is None else _saved_identity(Saved(identity)),
        exact=None if exact is None else _exact(Saved(exact)),
        reasons=saved.texts("reasons"),
        source=saved.optional("source", str),
        source_blocks=tuple(_block(check) for check in saved.objects("source_blocks")),
        source_errors=tuple(_source_error(error) for error in saved.objects("source_errors")),
    )


def _pair(check: Check, **more: str) -> dict[str, Any]:
    return {**more, "max_abs_error": check.max_abs_error, "bound": check.bound}


def _identity(identity: Identity) -> dict[str, Any]:
    found = {"holds": identity.holds, "primes": list(identity.primes)}
    return {**found, "degree": identity.degree, "false_pass": identity.false_pass}


def _identity_in_words(identity: Identity) -> str:
    kind = "holds" if identity.holds else "DOES NOT HOLD"
    primes = ", ".join(map(str, identity.primes))
    return f"{kind} modulo {primes}; a false pass is at most {identity.false_pass:.0e} likely"


def _source_in_words(error: SourceError) -> str:
    mark = "" if error.holds else "  <- exceeded"
    return (
        f"logits in {error.dtype}: {error.max_abs_error:.2e}, tolerance {error.tolerance:.2e}{mark}"
    )


def _row(name: str, check: Check) -> str:
    mark = "" if check.holds else "  <- exceeded"
    return f"{name:24}{check.max_abs_error:10.2e} ≤ {check.bound:9.2e}{mark}"
