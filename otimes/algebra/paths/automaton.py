r"""Minimal deterministic automata over the blocks of an architecture.

A path chooses in each block one component or passes it by. So the states are layered: a state
belongs to a *boundary* between blocks, 0 before the first and ``depth`` at the output, and has one
transition for passing the next block by and one for each class of its components. Each source
starts in a state at the boundary where it joins the stream. There is no state from which the output
cannot be reached, no state that cannot be reached, and no two states of a boundary accept the same:
the automaton is minimal, and as its states are numbered in the order in which they are met, equal
sets of paths have equal automata.

The number of paths is polynomial work, whatever it is. With ``z`` for a head,

``ways(s) = ways(skip(s)) + Σ over classes (neurons + heads z) ways(target)``

is the generating function by order; evaluated at a power of two beyond all coefficients it is a
single integer, whose digits are the counts by order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture
    from otimes.algebra.paths.grid import Grid
    from otimes.algebra.vocabulary import Component

DEAD = -1
"""No state: nothing is accepted from here."""


class State(NamedTuple):
    """One state: where passing the next block by leads, and where its components lead.

    ``moves`` has disjoint masks of components (bit ``i``: the ``i``-th of ``block.components()``)
    with different targets; a component in none of them leads to nothing.
    """

    skip: int
    moves: tuple[tuple[int, int], ...]

    def after(self, bit: int) -> int:
        """The state after a component, or ``DEAD``."""
        return next((target for mask, target in self.moves if mask >> bit & 1), DEAD)


@dataclass(frozen=True)
class Tables:
    """An automaton as integer tables, for engines that know no symbols.

    ``member[b][i]`` is the class of the ``i``-th component of block ``b`` (heads, then neurons), or
    -1 if no path of the set uses it. ``move[b][s][k]`` is the state after a component of class
    ``k`` of block ``b`` in state ``s``, ``skip[b][s]`` the state after passing the block by, and -1
    is no state. Boundary ``b`` has ``states[b]`` states, numbered from 0. Source ``i`` starts in
    state ``start[i]`` (-1: none of its paths) before block ``entry[i]``; for a constant inside a
    component this is after that component. At the output, the last boundary, state 0 accepts.

    One stream for each live state carries the exact sum over all paths of the set: at block ``b``
    the new stream of ``t`` is the sum of ``skip · x[s]`` where ``skip[b][s] == t`` and of
    ``component · x[s]`` where ``move[b][s][member[b][component]] == t``.
    """

    states: tuple[int, ...]
    member: tuple[tuple[int, ...], ...]
    move: tuple[tuple[tuple[int, ...], ...], ...]
    skip: tuple[tuple[int, ...], ...]
    entry: tuple[int, ...]
    start: tuple[int, ...]


@dataclass(frozen=True)
class Automaton:
    """A set of paths of an architecture; equal sets of paths are equal automata.

    ``starts`` has a state for each source, at its boundary, or ``DEAD``; ``boundaries`` the states
    of each boundary; the last has one state, which accepts, or none.
    """

    grid: Grid = field(repr=False, compare=False)
    starts: tuple[int, ...] = field(repr=False)
    boundaries: tuple[tuple[State, ...], ...] = field(repr=False)

    @property
    def architecture(self) -> Architecture:
        """The architecture whose paths these are."""
        return self.grid.architecture

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Automaton)
            and self.starts == other.starts
            and self.boundaries == other.boundaries
            and self.architecture == other.architecture
        )

    def __hash__(self) -> int:
        return hash((self.starts, self.boundaries))

    def __repr__(self) -> str:
        return f"<Automaton of {self.size} states over {self.grid.depth} blocks>"

    @property
    def size(self) -> int:
        """The number of states."""
        return sum(map(len, self.boundaries))

    @property
    def is_empty(self) -> bool:
        """Whether there is no path."""
        return not self.boundaries[-1]

    def __bool__(self) -> bool:
        return not self.is_empty

    def accepts(self, source: int, components: Sequence[Component]) -> bool:
        """Whether a path, given by its source's number and its components, is in the set."""
        grid = self.grid
        origin = grid.sources[source]
        rest = list(components)
        if origin.component is not None and (not rest or rest.pop(0) != origin.component):
            return False
        boundary, state = grid.entries[source], self.starts[source]
        for component in rest:
            if not grid.exists(component):
                return False
            block, bit = grid.locate(component)
            if block < boundary:
                return False
            state = self._pass(state, boundary, block)
            if state == DEAD:
                return False
            state, boundary = self.boundaries[block][state].after(bit), block + 1
        return self._pass(state, boundary, grid.depth) != DEAD

    def _pass(self, state: int, boundary: int, until: int) -> int:
        """The state after passing blocks by."""
        while state != DEAD and boundary < until:
            state = self.boundaries[boundary][state].skip
            boundary += 1
        return state

    def _weights(self, head: int) -> Iterator[tuple[int, list[int]]]:
        """From the output backwards: for each state the sum over its ways of ``head ** heads``."""
        grid = self.grid
        later = [1] * len(self.boundaries[-1])
        yield grid.depth, later
        for block in reversed(range(grid.depth)):
            heads, values = grid.heads[block], list[int]()
            for state in self.boundaries[block]:
                value = later[state.skip] if state.skip != DEAD else 0
                for mask, target in state.moves:
                    own = (mask & heads).bit_count()
                    value += (own * head + (mask.bit_count() - own)) * later[target]
                values.append(value)
            later = values
            yield block, later

    def _total(self, head: int) -> int:
        grid, found = self.grid, 0
        starts: list[list[tuple[int, int]]] = [[] for _ in range(grid.depth + 1)]
        for start, entry, opening in zip(
            self.starts, grid.entries, grid.opening_orders, strict=True
        ):
            if start != DEAD:
                starts[entry].append((start, head if opening else 1))
        # in a deep model these are numbers of megabytes: only those of one boundary are kept
        for boundary, values in self._weights(head):
            found += sum(values[start] * opening for start, opening in starts[boundary])
        return found

    @cached_property
    def count(self) -> int:
        """The exact number of paths."""
        return self._total(1)

    @cached_property
    def order_counts(self) -> tuple[int, ...]:
        """How many of the paths have 0, 1, 2, … heads."""
        width = self.count.bit_length() + 1
        digits, found = self._total(1 << width), list[int]()
        for _ in range(self.architecture.layers + 1):
            found.append(digits & ((1 << width) - 1))
            digits >>= width
        return tuple(found)

    def tables(self) -> Tables:
        """The automaton as integer tables."""
        member, move = list[tuple[int, ...]](), list[tuple[tuple[int, ...], ...]]()
        for block in range(self.grid.depth):
            states = self.boundaries[block]
            parts = _refined([mask for state in states for mask, _ in state.moves])
            classes = [-1] * self.grid.everything[block].bit_length()
            for number, part in enumerate(parts):
                for bit, digit in enumerate(reversed(f"{part:b}")):
                    if digit == "1":
                        classes[bit] = number
            lowest = [(part & -part).bit_length() - 1 for part in parts]
            member.append(tuple(classes))
            move.append(tuple(tuple(state.after(bit) for bit in lowest) for state in states))
        return Tables(
            states=tuple(map(len, self.boundaries)),
            member=tuple(member),
            move=tuple(move),
            skip=tuple(tuple(s.skip for s in states) for states in self.boundaries[:-1]),
            entry=self.grid.entries,
            start=self.starts,
        )


def _refined(masks: Iterable[int]) -> list[int]:
    """The coarsest disjoint parts such that each mask is a union of parts, lowest bit first."""
    parts = list[int]()
    for mask in dict.fromkeys(masks):
        rest, refined = mask, list[int]()
        for part in parts:
            refined += [piece for piece in (part & mask, part & ~mask) if piece]
            rest &= ~part
        parts = [*refined, rest] if rest else refined
    return sorted(parts, key=lambda part: part & -part)
