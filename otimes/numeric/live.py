"""A head with its pattern recomputed from what it reads, and not held fixed."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from otimes.numeric.branches import FrozenHeads
from otimes.numeric.frozen import Stream
from otimes.numeric.scores import FrozenReader


def live_head(
    reader: FrozenReader,
    heads: FrozenHeads,
    index: int,
    stream: Stream,
    allowed: Bool[Tensor, "dest src"],
) -> Stream:
    """What one head of a sequence writes when it reads ``stream [n, pos, d_model]``.

    Queries, keys and values are of the stream given, the pattern is the softmax of their scores
    over what is ``allowed``; a row with nothing allowed is 0.

    Raises:
        ValueError: if the head reads or writes through a norm, whose scale would have to be
            recomputed too.
    """
    if not (reader.reads.is_identity and heads.reads.is_identity and heads.writes.is_identity):
        raise ValueError("the scales of norms are held fixed here; this head has norms")
    query, key = (reader.parts(side, index, [stream]).sum(0) for side in (True, False))
    scores = reader.scale * torch.matmul(query, key.transpose(-1, -2))
    if reader.shift is not None:
        scores = scores + reader.shift[:, index]
    pattern = torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1)
    pattern = pattern.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    value = stream @ heads.W_V[index // heads.group]
    constant = heads.value_constant()
    if constant is not None:
        value = value + constant[index // heads.group]
    return torch.matmul(pattern, value) @ heads.W_O[index]
