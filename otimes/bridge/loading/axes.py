"""Axis patterns: how a stored tensor becomes a canonical one, as a view where that is possible.

``"(head d_head) d_model -> head d_model d_head"`` takes the rows of a linear layer's weight, stored
``[out, in]``, apart into heads and puts the axes into the canonical order. Names stand for sizes of
the model. What stands in brackets on the left is one stored axis, its parts in row-major order.
Two kinds of parts are picked, not kept:

- ``1/3``: of three equal parts the second: ``"(head 1/3 d_head) d_model -> head d_model d_head"``;
- ``kv_head+[kv_head]``: an axis that is a sum, of which the part in square brackets is taken.

A pattern without an arrow keeps its axes as they are.

>>> import torch
>>> fused = torch.arange(12).reshape(6, 2)  # for each of 2 heads a row of q, k and v
>>> rearrange(fused, "(head 2/3) d_model -> d_model head", {"head": 2, "d_model": 2})
tensor([[ 4, 10],
        [ 5, 11]])
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor


@dataclass(frozen=True)
class Part:
    """A part of a stored axis.

    Attributes:
        terms: the names that its size is the sum of; of ``1/3`` three times ``""``, for size 1.
        taken: which of them is taken.
        name: what it is called on the right; None where it vanishes.
    """

    terms: tuple[str, ...]
    taken: int
    name: str | None

    def size(self, sizes: Mapping[str, int]) -> int:
        """The size of the whole part."""
        return sum(_size(term, sizes) for term in self.terms)

    def range(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Where the taken term begins, and its size."""
        before = sum(_size(term, sizes) for term in self.terms[: self.taken])
        return before, _size(self.terms[self.taken], sizes)


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern: the parts of each stored axis, and the names on the right."""

    axes: tuple[tuple[Part, ...], ...]
    right: tuple[str, ...]

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape that the stored tensor must have."""
        return tuple(math.prod(part.size(sizes) for part in axis) for axis in self.axes)


def rearrange(tensor: Tensor, pattern: str, sizes: Mapping[str, int]) -> Tensor:
    """Return the tensor that a pattern makes of a stored one.

    Args:
        tensor: of the shape ``parse(pattern).shape(sizes)``.
        pattern: see the module.
        sizes: the size of each name.
    """
    parsed = parse(pattern)
    parts = [part for axis in parsed.axes for part in axis]
    # a view for contiguous tensors: nothing is copied from a mapped file
    apart = tensor.reshape([part.size(sizes) for part in parts])
    kept = list[str]()
    axis = 0
    for part in parts:
        begin, length = part.range(sizes)
        if part.name is None:
            apart = apart.select(axis, begin)
            continue
        apart = apart.narrow(axis, begin, length)
        kept.append(part.name)
        axis += 1
    return apart.permute([kept.index(name) for name in parsed.right])


@lru_cache(maxsize=1024)
def parse(pattern: str) -> Pattern:
    """Parse a pattern.

    Raises:
        ValueError: the right side does not name each kept axis exactly once.
    """
    left, arrow, right = pattern.partition("->")
    axes = tuple(
        tuple(_part(word) for word in group.strip("()").split())
        for group in re.findall(r"\([^)]*\)|\S+", left)
    )
    kept = [part.name for axis in axes for part in axis if part.name is not None]
    names = right.split() if arrow else kept
    if sorted(kept) != sorted(names) or len(set(kept)) != len(kept):
        raise ValueError(f"{pattern!r} keeps {kept} on the left and names {names} on the right")
    return Pattern(axes, tuple(names))


def _part(word: str) -> Part:
    if match := re.fullmatch(r"(\d+)/(\d+)", word):
        return Part(("",) * int(match[2]), int(match[1]), None)
    terms = word.split("+")
    taken = next((n for n, term in enumerate(terms) if term.startswith("[")), 0)
    names = tuple(term.strip("[]") for term in terms)
    return Part(names, taken, names[taken])


def _size(term: str, sizes: Mapping[str, int]) -> int:
    return sizes[term] if term else 1
