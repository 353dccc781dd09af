"""Which path or component is wrong where the terms of a step are not what their matrices give.

Each path is compared by itself with its own prefix sent through its last factor with about 100
bits, so what is wrong before it does not count again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from otimes.numeric.edges import IDENTITY
from otimes.numeric.extended import Extended
from otimes.numeric.frozen import (
    FrozenBlock,
    FrozenHeads,
    FrozenModel,
    FrozenNeurons,
    Stream,
)
from otimes.numeric.magnitudes import (
    block_magnitude,
    edge_roundings,
    gamma,
    logits_magnitude,
    logits_roundings,
    roundings,
    source_magnitude,
    underflow,
    unit_roundoff,
)
from otimes.numeric.measured import exact_block, exact_edge, exact_logits, exact_source
from otimes.numeric.paths import (
    Components,
    PrefixStack,
    Readout,
    boundary_of,
    carried,
)
from otimes.numeric.rounding import worst_ratio


def wrong_paths(
    model: FrozenModel, paths: Iterable[tuple[int, Components]], step: int
) -> Iterator[tuple[int, Components]]:
    """The paths that are wrong in a step.

    Step 0 is the embedding, step ``b + 1`` is block ``b`` (paths that end there) and the last one
    the unembedding (all paths).
    """
    last = model.depth + 1
    stack, readout = PrefixStack(model), Readout.of(model, None, None)
    for source, components in paths:
        if step == last:
            stream = stack.stream(source, components)
            value = readout.logits(stack.output(source, components), model)
            exact, bound = _read_out(model, source, components, stream)
        elif step == boundary_of(model, source, components):
            value = stack.stream(source, components)
            if value is None or model.sources[source].joins != "stream":
                continue
            prefix = None
            if not _starts_here(model, source, components):
                before = components[:-1]
                written = stack.stream(source, before)
                assert written is not None
                boundary = boundary_of(model, source, before)
                prefix = carried(model, written, boundary, components[-1][0])
            exact, bound = _written(model, source, components, prefix)
        else:
            continue
        if _differs(exact, value, bound):
            yield source, components


def wrong_components(model: FrozenModel, number: int, stream: Stream) -> list[int]:
    """The components of a block that do not do to ``stream`` what their matrices say."""
    block, found = model.blocks[number], list[int]()
    for index in range(block.components):
        exact, bound = _through(model, number, index, stream)
        wrong = _differs(exact, block.component(index, stream), bound)
        branch, _ = block.of(index)
        if branch.constant() is not None:
            exact, bound = _through(model, number, index, None)
            wrong = wrong or _differs(exact, block.component_constant(index), bound)
        if wrong:
            found.append(index)
    return found


def _starts_here(model: FrozenModel, source: int, components: Components) -> bool:
    inside = model.sources[source].component is not None
    return not components or (len(components) == 1 and inside)


def _differs(exact: Extended, value: Tensor, bound: Tensor) -> bool:
    difference, uncertainty = (exact - value.expand_as(exact.high)).rounded()
    return worst_ratio(difference.abs() - uncertainty, bound) > 1


def _written(
    model: FrozenModel, source: int, components: Components, prefix: Stream | None
) -> tuple[Extended, Tensor]:
    """What a path writes, given what its last component read, and a bound on roundings."""
    if components:
        return _through(model, *components[-1], prefix)
    found = model.sources[source]
    exact = exact_source(found, Extended.of(torch.zeros_like(model.zeros()).double()))
    size = source_magnitude(found) if found.parts else torch.zeros_like(exact.high)
    d_model = model.W_U.shape[0]
    count = sum(edge_roundings(part.edge, d_model) + 1 for part in found.parts)
    relative = gamma(count, unit_roundoff(model.dtype))
    return exact, relative * size.expand_as(exact.high) + underflow(model.dtype)


def _through(
    model: FrozenModel, number: int, index: int, stream: Stream | None
) -> tuple[Extended, Tensor]:
    """What one component writes of ``stream``; of None: of its own constant."""
    alone = _alone(model.blocks[number], index, constant=stream is None)
    read = model.zeros() if stream is None else stream
    sparse = replace(
        model, blocks=tuple(alone if i == number else b for i, b in enumerate(model.blocks)),
        sources=(),
    )  # fmt: skip
    exact = exact_block(sparse, number, Extended.of(read))
    bound = gamma(roundings(model, number), unit_roundoff(model.dtype)) * block_magnitude(
        sparse, number, read.double().abs()
    )
    return exact, bound + underflow(model.dtype)


def _alone(block: FrozenBlock, index: int, *, constant: bool) -> FrozenBlock:
    """A block with one component and no skip edge, with its constant or without."""
    branch, number = block.of(index)
    reads = branch.reads if constant else replace(branch.reads, bias=None)
    nothing = replace(IDENTITY, multiplier=0.0)
    if isinstance(branch, FrozenHeads):
        kv = number // branch.group
        head = FrozenHeads(
            branch.pattern[:, number : number + 1],
            branch.W_V[kv : kv + 1],
            branch.W_O[number : number + 1],
            None if branch.b_V is None or not constant else branch.b_V[kv : kv + 1],
            reads,
            branch.writes,
        )
        return FrozenBlock(head, None, nothing)
    assert isinstance(branch, FrozenNeurons)
    own = slice(number, number + 1)
    neuron = FrozenNeurons(
        branch.slope[..., own],
        branch.W_in[:, own],
        branch.W_out[own],
        None if branch.b_in is None or not constant else branch.b_in[own],
        reads,
        branch.writes,
    )
    return FrozenBlock(None, neuron, nothing)


def _read_out(
    model: FrozenModel, source: int, components: Components, stream: Stream | None
) -> tuple[Extended, Tensor]:
    """The logits of one path, given what it wrote behind its last component."""
    least, zero = underflow(model.dtype), Extended.of(model.zeros().double())
    if stream is None:
        bias = torch.zeros(model.W_U.shape[1]) if model.b_U is None else model.b_U
        exact = bias.double().expand(model.batch, model.length, -1)
        return Extended.of(exact), torch.full_like(exact, least)
    found, d_model = model.sources[source], model.W_U.shape[0]
    count = logits_roundings(model)
    if found.joins == "unembed":
        sources, last, size = (found,), zero, zero.high
    else:
        sources, last, size = (), Extended.of(stream), stream.double().abs()
        for block in model.blocks[boundary_of(model, source, components) :]:
            last = exact_edge(block.skip, last)
            size = block.skip.to(torch.float64).absolute().apply(size)
            count += edge_roundings(block.skip, d_model)
    sparse = replace(model, sources=sources, b_U=None)
    size = logits_magnitude(sparse, size)
    return exact_logits(sparse, last), gamma(count, unit_roundoff(model.dtype)) * size + least
