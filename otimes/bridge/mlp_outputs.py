"""Are the recorded outputs of MLPs that are sources what their weights give?

A source is taken as it was recorded, so nothing else compares it with the MLP's own weights.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from otimes.bridge.freezing import Frozen, frozen_mlp
from otimes.bridge.run import Run
from otimes.models.reference import Recording
from otimes.numeric.edges import IDENTITY
from otimes.numeric.extended import SAFETY, Extended
from otimes.numeric.frozen import FrozenBlock, FrozenModel, FrozenSource
from otimes.numeric.magnitudes import (
    block_magnitude,
    gamma,
    roundings,
    underflow,
    unit_roundoff,
)
from otimes.numeric.measured import exact_block


def output_errors(
    run: Run, frozen: Frozen, recording: Recording, *, plain: bool
) -> list[tuple[int, Tensor, Tensor]]:
    """For each MLP that is a source: its layer, how far its output is off, and a bound on that.

    The output is compared with ``W_out (S (W_in e(x) + b_in)) + b_out``, at the recorded slopes or
    gates, computed with about 100 bits; both are ``[batch, pos, d_model]``. If ``plain`` it is
    computed in float64, and the bound has its rounding too.
    """
    found, unit = list[tuple[int, Tensor, Tensor]](), unit_roundoff(recording.logits.dtype)
    nothing = replace(IDENTITY, multiplier=0.0)
    for layer, (number, reads) in enumerate(frozen.mlps):
        neurons, b_out = frozen_mlp(run.model, recording, layer, reads), None
        if (bias := run.model.weights.mlps[layer].b_out) is not None:
            b_out = FrozenSource.of(number + 1, bias.to(recording.logits.dtype)[None, None])
        blocks = list(frozen.model.blocks)
        blocks[number] = FrozenBlock(None, neurons, nothing)
        alone = replace(
            frozen.model, blocks=tuple(blocks), sources=() if b_out is None else (b_out,)
        )
        stream, output = recording.streams[number], recording.mlp_outputs[layer]
        size = block_magnitude(alone, number, stream.double().abs())
        count = roundings(alone, number)
        bound = gamma(count, unit) * size * SAFETY
        if plain:
            value = output.double() - _output(alone, number, stream)
            uncertainty = gamma(count + 2, unit_roundoff(torch.float64)) * size * SAFETY
        else:
            difference = Extended.of(output) - exact_block(alone, number, Extended.of(stream))
            value, uncertainty = difference.rounded()
        error = (value.abs() - uncertainty).clamp(min=0)
        found.append((layer, error, bound + underflow(recording.logits.dtype)))
    return found


def _output(model: FrozenModel, number: int, stream: Tensor) -> Tensor:
    """The output of a block that takes no stream along, in float64."""
    block = model.blocks[number].to(torch.float64)
    total, constant = block.apply(stream.double()), block.constant()
    total = total if constant is None else total + constant
    return total + model.written(number + 1).double()
