"""What positions do to attention: rotations of queries and keys, and the slopes of ALiBi."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def frequencies(rotary: dict[str, Any], d_head: int) -> Tensor:
    """The angles by which the planes turn from one position to the next, ``[dim / 2]``, float64.

    Args:
        rotary: the object of ``config.json``.
        d_head: how many coordinates turn where ``dim`` does not say it.
    """
    dim, theta = rotary.get("dim") or d_head, float(rotary["theta"])
    scaling: dict[str, Any] = rotary.get("scaling") or {"type": None}
    if scaling["type"] == "ntk":
        theta = theta * scaling["factor"] ** (dim / (dim - 2))
    plane = torch.arange(0, dim, 2, dtype=torch.float64)
    angle = theta ** (-plane / dim)
    if scaling["type"] in (None, "ntk"):
        return angle
    if scaling["type"] == "linear":
        return angle / scaling["factor"]
    if scaling["type"] == "factors":
        return angle / torch.tensor(scaling["factors"], dtype=torch.float64)
    if scaling["type"] == "llama3":
        # turns within the original context: few are slowed down, many are kept
        turns = scaling["original_n_ctx"] * angle / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - kept) * angle / scaling["factor"] + kept * angle
    raise NotImplementedError(f"this reference has no {scaling['type']!r} scaling of rotary angles")


def rotate(x: Tensor, positions: Tensor, rotary: dict[str, Any]) -> Tensor:
    """Turn queries or keys ``[batch, head, pos, d_head]`` by their position ids ``[batch, pos]``.

    Two coordinates (a, b) become (a cos - b sin, a sin + b cos).
    """
    angle = positions[:, None, :, None] * frequencies(rotary, x.shape[-1])  # [batch, 1, pos, plane]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    dim = 2 * angle.shape[-1]
    turned, rest = x[..., :dim], x[..., dim:]
    if rotary["pairing"] == "half":
        a, b = turned[..., : dim // 2], turned[..., dim // 2 :]
        turned = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    elif rotary["pairing"] == "interleaved":
        a, b = turned[..., 0::2], turned[..., 1::2]
        # [batch, head, pos, plane, 2] -> [batch, head, pos, dim]
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    else:
        raise NotImplementedError(f"this reference has no {rotary['pairing']!r} pairing")
    return torch.cat([turned, rest], dim=-1)


def alibi_slopes(heads: int) -> Tensor:
    """The slopes of ALiBi for each head, float64 (Press, Smith and Lewis 2021).

    A geometric sequence from ``2^(-8/n)`` with that ratio for a power of two n; for another number
    of heads those of the next smaller power, then every second one of the next larger.
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    slopes += [2 ** (-4 * (2 * head + 1) / power) for head in range(heads - power)]
    # real numbers also where parameters are made without storage
    return torch.tensor(slopes, dtype=torch.float64, device="cpu")
