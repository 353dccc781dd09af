"""Bounds on logits that follow from bounds on the deviations of single steps.

A side's stream is off from the exact network's by ``e``, with::

    e_{l+1} = A_l e_l + δ_l,   |δ_l| <= b_l = γ_n |F_l|(|x_l|),

where ``A_l`` is the exact block without constants and ``b_l`` the local bound of the step. Such a
bound does not grow with a mistake: what changes a checked logit by more than twice the bound makes
the comparison of the two sides fail, since without it they agree within the bound. The same holds
for the distance of two sides, with the sum of their bounds.

*Absolute values* (Higham 2002, section 3.5), for every logit and few layers:
``m_{l+1} = |A_l| m_l + b_l``. They grow by a large factor with each layer.

*Adjoint*, for chosen logits and any depth. With ``g_L`` the logit's functional of the last stream
and ``g_l`` computed backwards in float64, ``g_l = A_lᵀ g_{l+1} - r_l``, the error of the logit is
exactly

    ⟨g_L, e_L⟩ = ⟨g_0, e_0⟩ + Σ_l ⟨g_{l+1}, δ_l⟩ + Σ_l ⟨r_l, e_l⟩,

by inserting ``e_{l+1}`` step after step. So it is at most ``⟨|g_0|, b⟩ + Σ ⟨|g_{l+1}|, b_l⟩``, plus
the adjoint's own rounding: ``|⟨r_l, e_l⟩| <= ‖r_l‖ ‖e_l‖`` in the dual norms of
:mod:`otimes.numeric.gains`, with ``‖r_l‖ <= γ_n ‖|A_l|‖ ‖g_{l+1}‖`` and
``‖e_{l+1}‖ <= ‖A_l‖ ‖e_l‖ + ‖b_l‖``. That is a product of two roundings and stays small where
absolute values say nothing. For the distance of two sides ``‖e_l‖`` is known: it is the distance of
their streams.

Measured deviations may take the place of ``b_l``, which is tighter by orders of magnitude, since
deviations are a few roundings and ``b_l`` allows for all of them to add up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from otimes.numeric.chosen import Chosen
from otimes.numeric.extended import SAFETY, UNDERFLOW
from otimes.numeric.frozen import FrozenBlock, FrozenModel
from otimes.numeric.gains import absolute_gain, gradient_norm, linear_gain, stream_norm
from otimes.numeric.magnitudes import (
    absolute_logits,
    absolute_read,
    edge_roundings,
    gamma,
    linear_block,
    roundings,
    unit_roundoff,
)

_AT_ONCE = 16


def absolute_bound(model: FrozenModel, local: Sequence[Tensor]) -> Tensor:
    """Carry local bounds to all logits by absolute values.

    ``local`` are those of the embedding, of each block, ``[batch, pos, d_model]``, and of the
    unembedding, ``[batch, pos, d_vocab]``, which is also the shape of the result.
    """
    size = local[0]
    for block, own in zip(model.blocks, local[1:-1], strict=True):
        size = (linear_block(block, size, absolute=True) + own) * SAFETY
    return (absolute_logits(model, absolute_read(model, size)) + local[-1]) * SAFETY + UNDERFLOW


def adjoint_bound(model: FrozenModel, local: Sequence[Tensor], chosen: Chosen) -> Tensor:
    """Weight local bounds by the adjoint of each chosen logit.

    ``local`` are those of the embedding and of each block, ``[batch, pos, d_model]``, and that of
    the chosen logits, ``[n]``, which is also the shape of the result.
    """
    far = [stream_norm(local[0])]
    for block, own in zip(model.blocks, local[1:-1], strict=True):
        far.append((linear_gain(block) * far[-1] + stream_norm(own)) * SAFETY)
    return adjoint_bounds(model, [local], far, chosen)[0]


def adjoint_bounds(
    model: FrozenModel,
    locals_: Sequence[Sequence[Tensor]],
    far: Sequence[Tensor],
    chosen: Chosen,
) -> list[Tensor]:
    """:func:`adjoint_bound` for several sets of local bounds, with one pass backwards.

    ``far`` are the norms of the errors of the streams before each block and behind the last.
    """
    blocks = [block.to(torch.float64) for block in model.blocks]
    totals = [local[-1].clone() for local in locals_]
    for start in range(0, len(chosen), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        part = Chosen(chosen.rows[some], chosen.positions[some], chosen.tokens[some])
        for total, weighted in zip(
            totals, _weighted(model, blocks, far, locals_, part), strict=True
        ):
            total[some] += weighted
    return [total * SAFETY + UNDERFLOW for total in totals]


def _weighted(
    model: FrozenModel,
    blocks: Sequence[FrozenBlock],
    far: Sequence[Tensor],
    locals_: Sequence[Sequence[Tensor]],
    chosen: Chosen,
) -> Tensor:
    """The bounds ``[set, n]`` without those of the last step."""
    unit, d_model = unit_roundoff(torch.float64), model.W_U.shape[0]
    final = model.final.to(torch.float64)
    # [n, batch, pos, d_model], where the logit reads its own sequence and position alone
    reads = torch.zeros(len(chosen), *locals_[0][0].shape, dtype=torch.float64)
    columns = model.multiplier * model.W_U[:, chosen.tokens].T.double()
    reads[torch.arange(len(chosen)), chosen.rows, chosen.positions] = columns
    gradient = final.adjoint(reads)
    count = edge_roundings(final, d_model) + 2
    size = gradient_norm(final.absolute().adjoint(reads.abs()))
    total = gamma(count, unit) * size * far[-1]
    for number in reversed(range(model.depth + 1)):
        # [set, place] x [n, place]
        sizes = torch.stack([local[number].flatten() for local in locals_])
        total = total + sizes @ gradient.abs().flatten(1).T * SAFETY
        if number:
            block = blocks[number - 1]
            lost = gamma(roundings(model, number - 1) + 2, unit) * absolute_gain(block)
            total = total + lost * gradient_norm(gradient) * far[number - 1] * SAFETY
            gradient = block.adjoint(gradient)
    return total
