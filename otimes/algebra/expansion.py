"""The sum over paths: the logits expanded into named terms, lazily, with counts in closed form.

Distributing ``(Id ⊗ W_U) Π_l (Id + Σ_h A ⊗ W_OV) (Id ⊗ W_E)`` and applying the mixed-product
property gives one term for each choice of at most one component in each block:

>>> from otimes.algebra import Architecture
>>> paths = Architecture(layers=2, heads=1).logits.expand()
>>> paths.count
4
>>> for term in paths:
...     print(f"{term.path:20} {term.kind:8} {term}")
embed                direct   Id ⊗ W_U W_E
embed > 0.0          head     A[0.0] ⊗ W_U W_OV[0.0] W_E
embed > 1.0          head     A[1.0] ⊗ W_U W_OV[1.0] W_E
embed > 0.0 > 1.0    virtual  A[1.0] A[0.0] ⊗ W_U W_OV[1.0] W_OV[0.0] W_E

The count is Σ over sources of Π over later blocks of (1 + components), known without enumerating:

>>> deep = Architecture(layers=100, heads=100).logits.expand()
>>> deep.count == 101**100
True

``where`` narrows a sum to the paths that an expression matches (see :mod:`otimes.algebra.paths`),
and sums are combined as sets:

>>> through = deep.where("0.7 > .. > 50.1")
>>> through.count == 101**49, through <= deep, through & deep.order(1)
(True, True, <PathSum of 0 paths>)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product

from otimes.algebra.architecture import Architecture, Source
from otimes.algebra.counts import large
from otimes.algebra.paths import (
    Automaton,
    PathExpression,
    boxes,
    depth_first,
    difference,
    head_word_counts,
    intersection,
    is_contained,
    overlap,
    union,
)
from otimes.algebra.terms import PathTerm
from otimes.errors import LimitError, UnknownComponentError

__all__ = ["DEFAULT_LIMIT", "PathSum", "PathTerm"]

DEFAULT_LIMIT = 10_000


@dataclass(frozen=True, eq=False, repr=False)
class PathSum:
    """A set of paths of an architecture: lazy, with its exact size.

    Iteration is by order (the number of heads), then by source, then by the number of neurons, by
    layer and by head, and always the same. Sums of one architecture are sets: ``a | b``, ``a & b``,
    ``a - b``, ``~a`` (within all paths), ``a <= b`` (``b`` has all paths of ``a``), ``a == b``.

    ``only_order`` and ``selection`` narrow a sum; use ``order`` and ``where`` rather than these.
    """

    architecture: Architecture
    only_order: int | None = None
    selection: Automaton | None = None

    def where(self, path: str | PathExpression) -> PathSum:
        """Those of the paths that an expression matches; see :mod:`otimes.algebra.paths`.

        Raises:
            NotationError: pointing at the character, if it is no path expression of this model.
            LimitError: if the expression is too large to compile.
        """
        chosen = self.architecture.language.compile(path)
        if self.selection is not None:
            chosen = intersection(self.selection, chosen)
        return PathSum(self.architecture, self.only_order, chosen)

    def order(self, order: int) -> PathSum:
        """Those of the paths with exactly ``order`` heads."""
        if self.only_order in (None, order):
            return PathSum(self.architecture, order, self.selection)
        return PathSum(self.architecture, order, self.automaton)

    @cached_property
    def _chosen(self) -> Automaton:
        """The paths of any order."""
        if self.selection is not None:
            return self.selection
        return self.architecture.language.everything

    @cached_property
    def automaton(self) -> Automaton:
        """These paths as a minimal automaton over the blocks, also in integers: ``.tables()``."""
        if self.only_order is None:
            return self._chosen
        order = self.architecture.language.of_order(self.only_order)
        return intersection(self._chosen, order)

    @property
    def _sources(self) -> tuple[Source, ...]:
        return self.architecture.sources

    @cached_property
    def order_counts(self) -> tuple[int, ...]:
        """How many of the paths have 0, 1, 2, … heads."""
        counts = self._chosen.order_counts
        if self.only_order is None:
            return counts
        return tuple(n if k == self.only_order else 0 for k, n in enumerate(counts))

    @property
    def count(self) -> int:
        """The exact number of paths."""
        return self._chosen.count if self.only_order is None else sum(self.order_counts)

    @property
    def is_empty(self) -> bool:
        """Whether there is no path."""
        return not self.count

    @property
    def head_words(self) -> int:
        """The number of different sequences of heads, sources and neurons not distinguished."""
        counts = head_word_counts(self._chosen)
        if self.only_order is None:
            return sum(counts)
        return counts[self.only_order] if 0 <= self.only_order < len(counts) else 0

    def __len__(self) -> int:
        if self.count > sys.maxsize:
            raise LimitError(
                f"{large(self.count)} paths are more than len() can say; use .count",
                self.count,
                sys.maxsize,
            )
        return self.count

    def __bool__(self) -> bool:
        return not self.is_empty

    def __iter__(self) -> Iterator[PathTerm]:
        arch, sources = self.architecture, self._sources
        orders = None if self.only_order is None else (self.only_order,)
        for number, choices in boxes(self._chosen, orders):
            source = sources[number]
            spelt = arch.words.spellings(source, choices)
            for components, spelling in zip(product(*choices), spelt):  # noqa: B905 - may repeat
                yield PathTerm(arch, source, components, spelling)

    def depth_first(self) -> Iterator[PathTerm]:
        """All paths such that each follows its longest prefix: evaluation shares prefixes."""
        arch, sources = self.architecture, self._sources
        for number, components in depth_first(self._chosen, self.only_order):
            yield PathTerm(arch, sources[number], components)

    @property
    def example(self) -> PathTerm | None:
        """The first of the paths; None if there is none."""
        return next(iter(self), None)

    def __getitem__(self, path: str) -> PathTerm:
        """The one path that an expression matches.

        Raises:
            UnknownComponentError: if it matches none of these paths, or several.
        """
        found = self.where(path)
        if found.count == 1:
            return next(iter(found))
        names = ", ".join(term.path for term in islice(found, 3))
        more = ", …" if found.count > 3 else ""
        raise UnknownComponentError(
            f"{path!r} matches {large(found.count)} paths, not one"
            + (f" ({names}{more}); name its source or select with where()" if names else ""),
            path,
        )

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {source.name: number for number, source in enumerate(self._sources)}

    def contains(self, other: PathTerm | PathSum | str) -> bool:
        """Whether a term is one of these paths, or all paths of another sum are."""
        if isinstance(other, PathTerm):
            number = self._numbers.get(other.source.name)
            return (
                self.architecture == other.architecture
                and number is not None
                and self._sources[number] == other.source
                and self.only_order in (None, other.order)
                and self._chosen.accepts(number, other.components)
            )
        other = self._sum(other)
        return self.architecture == other.architecture and is_contained(
            other.automaton, self.automaton
        )

    def __contains__(self, other: object) -> bool:
        return isinstance(other, PathTerm) and self.contains(other)

    def __le__(self, other: PathSum) -> bool:
        return other.contains(self)

    def overlaps(self, other: PathSum | str) -> bool:
        """Whether some path is in both sums."""
        return overlap(self.automaton, self._sum(other).automaton)

    def _sum(self, other: PathSum | str) -> PathSum:
        return other if isinstance(other, PathSum) else PathSum(self.architecture).where(other)

    def __or__(self, other: PathSum) -> PathSum:
        return PathSum(self.architecture, None, union(self.automaton, other.automaton))

    def __and__(self, other: PathSum) -> PathSum:
        return PathSum(self.architecture, None, intersection(self.automaton, other.automaton))

    def __sub__(self, other: PathSum) -> PathSum:
        return PathSum(self.architecture, None, difference(self.automaton, other.automaton))

    def __invert__(self) -> PathSum:
        return PathSum(self.architecture) - self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PathSum) and self.automaton == other.automaton

    def __hash__(self) -> int:
        return hash(self.automaton)

    def terms(self, limit: int = DEFAULT_LIMIT) -> list[PathTerm]:
        """All paths as a list.

        Raises:
            LimitError: if there are more than ``limit``; it says how many and what to ask instead.
        """
        if self.count > limit:
            raise LimitError(
                f"this sum has {large(self.count)} terms, more than the limit of {limit:,}; "
                "ask for their count, for one order, for one path, or raise the limit",
                self.count,
                limit,
            )
        return list(self)

    def __repr__(self) -> str:
        return f"<PathSum of {large(self.count)} paths>"

    def __str__(self) -> str:
        return f"a sum over {large(self.count)} paths of {self.architecture!r}"
