"""Saved results: JSON that is read back with the types that it must have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from otimes.errors import InputError

_T = TypeVar("_T")


class Saved:
    """A JSON object whose values are read with the type that they must have."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise TypeError(f"expected an object, not {type(value).__name__}")
        self.value = cast("dict[str, object]", value)

    def get(self, name: str, kind: type[_T]) -> _T:
        """The value of a name.

        Raises:
            TypeError: if it has another type.
        """
        value = self.value[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name} is {value!r:.40}, not of the type {kind.__name__}")
        return value

    def optional(self, name: str, kind: type[_T]) -> _T | None:
        """The value of a name, or None where it is null."""
        return None if self.value[name] is None else self.get(name, kind)

    def number(self, name: str) -> float:
        """A number; null stands for one that is not finite."""
        value = self.value[name]
        if value is None:
            return math.inf
        return float(self.get(name, int) if isinstance(value, int) else self.get(name, float))

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(Saved({name: item}).get(name, str) for item in self.get(name, list))

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers."""
        return tuple(Saved({name: item}).get(name, int) for item in self.get(name, list))

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers."""
        return tuple(Saved({name: item}).number(name) for item in self.get(name, list))

    def objects(self, name: str) -> list[Saved]:
        """A list of objects."""
        return [Saved(item) for item in self.get(name, list)]


def finite(value: Any) -> Any:
    """JSON has no infinity: a number that is not finite becomes null."""
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        return {key: finite(item) for key, item in found.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path: str | Path, value: dict[str, Any]) -> None:
    """Write a result as JSON."""
    text = json.dumps(finite(value), indent=1, allow_nan=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def read(path: str | Path, what: str, build: Callable[[Saved], _T]) -> _T:
    """Read what :func:`write` wrote.

    Raises:
        InputError: if the file holds no saved result of this kind, which ``what`` names.
    """
    try:
        return build(Saved(json.loads(Path(path).read_text(encoding="utf-8"))))
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path} is no saved {what}: {why}") from error
