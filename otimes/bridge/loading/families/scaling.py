"""Scaled rotary angles of Hugging Face configs, as the native format has them.

``linear`` and ``llama3`` have their own types there. ``dynamic`` angles are the plain ones while an
input is no longer than ``max_position_embeddings``, and longer ones are refused by any model.
``yarn`` (Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models")
divides each angle by a factor of its own, which is the native type ``factors``::

    f = 1 / ((1 - kept) / factor + kept),    kept = 1 - clamp((plane - low) / (high - low), 0, 1)

where low and high are the planes that turn ``beta_fast`` and ``beta_slow`` times in the original
context, rounded down and up, and multiplies cosines and sines, so the scores by its square.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otimes.bridge.loading.files import shown
from otimes.bridge.loading.reader import Reader
from otimes.errors import UnsupportedError

_KEYS: Mapping[object, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""The scalings, and the keys that each needs."""

_LARGEST = 2**40
_ORIGINAL = "original_max_position_embeddings"
_PER_SCORE = "attention_factor"
_NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Turns:
    """What a config says about the rotary positions of some layers.

    Attributes:
        reader: their parameters.
        config: the config around them, for lengths.
        dim: how many coordinates turn.
        d_head: how many there are.
        alone: whether these are the parameters of all layers.
    """

    reader: Reader
    config: Reader
    dim: int
    d_head: int
    alone: bool

    def scaling(self) -> dict[str, Any]:
        """The ``scaling`` of a native ``rotary`` object, and what :func:`settle` takes out."""
        reader, kind = self.reader, self.reader.mapping.get("rope_type", "default")
        if kind == "default":
            return {"scaling": None}
        if kind not in _KEYS:
            raise UnsupportedError(
                f"{reader.where}: rope_type {shown(kind)} makes angles that otimes does not "
                f"compute; it has default, {', '.join(map(str, _KEYS))}"
            )
        reader.check_keys(list(reader.mapping), _KEYS[kind])
        if kind == "linear":
            return {"scaling": {"type": "linear", "factor": reader.positive_number("factor")}}
        if kind == "dynamic":
            return {"scaling": None, _NOTE: _DYNAMIC}
        if kind == "yarn":
            return self._yarn()
        numbers = {key: reader.positive_number(key) for key in _KEYS[kind]}
        return {"scaling": {"type": "llama3", **numbers, "original_n_ctx": self._original()}}

    def _original(self) -> int:
        """The context before it was extended."""
        for reader, key in (
            *([(self.config, _ORIGINAL)] if self.alone else []),
            (self.reader, _ORIGINAL),
        ):
            if reader.has(key):
                return reader.integer(key, 1, _LARGEST)
        return self.config.integer("max_position_embeddings", 1, _LARGEST)

    def _yarn(self) -> dict[str, Any]:
        reader, original = self.reader, self._original()
        if reader.has("factor"):
            factor = reader.positive_number("factor")
        else:
            factor = self.config.integer("max_position_embeddings", 1, _LARGEST) / original
        theta = reader.positive_number("rope_theta")
        if theta == 1:
            raise reader.refuse(
                "rope_theta", "another number than 1, with which no plane is slower"
            )
        low, high = (
            self.dim
            * math.log(original / (2 * math.pi * (reader.optional_positive(key) or default)))
            / (2 * math.log(theta))
            for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
        )
        if not self.alone or reader.truth("truncate", default=True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        high += 0.001 if low == high else 0
        kept = [
            1 - min(max((plane - low) / (high - low), 0.0), 1.0) for plane in range(self.dim // 2)
        ]
        each = [1 / ((1 - share) / factor + share) for share in kept]
        per_score = reader.optional_positive(_PER_SCORE) or _attention_factor(reader, factor)
        if per_score != 1 and self.dim != self.d_head:
            raise UnsupportedError(
                f"{reader.where}: yarn multiplies the part of a query that turns ({self.dim} of "
                f"{self.d_head} coordinates) by {per_score:.6g} and leaves the rest: otimes has "
                "one scale for a whole score"
            )
        return {"scaling": {"type": "factors", "factors": each}, _PER_SCORE: per_score}


_DYNAMIC = (
    "dynamic rotary angles are the plain ones for inputs within the context; longer inputs, for "
    "which they change, are refused"
)


def _attention_factor(reader: Reader, factor: float) -> float:
    """What yarn multiplies cosines and sines by where the config does not say it."""
    above, below = reader.optional_number("mscale"), reader.optional_number("mscale_all_dim")
    if above and below:
        return _magnitude(factor, above) / _magnitude(factor, below)
    return _magnitude(factor, 1.0)


def _magnitude(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def settle(found: dict[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """Move what rotary positions do to all scores into the scale of the scores.

    Args:
        found: the fields of a native config, with what :meth:`Turns.scaling` made in ``rotary``.
        where: for messages.

    Returns:
        The fields of a native config, and what is to be said about them.

    Raises:
        UnsupportedError: layers differ in what they multiply scores by.
    """
    rotary = found.get("rotary")
    layers = [dict(one or {}) for one in (rotary if isinstance(rotary, list) else [rotary])]
    factors = {float(one.pop(_PER_SCORE, 1.0)) for one in layers}
    notes = sorted({str(one.pop(_NOTE)) for one in layers if _NOTE in one})
    if len(factors) > 1:
        raise UnsupportedError(
            f"{where}: layers multiply their scores by different attention factors of yarn, but "
            "otimes has one scale for all layers"
        )
    if rotary is None:
        return found, notes
    cleaned = [one or None for one in layers]
    found = {**found, "rotary": cleaned if isinstance(rotary, list) else cleaned[0]}
    if factors != {1.0}:
        found["attention_scale"] *= factors.pop() ** 2
    return found, notes
