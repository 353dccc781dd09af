"""A component that is recomputed, and not held fixed: its pattern, its slope, and all norms.

What one component writes when its layer reads another stream, and what that changes behind the
block: a norm behind the branch reads what all its components write together, so its scale is
recomputed too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from otimes.numeric.branches import Branch, FrozenHeads, FrozenNeurons
from otimes.numeric.edges import FrozenEdge
from otimes.numeric.frozen import FrozenBlock, Stream
from otimes.numeric.scores import FrozenReader

Fire = Callable[[Stream], Float[Tensor, "n pos"]]
"""What ``W_out`` multiplies of one neuron, given what its MLP reads, ``[n, pos, d_model]``."""


@dataclass(frozen=True)
class LiveRules:
    """What the frozen operators do not hold: ``eps`` of norms, ``cap`` of scores, ``allowed``.

    ``output_bias [d_model]`` is what the branch adds to what its components write, before a norm
    behind it: ``b_O`` or ``b_out``, or None.
    """

    eps: float | None
    cap: float | None
    allowed: Bool[Tensor, "dest src"]
    output_bias: Float[Tensor, " d_model"] | None


def live_norm(edge: FrozenEdge, stream: Stream, eps: float | None) -> Stream:
    """An edge with the scale of its norm recomputed, and the norm's bias added."""
    if edge.scale is not None:
        assert eps is not None  # a model with norms has one
        centred = stream - stream.mean(-1, keepdim=True) if edge.centred else stream
        stream = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
        if edge.gain is not None:
            stream = stream * edge.gain
    if edge.bias is not None:
        stream = stream + edge.bias
    return stream if edge.multiplier == 1 else stream * edge.multiplier


def live_head(
    reader: FrozenReader, heads: FrozenHeads, index: int, stream: Stream, rules: LiveRules
) -> Stream:
    """What one head writes, before a norm behind it, when its layer reads ``[n, pos, d_model]``.

    Queries, keys and values are of the stream given, the pattern is the softmax of their capped
    scores over what is allowed; a row with nothing allowed is 0.
    """
    read = live_norm(reader.reads, stream, rules.eps)
    asked = read if reader.positions is None else read + reader.positions
    query = _projected(reader, True, asked, rules.eps)[:, index]
    key = _projected(reader, False, asked, rules.eps)[:, reader.number(False, index)]
    if reader.rotation is not None:
        query, key = reader.rotation.apply(query), reader.rotation.apply(key)
    scores = reader.scale * torch.matmul(query, key.transpose(-1, -2))
    if reader.shift is not None:
        scores = scores + reader.shift[:, index]
    if rules.cap is not None:
        scores = rules.cap * torch.tanh(scores / rules.cap)
    pattern = torch.softmax(scores.masked_fill(~rules.allowed, -torch.inf), -1)
    pattern = pattern.masked_fill(~rules.allowed.any(-1, keepdim=True), 0.0)
    value = read @ heads.W_V[index // heads.group]
    if heads.b_V is not None:
        value = value + heads.b_V[index // heads.group]
    return torch.matmul(pattern, value) @ heads.W_O[index]


def _projected(
    reader: FrozenReader, query: bool, read: Stream, eps: float | None
) -> Float[Tensor, "n head pos d_head"]:
    """The queries or keys of all heads, normed: a norm over all heads reads all of them."""
    matrices, biases, norm = (
        (reader.W_Q, reader.b_Q, reader.q_norm)
        if query
        else (reader.W_K, reader.b_K, reader.k_norm)
    )
    found = torch.matmul(read[:, None], matrices)  # [n, 1, pos, d_model] x [head, d_model, d_head]
    if biases is not None:
        found = found + biases[:, None]
    if norm is None:
        return found
    assert eps is not None  # a model with norms has one
    axes = (1, 3) if norm.over == "all" else (3,)
    found = found - found.mean(axes, keepdim=True) if norm.centred else found
    found = found / (found.square().mean(axes, keepdim=True) + eps).sqrt()
    return found * norm.gain[:, None]


def live_neuron(
    neurons: FrozenNeurons, index: int, stream: Stream, rules: LiveRules, fire: Fire
) -> Stream:
    """What one neuron writes, before a norm behind it, when its MLP reads ``[n, pos, d_model]``."""
    return fire(live_norm(neurons.reads, stream, rules.eps))[..., None] * neurons.W_out[index]


def change_behind(
    block: FrozenBlock, branch: Branch, before: Stream, change: Stream, rules: LiveRules
) -> Stream:
    """How the stream behind a block changes when a component of a branch writes ``change`` more.

    Args:
        block: the block of a single sequence.
        branch: the component's branch.
        before: what the block read in the run, ``[1, pos, d_model]``.
        change: what the component writes more, before a norm behind it, ``[1, pos, d_model]``.
        rules: what is recomputed, and how.
    """
    edge = branch.writes
    if edge.scale is None:
        return edge.apply(change)
    moved, constant = branch.moved(before), branch.constant()
    moved = moved if constant is None else moved + constant
    written = moved.flatten(-2) @ branch.out.flatten(0, 1)
    if rules.output_bias is not None:
        written = written + rules.output_bias
    behind = edge
    if block.skip.scale is not None:  # a norm behind the addition to the stream
        written, change = before + edge.multiplier * written, edge.multiplier * change
        behind = block.skip
    return live_norm(behind, written + change, rules.eps) - live_norm(behind, written, rules.eps)
