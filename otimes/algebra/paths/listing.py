"""The paths of an automaton one after another, without a step that leads to none.

The sequence is by order (the number of heads), then by source, then by the number of neurons, by
layers and by heads; the first path costs no more than a few passes over the states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from otimes.algebra.paths.automaton import DEAD
from otimes.algebra.paths.grid import bits
from otimes.algebra.vocabulary import Component

if TYPE_CHECKING:
    from otimes.algebra.paths.automaton import Automaton, State

Path = tuple[int, tuple[Component, ...]]
"""The number of a source, and the components, earliest first."""

Choices = list[Sequence[Component]]
"""All paths that take one of these components at the first place, one at the second, ...."""

_Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""The blocks in which a path takes a head, and those in which it takes a neuron."""


def in_order(automaton: Automaton, orders: Iterable[int] | None = None) -> Iterator[Path]:
    """The paths by order, source, number of neurons, layers and heads.

    Args:
        automaton: the set of paths.
        orders: the numbers of heads to list, in this sequence; by default all, ascending.
    """
    for number, choices in boxes(automaton, orders):
        for components in product(*choices):
            yield number, components


def boxes(
    automaton: Automaton, orders: Iterable[int] | None = None
) -> Iterator[tuple[int, Choices]]:
    """The paths of :func:`in_order` as products of choices, each with the number of a source."""
    if automaton.is_empty:
        return
    grid = automaton.grid
    listing = _Listing(automaton)
    for order in range(grid.architecture.layers + 1) if orders is None else orders:
        for number, source in enumerate(grid.sources):
            start = automaton.starts[number]
            if start == DEAD:
                continue
            first: Choices = [] if source.component is None else [[source.component]]
            more = order - grid.opening_orders[number]
            for rest in listing.ways(grid.entries[number], start, more):
                yield number, first + rest


def example(automaton: Automaton) -> Path | None:
    """The first path of the set: none has fewer heads; None if there is no path."""
    return next(in_order(automaton), None)


class _Listing:
    def __init__(self, automaton: Automaton) -> None:
        self.automaton, self.grid = automaton, automaton.grid
        self.sizes = _sizes(automaton)

    def ways(self, entry: int, start: int, heads: int) -> Iterator[Choices]:
        """The components of the ways to the output with this many heads."""
        if heads < 0:
            return
        sizes = self.sizes[entry][start]
        for neurons in sorted(n for n, orders in sizes.items() if orders >> heads & 1):
            for shape in self._shapes(entry, start, heads, neurons):
                yield from self._through(entry, start, shape)

    # Three choices one inside another, each only among what can still be completed: the blocks of
    # the heads, then those of the neurons, then the components.

    def _shapes(self, entry: int, start: int, heads: int, neurons: int) -> Iterator[_Shape]:
        for of_heads in self._blocks_of_heads(entry, {start: 1}, heads, neurons):
            for of_neurons in self._blocks_of_neurons(entry, start, of_heads, neurons):
                yield of_heads, of_neurons

    def _blocks_of_heads(
        self, block: int, states: dict[int, int], heads: int, neurons: int
    ) -> Iterator[tuple[int, ...]]:
        """Blocks for the heads; bit ``n`` of ``states[s]``: ``s`` is reached with ``n`` neurons."""
        if not heads:
            if self._completes(block, states, 0, neurons):
                yield ()
            return
        # a stack of its own: paths of deep models have more heads than Python has frames
        chosen = list[int]()
        levels = [self._next_heads(block, states, heads, neurons)]
        while levels:
            found = next(levels[-1], None)
            if found is None:
                levels.pop()
                if chosen:
                    chosen.pop()
                continue
            number, taken = found
            left = heads - len(levels)
            if left:
                chosen.append(number)
                levels.append(self._next_heads(number + 1, taken, left, neurons))
            else:
                yield (*chosen, number)

    def _next_heads(
        self, block: int, states: dict[int, int], heads: int, neurons: int
    ) -> Iterator[tuple[int, dict[int, int]]]:
        """Blocks that the first of the heads can be in, and the states after it."""
        while states and block < self.grid.depth:
            taken = self._step(block, states, heads=True, passing=False)
            if self._completes(block + 1, taken, heads - 1, neurons):
                yield block, taken
            states, block = self._step(block, states, heads=False, passing=True), block + 1
            if not self._completes(block, states, heads, neurons):
                return

    def _completes(self, block: int, states: dict[int, int], heads: int, neurons: int) -> bool:
        return any(
            self.sizes[block][state].get(neurons - n, 0) >> heads & 1
            for state, used in states.items()
            for n in bits(used)
        )

    def _step(
        self, block: int, states: dict[int, int], *, heads: bool, passing: bool
    ) -> dict[int, int]:
        """The states after a block: by a head, or by a neuron or passing it by."""
        mask_of_heads, found = self.grid.heads[block], dict[int, int]()
        for state, used in states.items():
            skip, moves = self.automaton.boundaries[block][state]
            if passing and skip != DEAD:
                found[skip] = found.get(skip, 0) | used
            for mask, target in moves:
                if heads and mask & mask_of_heads:
                    found[target] = found.get(target, 0) | used
                if not heads and mask & ~mask_of_heads:
                    found[target] = found.get(target, 0) | used << 1
        return found

    def _blocks_of_neurons(
        self, entry: int, start: int, of_heads: tuple[int, ...], neurons: int
    ) -> Iterator[tuple[int, ...]]:
        if not neurons:
            yield ()
            return
        # for each block and state, the numbers of neurons that complete it with these heads
        sizes = [[1] * len(self.automaton.boundaries[-1])]
        for block in reversed(range(entry, self.grid.depth)):
            later, heads, row = sizes[-1], self.grid.heads[block], list[int]()
            for skip, moves in self.automaton.boundaries[block]:
                found = later[skip] if skip != DEAD and block not in of_heads else 0
                for mask, target in moves:
                    if block in of_heads:
                        found |= later[target] if mask & heads else 0
                    elif mask & ~heads:
                        found |= later[target] << 1
                row.append(found)
            sizes.append(row)
        sizes.reverse()
        yield from self._choose_neurons(entry, entry, {start}, set(of_heads), neurons, sizes)

    def _choose_neurons(
        self,
        entry: int,
        block: int,
        states: set[int],
        of_heads: set[int],
        neurons: int,
        sizes: list[list[int]],
    ) -> Iterator[tuple[int, ...]]:
        if not neurons:
            yield ()
            return
        while block < self.grid.depth:
            own = self.automaton.boundaries[block]
            heads, later = self.grid.heads[block], sizes[block + 1 - entry]
            if block in of_heads:
                states = {t for s in states for mask, t in own[s].moves if mask & heads}
            else:
                taken = {t for s in states for mask, t in own[s].moves if mask & ~heads}
                if any(later[state] >> (neurons - 1) & 1 for state in taken):
                    for rest in self._choose_neurons(
                        entry, block + 1, taken, of_heads, neurons - 1, sizes
                    ):
                        yield (block, *rest)
                states = {own[s].skip for s in states} - {DEAD}
            block += 1
            if not any(later[state] >> neurons & 1 for state in states):
                return

    def _through(self, entry: int, start: int, shape: _Shape) -> Iterator[Choices]:
        """The ways that take their components in just these blocks, in their natural order."""
        of_heads, of_neurons = set(shape[0]), set(shape[1])
        blocks = sorted(of_heads | of_neurons)
        # for each chosen block and state before it: the moves from which the output can be reached
        alive: set[int] = self._before(self.grid.depth, blocks[-1] + 1 if blocks else entry, {0})
        if not blocks:
            if start in alive:
                yield []
            return
        moves = list[dict[int, list[tuple[int, int]]]]()
        for number in reversed(range(len(blocks))):
            block = blocks[number]
            wanted = self.grid.heads[block]
            wanted = wanted if block in of_heads else ~wanted
            own = dict[int, list[tuple[int, int]]]()
            for state, (_, ways) in enumerate(self.automaton.boundaries[block]):
                useful = [(mask & wanted, t) for mask, t in ways if mask & wanted and t in alive]
                if useful:
                    own[state] = sorted((bit, t) for mask, t in useful for bit in bits(mask))
            moves.append(own)
            alive = self._before(block, blocks[number - 1] + 1 if number else entry, set(own))
        moves.reverse()
        if start in alive:
            state = self._pass(start, entry, blocks[0])
            whole = self._whole(blocks, moves, state)
            if whole is not None:
                yield whole
            else:
                yield from self._walk(blocks, moves, state)

    def _whole(
        self, blocks: list[int], moves: list[dict[int, list[tuple[int, int]]]], state: int
    ) -> Choices | None:
        """All combinations, where no choice changes what can follow; else None.

        Most sets are of this form in most blocks, and combinations are made several times faster.
        """
        choices = Choices()
        for depth, block in enumerate(blocks):
            own = moves[depth][state]
            target = own[0][1]
            if any(other != target for _, other in own):
                return None
            choices.append([self.grid.component(block, bit) for bit, _ in own])
            if depth + 1 < len(blocks):
                state = self._pass(target, block + 1, blocks[depth + 1])
        return choices

    def _walk(
        self, blocks: list[int], moves: list[dict[int, list[tuple[int, int]]]], start: int
    ) -> Iterator[Choices]:
        component, latest = self.grid.component, len(blocks) - 1
        path = list[Component]()
        waiting = [iter(moves[0].get(start, ()))]
        while waiting:
            depth = len(waiting) - 1
            if depth == latest:
                ends = [component(blocks[latest], bit) for bit, _ in waiting[-1]]
                yield [*([c] for c in path), ends]
            step = next(waiting[-1], None)
            if step is None:
                waiting.pop()
                if path:
                    path.pop()
                continue
            bit, target = step
            path.append(component(blocks[depth], bit))
            state = self._pass(target, blocks[depth] + 1, blocks[depth + 1])
            waiting.append(iter(moves[depth + 1].get(state, ())))

    def _before(self, boundary: int, until: int, states: set[int]) -> set[int]:
        """The states at an earlier boundary from which passing by leads to one of these."""
        while boundary > until:
            boundary -= 1
            own = self.automaton.boundaries[boundary]
            states = {state for state, (skip, _) in enumerate(own) if skip in states}
        return states

    def _pass(self, state: int, boundary: int, until: int) -> int:
        while state != DEAD and boundary < until:
            state = self.automaton.boundaries[boundary][state].skip
            boundary += 1
        return state


def _sizes(automaton: Automaton) -> list[list[dict[int, int]]]:
    """For each state: numbers of neurons to the output -> the numbers of heads, as bits."""
    found: list[list[dict[int, int]]] = [[{0: 1} for _ in automaton.boundaries[-1]]]
    for block in reversed(range(automaton.grid.depth)):
        heads, later = automaton.grid.heads[block], found[-1]
        found.append([_size(state, heads, later) for state in automaton.boundaries[block]])
    return found[::-1]


def _size(state: State, heads: int, later: list[dict[int, int]]) -> dict[int, int]:
    sizes = dict(later[state.skip]) if state.skip != DEAD else {}
    for mask, target in state.moves:
        for neurons, orders in later[target].items():
            if mask & heads:
                sizes[neurons] = sizes.get(neurons, 0) | orders << 1
            if mask & ~heads:
                sizes[neurons + 1] = sizes.get(neurons + 1, 0) | orders
    return sizes
