"""Attention scores as sums over pairs of parts of the stream.

A score before the softmax is a bilinear form of what the query and the key position hold, so with
the stream written as a sum of parts it is a sum over pairs of parts:

    S[dest, src] = scale Σ_a Σ_b (a[dest] W_Q) · (b[src] W_K) + shift[dest, src]

The parts are the paths that end before the block, read through the frozen reading norm, and beside
them the shortformer positions, the bias of that norm and the biases ``b_Q`` and ``b_K``. A shift is
what positions add to the scores themselves (ALiBi, T5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.edges import IDENTITY, FrozenEdge, row
from otimes.numeric.extended import SAFETY
from otimes.numeric.frozen import Stream
from otimes.numeric.magnitudes import gamma, underflow, unit_roundoff

_BYTES_AT_ONCE = 2**28


@dataclass(frozen=True)
class FrozenReader:
    """How one layer's scores read the stream.

    ``W_Q [head, d_model, d_head]``, ``W_K [kv_head, d_model, d_head]``, ``b_Q [head, d_head]`` and
    ``b_K [kv_head, d_head]`` or None, ``positions [batch, pos, d_model]`` for shortformer positions
    or None, the attention scale, the edge of the norm that the layer ``reads`` through, and the
    ``shift [batch, head, dest, src]`` that positions add to the scores or None.
    """

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "kv_head d_model d_head"]
    b_Q: Float[Tensor, "head d_head"] | None
    b_K: Float[Tensor, "kv_head d_head"] | None
    positions: Stream | None
    scale: float
    reads: FrozenEdge = IDENTITY
    shift: Float[Tensor, "batch head dest src"] | None = None

    def side(self, query: bool, head: int) -> tuple[Tensor, Tensor | None]:
        """The matrix ``[d_model, d_head]`` and the bias of one side of a head."""
        if query:
            return self.W_Q[head], None if self.b_Q is None else self.b_Q[head]
        kv = head // (self.W_Q.shape[0] // self.W_K.shape[0])
        return self.W_K[kv], None if self.b_K is None else self.b_K[kv]

    def parts(self, query: bool, head: int, streams: Sequence[Stream]) -> Tensor:
        """One side's parts ``[part, batch, pos, d_head]``: streams, at least one, and its own."""
        matrix, bias = self.side(query, head)
        found = [self.reads.apply(stream) @ matrix for stream in streams]
        if self.positions is not None:
            found.append((self.positions @ matrix).expand_as(found[0]))
        if self.reads.bias is not None:
            found.append((self.reads.bias @ matrix).expand_as(found[0]))
        if bias is not None:
            found.append(bias.expand_as(found[0]))
        return torch.stack(found)

    def magnitude(self, query: bool, head: int, size: Tensor) -> Tensor:
        """The sum of absolute values on one side, ``[batch, pos, d_head]``, in float64."""
        matrix, bias = self.side(query, head)
        total = self.distance(query, head, size)
        if self.positions is not None:
            total = total + self.positions.double().abs() @ matrix.double().abs()
        if self.reads.bias is not None:
            total = total + self.reads.bias.double().abs() @ matrix.double().abs()
        return total if bias is None else total + bias.double().abs()

    def distance(self, query: bool, head: int, stream: Tensor) -> Tensor:
        """How far apart a side's vectors are at most, where streams are at most this far apart."""
        reads = self.reads.to(torch.float64).absolute()
        return reads.apply(stream) @ self.side(query, head)[0].double().abs()

    def sequence(self, index: int) -> FrozenReader:
        """The reader of one sequence of the batch."""
        return replace(
            self,
            positions=None if self.positions is None else row(self.positions, index),
            reads=self.reads.sequence(index),
            shift=None if self.shift is None else row(self.shift, index),
        )


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
    total = reader.scale * total
    if reader.shift is not None:
        total = total + reader.shift[:, head]
    return total, len(queries) * len(keys)


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
    unit = unit_roundoff(dtype)
    bound = torch.zeros(())
    reading = 2 * (reader.reads.roundings + (d_model if reader.reads.centred else 0))
    queries, keys = (reader.magnitude(query, head, magnitude) for query in (True, False))
    count = 2 * d_model + d_head + reading + 8
    bound = bound + gamma(count + pairs, unit) * (queries @ keys.transpose(-1, -2))
    queries, keys = (reader.magnitude(query, head, recorded) for query in (True, False))
    bound = bound + gamma(count, unit) * (queries @ keys.transpose(-1, -2))
    far_queries, far_keys = (reader.distance(query, head, distance) for query in (True, False))
    bound = bound + far_queries @ (keys + far_keys).transpose(-1, -2)
    bound = bound + queries @ far_keys.transpose(-1, -2)
    bound = abs(reader.scale) * bound
    if reader.shift is not None:  # its addition rounds on both sides
        bound = bound + 4 * unit * reader.shift[:, head].double().abs()
    return bound * SAFETY + underflow(dtype)


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
