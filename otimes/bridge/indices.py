"""Positions, sequences, token ids and counts as callers give them: checked integers."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from otimes.errors import InputError


def index_of(what: str, value: object, size: int, *, negative: bool = True) -> int:
    """Check an integer and count it from 0.

    Args:
        what: its name in messages, such as ``position``.
        value: what the caller gave.
        size: how many there are.
        negative: whether negative numbers count from the end.

    Raises:
        InputError: if it is no integer or out of range.
    """
    try:
        number = None if isinstance(value, bool) else index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        number = None
    if number is None:
        raise InputError(f"a {what} is an integer, not {value!r}")
    lowest = -size if negative else 0
    if not lowest <= number < size:
        raise InputError(f"{what} {number} is out of range: {lowest} to {size - 1}")
    return number % size


def check_count(what: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is no plain integer from ``least`` to ``most``, before it is worked with.

    Raises:
        InputError: it names what was given and what there may be.
    """
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if number is None or number < least or (most is not None and number > most):
        limits = f"{least} or more" if most is None else f"{least} to {most}"
        raise InputError(f"{what} is {limits}, not {value!r}")


def each(chosen: object) -> list[Any]:
    """What was chosen as a list: one thing, a text or an array without dimensions is alone."""
    alone = isinstance(chosen, str) or not getattr(chosen, "ndim", 1)
    return list(chosen) if isinstance(chosen, Iterable) and not alone else [chosen]
