"""Sums over a set of paths, one stream for each state of an automaton over the blocks.

A set of paths that a finite automaton accepts is summed without listing it: the streams of all
paths that are in the same state before a block can be added, because what follows is the same for
all of them,

    x_t <- Σ_s [skip(s) = t] x_s + Σ_h A[h] (Σ_s [move(s, h) = t] x_s) W_V W_O

so the cost is that of the heads times the states, whatever the number of paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from otimes.numeric.frozen import FrozenModel, Stream

Key = TypeVar("Key")


@dataclass(frozen=True)
class StateTables:
    """An automaton in integers; -1 is no state and no class.

    ``member[b][i]`` is the class of head ``i`` of block ``b``, ``move[b][s][k]`` the state after a
    head of class ``k`` in state ``s``, ``skip[b][s]`` the state after passing the block by. Source
    ``i`` starts in state ``start[i]`` before block ``entry[i]`` (for a value bias: after its own
    head). At the output state 0 accepts.
    """

    member: tuple[tuple[int, ...], ...]
    move: tuple[tuple[tuple[int, ...], ...], ...]
    skip: tuple[tuple[int, ...], ...]
    entry: tuple[int, ...]
    start: tuple[int, ...]


def sum_of_states(model: FrozenModel, tables: StateTables) -> tuple[Stream | None, bool]:
    """Add up all paths that an automaton accepts.

    Returns:
        What they write to the stream that the unembedding reads, ``[batch, pos, d_model]`` (None
        if no path is accepted that writes to it), and whether the unembedding's bias is among
        them, which adds ``b_U`` to the logits.
    """
    depth = len(model.blocks)
    states: dict[int, Stream] = {}
    biased = False
    for boundary in range(depth + 1):
        for number, (entry, state) in enumerate(zip(tables.entry, tables.start, strict=True)):
            if entry == boundary and state >= 0:
                stream = model.start(number)
                if stream is None:
                    biased = True
                else:
                    _add(states, state, stream)
        if boundary < depth:
            states = _through(model, tables, boundary, states)
    return states.get(0), biased


def _through(
    model: FrozenModel, tables: StateTables, number: int, states: dict[int, Stream]
) -> dict[int, Stream]:
    block, later = model.blocks[number], dict[int, Stream]()
    reading = dict[tuple[int, int], Stream]()  # by target state and class
    for state, stream in states.items():
        if tables.skip[number][state] >= 0:
            _add(later, tables.skip[number][state], stream)
        for kind, target in enumerate(tables.move[number][state]):
            if target >= 0:
                _add(reading, (target, kind), stream)
    for (target, kind), stream in reading.items():
        for index, member in enumerate(tables.member[number]):
            if member == kind:
                _add(later, target, block.head(index, stream))
    return later


def _add(streams: dict[Key, Stream], key: Key, stream: Stream) -> None:
    streams[key] = streams[key] + stream if key in streams else stream
