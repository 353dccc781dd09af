"""``config.json`` of a native checkpoint: what the format knows and what this release reads.

>>> config = Config.parse(
...     {
...         "format": "otimes",
...         "version": 1,
...         "n_layers": 2,
...         "n_heads": 8,
...         "d_model": 128,
...         "d_head": 32,
...         "n_ctx": 128,
...         "d_vocab": 1024,
...         "positions": "shortformer",
...         "attention_scale": 0.1768,
...     }
... )
>>> config.n_kv_heads, config.causal, config.bos_token_id
(8, True, None)
>>> Config.parse(config.to_json()) == config
True
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from otimes.bridge.loading.files import shown
from otimes.errors import CheckpointError, UnsupportedError

FORMAT = "otimes"
VERSIONS = (1,)

_REQUIRED = ("n_layers", "n_heads", "d_model", "d_head", "n_ctx", "d_vocab", "positions",
             "attention_scale")  # fmt: skip
_POSITIONS = ("none", "learned", "shortformer", "rotary", "alibi")
_SUPPORTED_POSITIONS = ("none", "learned", "shortformer")
_NORMS = ("layer", "rms")

#: the largest sizes that are taken for meant, far above any model, far below an exhausted memory
_LIMITS: Mapping[str, int] = {
    "n_layers": 10_000, "n_heads": 65_536, "n_kv_heads": 65_536, "d_model": 2**20,
    "d_head": 2**20, "d_mlp": 2**24, "n_ctx": 2**24, "d_vocab": 2**24,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config:
    """The architecture of a native checkpoint; the fields are the keys of ``config.json``.

    ``attention_scale`` multiplies the raw dot products of queries and keys. ``bos_token_id`` is put
    before a text, never before given tokens; None is none. ``n_layers`` may be 0.
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int
    d_mlp: int | None
    n_ctx: int
    d_vocab: int
    bos_token_id: int | None
    positions: str
    norm: str | None
    activation: str | None
    causal: bool
    attention_scale: float
    eps: float | None
    rotary: Mapping[str, object] | None

    @classmethod
    def parse(cls, mapping: Mapping[str, object], where: str = "config.json") -> Config:
        """Check the content of a ``config.json`` and return it.

        Missing: ``n_kv_heads`` is ``n_heads``, ``causal`` is true, other optional keys are null.

        Args:
            mapping: the parsed JSON object.
            where: the name of the file, for messages.

        Raises:
            CheckpointError: not this format or version, or unknown, missing or impossible values.
            UnsupportedError: values of the format that this release does not read.
        """
        _check_format(mapping, where)
        _check_keys(mapping, where)
        reader = _Reader(mapping, where)
        heads = reader.size("n_heads")
        kv_heads = reader.size("n_kv_heads") if "n_kv_heads" in mapping else heads
        if heads % kv_heads:
            raise CheckpointError(
                f"{where}: n_heads {heads} is not a multiple of n_kv_heads {kv_heads}, but each KV "
                "head serves the same number of query heads: correct one of the two"
            )
        config = cls(
            n_layers=reader.size("n_layers", smallest=0),
            n_heads=heads,
            n_kv_heads=kv_heads,
            d_model=reader.size("d_model"),
            d_head=reader.size("d_head"),
            d_mlp=reader.size("d_mlp") if mapping.get("d_mlp") is not None else None,
            n_ctx=reader.size("n_ctx"),
            d_vocab=reader.size("d_vocab"),
            bos_token_id=reader.bos_token_id(),
            positions=reader.choice("positions", _POSITIONS),
            norm=reader.choice("norm", _NORMS) if mapping.get("norm") is not None else None,
            activation=reader.optional_text("activation"),
            causal=reader.truth("causal"),
            attention_scale=reader.number("attention_scale"),
            eps=reader.positive_number("eps") if mapping.get("eps") is not None else None,
            rotary=reader.optional_object("rotary"),
        )
        _check_supported(config, where)
        return config

    def to_json(self) -> dict[str, object]:
        """Return the object to write to ``config.json``; ``parse`` gives this config back."""
        return {"format": FORMAT, "version": VERSIONS[-1], **dataclasses.asdict(self)}


def _check_format(mapping: Mapping[str, object], where: str) -> None:
    if mapping.get("format") != FORMAT:
        found = f"format {shown(mapping['format'])}" if "format" in mapping else "no format"
        raise CheckpointError(
            f'{where} has {found}, not "format": "{FORMAT}": only native otimes checkpoints can '
            "be read as a folder with config.json and model.safetensors"
        )
    version = mapping.get("version")
    if isinstance(version, bool) or version not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        found = f"version {shown(version)}" if "version" in mapping else "no version"
        raise CheckpointError(
            f"{where} has {found}; this otimes knows version {known}: install a newer otimes or "
            f"write the checkpoint as version {VERSIONS[-1]}"
        )


def _check_keys(mapping: Mapping[str, object], where: str) -> None:
    known = [field.name for field in dataclasses.fields(Config)]
    for key in mapping:
        if key not in ("format", "version", *known):
            close = difflib.get_close_matches(str(key)[:60], known, 1)
            meant = f" (did you mean {close[0]!r}?)" if close else ""
            raise CheckpointError(
                f"{where} has the unknown key {shown(key)}{meant}: remove or correct it; known are "
                + ", ".join(known)
            )
    missing = [key for key in _REQUIRED if key not in mapping]
    if missing:
        raise CheckpointError(f"{where} lacks {', '.join(missing)}: add what is missing")


def _check_supported(config: Config, where: str) -> None:
    refused: str | None = None
    if config.positions not in _SUPPORTED_POSITIONS:
        refused = f"{config.positions} positions"
    elif config.norm is not None:
        refused = f"a norm ({config.norm!r})"
    elif config.d_mlp is not None:
        refused = f"MLPs (d_mlp {config.d_mlp})"
    if refused is not None:
        raise UnsupportedError(
            f"{where} describes a model with {refused}: the format has them, this release does not "
            "support them yet; it reads attention-only models without norms whose positions are "
            + ", ".join(_SUPPORTED_POSITIONS)
        )
    if config.rotary is not None:
        # ignoring it would analyse another model than the one that was meant
        raise CheckpointError(
            f"{where}: rotary is set, but positions is {config.positions!r}: set rotary to null"
        )


class _Reader:
    """Typed access to the mapping; each refusal names the key, what was found and what is right."""

    def __init__(self, mapping: Mapping[str, object], where: str) -> None:
        self.mapping = mapping
        self.where = where

    def _refuse(self, key: str, wanted: str) -> CheckpointError:
        found = shown(self.mapping.get(key))
        return CheckpointError(f"{self.where}: {key} must be {wanted}, not {found}: correct it")

    def size(self, key: str, smallest: int = 1) -> int:
        value, limit = self.mapping[key], _LIMITS[key]
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= limit:
            raise self._refuse(key, f"an integer from {smallest} to {limit:,}")
        return value

    def bos_token_id(self) -> int | None:
        value = self.mapping.get("bos_token_id")
        if value is None:
            return None
        last = self.size("d_vocab") - 1
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= last:
            raise self._refuse(
                "bos_token_id", f"null or a token id from 0 to {last:,} (d_vocab - 1)"
            )
        return value

    def number(self, key: str, wanted: str = "a finite number") -> float:
        value = self.mapping[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refuse(key, wanted)
        try:
            number = float(value)
        except OverflowError:
            raise self._refuse(key, wanted) from None
        if not math.isfinite(number):
            raise self._refuse(key, wanted)
        return number

    def positive_number(self, key: str) -> float:
        wanted = "null or a positive number"
        number = self.number(key, wanted)
        if number <= 0:
            raise self._refuse(key, wanted)
        return number

    def truth(self, key: str) -> bool:
        value = self.mapping.get(key, True)
        if not isinstance(value, bool):
            raise self._refuse(key, "true or false")
        return value

    def choice(self, key: str, known: tuple[str, ...]) -> str:
        value = self.mapping[key]
        if not isinstance(value, str) or value not in known:
            raise self._refuse(key, "one of " + ", ".join(known))
        return value

    def optional_text(self, key: str) -> str | None:
        value = self.mapping.get(key)
        if value is not None and not isinstance(value, str):
            raise self._refuse(key, "null or a name")
        return value

    def optional_object(self, key: str) -> Mapping[str, object] | None:
        value = self.mapping.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self._refuse(key, "null or an object")
        return cast("Mapping[str, object] | None", value)
