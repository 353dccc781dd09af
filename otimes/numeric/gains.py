"""How much a frozen block can enlarge a stream: rigorous operator norms.

The norm of a stream is the largest Euclidean norm of a position, ``‖x‖ = max_pos ‖x[pos]‖₂``. In it
a head ``A ⊗ W`` has the norm ``‖A‖_∞ ‖W‖₂`` at most, with ``‖A‖_∞`` the largest sum of absolute
values of a row, which is 1 for a pattern. Its dual, for gradients, is ``Σ_pos ‖g[pos]‖₂``, and the
adjoint has the same norm there. These norms grow far less through the layers than absolute values
do: for random matrices ``‖W‖₂`` is about ``sqrt(d_model)`` times smaller than ``‖|W|‖₂``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otimes.numeric.branches import Branch, FrozenHeads, FrozenNeurons
from otimes.numeric.edges import FrozenEdge
from otimes.numeric.extended import SAFETY
from otimes.numeric.frozen import FrozenBlock
from otimes.numeric.magnitudes import gamma, unit_roundoff

_SQUARINGS = 4


def stream_norm(stream: Tensor) -> Tensor:
    """``max_pos ‖x[pos]‖₂`` over batch and positions; axes in front of these are kept."""
    return torch.linalg.vector_norm(stream.double(), dim=-1).amax((-2, -1)) * SAFETY


def gradient_norm(gradient: Tensor) -> Tensor:
    """``Σ_pos ‖g[pos]‖₂``, the dual norm; axes in front of batch and positions are kept."""
    return torch.linalg.vector_norm(gradient.double(), dim=-1).sum((-2, -1)) * SAFETY


def linear_gain(block: FrozenBlock) -> float:
    """A bound on the norm of ``F_l`` without its constants."""
    block = block.to(torch.float64)
    gain = _edge_norm(block.skip)
    for branch in block.branches:
        moving, inside, out, factor = _factors(branch)
        gain += float((moving * spectral_norm(inside) * spectral_norm(out)).sum()) * factor
    return gain * SAFETY


def absolute_gain(block: FrozenBlock) -> float:
    """A bound on the norm of ``|F_l|``, where every factor has its magnitude."""
    block = block.to(torch.float64)
    gain = _edge_norm(block.skip) * _taking_means(block.skip)
    for branch in block.branches:
        moving, inside, out, factor = _factors(branch)
        factor *= _taking_means(branch.reads, branch.writes)
        gain += float((moving * _frobenius(inside) * _frobenius(out)).sum()) * factor
    return gain * SAFETY


def _taking_means(*edges: FrozenEdge) -> int:
    """``|x| + mean |x|`` has at most twice the norm of x, at each edge that centres."""
    return 2 ** sum(edge.centred for edge in edges)


def _factors(branch: Branch) -> tuple[Tensor, Tensor, Tensor, float]:
    """``‖A‖_∞`` and the matrices of each head, or of all neurons together, and a number."""
    reads, writes = branch.reads, branch.writes
    if isinstance(branch, FrozenHeads):
        pattern = branch.pattern.abs()
        if reads.scale is not None:
            pattern = pattern * reads.scale.abs()[:, None, None, :]
        if writes.scale is not None:
            pattern = pattern * writes.scale.abs()[:, None, :, None]
        moving = pattern.sum(-1).amax((0, 2))  # [batch, head, dest] -> [head]
        inside = _gained(branch.W_V, reads, dim=-2).repeat_interleave(branch.group, dim=0)
    else:
        assert isinstance(branch, FrozenNeurons)
        slope = branch.slope.abs()
        for edge in (reads, writes):
            slope = slope if edge.scale is None else slope * edge.scale.abs()[..., None]
        moving = slope.max()[None]
        inside = _gained(branch.W_in, reads, dim=-2)[None]
    out = branch.out if isinstance(branch, FrozenHeads) else branch.out.transpose(0, 1)
    # the mean is taken away before the gain: W_O C diag(g), with ‖C‖₂ = 1
    factor = abs(reads.multiplier * writes.multiplier)
    if writes.centred and writes.gain is not None:
        factor *= float(writes.gain.abs().max())
    elif writes.gain is not None:
        out = out * writes.gain
    return moving, inside, out, factor


def _gained(weight: Tensor, edge: FrozenEdge, dim: int) -> Tensor:
    if edge.gain is None:
        return weight
    return weight * (edge.gain[:, None] if dim == -2 else edge.gain)


def _edge_norm(edge: FrozenEdge) -> float:
    norm = abs(edge.multiplier)
    for factor in (edge.scale, edge.gain):
        norm *= 1.0 if factor is None else float(factor.abs().max())
    return norm * SAFETY


def _frobenius(matrix: Tensor) -> Tensor:
    # squares of very small or large numbers leave the range of float64
    scale = _power_of_two_above(matrix.abs().amax((-2, -1)))
    return torch.linalg.matrix_norm(matrix / scale[..., None, None]) * scale * SAFETY


def _power_of_two_above(size: Tensor) -> Tensor:
    """A number by which scaling has no rounding error, or next to none."""
    return torch.exp2(torch.frexp(size.clamp(min=1e-300)).exponent.double())


def spectral_norm(matrix: Tensor) -> Tensor:
    """A bound on the largest singular value of each matrix ``[..., rows, columns]``, in float64.

    From ``‖M‖₂² = ‖MᵀM‖₂ <= ‖fl(MᵀM)‖₂ + γ_n ‖M‖_F²``, four times over, and the Frobenius norm in
    the end: at most ``rank^(1/32)`` times too large.
    """
    matrix = matrix.double()
    if matrix.shape[-2] < matrix.shape[-1]:
        matrix = matrix.transpose(-1, -2)
    return _spectral(matrix, _SQUARINGS)


def _spectral(matrix: Tensor, squarings: int) -> Tensor:
    size = _frobenius(matrix)
    if not squarings:
        return size
    scale = _power_of_two_above(size)  # it keeps powers in range
    scaled = matrix / scale[..., None, None]
    rounding = gamma(matrix.shape[-2] + 2, unit_roundoff(torch.float64)) * (size / scale) ** 2
    square = _spectral(scaled.transpose(-1, -2) @ scaled, squarings - 1) + rounding + 1e-290
    return torch.minimum(size, scale * square.sqrt()) * SAFETY
