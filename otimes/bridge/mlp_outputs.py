"""Are the recorded outputs of MLPs that are sources what their weights give?

A source is taken as it was recorded, so nothing else compares it with the MLP's own weights.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from otimes.bridge.freezing import Frozen, frozen_mlp
from otimes.bridge.run import Run
from otimes.models.reference import Recording
from otimes.numeric.edges import IDENTITY
from otimes.numeric.extended import SAFETY, Extended
from otimes.numeric.frozen import FrozenBlock, FrozenSource
from otimes.numeric.rounding import (
    block_magnitude,
    exact_block,
    gamma,
    roundings,
    underflow,
    unit_roundoff,
)


def output_errors(
    run: Run, frozen: Frozen, recording: Recording
) -> list[tuple[int, Tensor, Tensor]]:
    """For each MLP that is a source: its layer, how far its output is off, and a bound on that.

    The output is compared with ``W_out (S (W_in e(x) + b_in)) + b_out``, at the recorded slopes or
    gates, computed with about 100 bits; both are ``[batch, pos, d_model]``.
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
        difference = Extended.of(output) - exact_block(alone, number, Extended.of(stream))
        value, uncertainty = difference.rounded()
        size = block_magnitude(alone, number, stream.double().abs())
        bound = gamma(roundings(alone, number), unit) * size * SAFETY
        error = (value.abs() - uncertainty).clamp(min=0)
        found.append((layer, error, bound + underflow(recording.logits.dtype)))
    return found
