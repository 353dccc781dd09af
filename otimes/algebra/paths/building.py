"""Minimal automata from steps: what can be reached, from the front; what is equal, from behind.

A *key* stands for a state while an automaton is built. Most keys are met before each of a hundred
blocks, so little may be done for one before one block: a step names the keys after a block as a
row, which can be the same row for many blocks, and states are told apart by the numbers in rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from otimes.algebra.paths.automaton import DEAD, Automaton, State
from otimes.errors import LimitError

if TYPE_CHECKING:
    from otimes.algebra.paths.grid import Grid

Key = TypeVar("Key")
"""What stands for a state while an automaton is built."""
Masks = tuple[int, ...]
"""Disjoint masks of the components of a block, the lowest bit first."""
Step = tuple[Masks, tuple[Key | None, ...]]
"""Masks, and the keys after a block: when it is passed by, then after the components of each mask;
None is no state."""
_Moves = tuple[Masks, tuple[int, ...]]
"""A step whose keys are numbers of states, or ``DEAD``."""
_NO_MOVES: _Moves = (), (DEAD,)
MAX_STATES = 50_000
"""States that an automaton may have while it is built: about half a second."""


def build(
    grid: Grid,
    starts: Sequence[Key | None],
    step: Callable[[int, Key], Step[Key]],
    accepts: Callable[[Key], bool],
    subject: str,
    settled: Callable[[int, set[Key | None]], dict[Key | None, Key | None]],
) -> Automaton:
    """Explore what can be reached from the starts, and minimise it.

    Args:
        grid: the blocks.
        starts: for each source the key of its state at its boundary; None for no state.
        step: for a block and the key of a state before it, the keys after it.
        accepts: whether the output accepts a key.
        subject: what an error names.
        settled: for a block and the keys that its steps name, what stands for each behind it.

    Raises:
        LimitError: if there are more than ``MAX_STATES`` states.
    """
    entering: list[set[Key]] = [set() for _ in range(grid.depth + 1)]
    for key, entry in zip(starts, grid.entries, strict=True):
        if key is not None:
            entering[entry].add(key)
    steps, names = list[dict[Key, Step[Key]]](), list[dict[Key | None, Key | None]]()
    reached, total = entering[0], 0
    for block in range(grid.depth):
        total += len(reached)
        found, named, enough = dict[Key, Step[Key]](), set[Key | None](), MAX_STATES - total
        for key in reached:
            row = found[key] = step(block, key)
            named.update(row[1])
            # one block alone may make too much of what was little
            if len(named) > enough:
                if len(_live(settled(block, named))) > MAX_STATES - total:
                    break
                enough = 2 * len(named)
        left = settled(block, named)
        reached = _live(left) | entering[block + 1]
        if total + len(reached) > MAX_STATES:
            raise too_large(subject, total + len(reached), block + 1, grid.depth)
        steps.append(found)
        names.append(left)
    return _minimal(grid, starts, steps, names, {key for key in reached if accepts(key)})


def _live(left: dict[Key | None, Key | None]) -> set[Key]:
    return {key for key in left.values() if key is not None}


def too_large(subject: str, states: int, block: int, depth: int) -> LimitError:
    """The error of an automaton, or of a search in two, that has too many states."""
    return LimitError(
        f"{subject} needs more than {MAX_STATES:,} automaton states: "
        f"{states:,} by block {block} of {depth}",
        states,
        MAX_STATES,
    )


def _minimal(
    grid: Grid,
    starts: Sequence[Key | None],
    steps: list[dict[Key, Step[Key]]],
    names: list[dict[Key | None, Key | None]],
    accepted: set[Key],
) -> Automaton:
    # from the output backwards: states with equal transitions are one, those without any are none
    numbers = dict[Key, int].fromkeys(accepted, 0)
    of_boundary = [numbers]
    states = [[_NO_MOVES] if accepted else []]
    while steps:
        found = steps.pop()
        later: dict[Key | None, int] = {
            key: DEAD if name is None else numbers.get(name, DEAD)
            for key, name in names.pop().items()
        }
        later[None] = DEAD
        after = later.__getitem__
        numbers, known = dict[Key, int](), dict[_Moves, int]()
        equal = dict[_Moves, int]()
        for key, (masks, targets) in found.items():
            moves = masks, tuple(map(after, targets))
            number = equal.get(moves)
            if number is None:
                merged = _merged(*moves)
                number = DEAD if merged == _NO_MOVES else known.setdefault(merged, len(known))
                equal[moves] = number
            numbers[key] = number
        of_boundary.append(numbers)
        states.append(list(known))
    of_boundary.reverse()
    states.reverse()
    firsts = [
        DEAD if key is None else of_boundary[entry].get(key, DEAD)
        for key, entry in zip(starts, grid.entries, strict=True)
    ]
    return _renumbered(grid, firsts, states)


def _merged(masks: Masks, targets: tuple[int, ...]) -> _Moves:
    """The same with one mask for each different target, and none for none."""
    skip, *others = targets
    different = set(others)
    if len(different) == len(others) and DEAD not in different:
        return masks, targets
    found = dict[int, int]()
    for mask, target in zip(masks, others, strict=True):
        if target in found:
            found[target] |= mask
        elif target != DEAD:
            found[target] = mask
    return tuple(found.values()), (skip, *found)


def _renumbered(grid: Grid, starts: list[int], states: list[list[_Moves]]) -> Automaton:
    """Number the states of each boundary as they are met, and drop those that are not."""
    order: list[dict[int, int]] = [{DEAD: DEAD} for _ in states]
    for start, entry in zip(starts, grid.entries, strict=True):
        order[entry].setdefault(start, len(order[entry]) - 1)
    boundaries = list[tuple[State, ...]]()
    # one pair in memory for all states that have it: there are few different ones
    pairs = dict[tuple[int, int], tuple[int, int]]()
    for block in range(grid.depth):
        later, renamed, own = order[block + 1], list[State](), states[block]
        number = later.setdefault
        for old in order[block]:
            if old != DEAD:
                masks, targets = own[old]
                skip, *others = [number(target, len(later) - 1) for target in targets]
                moves = [pairs.setdefault(pair, pair) for pair in zip(masks, others, strict=True)]
                renamed.append(State(skip, tuple(moves)))
        boundaries.append(tuple(renamed))
    boundaries.append(tuple(State(DEAD, ()) for old in order[-1] if old != DEAD))
    firsts = tuple(order[entry][start] for start, entry in zip(starts, grid.entries, strict=True))
    return Automaton(grid, firsts, tuple(boundaries))
