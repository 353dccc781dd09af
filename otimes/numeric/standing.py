"""What stands in front of a suffix of paths: streams that every block reads, one for each group.

A suffix of a path is a functional of rank one (`otimes.numeric.functionals`). Applied to the sum of
the sources it gives the one path with that sequence of components, sources summed; applied to one
source, the path of that source; applied to the whole stream, all paths with that suffix. What a
component adds of its own constant belongs to the paths that begin with it, so it is a prefix of its
own kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from otimes.numeric.frozen import FrozenModel, Stream
from otimes.numeric.states import StateTables, states_through

SUM = -1
"""The source number of a sum over sources."""


@dataclass(frozen=True)
class Prefix:
    """A group of prefixes.

    ``streams`` are what the blocks read of them, ``depth + 1`` of them with the output's last; None
    where no prefix of the group stands. ``column`` numbers the values that a word has. With
    ``constants`` a component's own constant is among the group. ``states`` are the states of an
    automaton before each block, -1 for none; without an automaton they are None.
    """

    column: int
    streams: tuple[Stream | None, ...]
    constants: bool
    states: tuple[int, ...] | None = None

    def stands(self, model: FrozenModel, block: int) -> np.ndarray:
        """Which components of a block have a prefix of the group in front of them."""
        components = model.blocks[block].components
        if self.streams[block] is not None:
            return np.ones(components, dtype=bool)
        found = np.zeros(components, dtype=bool)
        if self.constants:
            offset = 0
            for branch in model.blocks[block].branches:
                found[offset : offset + branch.size] = branch.value_constants() is not None
                offset += branch.size
        return found


@dataclass(frozen=True)
class Prefixes:
    """All groups of prefixes, and what the columns of a word's values are.

    ``sources [column]`` are source numbers, :data:`SUM` for a sum; the last column is the own
    constant of a word's first component where ``owned``. ``whole``: all that stands in front is
    among the groups, so a word stands for all paths that end with it.
    """

    groups: tuple[Prefix, ...]
    sources: tuple[int, ...]
    owned: bool
    whole: bool = False

    @property
    def columns(self) -> int:
        """The number of values of a word."""
        return len(self.sources) + self.owned


def source_stream(model: FrozenModel, number: int) -> Stream | None:
    """What a source writes to the stream by itself; None for other sources."""
    source = model.sources[number]
    if source.component is not None or source.joins != "stream":
        return None
    return model.start(number)


def carried_streams(model: FrozenModel, stream: Stream, entry: int) -> tuple[Stream | None, ...]:
    """A stream that enters before block ``entry``, past the skip edges, before every block."""
    found: list[Stream | None] = [None] * entry + [stream]
    for block in model.blocks[entry:]:
        stream = block.skip.apply(stream)
        found.append(stream)
    return tuple(found)


def source_streams(model: FrozenModel) -> tuple[Stream | None, ...]:
    """The sum of the sources alone, past the skip edges, before every block and at the output."""
    entries = {
        s.entry for s in model.sources if s.component is None and s.joins == "stream" and s.parts
    }
    stream: Stream | None = None
    found: list[Stream | None] = []
    for boundary in range(model.depth + 1):
        if stream is not None:
            stream = model.blocks[boundary - 1].skip.apply(stream)
        if boundary in entries:
            written = model.written(boundary)
            stream = written if stream is None else stream + written
        found.append(stream)
    return tuple(found)


def all_prefixes(model: FrozenModel) -> Prefixes:
    """Everything in front, in one group: the streams of the forward pass."""
    forward = Prefix(0, tuple(model.forward()), constants=True)
    return Prefixes((forward,), (SUM,), owned=False, whole=True)


def summed_sources(model: FrozenModel) -> Prefixes:
    """The sum of all sources."""
    return Prefixes((Prefix(0, source_streams(model), constants=True),), (SUM,), owned=False)


def each_source(model: FrozenModel) -> Prefixes:
    """Every source by itself, the own constant of the first component last."""
    groups, sources = list[Prefix](), list[int]()
    for number, source in enumerate(model.sources):
        stream = source_stream(model, number)
        if stream is not None:
            streams = carried_streams(model, stream, source.entry)
            groups.append(Prefix(len(sources), streams, constants=False))
            sources.append(number)
    nothing = (None,) * (model.depth + 1)
    groups.append(Prefix(len(sources), nothing, constants=True))
    return Prefixes(tuple(groups), tuple(sources), owned=True)


def states_of(model: FrozenModel, tables: StateTables, number: int) -> tuple[int, ...]:
    """The state of a source alone before every block and at the output, -1 for none."""
    entry = tables.entry[number]
    state, found = tables.start[number], [-1] * entry
    for block in range(entry, model.depth + 1):
        found.append(state)
        if block < model.depth and state >= 0:
            state = tables.skip[block][state]
    return tuple(found)


def each_source_in_states(model: FrozenModel, tables: StateTables) -> Prefixes:
    """Every source by itself, with its states in an automaton."""
    plain = each_source(model)
    groups = [
        Prefix(group.column, group.streams, group.constants, states_of(model, tables, number))
        for group, number in zip(plain.groups, plain.sources, strict=False)
    ]
    return Prefixes((*groups, _own(model, len(plain.sources))), plain.sources, owned=True)


def summed_in_states(model: FrozenModel, tables: StateTables) -> Prefixes:
    """The sum of all sources, one group for each state that they may be in before a block."""
    sums: dict[tuple[int, int], Tensor] = {}
    for number, source in enumerate(model.sources):
        stream = source_stream(model, number)
        if stream is None:
            continue
        states = states_of(model, tables, number)
        for boundary in range(source.entry, model.depth + 1):
            if boundary > source.entry:
                stream = model.blocks[boundary - 1].skip.apply(stream)
            if states[boundary] >= 0:
                key = boundary, states[boundary]
                sums[key] = sums[key] + stream if key in sums else stream
    return _by_state(model, tables, sums)


def all_in_states(model: FrozenModel, tables: StateTables) -> Prefixes:
    """Everything in front, one group for each state before a block."""
    sums: dict[tuple[int, int], Tensor] = {}
    states: Tensor | None = None
    reached = reachable(tables)
    for boundary in range(model.depth + 1):
        if states is not None:
            states = states_through(model, [tables], boundary - 1, states)
        for number, source in enumerate(model.sources):
            state = tables.start[number]
            if source.entry != boundary or source.joins != "stream" or state < 0:
                continue
            if states is None:
                size = tables.states(boundary)
                states = model.zeros().expand(size, -1, -1, -1).clone()
            stream = model.start(number)
            assert stream is not None
            states[state] += stream
        if states is not None:
            sums |= {(boundary, state): states[state] for state in reached[boundary]}
    return replace(_by_state(model, tables, sums), whole=True)


def reachable(tables: StateTables) -> list[set[int]]:
    """The states that some prefix is in, before every block and at the output."""
    depth = len(tables.skip)
    found = [set[int]() for _ in range(depth + 1)]
    for entry, state in zip(tables.entry, tables.start, strict=True):
        if state >= 0:
            found[entry].add(state)
    for block in range(depth):
        classes = {k for k in tables.member[block] if k >= 0}
        for state in found[block]:
            after = {tables.skip[block][state]} | {tables.move[block][state][k] for k in classes}
            found[block + 1] |= after - {-1}
    return found


def _by_state(
    model: FrozenModel, tables: StateTables, sums: dict[tuple[int, int], Tensor]
) -> Prefixes:
    most = max(tables.states(block) for block in range(model.depth + 1))
    groups = [
        Prefix(
            0,
            tuple(sums.get((b, state)) for b in range(model.depth + 1)),
            constants=False,
            states=(state,) * (model.depth + 1),
        )
        for state in range(most)
        if any((b, state) in sums for b in range(model.depth + 1))
    ]
    return Prefixes((*groups, _own(model, 0)), (SUM,), owned=False)


def _own(model: FrozenModel, column: int) -> Prefix:
    """The own constants alone; their states stand in the tables of the automaton."""
    nothing = model.depth + 1
    return Prefix(column, (None,) * nothing, constants=True, states=(-1,) * nothing)


def starts_of_constants(model: FrozenModel, tables: StateTables) -> dict[tuple[int, int], int]:
    """The state behind each component that adds a constant of its own, for that constant."""
    return {
        source.component: tables.start[number]
        for number, source in enumerate(model.sources)
        if source.component is not None
    }


def on_device(values: np.ndarray, like: Tensor) -> Tensor:
    """Booleans or integers where a tensor is."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(like.device)
