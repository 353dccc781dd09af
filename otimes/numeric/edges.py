"""Edges of the frozen network: ``μ · D ⊗ Γ``, what a norm with its scales held fixed does.

A norm of the recorded run is linear once its scale is held fixed,

    x -> μ D (x C) diag(g),   D = diag(1/σ_pos),   C = I - 1 1ᵀ / d_model or I,

so ``D`` acts on positions and ``Γ = diag(g) C`` on the stream. What is not linear, its bias, is a
constant that belongs to a source. A block reads, writes and skips through edges; the identity is an
edge with nothing set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

Stream = Float[Tensor, "*lead pos d_model"]
"""Streams ``[batch, pos, d_model]``; axes in front, such as one for orders, are carried along."""


@dataclass(frozen=True)
class FrozenEdge:
    """``μ · D ⊗ Γ`` on streams.

    ``scale [batch, pos]`` is ``1/σ`` and ``gain [d_model]``; None stands for ones. ``centred``
    takes the mean over ``d_model`` away first. ``bias [d_model]`` is added behind the gain by the
    norm itself; it is no part of the edge's linear map. An edge ``of_magnitudes`` bounds what the
    edge of the same numbers does to numbers of given absolute values.
    """

    scale: Float[Tensor, "batch pos"] | None = None
    gain: Float[Tensor, " d_model"] | None = None
    centred: bool = False
    multiplier: float = 1.0
    bias: Float[Tensor, " d_model"] | None = None
    of_magnitudes: bool = False

    @property
    def is_identity(self) -> bool:
        """Whether it leaves every stream as it is; its bias does not count."""
        plain = self.scale is None and self.gain is None
        return plain and not self.centred and self.multiplier == 1

    def apply(self, stream: Float[Tensor, "*rows places d_model"]) -> Stream:
        """``μ (D ⊗ Γ) x``; a stream that all sequences or positions share is spread by ``D``."""
        stream = self._centre(stream)
        if self.scale is not None:
            stream = stream * self.scale[..., None]
        if self.gain is not None:
            stream = stream * self.gain
        return stream if self.multiplier == 1 else stream * self.multiplier

    def adjoint(self, gradient: Stream) -> Stream:
        """``μ (D ⊗ Γᵀ) g``: what reads the edge's output reads this of its input."""
        if self.scale is not None:
            gradient = gradient * self.scale[..., None]
        return self.weight_adjoint(gradient)

    def weight_adjoint(self, vectors: Float[Tensor, "*lead d_model"]) -> Tensor:
        """``μ Γᵀ v`` for vectors of the stream."""
        if self.gain is not None:
            vectors = vectors * self.gain
        vectors = self._centre(vectors)
        return vectors if self.multiplier == 1 else vectors * self.multiplier

    def pattern_adjoint(self, rows: Float[Tensor, "*lead pos"]) -> Tensor:
        """``D r`` for rows over the positions of a single sequence."""
        return rows if self.scale is None else rows * self.scale

    def _centre(self, stream: Tensor) -> Tensor:
        if not self.centred:
            return stream
        mean = stream.mean(-1, keepdim=True)
        return stream + mean if self.of_magnitudes else stream - mean

    def absolute(self) -> FrozenEdge:
        """The edge for magnitudes: ``|x| -> |μ| |D| (|x| (I + 1 1ᵀ/d)) |g|``."""
        return replace(
            self,
            scale=magnitude(self.scale),
            gain=magnitude(self.gain),
            multiplier=abs(self.multiplier),
            bias=magnitude(self.bias),
            of_magnitudes=True,
        )

    def to(self, dtype: torch.dtype) -> FrozenEdge:
        """The edge with all tensors in ``dtype``."""
        return replace(
            self,
            scale=cast(self.scale, dtype),
            gain=cast(self.gain, dtype),
            bias=cast(self.bias, dtype),
        )

    def places(self, positions: Sequence[int]) -> FrozenEdge:
        """The edge of some positions alone, in this order."""
        return self if self.scale is None else replace(self, scale=self.scale[:, list(positions)])

    def sequence(self, index: int) -> FrozenEdge:
        """The edge of one sequence of the batch."""
        return self if self.scale is None else replace(self, scale=row(self.scale, index))

    @property
    def roundings(self) -> int:
        """Roundings of one application, beside those of the mean's ``d_model`` additions."""
        return 0 if self.is_identity and self.bias is None else 6


IDENTITY = FrozenEdge()


def magnitude(value: Tensor | None) -> Tensor | None:
    """Absolute values; None stays None."""
    return None if value is None else value.abs()


def cast(value: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A tensor in another dtype; None stays None."""
    return None if value is None else value.to(dtype)


def row(value: Tensor, index: int) -> Tensor:
    """One sequence of a batch, with its axis; tensors that all sequences share stay."""
    return value if value.shape[0] == 1 else value[index : index + 1]
