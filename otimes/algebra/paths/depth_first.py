"""The paths of an automaton such that those with a common beginning are neighbours.

Each path comes right after its longest prefix that is listed, so an evaluation can keep what the
prefixes have computed, and never more than one for each block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from otimes.algebra.paths.automaton import DEAD
from otimes.algebra.paths.grid import bits
from otimes.algebra.vocabulary import Component

if TYPE_CHECKING:
    from otimes.algebra.paths.automaton import Automaton
    from otimes.algebra.paths.listing import Path

_Place = tuple[int, int]
"""A boundary and a state there."""


def depth_first(automaton: Automaton, order: int | None = None) -> Iterator[Path]:
    """The paths, each right after its longest listed prefix; of one ``order`` if that is given."""
    grid = automaton.grid
    walk = _Walk(automaton)
    for number, source in enumerate(grid.sources):
        start = automaton.starts[number]
        left = None if order is None else order - grid.opening_orders[number]
        if start == DEAD or (left is not None and left < 0):
            continue
        first = () if source.component is None else (source.component,)
        for rest in walk.ways((grid.entries[number], start), left):
            yield number, first + rest


class _Walk:
    """What can still follow, for each state: computed once, so that no step is taken in vain."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        last = automaton.boundaries[-1]
        self.ends = [[True] * len(last)]
        """Whether the output is reached from a state by passing all blocks by."""
        self.orders = [[1] * len(last)]
        """The numbers of heads of the ways to the output, as bits."""
        self.goes_on = [[False] * len(last)]
        """Whether some way to the output has a component."""
        for block in reversed(range(automaton.grid.depth)):
            self._before(block)
        for table in (self.ends, self.orders, self.goes_on):
            table.reverse()

    def _before(self, block: int) -> None:
        heads, states = self.automaton.grid.heads[block], self.automaton.boundaries[block]
        ends, orders, goes_on = self.ends[-1], self.orders[-1], self.goes_on[-1]
        self.ends.append([s.skip != DEAD and ends[s.skip] for s in states])
        self.goes_on.append([bool(s.moves) or goes_on[s.skip] for s in states])
        row = list[int]()
        for skip, moves in states:
            found = orders[skip] if skip != DEAD else 0
            for mask, target in moves:
                found |= orders[target] << 1 if mask & heads else 0
                found |= orders[target] if mask & ~heads else 0
            row.append(found)
        self.orders.append(row)

    def ways(self, start: _Place, left: int | None) -> Iterator[tuple[Component, ...]]:
        """The ways to the output from a state, with ``left`` heads unless that is None."""
        path = list[Component]()
        if left in (None, 0) and self.ends[start[0]][start[1]]:
            yield ()
        waiting = [self._next(start, left)]
        while waiting:
            step = next(waiting[-1], None)
            if step is None:
                waiting.pop()
                if path:
                    path.pop()
                continue
            component, place, more = step
            path.append(component)
            if more in (None, 0) and self.ends[place[0]][place[1]]:
                yield tuple(path)
            waiting.append(self._next(place, more))

    def _next(
        self, place: _Place, left: int | None
    ) -> Iterator[tuple[Component, _Place, int | None]]:
        """What may come next, block by block: component, place after it, heads still to come."""
        boundary, state = place
        grid = self.automaton.grid
        while state != DEAD and self.goes_on[boundary][state]:
            skip, moves = self.automaton.boundaries[boundary][state]
            heads, later = grid.heads[boundary], self.orders[boundary + 1]
            steps = list[tuple[int, int, int | None]]()
            for mask, target in moves:
                for wanted, taken in ((mask & heads, 1), (mask & ~heads, 0)):
                    more = None if left is None else left - taken
                    if wanted and (more is None or (more >= 0 and later[target] >> more & 1)):
                        steps.extend((bit, target, more) for bit in bits(wanted))
            for bit, target, more in sorted(steps, key=_bit):
                yield grid.component(boundary, bit), (boundary + 1, target), more
            state, boundary = skip, boundary + 1


def _bit(step: tuple[int, int, int | None]) -> int:
    return step[0]
