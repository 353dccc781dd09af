"""Partitions of all paths of a scalar target into groups that add up to its value.

By source and by source position the groups are read off one adjoint pass: the sum over all paths of
a source is the adjoint stream where it enters, times what it writes. By last component and by last
edge (the last two components, or a source and the only component) they are read off one forward
pass: a suffix of one or two components is a functional of rank one, applied to all that stands in
front. By order: `otimes.numeric.halves.order_sums`. All is of one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.frozen import FrozenModel, Stream
from otimes.numeric.functionals import Functionals, Target, of_target, past_norm
from otimes.numeric.halves import past_blocks
from otimes.numeric.standing import all_prefixes, source_stream, source_streams
from otimes.numeric.suffixes import BUDGET, Walk
from otimes.numeric.words import Words, all_words, gathered, walk_of


def adjoint_streams(model: FrozenModel, target: Target) -> Iterator[Stream]:
    """What reads the stream behind the last block, before it, …, and before block 0."""
    last = of_target(model, target)
    gradient = (last.rows.T @ last.vectors)[None]  # [1, pos] x [1, d_model]
    yield gradient
    for block in reversed(model.blocks):
        gradient = block.adjoint(gradient)
        yield gradient


def source_position_sums(model: FrozenModel, target: Target) -> Float[Tensor, "source pos"]:
    """The sum over all paths of each source, by the position at which they begin.

    A constant inside a component begins at the positions that the component reads; what joins
    behind the blocks counts at the target's position.
    """
    sums = model.W_U.new_zeros(len(model.sources), model.length)
    for joined, source in enumerate(model.sources):
        if source.joins == "logits":
            sums[joined, target.position] = target.bias
        elif source.joins == "unembed":
            stream = model.start(joined)
            assert stream is not None
            sums[joined, target.position] = stream[0, target.position] @ past_norm(model, target)
    for back, gradient in enumerate(adjoint_streams(model, target)):
        boundary = model.depth - back
        inside = _constants(model, boundary - 1, gradient) if boundary else {}
        for number, source in enumerate(model.sources):
            if source.entry != boundary:
                continue
            if source.component is not None:
                sums[number] = inside[source.component[1]]
                continue
            stream = source_stream(model, number)
            if stream is not None:
                sums[number] = (gradient[0] * stream[0]).sum(-1)
    return sums


def source_sums(model: FrozenModel, target: Target) -> Float[Tensor, " source"]:
    """The sum over all paths of each source."""
    return source_position_sums(model, target).sum(1)


def _constants(model: FrozenModel, number: int, gradient: Stream) -> dict[int, Tensor]:
    """By component of a block: what reads its own constant, ``[pos]`` by the position it reads."""
    found, offset = dict[int, Tensor](), 0
    for branch in model.blocks[number].branches:
        constants = branch.value_constants()
        if constants is not None:
            back = branch.moved_back(branch.written_adjoint(gradient))[0]
            # [pos, component, width] x [component, width]
            read = (back * constants).sum(-1)
            found |= {offset + index: read[:, index] for index in range(branch.size)}
        offset += branch.size
    return found


@dataclass(frozen=True)
class LastComponents:
    """All paths by their last component.

    ``direct`` is the sum over paths without one, ``components`` those that end with each component,
    in the order of blocks.
    """

    direct: Float[Tensor, ""]
    components: Float[Tensor, " component"]


def direct_sum(model: FrozenModel, target: Target) -> Float[Tensor, ""]:
    """The sum over the paths through no component, ``b_U`` among them."""
    stream = source_streams(model)[-1]
    joined = past_blocks(model, target)
    return joined if stream is None else joined + of_target(model, target).of(stream[0])[0]


def last_component_position_sums(
    model: FrozenModel, target: Target, streams: list[Stream] | None = None
) -> Float[Tensor, "component pos"]:
    """All paths that end with each component, by the position that this component reads.

    The direct attribution of every component with its source tokens,

        value[c, src] = r A_c[:, src] (x[src] W_V w + b_V w),   w = W_O Γ_wᵀ v

    for a target read through row ``r`` and vector ``v``. Every component's ``W_V w`` is made first,
    one vector of the stream, so a block costs one product with ``[d_model, component]``.

    Args:
        model: the frozen model of one sequence.
        target: what is read.
        streams: the streams of the forward pass where they are known.
    """
    streams = model.forward() if streams is None else streams
    last, parts = of_target(model, target), list[Tensor]()
    for number in reversed(range(model.depth)):
        block = model.blocks[number]
        if number + 1 < model.depth:
            skip = model.blocks[number + 1].skip
            last = Functionals(
                number + 1, skip.pattern_adjoint(last.rows), skip.weight_adjoint(last.vectors)
            )
        found = list[Tensor]()
        for branch in block.branches:
            inner = branch.inner(last.vectors)
            rows = branch.rows(branch.writes.pattern_adjoint(last.rows))[0]
            vectors = branch.vectors(inner)[0]
            # [component, d_model] x [d_model, pos], then the reading edge's scale
            read = branch.reads.pattern_adjoint(vectors @ streams[number][0].T)
            constants = branch.value_constants()
            if constants is not None:
                read = read + (constants * inner[0]).sum(-1, keepdim=True)
            found.append(rows * read)
        parts = found + parts
    return torch.cat(parts) if parts else model.W_U.new_zeros(0, model.length)


def last_component_sums(
    model: FrozenModel, target: Target, streams: list[Stream] | None = None
) -> LastComponents:
    """All paths by their last component; ``streams`` of the forward pass where they are known."""
    found = last_component_position_sums(model, target, streams)
    return LastComponents(direct_sum(model, target), found.sum(1))


@dataclass(frozen=True)
class LastEdges:
    """All paths by their last edge.

    ``pairs`` are the last two components of all paths that have two; ``single`` the paths of one
    component and of none, by source.
    """

    pairs: Words
    single: Words


def last_edge_sums(model: FrozenModel, target: Target, budget: int = BUDGET) -> LastEdges:
    """All paths by their last two components, or by source where they have one or none."""
    walk = Walk(model, target, all_prefixes(model), length=2, budget=budget)
    pairs = gathered([part for part in walk.run() if part.length == 2])
    single = all_words(walk_of(model, target, length=1, by_source=True, budget=budget))
    return LastEdges(pairs, single)
