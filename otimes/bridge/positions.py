"""What positions do to scores: the angles of rotary positions and the slopes of ALiBi.

The judge computes both by itself; nothing is shared with it.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from otimes.bridge.loading import Config
from otimes.bridge.loading.rotary import Rotary
from otimes.numeric.head_spaces import Rotation


def frequencies(rotary: Rotary) -> Float[Tensor, " plane"]:
    """The angle by which each plane turns from one position to the next, float64 ``[dim / 2]``.

    The formulas are those of :mod:`otimes.bridge.loading.rotary`.
    """
    scaling, theta = rotary.scaling, rotary.theta
    if scaling is not None and scaling.type == "ntk":
        assert scaling.factor is not None
        theta *= scaling.factor ** (rotary.dim / (rotary.dim - 2))
    turns = -2.0 * torch.arange(rotary.dim // 2, dtype=torch.float64) / rotary.dim
    found = torch.exp(turns * math.log(theta))
    if scaling is None or scaling.type == "ntk":
        return found
    if scaling.factors is not None:
        return found / torch.tensor(scaling.factors, dtype=torch.float64)
    assert scaling.factor is not None
    slow = found / scaling.factor
    if scaling.type == "linear":
        return slow
    low, high, original = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_n_ctx
    assert low is not None
    assert high is not None
    assert original is not None
    share = (original * found / (2 * math.pi) - low) / (high - low)
    return slow + share.clamp(0, 1) * (found - slow)


def angle_error(rotary: Rotary, unit: float) -> float:
    """How far, relatively, an angle is off at most that is computed with a unit roundoff.

    An error u of the exponent is ``|log θ| u`` of the power; where llama3's scaling blends, one of
    a frequency is up to ``high / (high - low)`` of its share, of which a factor is taken.
    """
    scaling = rotary.scaling
    factor = 1.0 if scaling is None or scaling.factor is None else max(1.0, scaling.factor)
    powers = 8 + abs(math.log(rotary.theta)) + 2 * math.log(factor)
    if scaling is not None and scaling.type == "llama3":
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        assert low is not None
        assert high is not None
        powers *= 1 + factor * (1 + high / (high - low))
    return powers * unit


def rotation(
    rotary: Rotary, position_ids: Int[Tensor, "batch pos"], dtype: torch.dtype
) -> Rotation:
    """How the queries and keys of a layer turn at these positions."""
    angle = position_ids.double()[..., None] * frequencies(rotary)
    # of two float64 computations, with room for the exponential of a logarithm as a power
    uncertainty = 4 * angle_error(rotary, torch.finfo(torch.float64).eps)
    return Rotation(angle, rotary.pairing, uncertainty, dtype)


def alibi_shift(
    config: Config, position_ids: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch head dest src"]:
    """``-m_h |i - j|``, what ALiBi adds to the scores (Press, Smith and Lewis 2022), float64.

    For a power of two n the slopes are ``2^(-8/n), 2^(-16/n), …``; for another number of heads
    those of the power below, then every second one of the power above.
    """
    heads = config.n_heads
    power = 1 << (heads.bit_length() - 1)
    exponents = [-8.0 * (head + 1) / power for head in range(power)]
    exponents += [-4.0 * (2 * head + 1) / power for head in range(heads - power)]
    slopes = torch.tensor([2.0**exponent for exponent in exponents], dtype=torch.float64)
    places = position_ids.double()
    distance = (places[:, :, None] - places[:, None, :]).abs()
    # [head, 1, 1] x [batch, 1, dest, src]
    return -slopes[:, None, None] * distance[:, None]
