"""One side of a head's scores as a frozen model of its own, and sums over pairs of two sides.

The query of a head at a position is what a smaller model computes there: the blocks before the
head, its reading norm for a final norm, ``W_Q`` for an unembedding and ``b_Q`` for its bias:

    q = (e(x) + p + β) W_Q + b_Q,          the same with W_K and b_K for the key.

Where queries and keys are normed or turn with their position, centring and gain are in ``W_Q``, and
what depends on the position acts behind all of it (:meth:`FrozenReader.behind`).

So everything that is known about the logits of a frozen model, path by path, by order, by the state
of an automaton or as a functional read back through components, is known about queries and keys. A
score is a bilinear form of both, and a sum over pairs:

    S[i, j] = scale Σ_a Σ_b q_a[i] · k_b[j] + shift[i, j]

With one side summed it is linear in the other: a scalar target of that side's model. Everything
here is about a single sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from otimes.numeric.branches import FrozenHeads
from otimes.numeric.frozen import FrozenModel, FrozenSource, Stream
from otimes.numeric.functionals import Target, check_single
from otimes.numeric.scores import FrozenReader

_BYTES_AT_ONCE = 2**26


def side_model(
    model: FrozenModel, reader: FrozenReader, *, query: bool, head: int, boundary: int
) -> FrozenModel:
    """What a head reads with its queries, or with its keys, as a model whose logits these are.

    Args:
        model: the whole frozen model.
        reader: how the head's layer reads the stream.
        query: the queries, or else the keys.
        head: the query head's number in its layer.
        boundary: the number of the block that the head is in.

    Returns:
        A model with ``d_vocab = d_head``. Its sources are those of the stream before the block,
        then shortformer positions, the bias of the reading norm, and ``b_Q`` or ``b_K``.
    """
    matrix, bias = reader.side(query, head)
    found = [s for s in model.sources if s.entry <= boundary and s.joins == "stream"]
    if reader.positions is not None:
        found.append(FrozenSource.of(boundary, reader.positions, "unembed"))
    if reader.reads.bias is not None:
        found.append(FrozenSource.of(boundary, reader.reads.bias[None, None], "unembed"))
    if bias is not None:
        found.append(FrozenSource(boundary, joins="logits"))
    return FrozenModel(
        model.blocks[:boundary],
        tuple(found),
        matrix,
        bias,
        model.batch,
        model.length,
        reader.reads,
    )


def side_target(side: FrozenModel, position: int, other: Float[Tensor, " d_head"]) -> Target:
    """The part of a score that is linear in one side, the other side's sum held fixed.

    Args:
        side: the model of that side.
        position: the query's or the key's position.
        other: the sum of the other side at its position, times the attention scale, and back
            through what acts behind this side's matrix (:meth:`FrozenReader.behind_adjoint`).
    """
    return Target.logit(side, position, other)


@dataclass(frozen=True)
class LastPart:
    """The paths of a side that end alike.

    They are one ``source`` alone, or all paths whose last component is ``component`` of ``block``;
    of an MLP, any of its neurons (``component`` is None), with a head on the path or without.
    ``moved`` says whether there is a head on them.
    """

    source: int | None = None
    block: int | None = None
    component: int | None = None
    moved: bool = False


def last_parts(
    side: FrozenModel, positions: Sequence[int]
) -> tuple[list[LastPart], Float[Tensor, "part at out"]]:
    """The parts of a side by last component, at some positions: all paths, each in one part.

    One pass with two streams, one for paths without a head and one for the others, whatever the
    number of paths.
    """
    check_single(side)
    at = list(positions)
    parts, kept = list[LastPart](), list[Tensor]()  # kept: [part, 1, at, d_model]
    still, moved = side.zeros(), side.zeros()
    for boundary in range(side.depth + 1):
        if boundary:
            block = side.blocks[boundary - 1]
            kept = [block.skip.places(at).apply(one) for one in kept]
            read, both = (still, moved), still + moved
            still, moved = (block.skip.apply(stream) for stream in read)
            if block.attention is not None and block.attention.size:
                written, each = _heads(block.attention, both, at)
                moved = moved + written
                kept.append(each)
                parts += [
                    LastPart(block=boundary - 1, component=index, moved=True)
                    for index in range(block.heads)
                ]
            if block.mlp is not None and block.mlp.size:
                constant = block.mlp.constant()
                neurons = [block.mlp.moved(stream) for stream in read]
                if constant is not None:
                    neurons[0] = neurons[0] + constant
                writes = [block.mlp.written(part) for part in neurons]
                still, moved = still + writes[0], moved + writes[1]
                flags = (
                    (False, True) if any(b.heads for b in side.blocks[: boundary - 1]) else (False,)
                )
                kept += [writes[flag][None][:, :, at] for flag in flags]
                parts += [LastPart(block=boundary - 1, moved=flag) for flag in flags]
        for number, source in enumerate(side.sources):
            if source.entry != boundary or source.joins != "stream" or source.component is not None:
                continue
            stream = side.start(number)
            assert stream is not None
            still = still + stream
            kept.append(stream[None][:, :, at])
            parts.append(LastPart(source=number))
    read = [side.direction(side.final.places(at).apply(one)) @ side.W_U for one in kept]
    for number, source in enumerate(side.sources):
        if source.joins == "stream":
            continue
        parts.append(LastPart(source=number))
        stream = side.start(number)
        if stream is not None:
            read.append(side.direction(stream[None][:, :, at]) @ side.W_U)
        else:
            assert side.b_U is not None
            read.append(side.b_U.expand(1, 1, len(at), -1))
    return parts, torch.cat(read)[:, 0]


def _heads(heads: FrozenHeads, stream: Stream, at: list[int]) -> tuple[Stream, Tensor]:
    """What all heads write together, and each at the positions ``[head, 1, at, d_model]``."""
    moved, constant = heads.moved(stream), heads.constant()
    if constant is not None:
        moved = moved + constant
    # [batch, at, head, d_head] x [head, d_head, d_model]
    each = torch.einsum("bphw,hwd->hbpd", moved[:, at], heads.W_O)
    return heads.written(moved), heads.writes.places(at).apply(each)


def by_moved(
    vectors: Float[Tensor, "part d_head"], moved: Sequence[bool]
) -> tuple[Float[Tensor, " d_head"], Float[Tensor, " d_head"]]:
    """The sum of the parts without a head and the sum of those with one."""
    flags = torch.tensor(list(moved), dtype=torch.bool, device=vectors.device)
    return vectors[~flags].sum(0), vectors[flags].sum(0)


def largest_pairs(
    queries: Float[Tensor, "query d_head"], keys: Float[Tensor, "key d_head"], top: int
) -> tuple[Float[Tensor, " pair"], Int[Tensor, " pair"], Int[Tensor, " pair"]]:
    """The ``top`` pairs with the largest absolute ``q · k``, largest first.

    All pairs are looked at, in blocks of queries that fit into memory.

    Returns:
        The values, and the numbers of the query and of the key of each.
    """
    size = queries.element_size() * max(1, len(keys))
    values = queries.new_zeros(0)
    places = torch.zeros(0, dtype=torch.long, device=queries.device)
    start = 0
    for some in queries.split(max(1, _BYTES_AT_ONCE // size)):
        block = (some @ keys.T).flatten()
        best = block.abs().topk(min(top, len(block))).indices
        values = torch.cat([values, block[best]])
        places = torch.cat([places, best + start])
        start += len(block)
        kept = values.abs().topk(min(top, len(values))).indices
        values, places = values[kept], places[kept]
    first = places.argsort()  # equal values in the order of their pairs
    values, places = values[first], places[first]
    ranked = values.abs().argsort(descending=True, stable=True)
    return values[ranked], places[ranked] // len(keys), places[ranked] % len(keys)
