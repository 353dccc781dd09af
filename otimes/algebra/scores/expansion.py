"""The attention scores of a head as a lazy sum over pairs of paths.

The sum is kept as a product of two sums: ``(Σ query paths) × (Σ key paths)``, so its size is known
and each side is selected, grouped and counted by itself. Pairs are made one by one, and only when
the sum is iterated.

>>> from otimes.algebra import Architecture
>>> scores = Architecture(layers=100, heads=100).scores("99.7").expand()
>>> scores.count == 101**99 * 101**99
True
>>> scores.where(key="0.7 > 98.1").count == 101**99
True
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from otimes.algebra.counts import large
from otimes.algebra.expansion import DEFAULT_LIMIT, PathSum
from otimes.algebra.paths import PathExpression
from otimes.algebra.scores.factored import ADDITIVE, Scores
from otimes.algebra.scores.terms import KINDS, PositionTerm, ScoreTerm, kind_of
from otimes.errors import LimitError, UnknownComponentError, UnsupportedError


@dataclass(frozen=True, repr=False)
class ScoreSum:
    """Pairs of a query path and a key path, and what positions add: lazy, with its exact size.

    Iteration is by the number of heads on both sides, query-side terms before key-side ones; what
    positions add comes last. Narrow it by ``where``, ``kind`` and ``order``.

    Attributes:
        scores: the unexpanded scores.
        query_paths: the paths of the query side.
        key_paths: the paths of the key side.
        kinds: the kinds that are in it.
        only_order: the number of heads on both sides, None for any.
    """

    scores: Scores
    query_paths: PathSum
    key_paths: PathSum
    kinds: tuple[str, ...] = KINDS
    only_order: int | None = None

    def where(
        self, query: str | PathExpression | None = None, key: str | PathExpression | None = None
    ) -> ScoreSum:
        """The pairs whose sides match path expressions; what positions add is no pair of paths.

        Args:
            query: a path expression for the query side, such as ``0.7 > ..`` or ``pos``; None for
                all.
            key: the same for the key side.
        """
        narrowed = self
        if query is not None:
            narrowed = replace(narrowed, query_paths=self.query_paths.where(query))
        if key is not None:
            narrowed = replace(narrowed, key_paths=self.key_paths.where(key))
        if narrowed is self:
            return self
        return replace(narrowed, kinds=tuple(k for k in self.kinds if k != "position"))

    def kind(self, *kinds: str) -> ScoreSum:
        """The terms of some kinds: ``direct``, ``q``, ``k``, ``qk``, ``position``.

        Raises:
            UnsupportedError: for a kind that there is not.
        """
        for kind in kinds:
            if kind not in KINDS:
                raise UnsupportedError(f"unknown kind {kind!r} of score terms; {_known()}")
        return replace(self, kinds=tuple(k for k in self.kinds if k in kinds))

    def order(self, order: int) -> ScoreSum:
        """The pairs with exactly ``order`` heads on both sides together."""
        return replace(self, only_order=order)

    def _cells(self) -> Iterator[tuple[int, int]]:
        """The numbers of heads on the query and on the key side that pairs have, few heads first.

        One at a time: a deep model has thousands, and numbers of pairs of thousands of digits.
        """
        query, key = self.query_paths.order_counts, self.key_paths.order_counts
        wanted = range(len(query) + len(key) - 1) if self.only_order is None else [self.only_order]
        for order in wanted:
            for i in range(min(order, len(query) - 1), max(order - len(key), -1), -1):
                if query[i] and key[order - i] and kind_of(i, order - i) in self.kinds:
                    yield i, order - i

    @cached_property
    def kind_counts(self) -> dict[str, int]:
        """How many terms there are of each kind that there is."""
        found = dict.fromkeys(KINDS, 0)
        if self.only_order is None:
            # by moved or not, and not by every pair of orders, of which deep models have many
            sides = [
                (side.where("order=0").count, side.count)
                for side in (self.query_paths, self.key_paths)
            ]
            (still_q, all_q), (still_k, all_k) = sides
            for i, queries in enumerate((still_q, all_q - still_q)):
                for j, keys in enumerate((still_k, all_k - still_k)):
                    if kind_of(i, j) in self.kinds:
                        found[kind_of(i, j)] = queries * keys
        else:
            query, key = self.query_paths.order_counts, self.key_paths.order_counts
            for i, j in self._cells():
                found[kind_of(i, j)] += query[i] * key[j]
        found["position"] = int(
            "position" in self.kinds and self.only_order in (None, 0) and self.scores.is_shifted
        )
        return {kind: number for kind, number in found.items() if number}

    @property
    def count(self) -> int:
        """The exact number of terms: query paths × key paths, and 1 for what positions add."""
        return sum(self.kind_counts.values())

    def __len__(self) -> int:
        if self.count > sys.maxsize:
            raise LimitError(
                f"{large(self.count)} terms are more than len() can say; use .count",
                self.count,
                sys.maxsize,
            )
        return self.count

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[ScoreTerm | PositionTerm]:
        for on_query, on_key in self._cells():
            yield from self._pairs(on_query, on_key)
        if "position" in self.kind_counts:
            yield self.position

    def _pairs(self, on_query: int, on_key: int) -> Iterator[ScoreTerm]:
        scale = self.scores.scale
        for query in self.query_paths.order(on_query):
            for key in self.key_paths.order(on_key):
                yield ScoreTerm(query, key, scale)

    @property
    def position(self) -> PositionTerm:
        """What positions add to the scores.

        Raises:
            UnknownComponentError: if they add nothing.
        """
        if not self.scores.is_shifted:
            positions = self.scores.architecture.positions
            raise UnknownComponentError(
                f"positions {positions!r} add nothing to the scores; {' and '.join(ADDITIVE)} do",
                "position",
            )
        return PositionTerm(self.scores.query_stream)

    def __getitem__(self, paths: tuple[str, str]) -> ScoreTerm:
        """The one term of a query path and a key path.

        Raises:
            UnknownComponentError: if either matches none of these paths, or several.
        """
        query, key = paths
        return ScoreTerm(self.query_paths[query], self.key_paths[key], self.scores.scale)

    def contains(self, term: ScoreTerm | PositionTerm) -> bool:
        """Whether a term is one of these."""
        if term.kind not in self.kinds or self.only_order not in (None, term.order):
            return False
        if isinstance(term, PositionTerm):
            return self.scores.is_shifted and term == self.position
        return (
            term.scale == self.scores.scale
            and self.query_paths.contains(term.query)
            and self.key_paths.contains(term.key)
        )

    def terms(self, limit: int = DEFAULT_LIMIT) -> list[ScoreTerm | PositionTerm]:
        """All terms as a list.

        Raises:
            LimitError: if there are more than ``limit``; it says how many and what to ask instead.
        """
        if self.count > limit:
            raise LimitError(
                f"these scores have {large(self.count)} terms, more than the limit of {limit:,}; "
                "ask for their count, for one kind, for a path on either side, or raise the limit",
                self.count,
                limit,
            )
        return list(self)

    def __repr__(self) -> str:
        return f"<ScoreSum of {large(self.count)} terms>"

    def __str__(self) -> str:
        query, key = large(self.query_paths.count), large(self.key_paths.count)
        more = " and what positions add" if "position" in self.kind_counts else ""
        return (
            f"a sum over {query} query paths × {key} key paths{more} of {self.scores!r}, "
            f"each scaled by {self.scores.scale}"
        )


def _known() -> str:
    return f"known are {', '.join(KINDS)}"
