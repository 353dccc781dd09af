"""Sums over all paths of a scalar target whose two halves meet in the middle of the model.

The earlier blocks are gone through forward, one stream for each group of beginnings (by order, or
by state of an automaton), the later ones backward, one adjoint stream for each group of endings.
A sum over whole paths is then an inner product at the block where they meet. Where the number of
groups grows along the way this halves it: all orders of a scalar target of ``L`` blocks cost
``L²/4`` streams through one block instead of ``L²/2``.
"""

from __future__ import annotations

from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.branches import Branch
from otimes.numeric.frozen import FrozenModel, Stream
from otimes.numeric.functionals import (
    Functionals,
    Target,
    of_target,
    past_norm,
    through_components,
    through_skip,
)
from otimes.numeric.paths import last_of, order_streams
from otimes.numeric.states import StateTables, states_through


def past_blocks(model: FrozenModel, target: Target) -> Float[Tensor, ""]:
    """What a target reads of all that joins behind the blocks, such as ``b_U``."""
    joined = model.unembedded()
    bias = model.W_U.new_tensor(target.bias)
    if joined is None:
        return bias
    return bias + joined[0, target.position] @ past_norm(model, target)


def target_sum(
    model: FrozenModel, target: Target, streams: list[Stream] | None = None
) -> Float[Tensor, ""]:
    """The sum over all paths; ``streams`` of the forward pass where they are known."""
    last = (model.forward() if streams is None else streams)[-1]
    return of_target(model, target).of(last[0])[0] + past_blocks(model, target)


def order_sums(
    model: FrozenModel, target: Target, meet: int | None = None
) -> Float[Tensor, " order"]:
    """The sum over all paths of each order, from 0 to the number of blocks with heads.

    Args:
        model: the frozen model of one sequence.
        target: what is read.
        meet: the block before which the halves meet; the sums do not depend on it.
    """
    with_heads = [bool(block.heads) for block in model.blocks]
    if meet is None:
        half = sum(with_heads) // 2
        meet = next(b for b in range(model.depth + 1) if sum(with_heads[:b]) >= half)
    forward = last_of(islice(order_streams(model), meet + 1))
    sums = model.W_U.new_zeros(1 + sum(with_heads))
    sums[0] += past_blocks(model, target)
    back = _OrdersBack(model, target)
    for number in reversed(range(meet, model.depth)):
        found = back.entering(number)
        sums[: len(found)] += found
        back.through(number)
    # [order before, pos * d_model] x [order behind, pos * d_model]
    products = forward.flatten(1) @ back.streams().flatten(1).T
    for order, values in enumerate(products):
        sums[order : order + len(values)] += values
    return sums


class _OrdersBack:
    """Adjoint streams of a target by the number of heads in the ending, from the output back.

    Order 0 reads the target's position alone, because edges and neurons do not move anything: it is
    a functional of rank one, and only the others are whole streams.
    """

    def __init__(self, model: FrozenModel, target: Target) -> None:
        self.model, self.position = model, target.position
        self.none = of_target(model, target)
        self.some: Float[Tensor, "order batch pos d_model"] | None = None

    def streams(self) -> Float[Tensor, "order batch pos d_model"]:
        """The adjoint streams of all orders."""
        # [1, pos] x [1, d_model]
        none = (self.none.rows.T @ self.none.vectors)[None, None]
        return none if self.some is None else torch.cat([none, self.some])

    def entering(self, number: int) -> Float[Tensor, " order"]:
        """By order: the paths that begin behind block ``number`` or inside its components."""
        written, streams = self.model.written(number + 1), self.streams()
        heads = int(self.model.blocks[number].heads > 0)
        sums = written.new_zeros(len(streams) + heads)
        sums[: len(streams)] += streams.flatten(1) @ written.flatten()
        for branch in self.model.blocks[number].branches:
            constant = branch.constant()
            if constant is not None:
                shift = int(branch is self.model.blocks[number].attention)
                found = streams.flatten(1) @ branch.written(constant).flatten()
                sums[shift : shift + len(streams)] += found
        return sums

    def through(self, number: int) -> None:
        """Read back through block ``number``."""
        block, some = self.model.blocks[number], self.some
        rows, vectors = through_components(self.model, self.none, number)
        skipped = through_skip(self.model, self.none, number)
        at = self.position
        vector = skipped.rows[0, at] * skipped.vectors[0]
        # neurons: [neuron] x [neuron, d_model] at the only position
        vector = vector + rows[0, block.heads :, at] @ vectors[0, block.heads :]
        row = torch.zeros_like(self.none.rows)
        row[0, at] = 1
        self.none = Functionals(number, row, vector[None])
        if block.heads:
            # [head, pos] x [head, d_model]: order 1 of what was order 0
            first = (rows[0, : block.heads].T @ vectors[0, : block.heads])[None, None]
            later = first if some is None else torch.cat([first, torch.zeros_like(some)])
        else:
            later = some if some is None else torch.zeros_like(some)
        if some is not None:
            assert later is not None
            later[: len(some)] += block.skip.adjoint(some)
            for branch in block.branches:
                shift = int(branch is block.attention)
                back = branch.moved_adjoint(branch.written_adjoint(some))
                later[shift : shift + len(some)] += back
        self.some = later


def accepted_sum(
    model: FrozenModel, tables: StateTables, target: Target, meet: int | None = None
) -> Float[Tensor, ""]:
    """The sum over all paths that an automaton accepts.

    The halves meet where the fewest states have to be carried; ``meet`` is a block to do it at, and
    changes nothing else.
    """
    if meet is None:
        size = [tables.states(boundary) for boundary in range(model.depth + 1)]
        costs = [sum(size[:b]) + sum(size[b + 1 :]) for b in range(model.depth + 1)]
        meet = costs.index(min(costs))
    last = of_target(model, target)
    back = (last.rows.T @ last.vectors)[None, None]  # [1, pos] x [1, d_model]; state 0 accepts
    total = model.W_U.new_zeros(())
    for boundary in reversed(range(meet, model.depth + 1)):
        if boundary < model.depth:
            back = states_back(model, tables, boundary, back)
        if boundary > meet:
            for state, stream in _entering(model, tables, boundary):
                total = total + (back[state] * stream).sum()
    states = _states_until(model, tables, meet)
    if states is not None:
        total = total + (states * back).sum()
    return total + _joining(model, tables, target)


def _entering(model: FrozenModel, tables: StateTables, boundary: int) -> list[tuple[int, Stream]]:
    """What enters the stream before a block, with the state that it starts in."""
    found = list[tuple[int, Stream]]()
    for number, source in enumerate(model.sources):
        state = tables.start[number]
        if source.entry == boundary and source.joins == "stream" and state >= 0:
            stream = model.start(number)
            assert stream is not None
            found.append((state, stream))
    return found


def _states_until(model: FrozenModel, tables: StateTables, until: int) -> Tensor | None:
    states: Tensor | None = None
    for boundary in range(until + 1):
        if states is not None:
            states = states_through(model, [tables], boundary - 1, states)
        for state, stream in _entering(model, tables, boundary):
            if states is None:
                states = torch.zeros_like(stream).repeat(tables.states(boundary), 1, 1, 1)
            states[state] += stream
    return states


def _joining(model: FrozenModel, tables: StateTables, target: Target) -> Tensor:
    total = model.W_U.new_zeros(())
    for number, source in enumerate(model.sources):
        if tables.start[number] < 0:
            continue
        if source.joins == "logits":
            total = total + target.bias
        elif source.joins == "unembed":
            stream = model.start(number)
            assert stream is not None
            total = total + stream[0, target.position] @ past_norm(model, target)
    return total


def states_back(
    model: FrozenModel,
    tables: StateTables,
    number: int,
    adjoints: Float[Tensor, "after batch pos d_model"],
) -> Float[Tensor, "before batch pos d_model"]:
    """Adjoint streams of the states behind a block, read back through it: those before it.

    The adjoint of `otimes.numeric.states.states_through`.
    """
    block = model.blocks[number]
    earlier = adjoints.new_zeros(tables.states(number), *adjoints.shape[1:])
    passing = [(s, t) for s, t in enumerate(tables.skip[number]) if t >= 0]
    if passing:
        before, after = (
            torch.tensor(part, device=adjoints.device) for part in zip(*passing, strict=True)
        )
        earlier[before] = block.skip.adjoint(adjoints[after])
    offset = 0
    for branch in block.branches:
        member = tables.member[number][offset : offset + branch.size]
        offset += branch.size
        _branch_back(branch, member, tables.move[number], adjoints, earlier)
    return earlier


def _branch_back(
    branch: Branch,
    member: tuple[int, ...],
    move: tuple[tuple[int, ...], ...],
    adjoints: Float[Tensor, "after batch pos d_model"],
    earlier: Float[Tensor, "before batch pos d_model"],
) -> None:
    """Add to ``earlier`` what the components of a branch read, by the state in front of them."""
    target = torch.tensor(
        [[row[k] if k >= 0 else -1 for k in member] for row in move],
        device=adjoints.device,
    )
    moving = (target >= 0).any(1).nonzero().flatten()
    if not len(moving):
        return
    inner = branch.written_adjoint(adjoints)
    inner = torch.cat([inner, torch.zeros_like(inner[:1])])  # the last stands for the state -1
    columns = torch.arange(branch.size, device=adjoints.device)
    # [after, batch, pos, component, width] at (state behind it, component): [before, component, …]
    chosen = inner.movedim(3, 1)[target[moving], columns]
    back = branch.moved_adjoint(chosen.movedim(1, 3))
    earlier.index_add_(0, moving, back)
