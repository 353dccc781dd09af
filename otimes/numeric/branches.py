"""The two branches of a block, heads and frozen neurons, with one interface.

A branch reads the stream through an edge, its components move what they read to other positions
(neurons: to the same one) and write it through an edge:

    heads      z[h] = A[h] (e_r(x) W_V[g(h)]),            written = e_w(Σ_h z[h] W_O[h])
    neurons    z[n] = slope[n] · (e_r(x) W_in[:, n]),     written = e_w(Σ_n z[n] W_out[n])

where ``g(h) = h // group`` is the KV head that query head ``h`` reads, and ``slope`` is the secant
slope φ(u)/u of the recorded activation (for a gated MLP: φ(gate)). A component adds a constant
inside itself: the value bias and the reading norm's bias β, ``A 1 ⊗ (b_V + β W_V)``.

``z`` is ``[..., batch, pos, component, width]``: width ``d_head`` for a head, 1 for a neuron.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.edges import IDENTITY, FrozenEdge, Stream, cast, magnitude, row

Moved = Float[Tensor, "*lead pos component width"]


class Branch(ABC):
    """Components of a block that read through one edge and write through one edge."""

    reads: FrozenEdge
    writes: FrozenEdge

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of components."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The inner size of a component."""

    @property
    @abstractmethod
    def out(self) -> Float[Tensor, "component width d_model"]:
        """What the components write with: ``W_O``, or ``W_out`` with a width of 1."""

    @abstractmethod
    def moved(self, stream: Stream) -> Moved:
        """What every component moves when it reads ``stream [..., batch, pos, d_model]``."""

    @abstractmethod
    def constant(self) -> Moved | None:
        """What every component moves of its own constant; None where it has none."""

    @abstractmethod
    def moved_adjoint(self, gradient: Moved) -> Stream:
        """The adjoint of :meth:`moved`, summed over the components."""

    @abstractmethod
    def values(self, stream: Stream) -> Moved:
        """What every component reads of a stream, before its pattern or slope moves it."""

    @abstractmethod
    def value_constants(self) -> Float[Tensor, "component width"] | None:
        """What every component adds to its values at each position; None where it has none."""

    @abstractmethod
    def moved_back(self, gradient: Moved) -> Moved:
        """The adjoint of the patterns or slopes alone, for every component by itself."""

    @abstractmethod
    def rows(self, rows: Float[Tensor, "n pos"]) -> Float[Tensor, "n component pos"]:
        """``Aᵀ r``: rows over what a component moved, over the positions that it read."""

    @abstractmethod
    def vectors(
        self, inner: Float[Tensor, "n component width"]
    ) -> Float[Tensor, "n component d_model"]:
        """``Γ_rᵀ W_V w``: how the stream is read through what a component reads of it."""

    def pull(
        self, rows: Float[Tensor, "n pos"], inner: Float[Tensor, "n component width"]
    ) -> tuple[Float[Tensor, "n component pos"], Float[Tensor, "n component d_model"]]:
        """The adjoint of single components on rank-one functionals, for a single sequence.

        A functional ``z[c] -> Σ_pos row[pos] · (z[c, pos] · inner)`` of what component ``c`` moves
        is again rank one on what it reads; these are its row ``D_r Aᵀ r`` and its vector.
        """
        return self.reads.pattern_adjoint(self.rows(rows)), self.vectors(inner)

    @abstractmethod
    def component(self, index: int, stream: Stream) -> Stream:
        """What one component alone writes, without its constant."""

    @abstractmethod
    def component_constant(self, index: int) -> Float[Tensor, "rows places d_model"]:
        """What one component writes of its own constant."""

    @abstractmethod
    def absolute(self) -> Branch:
        """The branch for magnitudes."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Branch:
        """The branch with all tensors in ``dtype``."""

    @abstractmethod
    def sequence(self, index: int) -> Branch:
        """The branch of one sequence of the batch."""

    def written(self, moved: Moved) -> Stream:
        """What is written of what all components moved: their sum."""
        flat = moved.reshape(*moved.shape[:-2], self.size * self.width)
        return self.writes.apply(flat @ self.out.reshape(self.size * self.width, -1))

    def written_adjoint(self, gradient: Stream) -> Moved:
        """The adjoint of :meth:`written`."""
        inner = self.writes.adjoint(gradient) @ self.out.reshape(self.size * self.width, -1).T
        return inner.reshape(*inner.shape[:-1], self.size, self.width)

    def inner(self, vectors: Float[Tensor, "n d_model"]) -> Float[Tensor, "n component width"]:
        """``W_O Γ_wᵀ v``: how every component's inner space is read through what it writes."""
        flat = self.writes.weight_adjoint(vectors) @ self.out.reshape(-1, vectors.shape[-1]).T
        return flat.reshape(len(vectors), self.size, self.width)


@dataclass(frozen=True)
class FrozenHeads(Branch):
    """The heads of one layer with their recorded patterns ``[batch, head, dest, src]``.

    ``W_V [kv_head, d_model, d_head]``, ``W_O [head, d_head, d_model]``, and ``b_V [kv_head,
    d_head]``, which is None where the model has none. ``b_O`` is not here: it is a source.
    """

    pattern: Float[Tensor, "batch head dest src"]
    W_V: Float[Tensor, "kv_head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    b_V: Float[Tensor, "kv_head d_head"] | None = None
    reads: FrozenEdge = IDENTITY
    writes: FrozenEdge = IDENTITY

    @property
    def size(self) -> int:
        """The number of query heads."""
        return self.W_O.shape[0]

    @property
    def width(self) -> int:
        """``d_head``."""
        return self.W_O.shape[1]

    @property
    def group(self) -> int:
        """How many query heads share a KV head."""
        return self.size // self.W_V.shape[0] if len(self.W_V) else 1

    @property
    def out(self) -> Float[Tensor, "component width d_model"]:
        """``W_O``."""
        return self.W_O

    @cached_property
    def _kept_values(self) -> Float[Tensor, "d_model flat"]:
        # [kv_head, d_model, d_head] -> [d_model, kv_head * d_head]: one product for all heads
        return self.W_V.transpose(0, 1).reshape(self.W_V.shape[1], -1)

    def flat_values(self) -> Float[Tensor, "d_model flat"]:
        """``W_V`` of all KV heads side by side."""
        return self._kept_values

    @property
    def _value_shape(self) -> tuple[int, int]:
        return self.size // self.group, self.width

    def moved(self, stream: Stream) -> Moved:
        """``A[h] (e_r(x) W_V[g(h)])`` of every head."""
        value = self.reads.apply(stream) @ self.flat_values()
        return self._mix(value.reshape(*value.shape[:-1], *self._value_shape))

    def constant(self) -> Moved | None:
        """``A 1 (b_V + β W_V)`` of every head; a pattern's row need not sum to 1."""
        value = self.value_constant()
        if value is None:
            return None
        sums = self.pattern.sum(-1).transpose(1, 2)  # [batch, dest, head]
        return sums[..., None] * value.repeat_interleave(self.group, dim=0)

    def value_constant(self) -> Float[Tensor, "kv_head d_head"] | None:
        """``b_V + β W_V``: what is added to every value."""
        read = None if self.reads.bias is None else torch.matmul(self.reads.bias, self.W_V)
        if self.b_V is None or read is None:
            return read if self.b_V is None else self.b_V
        return self.b_V + read

    def moved_adjoint(self, gradient: Moved) -> Stream:
        """``Σ_h e_rᵀ(A[h]ᵀ z[h] W_Vᵀ)``."""
        value = self._mix_adjoint(gradient)
        return self.reads.adjoint(value.reshape(*value.shape[:-2], -1) @ self.flat_values().T)

    def values(self, stream: Stream) -> Moved:
        """``e_r(x) W_V[g(h)]`` of every head, without its value bias."""
        value = self.reads.apply(stream) @ self.flat_values()
        value = value.reshape(*value.shape[:-1], *self._value_shape)
        return value.repeat_interleave(self.group, dim=-2)

    def value_constants(self) -> Float[Tensor, "component width"] | None:
        """``b_V + β W_V`` of every head's KV head."""
        value = self.value_constant()
        return None if value is None else value.repeat_interleave(self.group, dim=0)

    def moved_back(self, gradient: Moved) -> Moved:
        """``A[h]ᵀ z[h]``."""
        # [batch, head, src, dest] x [..., batch, dest, head, d_head] -> [..., batch, src, head, ]
        back = torch.matmul(self.pattern.transpose(-1, -2), gradient.transpose(-2, -3))
        return back.transpose(-2, -3)

    def rows(self, rows: Float[Tensor, "n pos"]) -> Float[Tensor, "n component pos"]:
        """``A[h]ᵀ r``."""
        return torch.matmul(rows, self.pattern[0]).transpose(0, 1)  # [head, n, src] -> [n, head, ]

    def vectors(
        self, inner: Float[Tensor, "n component width"]
    ) -> Float[Tensor, "n component d_model"]:
        """``Γ_rᵀ W_V w``."""
        # [n, head, d_head] -> [kv_head, group * n, d_head] x [kv_head, d_head, d_model]
        W_V = self.W_V
        kv = len(W_V)
        grouped = inner.reshape(len(inner), kv, self.group, -1).permute(1, 2, 0, 3)
        vectors = torch.matmul(grouped.flatten(1, 2), W_V.transpose(1, 2))
        vectors = vectors.reshape(kv, self.group, len(inner), -1).permute(2, 0, 1, 3)
        return self.reads.weight_adjoint(vectors.flatten(1, 2))

    def component(self, index: int, stream: Stream) -> Stream:
        """What head ``index`` writes when it reads ``stream``, without its value bias."""
        return self._write(index, self.reads.apply(stream) @ self.W_V[index // self.group])

    def component_constant(self, index: int) -> Float[Tensor, "rows places d_model"]:
        """What the constant of head ``index`` writes: ``(A 1) ⊗ W_O (b_V + β W_V)``."""
        value = self.value_constant()
        if value is None:
            raise ValueError("this block has no value bias")
        length = self.pattern.shape[-1]
        return self._write(index, value[index // self.group].expand(1, length, -1))

    def _write(self, index: int, value: Float[Tensor, "*rows src d_head"]) -> Stream:
        # [batch, dest, src] x [..., batch, src, d_head] x [d_head, d_model]
        return self.writes.apply(torch.matmul(self.pattern[:, index], value) @ self.W_O[index])

    def _mix(self, value: Float[Tensor, "*lead src kv_head d_head"]) -> Moved:
        """Every head's pattern on the values of its KV head, axes in front as more columns."""
        pattern = self.pattern
        batch, heads, dest, src = pattern.shape
        *lead, _, _, kv, d_head = value.shape
        many = prod(lead)
        # [lead, batch, src, kv, d_head] -> [batch, kv, src, lead * d_head]
        columns = value.reshape(many, batch, src, kv, d_head).permute(1, 3, 2, 0, 4)
        columns = columns.reshape(batch, kv, src, many * d_head)
        # query heads of a KV head are rows of one product
        rows = pattern.reshape(batch, kv, self.group * dest, src)
        moved = torch.matmul(rows, columns).reshape(batch, heads, dest, many, d_head)
        return moved.permute(3, 0, 2, 1, 4).reshape(*lead, batch, dest, heads, d_head)

    def _mix_adjoint(self, moved: Moved) -> Float[Tensor, "*lead src kv_head d_head"]:
        pattern = self.pattern
        batch, heads, dest, src = pattern.shape
        *lead, _, _, _, d_head = moved.shape
        many, kv = prod(lead), heads // self.group
        # [lead, batch, dest, head, d_head] -> [batch, kv, group * dest, lead * d_head]
        columns = moved.reshape(many, batch, dest, heads, d_head).permute(1, 3, 2, 0, 4)
        columns = columns.reshape(batch, kv, self.group * dest, many * d_head)
        rows = pattern.reshape(batch, kv, self.group * dest, src).transpose(2, 3)
        value = torch.matmul(rows, columns).reshape(batch, kv, src, many, d_head)
        return value.permute(3, 0, 2, 1, 4).reshape(*lead, batch, src, kv, d_head)

    def absolute(self) -> FrozenHeads:
        """The heads with the absolute value of every factor."""
        return replace(
            self,
            pattern=self.pattern.abs(),
            W_V=self.W_V.abs(),
            W_O=self.W_O.abs(),
            b_V=magnitude(self.b_V),
            reads=self.reads.absolute(),
            writes=self.writes.absolute(),
        )

    def to(self, dtype: torch.dtype) -> FrozenHeads:
        """The heads with all tensors in ``dtype``."""
        if self.pattern.dtype == dtype:
            return self
        return replace(
            self,
            pattern=self.pattern.to(dtype),
            W_V=self.W_V.to(dtype),
            W_O=self.W_O.to(dtype),
            b_V=cast(self.b_V, dtype),
            reads=self.reads.to(dtype),
            writes=self.writes.to(dtype),
        )

    def sequence(self, index: int) -> FrozenHeads:
        """The heads on one sequence of the batch."""
        return replace(
            self,
            pattern=row(self.pattern, index),
            reads=self.reads.sequence(index),
            writes=self.writes.sequence(index),
        )


@dataclass(frozen=True)
class FrozenNeurons(Branch):
    """The neurons of one MLP, each with its secant slope at each position.

    ``slope [batch, pos, neuron]`` is φ(u)/u of the recorded pre-activation u, or φ(gate) of a gated
    MLP; ``W_in [d_model, neuron]``, ``W_out [neuron, d_model]``, ``b_in [neuron]`` or None.
    """

    slope: Float[Tensor, "batch pos neuron"]
    W_in: Float[Tensor, "d_model neuron"]
    W_out: Float[Tensor, "neuron d_model"]
    b_in: Float[Tensor, " neuron"] | None = None
    reads: FrozenEdge = IDENTITY
    writes: FrozenEdge = IDENTITY

    @property
    def size(self) -> int:
        """The number of neurons."""
        return self.W_in.shape[1]

    @property
    def width(self) -> int:
        """A neuron's inner space has one dimension."""
        return 1

    @property
    def out(self) -> Float[Tensor, "component width d_model"]:
        """``W_out`` as rank-one maps."""
        return self.W_out[:, None, :]

    def moved(self, stream: Stream) -> Moved:
        """``slope · (e_r(x) W_in)`` of every neuron."""
        return ((self.reads.apply(stream) @ self.W_in) * self.slope)[..., None]

    def constant(self) -> Moved | None:
        """``slope · (b_in + β W_in)`` of every neuron."""
        value = self.value_constant()
        return None if value is None else (self.slope * value)[..., None]

    def value_constant(self) -> Float[Tensor, " neuron"] | None:
        """``b_in + β W_in``: what is added to every pre-activation."""
        read = None if self.reads.bias is None else self.reads.bias @ self.W_in
        if self.b_in is None or read is None:
            return read if self.b_in is None else self.b_in
        return self.b_in + read

    def moved_adjoint(self, gradient: Moved) -> Stream:
        """``e_rᵀ((slope · z) W_inᵀ)``."""
        return self.reads.adjoint((gradient[..., 0] * self.slope) @ self.W_in.T)

    def values(self, stream: Stream) -> Moved:
        """``e_r(x) W_in`` of every neuron, without its bias."""
        return (self.reads.apply(stream) @ self.W_in)[..., None]

    def value_constants(self) -> Float[Tensor, "component width"] | None:
        """``b_in + β W_in``."""
        value = self.value_constant()
        return None if value is None else value[:, None]

    def moved_back(self, gradient: Moved) -> Moved:
        """``slope · z``."""
        return gradient * self.slope[..., None]

    def rows(self, rows: Float[Tensor, "n pos"]) -> Float[Tensor, "n component pos"]:
        """``slope · r``."""
        return rows[:, None, :] * self.slope[0].T  # [n, neuron, pos]

    def vectors(
        self, inner: Float[Tensor, "n component width"]
    ) -> Float[Tensor, "n component d_model"]:
        """``Γ_rᵀ w_in w``."""
        return self.reads.weight_adjoint(inner * self.W_in.T)

    def component(self, index: int, stream: Stream) -> Stream:
        """What neuron ``index`` writes when it reads ``stream``, without its bias."""
        return self._write(index, self.reads.apply(stream) @ self.W_in[:, index])

    def component_constant(self, index: int) -> Float[Tensor, "rows places d_model"]:
        """What the constant of neuron ``index`` writes."""
        value = self.value_constant()
        if value is None:
            raise ValueError("this block has no input bias")
        return self._write(index, value[index].expand(1, self.slope.shape[1]))

    def _write(self, index: int, value: Float[Tensor, "*rows src"]) -> Stream:
        # [batch, pos] x [..., batch, pos] x [d_model]
        moved = self.slope[..., index] * value
        return self.writes.apply(moved[..., None] * self.W_out[index])

    def absolute(self) -> FrozenNeurons:
        """The neurons with the absolute value of every factor."""
        return replace(
            self,
            slope=self.slope.abs(),
            W_in=self.W_in.abs(),
            W_out=self.W_out.abs(),
            b_in=magnitude(self.b_in),
            reads=self.reads.absolute(),
            writes=self.writes.absolute(),
        )

    def to(self, dtype: torch.dtype) -> FrozenNeurons:
        """The neurons with all tensors in ``dtype``."""
        if self.slope.dtype == dtype:
            return self
        return replace(
            self,
            slope=self.slope.to(dtype),
            W_in=self.W_in.to(dtype),
            W_out=self.W_out.to(dtype),
            b_in=cast(self.b_in, dtype),
            reads=self.reads.to(dtype),
            writes=self.writes.to(dtype),
        )

    def sequence(self, index: int) -> FrozenNeurons:
        """The neurons on one sequence of the batch."""
        return replace(
            self,
            slope=row(self.slope, index),
            reads=self.reads.sequence(index),
            writes=self.writes.sequence(index),
        )
