"""Values of all paths of one scalar target, up to an order or a length, or of an expression.

A *word* is a sequence of (block, component) pairs, earliest first; with a source in front it is a
path. Its value is what the target reads of that path, for a word of the sum of the paths with that
word. Everything is of one sequence; values are float64 numbers of sums in the model's dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer

from otimes.numeric.batches import Found
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.functionals import Target
from otimes.numeric.halves import accepted_sum, target_sum
from otimes.numeric.standing import (
    Prefixes,
    all_in_states,
    all_prefixes,
    each_source,
    each_source_in_states,
    summed_in_states,
    summed_sources,
)
from otimes.numeric.states import StateTables
from otimes.numeric.suffixes import BUDGET, Walk


@dataclass(frozen=True)
class Words:
    """Words or paths with their values.

    ``components [n, longest, 2]`` are (block, component) pairs, earliest first, -1 behind the end;
    ``sources [n]`` are source numbers, -1 for the sum of all; ``values [n]``, or by source position
    ``[n, pos]``.

    They are in order of length; among words of one length in the order of the words read backwards,
    the last component first; among paths of one word in the order of their sources, the path of the
    first component's own constant last.
    """

    sources: Integer[np.ndarray, " n"]
    components: Integer[np.ndarray, "n longest 2"]
    values: Float[np.ndarray, " n *pos"]

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> Integer[np.ndarray, " n"]:
        """How many components each word has."""
        return (self.components[:, :, 0] >= 0).sum(1)

    def word(self, number: int) -> tuple[tuple[int, int], ...]:
        """One word as (block, component) pairs."""
        pairs = self.components[number, : self.lengths[number]]
        return tuple((int(block), int(index)) for block, index in pairs)


@dataclass(frozen=True)
class TopWords:
    """The words of largest magnitude, the largest first, and what is exact about the others.

    ``total`` is the sum over all paths (of the expression, whatever the order or length was limited
    to), ``count`` how many words or paths were looked at and ``energy`` their sum of squares,
    ``remainder`` is ``total`` without those shown.
    """

    words: Words
    total: float
    count: int
    energy: float

    @property
    def remainder(self) -> float:
        """``total`` minus the values shown."""
        return self.total - float(self.words.values.sum())


def walk_of(
    model: FrozenModel,
    target: Target,
    *,
    order: int | None = None,
    length: int | None = None,
    tables: StateTables | None = None,
    by_source: bool = False,
    by_position: bool = False,
    suffixes: bool = False,
    budget: int = BUDGET,
) -> Walk:
    """What :func:`all_words` goes through.

    Args:
        model: the frozen model of one sequence.
        target: what is read.
        order: the largest number of heads; None is no limit.
        length: the largest number of components; None is no limit.
        tables: an automaton; only the paths that it accepts count.
        by_source: a value for each source instead of their sum.
        by_position: values split by the position that the first component reads; what no component
            reads counts at the target's position.
        suffixes: a word stands for all paths that end with it instead of those that are it.
        budget: bytes of working memory, beside what the components moved of the prefixes.

    Raises:
        ValueError: several sequences, or a budget that one suffix does not fit in.
    """
    return Walk(
        model, target, _prefixes(model, tables, by_source=by_source, suffixes=suffixes),
        tables, order, length, by_position, budget,
    )  # fmt: skip


def _prefixes(
    model: FrozenModel, tables: StateTables | None, *, by_source: bool, suffixes: bool
) -> Prefixes:
    if by_source and suffixes:
        raise ValueError("suffixes stand for paths of all sources: choose one of the two")
    if tables is None:
        if by_source:
            return each_source(model)
        return all_prefixes(model) if suffixes else summed_sources(model)
    if by_source:
        return each_source_in_states(model, tables)
    return all_in_states(model, tables) if suffixes else summed_in_states(model, tables)


def all_words(walk: Walk) -> Words:
    """Every word of a walk, with its value."""
    return gathered(list(walk.run()))


def each_words(walk: Walk) -> Iterator[Words]:
    """The words of a walk in parts, so that memory stays bounded; lengths alternate."""
    for found in walk.run():
        yield gathered([found])


def gathered(parts: list[Found]) -> Words:
    """Parts of a walk as one table."""
    parts = sorted(parts, key=lambda part: part.length)
    rows = sum(len(part.values) for part in parts)
    longest = max((part.length for part in parts if len(part.values)), default=0)
    components = np.full((rows, longest, 2), -1, dtype=np.int32)
    start = 0
    for part in parts:
        stop = start + len(part.values)
        components[start:stop, : part.length] = part.words(slice(None))[:, :longest]
        start = stop
    return Words(
        np.concatenate([part.sources for part in parts]),
        components,
        np.concatenate([part.values for part in parts]),
    )


def top_words(walk: Walk, k: int) -> TopWords:
    """The ``k`` words of largest magnitude of a walk, and the exact remainder.

    Among equals the earlier in the order of :class:`Words` come first, within one length; memory
    does not grow with the number of words.
    """
    if k < 0:
        raise ValueError(f"k must not be negative, not {k}")
    if walk.by_position:
        raise ValueError("words are ranked by one value each: by_position must be off")
    if walk.prefixes.whole:
        raise ValueError("suffixes overlap, so they leave no exact remainder")
    kept: list[Found] = []
    magnitudes, count, energy = np.zeros(0), 0, 0.0
    for found in walk.run():
        count += len(found.values)
        energy += float(np.square(found.values).sum(dtype=np.float64))
        size = np.abs(found.values)
        least = magnitudes[k - 1] if 0 < k <= len(magnitudes) else -1.0
        chosen = _largest(size, k, least)
        kept.append(_some(found, chosen))
        magnitudes = np.sort(np.concatenate([magnitudes, size[chosen]]))[::-1][:k]
        if sum(len(part.values) for part in kept) > 4 * k + 1024:
            kept = _reduced(kept, k)
    words = gathered(kept)
    best = np.argsort(-np.abs(words.values), kind="stable")[:k]
    shown = Words(words.sources[best], words.components[best], words.values[best])
    longest = int(shown.lengths.max(initial=0))
    shown = Words(shown.sources, shown.components[:, :longest], shown.values)
    model, target, tables = walk.model, walk.target, walk.tables
    total = (
        target_sum(model, target) if tables is None else accepted_sum(model, tables, target)
    ).item()
    return TopWords(shown, total, count, energy)


def _largest(size: np.ndarray, k: int, least: float) -> np.ndarray:
    """The places of at most ``k`` largest numbers above ``least``, in order of place."""
    above = np.flatnonzero(size > least)
    if len(above) > k:
        above = above[np.sort(np.argsort(-size[above], kind="stable")[:k])]
    return above


def _some(found: Found, chosen: np.ndarray) -> Found:
    """Some rows of a part, with copies of what they need alone."""
    words = found.words(chosen)
    return Found(
        found.values[chosen], found.sources[chosen], np.arange(len(chosen)), None, words,
        found.numbering,
    )  # fmt: skip


def _reduced(parts: list[Found], k: int) -> list[Found]:
    """The parts with no more than the ``k`` largest of all their rows."""
    size = np.abs(np.concatenate([part.values for part in parts]))
    keep = np.zeros(len(size), dtype=bool)
    keep[np.argsort(-size, kind="stable")[:k]] = True
    sections = np.split(keep, np.cumsum([len(part.values) for part in parts])[:-1])
    return [_some(p, np.flatnonzero(s)) for p, s in zip(parts, sections, strict=True) if s.any()]
