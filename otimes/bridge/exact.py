"""Verification in rational arithmetic, on short inputs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from otimes.errors import LimitError
from otimes.numeric import modular
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.paths import Heads

MAX_TOKENS = 8
_MAX_SECONDS = 600
_MULTIPLICATIONS_PER_SECOND = 2e9


def exact_difference(model: FrozenModel, paths: Sequence[tuple[int, Heads]]) -> Fraction:
    """The largest exact difference of the forward pass and the sum over ``paths``.

    Both are of the network that the recorded patterns and the weights define.

    Raises:
        LimitError: for more than 8 tokens, or if it would take too long; it says what it would.
    """
    chosen = modular.plan(model, len(paths))
    seconds = chosen.multiplications / _MULTIPLICATIONS_PER_SECOND
    if model.length > MAX_TOKENS or seconds > _MAX_SECONDS:
        raise LimitError(
            f"exact verification of {model.length} tokens and {len(paths):,} paths needs about "
            f"{chosen.multiplications:.1e} multiplications ({len(chosen.primes)} primes), roughly "
            f"{_duration(seconds)}; it is for at most {MAX_TOKENS} tokens and "
            f"{_MAX_SECONDS // 60} minutes: shorten the input, or leave out the exact check",
            int(chosen.multiplications),
            int(_MAX_SECONDS * _MULTIPLICATIONS_PER_SECOND),
        )
    return modular.exact_difference(model, paths, chosen)


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "under a second"
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:,.0f} minutes"
