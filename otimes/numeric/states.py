"""Sums over a set of paths, one stream for each state of an automaton over the blocks.

A set of paths that a finite automaton accepts is summed without listing it: the streams of all
paths that are in the same state before a block can be added, because what follows is the same for
all of them,

    x_t <- Σ_s [skip(s) = t] skip(x_s) + Σ_c component_c(Σ_s [move(s, c) = t] x_s)

The streams of all states go through a block in one batch, and what the components moved is added up
by the state that follows before it is written, so the cost is that of the live states, whatever the
number of paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor

from otimes.numeric.frozen import Branch, FrozenModel, Stream


@dataclass(frozen=True)
class StateTables:
    """An automaton in integers; -1 is no state and no class.

    ``member[b][i]`` is the class of component ``i`` of block ``b``, ``move[b][s][k]`` the state
    after a component of class ``k`` in state ``s``, ``skip[b][s]`` the state after passing the
    block by. Source ``i`` starts in state ``start[i]`` before block ``entry[i]`` (a constant inside
    a component: behind that component). At the output state 0 accepts.
    """

    member: tuple[tuple[int, ...], ...]
    move: tuple[tuple[tuple[int, ...], ...], ...]
    skip: tuple[tuple[int, ...], ...]
    entry: tuple[int, ...]
    start: tuple[int, ...]

    def states(self, boundary: int) -> int:
        """The number of states before a block, or at the output."""
        return len(self.skip[boundary]) if boundary < len(self.skip) else 1


@dataclass(frozen=True)
class Ending:
    """A sum over paths at the output.

    ``output [..., batch, pos, d_model]`` is what the unembedding reads of it, None if no path of
    the sum writes to it; ``biased`` says whether the unembedding's bias is among the paths, which
    adds ``b_U`` to the logits.
    """

    output: Stream | None
    biased: bool


def sum_of_states(model: FrozenModel, tables: StateTables) -> Ending:
    """Add up all paths that an automaton accepts."""
    return sums_of_states(model, [tables])[0]


def sums_of_states(model: FrozenModel, parts: Sequence[StateTables]) -> list[Ending]:
    """Add up the paths of each of several automata; the states of all go through in one batch."""
    states: Tensor | None = None
    joined: list[Stream | None] = [None] * len(parts)
    biased = [False] * len(parts)
    for boundary in range(model.depth + 1):
        if states is not None:
            states = states_through(model, parts, boundary - 1, states)
        for number, source in enumerate(model.sources):
            chosen = [
                (part, offset + tables.start[number])
                for part, (tables, offset) in enumerate(
                    zip(parts, _offsets(parts, boundary), strict=True)
                )
                if tables.entry[number] == boundary and tables.start[number] >= 0
            ]
            if not chosen:
                continue
            stream = model.start(number)
            if states is None:
                states = _nothing(model, parts, boundary)
            for part, state in chosen:
                if stream is None:
                    biased[part] = True
                elif source.joins == "unembed":
                    past = joined[part]
                    joined[part] = stream if past is None else past + stream
                else:
                    states[state] += stream
    return [
        _ending(model, states, state, joined[part], biased[part])
        for part, state in enumerate(_offsets(parts, model.depth))
    ]


def _ending(
    model: FrozenModel, states: Tensor | None, state: int, joined: Stream | None, biased: bool
) -> Ending:
    output = None if states is None or state >= len(states) else model.read(states[state])
    if joined is not None:
        past = model.direction(joined)
        output = past if output is None else output + past
    return Ending(output, biased)


def _offsets(parts: Sequence[StateTables], boundary: int) -> list[int]:
    """Where the states of each automaton begin among the states of all."""
    return list(accumulate((tables.states(boundary) for tables in parts[:-1]), initial=0))


def _nothing(model: FrozenModel, parts: Sequence[StateTables], boundary: int) -> Tensor:
    count = sum(tables.states(boundary) for tables in parts)
    return model.zeros().new_zeros(count, model.batch, model.length, model.W_U.shape[0])


def states_through(
    model: FrozenModel, parts: Sequence[StateTables], number: int, states: Tensor
) -> Tensor:
    """The streams ``[state, batch, pos, d_model]`` of all states behind a block."""
    block = model.blocks[number]
    later = _nothing(model, parts, number + 1)
    passing, targets = list[tuple[int, int]](), list[list[int]]()
    before = 0
    for tables, after in zip(parts, _offsets(parts, number + 1), strict=True):
        for skip, move in zip(tables.skip[number], tables.move[number], strict=True):
            if skip >= 0:
                passing.append((before, after + skip))
            reached = [move[kind] if kind >= 0 else -1 for kind in tables.member[number]]
            targets.append([after + state if state >= 0 else -1 for state in reached])
            before += 1
    if passing:
        source, place = torch.tensor(passing, device=states.device).T
        later.index_add_(0, place, block.skip.apply(states[source]))
    target = torch.tensor(targets, device=states.device).reshape(before, block.components)
    offset = 0
    for branch in block.branches:
        _branch_through(branch, target[:, offset : offset + branch.size], states, later)
        offset += branch.size
    return later


def _branch_through(
    branch: Branch,
    target: Int[Tensor, "state component"],
    states: Float[Tensor, "state batch pos d_model"],
    later: Float[Tensor, "after batch pos d_model"],
) -> None:
    """Add to ``later`` what the components of a branch write, by the state that follows."""
    moving = (target >= 0).any(1).nonzero().flatten()
    if not len(moving):
        return
    moved = branch.moved(states[moving])
    for after in target[target >= 0].unique().tolist():
        chosen = (target[moving] == after).to(moved.dtype)
        # [state, component] x [state, batch, pos, component, width]
        summed = torch.einsum("sc,sbpcw->bpcw", chosen, moved)
        later[after] += branch.written(summed)
