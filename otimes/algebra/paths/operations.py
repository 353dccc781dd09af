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

from otimes.algebra.paths.automaton import DEAD, Automaton, build
from otimes.errors import TypeMismatchError

if TYPE_CHECKING:
    from otimes.algebra.paths.automaton import Step

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
    return inner == outer or difference(inner, outer).is_empty


def overlap(left: Automaton, right: Automaton) -> bool:
    """Whether some path is in both."""
    return not intersection(left, right).is_empty


def _combined(left: Automaton, right: Automaton, wanted: Callable[[bool, bool], bool]) -> Automaton:
    """The paths for which ``wanted`` is true of being in the left and in the right.

    ``wanted`` is false for what is in neither.
    """
    if left.architecture != right.architecture:
        raise TypeMismatchError(
            f"sets of paths of two models: of {left.architecture!r} and of {right.architecture!r}",
            left.architecture,
            right.architecture,
        )
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
        return [*own, (rest, DEAD)]

    def skip(side: Automaton, block: int, state: int) -> int:
        return side.boundaries[block][state].skip if state != DEAD else DEAD

    def step(block: int, pair: _Pair) -> Step[_Pair]:
        found = list[tuple[int, _Pair | None]]()
        of_right = moves(right, block, pair[1])
        for one_mask, one in moves(left, block, pair[0]):
            for two_mask, two in of_right:
                mask, target = one_mask & two_mask, key(one, two)
                if mask and target is not None:
                    found.append((mask, target))
        return key(skip(left, block, pair[0]), skip(right, block, pair[1])), found

    starts = [key(one, two) for one, two in zip(left.starts, right.starts, strict=True)]
    return build(
        left.grid,
        starts,
        step,
        lambda pair: wanted(pair[0] != DEAD, pair[1] != DEAD),
        _SUBJECT,
    )
