"""How many different sequences of heads a set of paths has, sources and neurons not distinguished.

Two paths with the same heads may differ in their source and in their neurons. So the automaton is
run on heads alone, with all the states at once that a sequence of heads can have reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otimes.algebra.paths.automaton import DEAD
from otimes.errors import LimitError

if TYPE_CHECKING:
    from otimes.algebra.paths.automaton import Automaton

MAX_SETS = 50_000
"""Sets of states that may be looked at."""

_Key = tuple[frozenset[int], bool]
"""The states that a sequence of heads can have reached, and whether it is still empty."""


def head_word_counts(automaton: Automaton) -> tuple[int, ...]:
    """The number of different sequences of 0, 1, 2, … heads among the paths.

    Raises:
        LimitError: if too many sets of states would have to be told apart.
    """
    grid = automaton.grid
    fresh, inside = _starts(automaton)
    # ways[key][k]: the number of sequences of k heads that lead to these states
    ways: dict[_Key, list[int]] = {(frozenset(fresh[0]), True): [1]}
    looked_at = 0
    for block in range(grid.depth):
        later = dict[_Key, list[int]]()
        for (states, empty), counts in ways.items():
            looked_at += 1
            if looked_at > MAX_SETS:
                raise LimitError(
                    f"the sequences of heads of these paths need more than {MAX_SETS:,} sets of "
                    "states to be told apart; count the paths instead, or fewer of them",
                    looked_at,
                    MAX_SETS,
                )
            stay, heads = _after(automaton, block, states)
            if empty:
                stay |= fresh[block + 1]
                for mask, starts in inside[block + 1].items():
                    heads = _split(heads, mask, starts)
            _add(later, (frozenset(stay), empty), counts, 1, 0)
            for mask, targets in heads:
                _add(later, (frozenset(targets), False), counts, mask.bit_count(), 1)
        ways = later
    found = [0] * (grid.architecture.layers + 1)
    for (states, _), counts in ways.items():
        if states:
            for k, number in enumerate(counts):
                found[k] += number
    return tuple(found)


def _starts(automaton: Automaton) -> tuple[list[set[int]], list[dict[int, set[int]]]]:
    """What starts at each boundary: with no head yet, or inside a head of the block before it."""
    grid = automaton.grid
    fresh: list[set[int]] = [set() for _ in range(grid.depth + 1)]
    inside: list[dict[int, set[int]]] = [{} for _ in range(grid.depth + 1)]
    for source, start, entry in zip(grid.sources, automaton.starts, grid.entries, strict=True):
        if start != DEAD and source.head is not None:
            inside[entry].setdefault(1 << source.head[1], set()).add(start)
        elif start != DEAD:
            fresh[entry].add(start)
    return fresh, inside


def _after(
    automaton: Automaton, block: int, states: frozenset[int]
) -> tuple[set[int], list[tuple[int, set[int]]]]:
    """The states after a block without a head of it, and after each class of its heads."""
    heads, stay = automaton.grid.heads[block], set[int]()
    found: list[tuple[int, set[int]]] = [(heads, set())] if heads else []
    for state in states:
        skip, moves = automaton.boundaries[block][state]
        stay.add(skip)
        for mask, target in moves:
            if mask & ~heads:
                stay.add(target)
            if mask & heads:
                found = _split(found, mask & heads, {target})
    return stay - {DEAD}, [part for part in found if part[1]]


def _split(
    classes: list[tuple[int, set[int]]], mask: int, targets: set[int]
) -> list[tuple[int, set[int]]]:
    """The classes of heads, those in the mask with further states."""
    found, rest = list[tuple[int, set[int]]](), mask
    for own, states in classes:
        rest &= ~own
        if own & mask:
            found.append((own & mask, states | targets))
        if own & ~mask:
            found.append((own & ~mask, states))
    if rest:
        found.append((rest, set(targets)))
    return found


def _add(ways: dict[_Key, list[int]], key: _Key, counts: list[int], times: int, heads: int) -> None:
    if not key[0] and not key[1]:
        return  # nothing can be reached any more
    own = ways.setdefault(key, [])
    own.extend([0] * (len(counts) + heads - len(own)))
    for k, number in enumerate(counts):
        own[k + heads] += times * number
