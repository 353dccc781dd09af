"""Expressions without complements and intersections, as sets of positions.

Such an expression is unrolled until every component of a path has a *position* in it, a pattern
that occurs once (Glushkov 1961, *The abstract theory of automata*; repetitions with bounds are
copies). What is left of it after some components is then the set of positions that may come next:
an integer, where bit 0 stands for the end. After a component come the followers of the positions
that it matches. Nothing is stored or brought to a normal form, so one step is some dozen times
quicker than a derivative.

A position is dropped beside one that *simulates* it: one that matches the same components at least,
and whose followers simulate those of the other (Milner 1971). In ``.. > *.3 > .. > *.4`` nothing is
left of the first half once the second ``..`` is reached.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from otimes.algebra.paths.grid import bits
from otimes.algebra.paths.store import UNBOUNDED, Store

MAX_POSITIONS = 128
"""More are left to derivatives: the simulation takes time with the square of their number."""
_END = 1


class _Part(NamedTuple):
    """A part: whether it has the empty word, and where its words begin and end."""

    nullable: bool
    first: int
    last: int


class Positions:
    """The positions of some expressions of a store that :func:`has_positions` has agreed to."""

    nothing = 0
    """The set of positions of an expression without a word."""

    def __init__(self, store: Store, latest: Sequence[int], expressions: Collection[int]) -> None:
        """Unroll the expressions.

        Args:
            store: where the expressions are.
            latest: for each pattern the last block with a component that it matches, or -1.
            expressions: those that are asked for.
        """
        self._store = store
        self._patterns = [-1]  # -1: any component
        self._followers = [0]
        self._starts = dict[int, int]()
        for expression in expressions:
            whole = self._unrolled(expression)
            self._join(whole.last, _END)
            self._starts[expression] = whole.first | (_END if whole.nullable else 0)
        self._covered = self._redundant()
        self._alive = self._possible_after(latest)
        self._matched = dict[int, int]()
        self._after = dict[int, int]()

    def start(self, expression: int) -> int:
        """The set of positions with which an expression begins."""
        return self._reduced(self._starts[expression])

    def derivative(self, positions: int, signature: int) -> int:
        """The set of positions after a component of this signature."""
        matched = self._matched.get(signature)
        if matched is None:
            matched = self._matched[signature] = sum(
                1 << number
                for number, pattern in enumerate(self._patterns)
                if number and (pattern < 0 or signature >> (pattern + 1) & 1)
            )
        matched &= positions
        found = self._after.get(matched)
        if found is None:
            found = 0
            for number in bits(matched):
                found |= self._followers[number]
            found = self._after[matched] = self._reduced(found)
        return found

    def possible(self, positions: int, block: int) -> int:
        """The positions from which the end can still be reached behind a block."""
        return positions & self._alive[block]

    def has_empty(self, positions: int) -> bool:
        """Whether nothing more needs to come."""
        return bool(positions & _END)

    # -------------------------------------------------------------------------------- unrolling

    def _position(self, pattern: int) -> _Part:
        bit = 1 << len(self._patterns)
        self._patterns.append(pattern)
        self._followers.append(0)
        return _Part(nullable=False, first=bit, last=bit)

    def _join(self, last: int, first: int) -> None:
        for number in bits(last):
            self._followers[number] |= first

    def _unrolled(self, expression: int) -> _Part:
        kind, parts = self._store.shape(expression)
        match kind:
            case "atom":
                return self._position(parts[0])
            case "one":
                return self._position(-1)
            case "anything":
                part = self._position(-1)
                self._join(part.last, part.first)
                return part._replace(nullable=True)
            case "join":
                *before, whole = (self._unrolled(part) for part in parts)
                for part in reversed(before):
                    whole = self._sequence(part, whole)
                return whole
            case "either":
                whole = _Part(nullable=False, first=0, last=0)
                for option in map(self._unrolled, parts):
                    whole = _Part(
                        whole.nullable or option.nullable,
                        whole.first | option.first,
                        whole.last | option.last,
                    )
                return whole
            case "repeated":
                return self._repeated(*parts)
            case _:  # nothing, and the empty word
                return _Part(kind == "empty", 0, 0)

    def _sequence(self, one: _Part, two: _Part) -> _Part:
        self._join(one.last, two.first)
        return _Part(
            one.nullable and two.nullable,
            one.first | (two.first if one.nullable else 0),
            two.last | (one.last if two.nullable else 0),
        )

    def _repeated(self, item: int, least: int, most: int) -> _Part:
        # x{1,3} is x (x (x)?)?, so that only the end knows how many there have been
        copies = _copies(least, most)
        whole = self._unrolled(item)
        if most == UNBOUNDED:
            self._join(whole.last, whole.first)
        for number in range(copies - 1, 0, -1):
            if number >= least:
                whole = whole._replace(nullable=True)
            whole = self._sequence(self._unrolled(item), whole)
        return whole if least else whole._replace(nullable=True)

    # ------------------------------------------------------------------- what need not be kept

    def _redundant(self) -> list[int]:
        """For each position those that add nothing beside it."""
        count, followers = len(self._patterns), self._followers
        of_pattern = dict[int, int]()
        for number in range(1, count):
            pattern = self._patterns[number]
            of_pattern[pattern] = of_pattern.get(pattern, 0) | 1 << number
        every = of_pattern.get(-1, 0)
        # the positions that may simulate each: fewer and fewer, until all that are left do
        larger = [_END, *(of_pattern[pattern] | every for pattern in self._patterns[1:])]
        changed = True
        while changed:
            changed = False
            for number in range(count - 1, 0, -1):  # followers first
                needed = [larger[after] for after in bits(followers[number])]
                for other in bits(larger[number] & ~(1 << number)):
                    own = followers[other]
                    if not all(own & one for one in needed):
                        larger[number] &= ~(1 << other)
                        changed = True
        covered = [0] * count
        for number in range(1, count):
            for other in bits(larger[number] & ~(1 << number)):
                # of two that are equal the first stays
                if other < number or not larger[other] >> number & 1:
                    covered[other] |= 1 << number
        return covered

    def _reduced(self, positions: int) -> int:
        for number in bits(positions):
            if positions >> number & 1:
                positions &= ~self._covered[number]
        return positions

    def _possible_after(self, latest: Sequence[int]) -> list[int]:
        """For each block the positions that can stand for a component of a later one."""
        depth, count = self._store.depth, len(self._patterns)
        last = [depth, *(latest[p] if p >= 0 else depth - 1 for p in self._patterns[1:])]
        changed = True
        while changed:
            changed = False
            for number in range(count - 1, 0, -1):  # followers first
                after = max(last[one] for one in bits(self._followers[number])) - 1
                if after < last[number]:
                    last[number], changed = after, True
        return [
            sum(1 << number for number in range(count) if last[number] > block)
            for block in range(depth)
        ]


def _copies(least: int, most: int) -> int:
    return max(least, 1) if most == UNBOUNDED else most


def has_positions(store: Store, expressions: Collection[int]) -> bool:
    """Whether expressions can be unrolled, to ``MAX_POSITIONS`` altogether."""
    known = dict[int, int]()
    return sum(_size(store, expression, known) for expression in expressions) <= MAX_POSITIONS


def _size(store: Store, expression: int, known: dict[int, int]) -> int:
    """The number of positions of an expression, or any number that is too large."""
    found = known.get(expression)
    if found is None:
        kind, parts = store.shape(expression)
        match kind:
            case "nothing" | "empty":
                found = 0
            case "atom" | "one" | "anything":
                found = 1
            case "join" | "either":
                found = 0
                for part in parts:
                    found += _size(store, part, known)
                    if found > MAX_POSITIONS:
                        break
            case "repeated":
                item, least, most = parts
                found = _size(store, item, known) * _copies(least, most)
            case _:
                found = MAX_POSITIONS + 1
        known[expression] = found
    return found
