"""What acts on queries and keys behind their matrices: frozen norms, and rotations by position.

With its scale held fixed a norm of queries or keys is linear, ``q -> s (q C) diag(g)``. Its
centring and gain are parts of the matrix that a query is made with, ``W_Q C diag(g)``; what is left
depends on the position and acts behind it: the scale ``s[head, pos]``, then the rotation

    (a, b) -> (a cos φ - b sin φ, a sin φ + b cos φ),   φ = position · θ_f

of every pair of coordinates (Su et al. 2021, "RoFormer"). Its transpose turns back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.edges import row


@dataclass(frozen=True)
class HeadNorm:
    """A frozen norm of the queries or keys of one layer.

    ``scale [batch, head, pos]`` is ``1/σ``, ``gain [head, d_head]`` (one row where heads share
    it). The norm is ``over`` each head, or over all heads of a token together; ``centred`` takes
    the mean over these away first. Keys have KV heads.
    """

    scale: Float[Tensor, "batch head pos"]
    gain: Float[Tensor, "heads d_head"]
    over: Literal["head", "all"] = "head"
    centred: bool = False

    def fold(self, matrix: Float[Tensor, "head *rows d_head"]) -> Tensor:
        """Centring and gain as parts of the matrices ``[head, d_model, d_head]`` or a bias."""
        return (matrix - self._mean(matrix)) * self._gain(matrix)

    def fold_magnitudes(self, matrix: Float[Tensor, "head *rows d_head"]) -> Tensor:
        """The same for absolute values: at least what folding, or norming behind, adds up."""
        return (matrix + self._mean(matrix)) * self._gain(matrix).abs()

    def _mean(self, matrix: Tensor) -> Tensor:
        if not self.centred:
            return matrix.new_zeros(())
        axes = (0, -1) if self.over == "all" else (-1,)
        return matrix.mean(axes, keepdim=True)

    def _gain(self, matrix: Tensor) -> Tensor:
        gain = self.gain.to(matrix.dtype)
        return gain[:, None, :] if matrix.ndim == 3 else gain

    def roundings(self, heads: int, d_head: int) -> int:
        """At most so many roundings in norming, and as many in folding."""
        return 4 + (heads * d_head + 4 if self.centred else 0)

    def sequence(self, index: int) -> HeadNorm:
        """The norm on one sequence of the batch."""
        return replace(self, scale=row(self.scale, index))


@dataclass(frozen=True)
class Rotation:
    """The rotation of one layer's queries and keys by their positions.

    ``angle [batch, pos, plane]`` in float64; ``pairing``: ``half`` pairs coordinate n with
    n + planes, ``interleaved`` 2n with 2n + 1; further coordinates stay. Another computation of
    the angles is relatively at most ``uncertainty`` away. ``dtype`` is that of cos and sin.
    """

    angle: Float[Tensor, "batch pos plane"]
    pairing: str
    uncertainty: float
    dtype: torch.dtype = torch.float64

    @cached_property
    def _pairs(self) -> tuple[Tensor, Tensor]:
        planes = torch.arange(self.angle.shape[-1])
        if self.pairing == "half":
            return planes, planes + len(planes)
        return 2 * planes, 2 * planes + 1

    @cached_property
    def _turn(self) -> tuple[Tensor, Tensor]:
        return self.angle.cos().to(self.dtype), self.angle.sin().to(self.dtype)

    def apply(
        self, x: Float[Tensor, "*lead pos d_head"], positions: Sequence[int] | None = None
    ) -> Tensor:
        """Turn ``x [..., batch, pos, d_head]``, at all positions or at those given."""
        cos, sin = self._at(positions)
        return self._mixed(x, cos, -sin, sin, cos)

    def adjoint(
        self, x: Float[Tensor, "*lead pos d_head"], positions: Sequence[int] | None = None
    ) -> Tensor:
        """Turn back, which is the transpose."""
        cos, sin = self._at(positions)
        return self._mixed(x, cos, sin, -sin, cos)

    def absolute(self, size: Float[Tensor, "*lead pos d_head"]) -> Tensor:
        """The magnitude of what is turned, given that of what turns, in float64."""
        away = self._away
        cos, sin = (part.double().abs() + away for part in self._turn)
        return self._mixed(size, cos, sin, sin, cos)

    def drift(self, size: Float[Tensor, "*lead pos d_head"]) -> Tensor:
        """How far apart two computations of the turned vectors are by their angles alone."""
        away = self._away
        return self._mixed(size, away, away, away, away, rest=0.0)

    @property
    def _away(self) -> Tensor:
        return self.angle.abs() * self.uncertainty + 4 * torch.finfo(torch.float64).eps

    def _at(self, positions: Sequence[int] | None) -> tuple[Tensor, Tensor]:
        cos, sin = self._turn
        if positions is None:
            return cos, sin
        return cos[:, list(positions)], sin[:, list(positions)]

    def _mixed(
        self, x: Tensor, aa: Tensor, ab: Tensor, ba: Tensor, bb: Tensor, rest: float = 1.0
    ) -> Tensor:
        """``(a, b) -> (aa a + ab b, ba a + bb b)`` of each pair; other coordinates times rest."""
        first, second = self._pairs
        a, b = x[..., first], x[..., second]
        turned = x * rest
        turned[..., first] = aa * a + ab * b
        turned[..., second] = ba * a + bb * b
        return turned

    def sequence(self, index: int) -> Rotation:
        """The rotation of one sequence of the batch."""
        return replace(self, angle=row(self.angle, index))
