"""Typed access to a JSON object; each refusal names the key, what was found and what is right."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from otimes.bridge.loading.files import shown
from otimes.errors import CheckpointError


class Reader:
    """The values of an object out of a file.

    Args:
        mapping: the object.
        where: the file, and the place in it, for messages.
    """

    def __init__(self, mapping: Mapping[str, object], where: str) -> None:
        self.mapping = mapping
        self.where = where

    def check_keys(
        self, known: Sequence[str], required: Sequence[str], ignored: Collection[str] = ()
    ) -> None:
        """Refuse keys that are neither known nor ignored, and required ones that are missing."""
        for key in self.mapping:
            if key not in known and key not in ignored:
                close = difflib.get_close_matches(str(key)[:60], known, 1)
                meant = f" (did you mean {close[0]!r}?)" if close else ""
                raise CheckpointError(
                    f"{self.where} has the unknown key {shown(key)}{meant}: remove or correct it; "
                    "known are " + ", ".join(known)
                )
        missing = [key for key in required if key not in self.mapping]
        if missing:
            raise CheckpointError(f"{self.where} lacks {', '.join(missing)}: add what is missing")

    def refuse(self, key: str, wanted: str) -> CheckpointError:
        """The error to raise where ``key`` is not what is wanted."""
        found = shown(self.mapping.get(key))
        return CheckpointError(f"{self.where}: {key} must be {wanted}, not {found}: correct it")

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.mapping.get(key) is not None

    def integer(self, key: str, smallest: int, largest: int, null: str = "") -> int:
        """An integer within limits; ``null`` stands before the limits where null is allowed too."""
        value = self.mapping[key]
        if not is_integer(value, smallest, largest):
            raise self.refuse(key, f"{null}an integer from {smallest} to {largest:,}")
        return cast("int", value)

    def number(self, key: str, wanted: str = "a finite number") -> float:
        """A finite number."""
        number = finite_number(self.mapping[key])
        if number is None:
            raise self.refuse(key, wanted)
        return number

    def positive_number(self, key: str, null: str = "") -> float:
        """A finite number above 0."""
        wanted = f"{null}a positive number"
        number = self.number(key, wanted)
        if number <= 0:
            raise self.refuse(key, wanted)
        return number

    def optional_positive(self, key: str) -> float | None:
        """A finite number above 0; None where the key is absent or null."""
        return self.positive_number(key, "null or ") if self.has(key) else None

    def optional_number(self, key: str) -> float | None:
        """A finite number; None where the key is absent or null."""
        return self.number(key, "null or a finite number") if self.has(key) else None

    def truth(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.mapping.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def choice(self, key: str, known: Collection[str], null: str = "") -> str:
        """One of the known names."""
        value = self.mapping[key]
        if not isinstance(value, str) or value not in known:
            raise self.refuse(key, f"{null}one of " + ", ".join(known))
        return value

    def optional_choice(self, key: str, known: Collection[str]) -> str | None:
        """One of the known names; None where the key is absent or null."""
        return self.choice(key, known, "null or ") if self.has(key) else None

    def items(self, key: str, length: int, each: str) -> list[object]:
        """A list of a known length."""
        value = self.mapping[key]
        if not isinstance(value, list):
            raise self.refuse(key, each)
        if len(value) != length:
            raise CheckpointError(
                f"{self.where}: {key} has {len(value)} entries, not {length}: {each}"
            )
        return cast("list[object]", value)


def is_integer(value: object, smallest: int, largest: int) -> bool:
    """Whether a value is an integer within limits; JSON's true is none."""
    return isinstance(value, int) and not isinstance(value, bool) and smallest <= value <= largest


def finite_number(value: object) -> float | None:
    """A value as a float; None where it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def as_object(value: object) -> Mapping[str, object] | None:
    """A value as a JSON object; None where it is none."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else None
