"""Sets of paths combined: union, intersection, difference, and questions about two of them.

>>> from otimes.algebra import Architecture
>>> from otimes.algebra.paths import intersection, is_contained
>>> language = Architecture(3, 4).language
>>> through, late = language.compile("0.1 > .. > 2.3"), language.compile(".. > 2.*")
>>> is_contained(through, late), is_contained(late, through)
(True, False)
>>> intersection(late, language.compile("order=1")).count
4
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from otimes.algebra.paths.automaton import DEAD, Automaton
from otimes.algebra.paths.building import MAX_STATES, build, too_large
from otimes.errors import TypeMismatchError

if TYPE_CHECKING:
    from otimes.algebra.paths.building import Step

_Pair = tuple[int, int]
_SUBJECT = "a combination of two sets of paths"


def union(left: Automaton, right: Automaton) -> Automaton:
    """The paths of either."""
    return _combined(left, right, lambda one, two: one or two)


def intersection(left: Automaton, right: Automaton) -> Automaton:
    """The paths of both."""
    return _combined(left, right, lambda one, two: one and two)


def difference(left: Automaton, right: Automaton) -> Automaton:
    """The paths of the left that the right has not."""
    return _combined(left, right, lambda one, two: one and not two)


def is_contained(inner: Automaton, outer: Automaton) -> bool:
    """Whether the outer set has every path of the inner."""
    # every state leads to the output: where the inner has a state and the outer none, there is a
    # path of the inner alone, so the search ends there
    return inner == outer or not _meets(inner, outer, lambda _, pair: pair[1] == DEAD)


def overlap(left: Automaton, right: Automaton) -> bool:
    """Whether some path is in both."""
    end = left.grid.depth
    return _meets(left, right, lambda block, pair: block == end and pair[1] != DEAD)


def _meets(left: Automaton, right: Automaton, found: Callable[[int, _Pair], bool]) -> bool:
    """Whether a path of the left leads to a pair of states that is looked for.

    Pairs are looked at deepest first and none is stored as a state, so an answer comes as soon as
    there is one.
    """
    _check_model(left, right)
    depth = left.grid.depth
    waiting: list[list[_Pair]] = [[] for _ in range(depth + 1)]
    seen: list[set[_Pair]] = [set() for _ in range(depth + 1)]
    for entry, one, two in zip(left.grid.entries, left.starts, right.starts, strict=True):
        if one != DEAD:
            waiting[entry].append((one, two))
    block, visited = depth, 0
    while block >= 0:
        if not waiting[block]:
            block -= 1
            continue
        pair = waiting[block].pop()
        if pair in seen[block]:
            continue
        if found(block, pair):
            return True
        seen[block].add(pair)
        if block < depth and pair[1] != DEAD:
            visited += 1
            if visited > MAX_STATES:
                raise too_large(_SUBJECT, visited, block, depth)
            waiting[block + 1] += _next_pairs(left, right, block, pair) - seen[block + 1]
            block += 1
    return False


def _next_pairs(left: Automaton, right: Automaton, block: int, pair: _Pair) -> set[_Pair]:
    """The pairs after a block whose left is a state."""
    one, two = left.boundaries[block][pair[0]], right.boundaries[block][pair[1]]
    found = {(one.skip, two.skip)} if one.skip != DEAD else set[_Pair]()
    for mask, target in one.moves:
        rest = mask
        for other, partner in two.moves:
            if rest & other:
                found.add((target, partner))
                rest &= ~other
                if not rest:
                    break
        if rest:
            found.add((target, DEAD))
    return found


def _check_model(left: Automaton, right: Automaton) -> None:
    if left.architecture != right.architecture:
        raise TypeMismatchError(
            f"sets of paths of two models: of {left.architecture!r} and of {right.architecture!r}",
            left.architecture,
            right.architecture,
        )


def _combined(left: Automaton, right: Automaton, wanted: Callable[[bool, bool], bool]) -> Automaton:
    """The paths for which ``wanted`` is true of being in the left and in the right.

    ``wanted`` is false for what is in neither.
    """
    _check_model(left, right)
    alone = wanted(True, False), wanted(False, True)

    def key(one: int, two: int) -> _Pair | None:
        if (one == DEAD and not alone[1]) or (two == DEAD and not alone[0]):
            return None
        return None if one == two == DEAD else (one, two)

    def moves(side: Automaton, block: int, state: int) -> list[_Pair]:
        """The moves of a state, and the rest of the block's components, which lead to nothing."""
        own = side.boundaries[block][state].moves if state != DEAD else ()
        rest = side.grid.everything[block]
        for mask, _ in own:
            rest &= ~mask
        return [*own, (rest, DEAD)] if rest else [*own]

    def skip(side: Automaton, block: int, state: int) -> int:
        return side.boundaries[block][state].skip if state != DEAD else DEAD

    def step(block: int, pair: _Pair) -> Step[_Pair]:
        found = list[tuple[int, int, _Pair]]()
        of_right = moves(right, block, pair[1])
        for one_mask, one in moves(left, block, pair[0]):
            rest = one_mask
            for two_mask, two in of_right:
                mask = rest & two_mask
                if mask:
                    target = key(one, two)
                    if target is not None:
                        found.append((mask & -mask, mask, target))
                    rest ^= mask
                    if not rest:
                        break
        found.sort()  # by their lowest bits, which differ
        passed = key(skip(left, block, pair[0]), skip(right, block, pair[1]))
        return tuple([mask for _, mask, _ in found]), (passed, *(target for *_, target in found))

    starts = [key(one, two) for one, two in zip(left.starts, right.starts, strict=True)]
    return build(
        left.grid,
        starts,
        step,
        lambda pair: wanted(pair[0] != DEAD, pair[1] != DEAD),
        _SUBJECT,
        lambda _, pairs: dict(zip(pairs, pairs, strict=True)),
    )
