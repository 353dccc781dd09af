"""Attention scores as sums over pairs of parts of the stream.

A score before the softmax is a bilinear form of what the query and the key position hold, so with
the stream written as a sum of parts it is a sum over pairs of parts:

    S[dest, src] = scale Σ_a Σ_b (a[dest] W_Q) · (b[src] W_K)

The parts are the paths that end before the block, and beside them the shortformer positions and
the biases ``b_Q`` and ``b_K``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.extended import SAFETY
from otimes.numeric.frozen import Stream
from otimes.numeric.magnitudes import gamma, underflow, unit_roundoff

_BYTES_AT_ONCE = 2**28


@dataclass(frozen=True)
class FrozenReader:
    """How one layer's scores read the stream.

    ``W_Q [head, d_model, d_head]``, ``W_K [kv_head, d_model, d_head]``, ``b_Q [head, d_head]`` and
    ``b_K [kv_head, d_head]`` or None, ``positions [batch, pos, d_model]`` for shortformer positions
    or None, and the attention scale.
    """

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "kv_head d_model d_head"]
    b_Q: Float[Tensor, "head d_head"] | None
    b_K: Float[Tensor, "kv_head d_head"] | None
    positions: Stream | None
    scale: float

    def side(self, query: bool, head: int) -> tuple[Tensor, Tensor | None]:
        """The matrix ``[d_model, d_head]`` and the bias of one side of a head."""
        if query:
            return self.W_Q[head], None if self.b_Q is None else self.b_Q[head]
        kv = head // (self.W_Q.shape[0] // self.W_K.shape[0])
        return self.W_K[kv], None if self.b_K is None else self.b_K[kv]

    def parts(self, query: bool, head: int, streams: Sequence[Stream]) -> Tensor:
        """One side's parts ``[part, batch, pos, d_head]``: at least one stream, positions, bias."""
        matrix, bias = self.side(query, head)
        found = [stream @ matrix for stream in streams]
        if self.positions is not None:
            found.append(self.positions @ matrix)
        if bias is not None:
            found.append(bias.expand_as(found[0]))
        return torch.stack(found)

    def magnitude(self, query: bool, head: int, size: Tensor) -> Tensor:
        """The sum of absolute values on one side, ``[batch, pos, d_head]``, in float64."""
        matrix, bias = self.side(query, head)
        total = size @ matrix.double().abs()
        if self.positions is not None:
            total = total + self.positions.double().abs() @ matrix.double().abs()
        return total if bias is None else total + bias.double().abs()


def sum_of_terms(
    reader: FrozenReader, head: int, streams: Sequence[Stream]
) -> tuple[Float[Tensor, "batch dest src"], int]:
    """The sum over all pairs of parts of one head's scores, and the number of pairs.

    Each pair's scores are computed by themselves, then added.
    """
    queries = reader.parts(True, head, streams)
    keys = reader.parts(False, head, streams).transpose(-1, -2)  # [part, batch, d_head, src]
    _, batch, length, _ = queries.shape
    total = queries.new_zeros(batch, length, length)
    at_once = max(1, _BYTES_AT_ONCE // max(1, batch * length * length * queries.element_size()))
    for query in queries:
        for some in keys.split(at_once):
            # [1, batch, dest, d_head] x [part, batch, d_head, src]
            total = total + torch.matmul(query[None], some).sum(0)
    return reader.scale * total, len(queries) * len(keys)


def score_bound(
    reader: FrozenReader,
    head: int,
    pairs: int,
    dtype: torch.dtype,
    recorded: Tensor,
    magnitude: Tensor,
    distance: Tensor,
) -> Float[Tensor, "batch dest src"]:
    """A rigorous bound on recorded score minus sum of terms, in float64.

    Both sides round: by ``γ_n`` of the absolute values, ``recorded`` being the magnitude of the
    judge's stream and ``magnitude`` that of the parts. Their streams differ by at most
    ``distance``, which changes a bilinear form by at most
    ``|Δq| |k| + |q| |Δk| + |Δq| |Δk|``.
    """
    d_model, d_head = reader.W_Q.shape[1:]
    W_Q, W_K = (reader.side(query, head)[0].double().abs() for query in (True, False))
    unit = unit_roundoff(dtype)
    bound = torch.zeros(())
    queries, keys = (reader.magnitude(query, head, magnitude) for query in (True, False))
    count = 2 * d_model + d_head + 8
    bound = bound + gamma(count + pairs, unit) * (queries @ keys.transpose(-1, -2))
    queries, keys = (reader.magnitude(query, head, recorded) for query in (True, False))
    bound = bound + gamma(count, unit) * (queries @ keys.transpose(-1, -2))
    far_queries, far_keys = distance @ W_Q, distance @ W_K
    bound = bound + far_queries @ (keys + far_keys).transpose(-1, -2)
    bound = bound + queries @ far_keys.transpose(-1, -2)
    return abs(reader.scale) * bound * SAFETY + underflow(dtype)


def softmax_error(scores: Tensor, pattern: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """How far a pattern is from the softmax of its scores over ``allowed``, and a bound on that.

    With ``d = s - max s`` the rounding of d changes exp(d) by ``u |d|``, relatively, and the sum
    by at most ``u Σ p |d| <= u log n``; n roundings add it up. Both sides round.
    """
    unit, length = unit_roundoff(pattern.dtype), scores.shape[-1]
    size = scores.double().masked_fill(~allowed, -torch.inf)
    far = size - size.amax(-1, keepdim=True)
    exact = far.exp().nan_to_num(0.0)
    exact = exact / exact.sum(-1, keepdim=True).clamp(min=1.0)  # a row of padding is 0
    relative = 2 * unit * (far.abs().nan_to_num(0.0, posinf=0.0) + 2 * length + 16)
    bound = relative * exact + 2 * torch.finfo(pattern.dtype).tiny
    return (pattern.double() - exact).abs(), bound
