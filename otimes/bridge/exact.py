"""Verification in rational arithmetic, on short inputs."""

from __future__ import annotations

from otimes.errors import LimitError, UnsupportedError
from otimes.numeric import modular
from otimes.numeric.frozen import FrozenModel

MAX_TOKENS = 8
_MAX_SECONDS = 600
# one core of an ordinary machine
_MULTIPLICATIONS_PER_SECOND = 2e9
_SECONDS_A_HEAD = 1e-4


def exact_plan(model: FrozenModel, count: int) -> modular.Plan:
    """Plan the exact comparison of the forward pass and the sum over ``count`` paths.

    Both are of the network that the recorded patterns and the weights define.

    Raises:
        LimitError: for more than 8 tokens, or if it would take too long; it says what it would.
        UnsupportedError: if values of the network are beyond the range of float64.
    """
    try:
        chosen = modular.plan(model, count)
    except OverflowError as error:
        raise UnsupportedError(f"no exact verification: {error}; leave it out") from error
    seconds = chosen.multiplications / _MULTIPLICATIONS_PER_SECOND + chosen.heads * _SECONDS_A_HEAD
    if model.length > MAX_TOKENS or seconds > _MAX_SECONDS:
        limit = f"{MAX_TOKENS} tokens"
        if model.length <= MAX_TOKENS:
            limit = f"{_MAX_SECONDS // 60} minutes"
        raise LimitError(
            f"exact verification of {model.length} tokens and {count:,} paths needs about "
            f"{chosen.multiplications:.1e} multiplications ({len(chosen.primes)} primes), roughly "
            f"{_duration(seconds)}; it is for at most {limit}: shorten the input, or leave out the "
            "exact check",
            int(chosen.multiplications),
            int(_MAX_SECONDS * _MULTIPLICATIONS_PER_SECOND),
        )
    return chosen


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "under a second"
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:,.0f} minutes"
