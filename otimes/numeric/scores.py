"""Attention scores as sums over pairs of parts of the stream.

A score before the softmax is a bilinear form of what the query and the key position hold, so with
the stream written as a sum of parts it is a sum over pairs of parts:

    S[dest, src] = scale Σ_a Σ_b (a[dest] W_Q) · (b[src] W_K) + shift[dest, src]

The parts are the paths that end before the block, read through the frozen reading norm, and beside
them the shortformer positions, the bias of that norm and the biases ``b_Q`` and ``b_K``. Each part
goes through the frozen norm of queries or keys and turns with its position by itself, both being
linear. A shift is what positions add to the scores themselves (ALiBi, T5). All this is of the
scores before a soft-cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.edges import IDENTITY, FrozenEdge, row
from otimes.numeric.extended import SAFETY
from otimes.numeric.frozen import Stream
from otimes.numeric.head_spaces import HeadNorm, Rotation
from otimes.numeric.magnitudes import gamma, underflow, unit_roundoff

_BYTES_AT_ONCE = 2**28


@dataclass(frozen=True)
class FrozenReader:
    """How one layer's scores read the stream.

    ``W_Q [head, d_model, d_head]``, ``W_K [kv_head, d_model, d_head]``, ``b_Q [head, d_head]`` and
    ``b_K [kv_head, d_head]`` or None, ``positions [batch, pos, d_model]`` for shortformer positions
    or None, the attention scale, the edge of the norm that the layer ``reads`` through, the
    ``shift [batch, head, dest, src]`` that positions add to the scores or None, the frozen norms of
    queries and keys, and the ``rotation`` of both.
    """

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "kv_head d_model d_head"]
    b_Q: Float[Tensor, "head d_head"] | None
    b_K: Float[Tensor, "kv_head d_head"] | None
    positions: Stream | None
    scale: float
    reads: FrozenEdge = IDENTITY
    shift: Float[Tensor, "batch head dest src"] | None = None
    q_norm: HeadNorm | None = None
    k_norm: HeadNorm | None = None
    rotation: Rotation | None = None

    def side(self, query: bool, head: int) -> tuple[Tensor, Tensor | None]:
        """The matrix ``[d_model, d_head]`` and the bias of one side of a head.

        Centring and gain of a norm of queries or keys are in both.
        """
        matrix, bias = self._queries if query else self._keys
        number = self.number(query, head)
        return matrix[number], None if bias is None else bias[number]

    def number(self, query: bool, head: int) -> int:
        """The number of a query head's matrix on one side: its own, or that of its KV head."""
        return head if query else head // (self.W_Q.shape[0] // self.W_K.shape[0])

    @cached_property
    def _queries(self) -> tuple[Tensor, Tensor | None]:
        return _folded(self.q_norm, self.W_Q, self.b_Q)

    @cached_property
    def _keys(self) -> tuple[Tensor, Tensor | None]:
        return _folded(self.k_norm, self.W_K, self.b_K)

    @cached_property
    def _query_magnitudes(self) -> tuple[Tensor, Tensor | None]:
        return _magnitudes(self.q_norm, self.W_Q, self.b_Q)

    @cached_property
    def _key_magnitudes(self) -> tuple[Tensor, Tensor | None]:
        return _magnitudes(self.k_norm, self.W_K, self.b_K)

    def behind(
        self,
        query: bool,
        head: int | None,
        vectors: Float[Tensor, "*lead pos d_head"],
        positions: Sequence[int] | None = None,
    ) -> Tensor:
        """Queries or keys of what a side's matrix makes: scaled by their norm, and turned.

        Args:
            query: the queries, or else the keys.
            head: the query head; None for all of this side's, an axis in front of the batch.
            vectors: ``[..., batch, pos, d_head]``.
            positions: which positions the vectors stand at; None is all.
        """
        vectors = self._scaled(query, head, vectors, positions)
        return vectors if self.rotation is None else self.rotation.apply(vectors, positions)

    def behind_adjoint(
        self,
        query: bool,
        head: int,
        vectors: Float[Tensor, "*lead pos d_head"],
        positions: Sequence[int] | None = None,
    ) -> Tensor:
        """The adjoint of :meth:`behind`: what the other side's vectors read of this one."""
        if self.rotation is not None:
            vectors = self.rotation.adjoint(vectors, positions)
        return self._scaled(query, head, vectors, positions)

    def _scaled(
        self, query: bool, head: int | None, vectors: Tensor, positions: Sequence[int] | None
    ) -> Tensor:
        norm = self.q_norm if query else self.k_norm
        if norm is None:
            return vectors
        if head is None:
            scale = norm.scale.transpose(0, 1)  # [number, batch, pos]
        else:
            scale = norm.scale[:, self.number(query, head)]
        scale = scale if positions is None else scale[..., list(positions)]
        return vectors * scale[..., None]

    def parts(
        self, query: bool, streams: Sequence[Stream]
    ) -> Float[Tensor, "part number batch pos d_head"]:
        """One side's parts, of all its heads: of streams, at least one, and its own."""
        matrix, bias = self._queries if query else self._keys
        found = [_of_each(torch.stack([self.reads.apply(x) for x in streams]), matrix)]
        if self.positions is not None:
            found.append(_of_each(self.positions, matrix).expand_as(found[0][:1]))
        if self.reads.bias is not None:
            found.append(_of_each(self.reads.bias[None, None], matrix).expand_as(found[0][:1]))
        if bias is not None:
            found.append(bias[:, None, None].expand_as(found[0][:1]))
        return self.behind(query, None, torch.cat(found))

    def magnitudes(
        self, query: bool, size: Stream, distance: Stream
    ) -> tuple[Float[Tensor, "number batch pos d_head"], Float[Tensor, "number batch pos d_head"]]:
        """The sum of absolute values on one side, of all its heads, and how far it may be off.

        Both in float64. ``size`` is that of the stream; streams are at most ``distance`` apart, and
        each computation of a rotation's angles is off by its own rounding.
        """
        matrix, bias = self._query_magnitudes if query else self._key_magnitudes
        # one product for both: [2, number, batch, pos, d_head]
        both = self.reads.to(torch.float64).absolute().apply(torch.stack([size, distance]))
        total, far = _of_each(both, matrix)
        if self.positions is not None:
            total = total + _of_each(self.positions.double().abs(), matrix)
        if self.reads.bias is not None:
            total = total + _of_each(self.reads.bias.double().abs()[None, None], matrix)
        total = total if bias is None else total + bias[:, None, None]
        total, far = (self._scaled(query, None, part, None) for part in (total, far))
        if self.rotation is None:
            return total, far
        drift = self.rotation.drift(total + far)
        return self.rotation.absolute(total), self.rotation.absolute(far) + drift

    @property
    def roundings(self) -> int:
        """At most so many roundings lie between a stream and both sides' vectors.

        Those of the products with the matrices and of their bilinear form come on top.
        """
        d_model, d_head = self.W_Q.shape[1:]
        count = 2 * (self.reads.roundings + (d_model if self.reads.centred else 0))
        for norm, matrix in ((self.q_norm, self.W_Q), (self.k_norm, self.W_K)):
            count += 0 if norm is None else norm.roundings(len(matrix), d_head)
        return count + (0 if self.rotation is None else 8)

    def sequence(self, index: int) -> FrozenReader:
        """The reader of one sequence of the batch."""
        return replace(
            self,
            positions=None if self.positions is None else row(self.positions, index),
            reads=self.reads.sequence(index),
            shift=None if self.shift is None else row(self.shift, index),
            q_norm=None if self.q_norm is None else self.q_norm.sequence(index),
            k_norm=None if self.k_norm is None else self.k_norm.sequence(index),
            rotation=None if self.rotation is None else self.rotation.sequence(index),
        )


def _folded(
    norm: HeadNorm | None, matrix: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if norm is None:
        return matrix, bias
    return norm.fold(matrix), None if bias is None else norm.fold(bias)


def _magnitudes(
    norm: HeadNorm | None, matrix: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The same for absolute values, in float64."""
    size = matrix.double().abs()
    of_bias = None if bias is None else bias.double().abs()
    if norm is None:
        return size, of_bias
    return (norm.fold_magnitudes(size), None if of_bias is None else norm.fold_magnitudes(of_bias))


def _of_each(
    stream: Float[Tensor, "*lead batch pos d_model"],
    matrices: Float[Tensor, "number d_model d_head"],
) -> Float[Tensor, "*lead number batch pos d_head"]:
    """The stream times each matrix, in one product."""
    number, d_model, d_head = matrices.shape
    flat = stream @ matrices.transpose(0, 1).reshape(d_model, number * d_head)
    return flat.reshape(*stream.shape[:-1], number, d_head).movedim(-2, -4)


def sums_of_terms(
    reader: FrozenReader, streams: Sequence[Stream]
) -> tuple[Float[Tensor, "batch head dest src"], int]:
    """The sum over all pairs of parts of every head's scores, and the number of pairs of each.

    Each pair's scores are computed by themselves, then added.
    """
    queries = reader.parts(True, streams)
    keys = reader.parts(False, streams).transpose(-1, -2)  # [part, number, batch, d_head, src]
    parts, heads, batch, length, _ = queries.shape
    found = queries.new_zeros(batch, heads, length, length)
    at_once = max(1, _BYTES_AT_ONCE // max(1, batch * length * length * queries.element_size()))
    for head in range(heads):
        own = keys[:, reader.number(False, head)]
        for query in queries[:, head]:
            for some in own.split(at_once):
                # [1, batch, dest, d_head] x [part, batch, d_head, src]
                found[:, head] += torch.matmul(query[None], some).sum(0)
    found = reader.scale * found
    return (found if reader.shift is None else found + reader.shift), parts * len(keys)


def score_bounds(
    reader: FrozenReader, pairs: int, dtype: torch.dtype, size: Stream, distance: Stream
) -> Float[Tensor, "batch head dest src"]:
    """A rigorous bound on recorded scores minus sums of terms, in float64.

    Both sides round: by ``γ_n`` of the absolute values, ``size`` being at least the magnitude of
    the judge's stream and that of the parts. Their streams differ by at most ``distance``, which
    changes a bilinear form by at most ``|Δq| |k| + |q| |Δk| + |Δq| |Δk|``; so do the angles of
    rotations, which each side computes. With ``γ`` the sum of both sides' this is at most
    ``(γ |q| + |Δq|) (|k| + |Δk|) + |q| |Δk|``.
    """
    d_model, d_head = reader.W_Q.shape[1:]
    unit, count = unit_roundoff(dtype), 2 * d_model + d_head + reader.roundings + 8
    relative = gamma(count + pairs, unit) + gamma(count, unit)
    queries, far_queries = reader.magnitudes(True, size, distance)
    of_head = [reader.number(False, head) for head in range(len(queries))]
    # [number, batch, src, d_head] -> [head, batch, d_head, src]
    keys, far_keys = (
        part[of_head].transpose(-1, -2) for part in reader.magnitudes(False, size, distance)
    )
    bound = (relative * queries + far_queries) @ (keys + far_keys) + queries @ far_keys
    bound = abs(reader.scale) * bound.transpose(0, 1)
    if reader.shift is not None:  # it and its addition round on both sides
        bound = bound + 12 * unit * reader.shift.double().abs()
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


def cap_error(scores: Tensor, capped: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """How far capped scores are from ``c · tanh(s / c)``, and a bound on that.

    The derivative of tanh is at most 1, so a rounding of ``s / c`` changes them by ``u |s|``, and
    they are not larger than that; both sides round, and tanh may be some units off.
    """
    size = scores.double()
    error = (capped.double() - cap * torch.tanh(size / cap)).abs()
    return error, 16 * unit_roundoff(scores.dtype) * size.abs() + underflow(scores.dtype)
