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

from dataclasses import dataclass

import torch
from jaxtyping import Float
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

    def states(self, block: int) -> int:
        """The number of states before a block, or at the output."""
        return len(self.skip[block]) if block < len(self.skip) else 1


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
    states: Tensor | None = None
    joined: Stream | None = None
    biased = False
    for boundary in range(model.depth + 1):
        if states is not None:
            states = states_through(model, tables, boundary - 1, states)
        for number, (entry, state) in enumerate(zip(tables.entry, tables.start, strict=True)):
            if entry != boundary or state < 0:
                continue
            joins = model.sources[number].joins
            stream = model.start(number)
            if stream is None:
                biased = True
            elif joins == "unembed":
                joined = stream if joined is None else joined + stream
            else:
                if states is None:
                    states = _nothing(model, tables.states(boundary))
                states[state] += stream
    output = None if states is None else model.read(states[0])
    if joined is not None:
        past = model.direction(joined)
        output = past if output is None else output + past
    return Ending(output, biased)


def _nothing(model: FrozenModel, states: int) -> Tensor:
    return model.zeros().new_zeros(states, model.batch, model.length, model.W_U.shape[0])


def states_through(model: FrozenModel, tables: StateTables, number: int, states: Tensor) -> Tensor:
    """The streams ``[state, batch, pos, d_model]`` of all states behind a block."""
    block = model.blocks[number]
    later = _nothing(model, tables.states(number + 1))
    passing = [(s, t) for s, t in enumerate(tables.skip[number]) if t >= 0]
    if passing:
        before, after = (
            torch.tensor(part, device=states.device) for part in zip(*passing, strict=True)
        )
        later.index_add_(0, after, block.skip.apply(states[before]))
    offset = 0
    for branch in block.branches:
        member = tables.member[number][offset : offset + branch.size]
        offset += branch.size
        _branch_through(branch, member, tables.move[number], states, later)
    return later


def _branch_through(
    branch: Branch,
    member: tuple[int, ...],
    move: tuple[tuple[int, ...], ...],
    states: Float[Tensor, "state batch pos d_model"],
    later: Float[Tensor, "after batch pos d_model"],
) -> None:
    """Add to ``later`` what the components of a branch write, by the state that follows."""
    target = torch.tensor(
        [[row[k] if k >= 0 else -1 for k in member] for row in move],
        device=states.device,
    )
    moving = (target >= 0).any(1).nonzero().flatten()
    if not len(moving):
        return
    moved = branch.moved(states[moving])
    for after in target[target >= 0].unique().tolist():
        chosen = (target[moving] == after).to(moved.dtype)
        # [state, component] x [state, batch, pos, component, width]
        summed = torch.einsum("sc,sbpcw->bpcw", chosen, moved)
        later[after] += branch.written(summed)
