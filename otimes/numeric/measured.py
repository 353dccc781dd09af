"""The frozen model in extended arithmetic: what a step should give, to about 100 bits.

Rounding errors of a float64 or float32 computation are measured against this; see
:mod:`otimes.numeric.rounding`.
"""

from __future__ import annotations

import torch

from otimes.numeric.branches import FrozenHeads, FrozenNeurons
from otimes.numeric.chosen import Chosen, of_bias, unembed_exactly
from otimes.numeric.edges import FrozenEdge
from otimes.numeric.extended import Extended, reciprocal
from otimes.numeric.frozen import FrozenModel, FrozenSource


def exact_edge(edge: FrozenEdge, stream: Extended) -> Extended:
    """``μ (D ⊗ Γ) x`` with about 100 bits; the mean is an exact sum over ``d_model``."""
    if edge.centred:
        ones = torch.ones(stream.high.shape[-1], 1, dtype=torch.float64)
        mean = (stream @ ones).times(reciprocal(len(ones)))
        stream = stream - mean.expand_as(stream.high)
    if edge.scale is not None:
        stream = stream.times(edge.scale.double()[..., None])
    if edge.gain is not None:
        stream = stream.times(edge.gain.double())
    if edge.multiplier != 1:
        stream = stream.times(torch.tensor(edge.multiplier, dtype=torch.float64))
    return stream


def exact_source(source: FrozenSource, onto: Extended) -> Extended:
    """What a source writes, added to a stream."""
    for part in source.parts:
        wide = part.stream.double().expand_as(onto.high)
        onto = onto + exact_edge(part.edge, Extended.of(wide))
    return onto


def exact_block(model: FrozenModel, number: int, stream: Extended) -> Extended:
    """``F_l`` of a stream, with about 100 bits."""
    block = model.blocks[number]
    total = exact_edge(block.skip, stream)
    for source in entering(model, number + 1):
        total = exact_source(source, total)
    for branch in block.branches:
        read = exact_edge(branch.reads, stream)
        if branch.reads.bias is not None:
            read = read + branch.reads.bias.double().expand_as(read.high)
        if isinstance(branch, FrozenHeads):
            written = _exact_heads(branch, read)
        else:
            assert isinstance(branch, FrozenNeurons)
            written = _exact_neurons(branch, read)
        total = total + exact_edge(branch.writes, written)
    return total


def exact_logits(model: FrozenModel, stream: Extended, chosen: Chosen | None = None) -> Extended:
    """The logits of the last stream, or the chosen ones, with about 100 bits."""
    read = exact_edge(model.final, stream)
    for source in model.sources:
        if source.joins == "unembed":
            read = exact_source(source, read)
    if model.multiplier != 1:
        read = read.times(torch.tensor(model.multiplier, dtype=torch.float64))
    logits = unembed_exactly(read, model.W_U, chosen)
    if model.b_U is None:
        return logits
    return logits + of_bias(model.b_U, chosen).double().expand_as(logits.high)


def entering(model: FrozenModel, entry: int) -> list[FrozenSource]:
    """The sources that write to the stream before a block and are no component's constant."""
    return [s for s in model.sources if s.entry == entry and s.joins == "stream" and s.parts]


def _exact_heads(heads: FrozenHeads, read: Extended) -> Extended:
    W_V, pattern = heads.W_V.double(), heads.pattern.double()
    kv, d_model, d_head = W_V.shape
    batch, size, dest, src = pattern.shape
    # one product for all heads: [kv_head, d_model, d_head] -> [d_model, kv_head * d_head]
    value = read @ W_V.transpose(0, 1).reshape(d_model, -1)
    if heads.b_V is not None:
        value = value + heads.b_V.double().flatten().expand_as(value.high)
    # [batch, src, kv_head * d_head] -> [batch, kv_head, src, d_head]
    columns = value.each(lambda part: part.reshape(batch, src, kv, d_head).transpose(1, 2))
    # query heads of a KV head are rows of one product
    rows = pattern.reshape(batch, kv, heads.group * dest, src)
    moved = Extended.of(rows) @ columns
    flat = moved.each(
        lambda part: part.reshape(batch, size, dest, d_head).transpose(1, 2).reshape(
            batch, dest, -1
        )
    )  # fmt: skip
    return flat @ heads.W_O.double().reshape(size * d_head, -1)


def _exact_neurons(neurons: FrozenNeurons, read: Extended) -> Extended:
    value = read @ neurons.W_in.double()
    if neurons.b_in is not None:
        value = value + neurons.b_in.double().expand_as(value.high)
    return value.times(neurons.slope.double()) @ neurons.W_out.double()
