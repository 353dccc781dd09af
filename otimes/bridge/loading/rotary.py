"""Rotary positions of a native checkpoint: what ``rotary`` in ``config.json`` says.

The first ``dim`` coordinates of each query and key turn, two by two, by ``position · θ_f`` (Su et
al. 2021, "RoFormer"), with ``θ_f = theta^(−2f/dim)``, f = 0 … dim/2 − 1, before ``scaling``:

- ``linear``, by its ``factor``: θ_f / factor (position interpolation, Chen et al. 2023);
- ``ntk``, by its ``factor``: as if theta were theta · factor^(dim / (dim − 2));
- ``llama3``, by ``factor``, ``low_freq_factor``, ``high_freq_factor``, ``original_n_ctx``: θ_f is
  divided by factor where a turn takes more than original_n_ctx / low_freq_factor positions, kept
  where it takes fewer than original_n_ctx / high_freq_factor, and a blend of both between;
- ``factors``, a list with one for each frequency: θ_f / factors[f].

``pairing`` says which two coordinates turn together: ``half`` pairs n with n + dim/2 (Hugging
Face), ``interleaved`` 2n with 2n + 1 (the paper, GPT-J).

>>> Rotary.parse({"theta": 10000, "pairing": "half"}, d_head=64, where="config.json").dim
64
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from otimes.bridge.loading.files import shown
from otimes.bridge.loading.reader import Reader, as_object, finite_number
from otimes.errors import CheckpointError

PAIRINGS = ("half", "interleaved")
SCALINGS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "ntk": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_n_ctx"),
    "factors": ("factors",),
}
"""The keys that each type of scaling has beside ``type``."""

_KEYS = ("theta", "dim", "pairing", "scaling")


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """How frequencies are scaled; what a type does not have is None."""

    type: str
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_n_ctx: int | None = None
    factors: tuple[float, ...] | None = None

    @classmethod
    def parse(cls, mapping: Mapping[str, object], dim: int, where: str) -> RotaryScaling:
        """Check a ``scaling`` object for ``dim`` coordinates; errors are CheckpointErrors."""
        reader = Reader(mapping, where)
        reader.check_keys(("type", *(f.name for f in fields(cls)[1:])), ("type",))
        kind = reader.choice("type", SCALINGS)
        reader.check_keys(("type", *SCALINGS[kind]), SCALINGS[kind])
        if kind == "ntk" and dim == 2:
            raise CheckpointError(
                f"{where}: ntk scaling changes no frequency of 2 coordinates: set scaling to null"
            )
        if kind == "factors":
            return cls(type=kind, factors=_factors(reader, dim // 2))
        factor = reader.positive_number("factor")
        if kind != "llama3":
            return cls(type=kind, factor=factor)
        scaling = cls(
            type=kind,
            factor=factor,
            low_freq_factor=reader.positive_number("low_freq_factor"),
            high_freq_factor=reader.positive_number("high_freq_factor"),
            original_n_ctx=reader.integer("original_n_ctx", 1, 2**40),
        )
        low, high = reader.number("low_freq_factor"), reader.number("high_freq_factor")
        if low >= high:
            raise CheckpointError(
                f"{where}: low_freq_factor {low} is not below high_freq_factor {high}: correct one "
                "of the two"
            )
        return scaling

    def to_json(self) -> dict[str, object]:
        """The object that ``parse`` reads."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.factors is not None:
            found["factors"] = list(self.factors)
        return {key: value for key, value in found.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """The rotation of queries and keys by their positions."""

    theta: float
    dim: int
    pairing: str
    scaling: RotaryScaling | None = None

    @classmethod
    def parse(cls, value: object, d_head: int, where: str) -> Rotary:
        """Check one ``rotary`` object.

        Args:
            value: the object; without ``dim`` all of ``d_head`` turns.
            d_head: the width of queries and keys.
            where: the file and the key, for messages.

        Raises:
            CheckpointError: unknown, missing or impossible values.
        """
        mapping = as_object(value)
        if mapping is None:
            raise CheckpointError(
                f"{where} must be null or an object such as "
                f'{{"theta": 10000.0, "pairing": "half"}}, not {shown(value)}: correct it'
            )
        reader = Reader(mapping, where)
        reader.check_keys(_KEYS, ("theta", "pairing"))
        dim = reader.integer("dim", 1, d_head, "null or ") if reader.has("dim") else d_head
        if dim % 2:
            raise CheckpointError(
                f"{where}: {dim} coordinates cannot turn in pairs: set dim to an even number of up "
                f"to {d_head} (d_head)"
            )
        scaling = mapping.get("scaling")
        if scaling is not None:
            inner = as_object(scaling)
            if inner is None:
                raise reader.refuse("scaling", 'null or an object such as {"type": "linear", …}')
            scaling = RotaryScaling.parse(inner, dim, f"{where}: scaling")
        return cls(
            theta=reader.positive_number("theta"),
            dim=dim,
            pairing=reader.choice("pairing", PAIRINGS),
            scaling=scaling,
        )

    def to_json(self) -> dict[str, object]:
        """The object that ``parse`` reads."""
        scaling = None if self.scaling is None else self.scaling.to_json()
        return {"theta": self.theta, "dim": self.dim, "pairing": self.pairing, "scaling": scaling}


def _factors(reader: Reader, count: int) -> tuple[float, ...]:
    each = f"a list of {count} positive numbers, one for each frequency"
    found = [finite_number(value) for value in reader.items("factors", count, each)]
    if any(number is None or number <= 0 for number in found):
        raise reader.refuse("factors", each)
    return tuple(number for number in found if number is not None)
