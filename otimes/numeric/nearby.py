"""Two computations of one formula: a value, and how far another computation of it may be off.

A :class:`Nearby` is a float64 value with a rigorous bound on its distance from the value that
another program got for the same formula from the same input, rounding otherwise and with another
unit roundoff. Each operation bounds what it adds itself and how it carries what came in: a running
error analysis (Wilkinson 1971; Higham 2002, "Accuracy and Stability of Numerical Algorithms",
section 3.3), for operations that are not linear too. ``unit`` is the sum of both programs' unit
roundoffs in the operation.

A norm divides a position by one number. Its error is common to all coordinates, and through a
linear map it stays a multiple of the result, where absolute values would make it the map's own
magnitude. So it is kept apart: two values differ by at most ``error + factor · |scaled|``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from otimes.numeric.extended import SAFETY, UNDERFLOW
from otimes.numeric.magnitudes import gamma

_FLOAT32 = 2.0**-24
_STEEPEST = 1.13
"""No derivative of relu, gelu (in both forms) and silu is larger."""
_IN_SOFTMAX = 16
"""Roundings of a softmax beside those of its sum, with the units that exp may be off."""


@dataclass(frozen=True)
class Nearby:
    """A value and the distance of another one: ``error + factor · |scaled|``, element by element.

    ``value`` and ``error`` have one shape, as ``scaled`` has, the part of the value that the common
    relative error ``factor [..., 1]`` of each position multiplies; both are None where it is 0.
    """

    value: Tensor
    error: Tensor
    scaled: Tensor | None = None
    factor: Tensor | None = None

    @staticmethod
    def exact(value: Tensor) -> Nearby:
        """A value that both have."""
        value = value.double()
        return Nearby(value, torch.zeros_like(value))

    @property
    def distance(self) -> Tensor:
        """The whole distance."""
        if self.scaled is None or self.factor is None:
            return self.error
        return self.error + self.factor * self.scaled.abs()

    @property
    def size(self) -> Tensor:
        """The larger of both absolute values, at most."""
        return self.value.abs() + self.distance

    def rows(self, some: tuple[slice, ...]) -> Nearby:
        """Some positions, with their common errors."""
        scaled = None if self.scaled is None else self.scaled[some]
        factor = None if self.factor is None else self.factor[some]
        return Nearby(self.value[some], self.error[some], scaled, factor)

    def each(self, change: Callable[[Tensor], Tensor]) -> Nearby:
        """The same with other axes: a common error becomes one of each element."""
        return Nearby(change(self.value), change(self.distance))


def linear(x: Nearby, weight: Tensor, bias: Tensor | None, unit: float) -> Nearby:
    """``x W + b`` for ``x [..., m]``, ``W [m, n]``; each program may round its weights first."""
    weight = weight.double()
    relative = gamma(len(weight) + 4, unit)
    value = x.value @ weight
    scaled = None
    if x.scaled is not None:
        scaled = value if x.scaled is x.value else x.scaled @ weight
    error = (x.error + relative * x.size) @ weight.abs()
    if bias is not None:
        bias = bias.double()
        value = value + bias
        error = error + relative * bias.abs()
    return Nearby(value, error * SAFETY + _least(unit), scaled, x.factor)


def product(a: Nearby, b: Nearby, unit: float) -> Nearby:
    """The matrix product of ``a [..., m, k]`` and ``b [..., k, n]``."""
    far, other = a.distance, b.distance
    relative = gamma(a.value.shape[-1] + 2, unit)
    error = (far + relative * (a.value.abs() + far)) @ (b.value.abs() + other)
    error = error + a.value.abs() @ other
    return Nearby(a.value @ b.value, error * SAFETY + _least(unit))


def times(a: Nearby, b: Nearby, unit: float) -> Nearby:
    """Element by element."""
    far, other = a.distance, b.distance
    error = far * (b.value.abs() + other) + a.value.abs() * other
    return _rounded(a.value * b.value, error, 1, unit)


def add(*parts: Nearby, unit: float) -> Nearby:
    """The sum, which each program adds up in an order of its own."""
    size = sum(part.size for part in parts[1:]) + parts[0].size
    error = sum(part.distance for part in parts[1:]) + parts[0].distance
    value = sum(part.value for part in parts[1:]) + parts[0].value
    error = error + gamma(len(parts), unit) * size
    return Nearby(value, error * SAFETY + _least(unit))


def scale(x: Nearby, number: float | None, unit: float) -> Nearby:
    """Times a number, which each program may round first; None is 1."""
    if number is None:
        return x
    return _rounded(number * x.value, abs(number) * x.distance, 3, unit)


def cap(x: Nearby, most: float | None, unit: float) -> Nearby:
    """``c · tanh(x / c)``, whose derivative is at most 1; None is no cap."""
    if most is None:
        return x
    value = most * torch.tanh(x.value / most)
    error = x.distance + 16 * unit * x.size
    return Nearby(value, error * SAFETY + _least(unit))


def activate(x: Nearby, activation: Callable[[Tensor], Tensor], unit: float) -> Nearby:
    """relu, gelu or silu, of which each program is off by some roundings of ``|x|``."""
    error = _STEEPEST * x.distance + 16 * unit * x.size
    return Nearby(activation(x.value), error * SAFETY + _least(unit))


def norm(
    x: Nearby,
    kind: str,
    eps: float,
    gain: Tensor,
    bias: Tensor | None,
    unit: float,
    axes: tuple[int, ...] = (-1,),
) -> Nearby:
    """LayerNorm (``layer``) or RMSNorm (``rms``) over ``axes``: ``(x - mean) / σ · gain + bias``.

    An error of at most d of ``σ² = mean (x - mean)² + eps`` makes one of at most
    ``(1 - d / σ²)^(-1/2) - 1`` of ``1 / σ``, relatively, which is common to all coordinates. A
    gain may be stored less 1, and both that and the sum be rounded: off by ``u (2 |gain| + 1)``.
    """
    value, far = x.value, x.distance
    count = 1
    for axis in axes:
        count *= value.shape[axis]
    if kind == "layer":
        mean = value.mean(axes, keepdim=True)
        sizes = (value.abs() + far).mean(axes, keepdim=True)
        lost = far.mean(axes, keepdim=True) + gamma(count + 2, unit) * sizes
        value = value - mean
        far = (far + lost + unit * (value.abs() + far + lost)) * SAFETY
    square = value.square().mean(axes, keepdim=True) + eps
    carried = (2 * value.abs() * far + far.square()).mean(axes, keepdim=True)
    sizes = (value.abs() + far).square().mean(axes, keepdim=True) + eps
    lost = (carried + gamma(count + 8, unit) * sizes) * SAFETY / square
    # where the other's square may be 0, nothing bounds what it divides by
    room = (1 - lost).clamp(min=0)
    factor = (1 + 8 * unit) / room.sqrt() - 1
    gain = gain.double()
    inverse = 1 / square.sqrt()
    plain = value * inverse
    scaled = plain * gain
    rounded = 8 * unit * scaled.abs() + 2 * unit * plain.abs()
    error = (far * inverse * gain.abs() + rounded) * (1 + factor)
    result = scaled
    if bias is not None:
        bias = bias.double()
        result = scaled + bias
        error = error + 2 * unit * ((1 + factor) * scaled.abs() + bias.abs())
    return Nearby(result, error * SAFETY + _least(unit), scaled, factor * SAFETY)


def softmax(x: Nearby, allowed: Tensor, unit: float) -> Nearby:
    """The softmax over what is ``allowed``; a row of nothing is 0.

    Scores that are off by at most ε make ``p_j`` one of ``p_j exp(ε_j + log Σ p exp ε)`` at most,
    and no less than its inverse says. The rounding of ``d = s - max s`` changes exp(d) by
    ``u |d|``, relatively, and that of s, which may be converted first, by ``u |s|``; n roundings
    add up.
    """
    scores = x.value.masked_fill(~allowed, -torch.inf)
    pattern = torch.softmax(scores, -1).nan_to_num(0.0)
    off = x.distance.masked_fill(~allowed, 0.0)
    far = (scores - scores.amax(-1, keepdim=True)).masked_fill(~allowed, 0.0).nan_to_num(0.0)
    off = off + unit * (far.abs() + 2 * x.size.masked_fill(~allowed, 0.0))
    shared = (pattern * off.exp()).sum(-1, keepdim=True).clamp(min=1.0).log()
    rounding = gamma(scores.shape[-1] + _IN_SOFTMAX, unit)
    relative = torch.expm1(off + shared) * (1 + rounding) + rounding
    # two patterns are nowhere further apart than 1
    error = (pattern * relative * SAFETY).nan_to_num(1.0, posinf=1.0).clamp(max=1.0)
    return Nearby(pattern, (error + _least(unit)).masked_fill(~allowed, 0.0))


def turn(x: Nearby, angle: Tensor, pairing: str, away: Tensor, unit: float) -> Nearby:
    """Turn pairs of coordinates of ``x [..., pos, d_head]`` by ``angle [..., pos, plane]``.

    Two programs' angles are at most ``away`` apart; ``pairing`` is that of
    :class:`~otimes.numeric.head_spaces.Rotation`.
    """
    planes = torch.arange(angle.shape[-1])
    half = pairing == "half"
    first, second = (planes, planes + len(planes)) if half else (2 * planes, 2 * planes + 1)
    cos, sin = angle.cos(), angle.sin()
    value, error = x.value.clone(), x.distance.clone()
    a, b = x.value[..., first], x.value[..., second]
    # each of cos and sin is off by at most what their angle is, and by roundings of its own
    off = away + 4 * unit
    sizes = x.size[..., first] + x.size[..., second]
    value[..., first], value[..., second] = cos * a - sin * b, sin * a + cos * b
    far_a, far_b = error[..., first], error[..., second]
    lost = (off + 3 * unit) * sizes
    error[..., first] = cos.abs() * far_a + sin.abs() * far_b + lost
    error[..., second] = sin.abs() * far_a + cos.abs() * far_b + lost
    return Nearby(value, error * SAFETY + _least(unit))


def _least(unit: float) -> float:
    """More than the underflows of one operation can add up to."""
    return UNDERFLOW if unit < _FLOAT32 else 1e-30


def _rounded(value: Tensor, error: Tensor, count: int, unit: float) -> Nearby:
    return Nearby(value, (error + count * unit * (value.abs() + error)) * SAFETY + _least(unit))
