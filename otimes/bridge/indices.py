"""Positions, sequences and token ids as callers give them: checked integers."""

from __future__ import annotations

from operator import index

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
