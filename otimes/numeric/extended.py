"""Matrix products with about 100 bits from float64 products that have no rounding error.

A matrix is cut into slices of few bits each, such that the product of two slices is a float64
matrix product in which every partial sum is an integer of at most 53 bits times a power of two:
it is exact, whatever the order of summation or the use of fused multiply-add (Ozaki, Ogita, Oishi
and Rump 2012, "Error-free transformations of matrix multiplication"). The products of slices are
added with compensation.

An :class:`Extended` is an unevaluated sum of float64 tensors with a rigorous bound on what is
missing. It measures rounding errors of float64 computations to many digits, so that a bound on
their effect need not take absolute values through the layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

UNIT = 2.0**-53
"""The unit roundoff of float64."""

SAFETY = 1 + 2.0**-20
"""Bounds are sums of products of non-negative floats; this covers their own roundings."""

UNDERFLOW = 1e-290
"""More than all underflows of one product can add up to, for numbers of ordinary size."""

_SLICES = 5
_LEAST_EXPONENT = -880  # the last slice of smaller numbers would need powers that do not exist
_LARGEST_EXPONENT = 1020  # larger numbers overflow when they are added up


@dataclass(frozen=True)
class Extended:
    """``high + low`` and the bound ``error`` on what the pair misses; all float64, one shape."""

    high: Tensor
    low: Tensor
    error: Tensor

    @staticmethod
    def of(value: Tensor) -> Extended:
        """A float32 or float64 tensor, exactly."""
        value = value.double()
        zero = torch.zeros_like(value)
        return Extended(value, zero, zero)

    def __add__(self, other: Extended | Tensor) -> Extended:
        if isinstance(other, Tensor):
            high, rest = two_sum(self.high, other.double())
            low, missed = two_sum(self.low, rest)
            high, low = two_sum(high, low)
            return Extended(high, low, (self.error + missed.abs()) * SAFETY)
        high, rest = two_sum(self.high, other.high)
        low, missed = two_sum(self.low, other.low)
        low, more = two_sum(low, rest)
        high, low = two_sum(high, low)
        error = self.error + other.error + missed.abs() + more.abs()
        return Extended(high, low, error * SAFETY)

    def __neg__(self) -> Extended:
        return Extended(-self.high, -self.low, self.error)

    def __sub__(self, other: Extended | Tensor) -> Extended:
        right = other if isinstance(other, Extended) else Extended.of(other)
        return self + (-right)

    def __matmul__(self, other: Extended | Tensor) -> Extended:
        right = other if isinstance(other, Extended) else Extended.of(other)
        return matmul(self, right)

    def times(self, other: Extended | Tensor) -> Extended:
        """The elementwise product, with broadcasting."""
        right = other if isinstance(other, Extended) else Extended.of(other)
        high, rest = two_product(self.high, right.high)
        cross = self.high * right.low + self.low * right.high
        low = rest + cross
        # the roundings of four small products and three sums, and the product of the low parts
        small = (self.high * right.low).abs() + (self.low * right.high).abs()
        missed = 4 * UNIT * (rest.abs() + small) + (self.low * right.low).abs()
        operands = self.error * (right.high.abs() + right.low.abs() + right.error)
        operands = operands + (self.high.abs() + self.low.abs()) * right.error
        high, low = two_sum(high, low)
        return Extended(high, low, (missed + operands) * SAFETY + UNDERFLOW)

    def each(self, change: Callable[[Tensor], Tensor]) -> Extended:
        """The same numbers in another shape or order: ``change`` of each of the three tensors."""
        return Extended(change(self.high), change(self.low), change(self.error))

    def expand_as(self, other: Tensor) -> Extended:
        """The same numbers in a larger shape."""
        return self.each(lambda part: part.expand_as(other))

    def sum(self, dim: int) -> Extended:
        """The sum over one dimension."""
        high, low, error = (part.unbind(dim) for part in (self.high, self.low, self.error))
        total = Extended(high[0], low[0], error[0])
        for parts in zip(high[1:], low[1:], error[1:], strict=True):
            total = total + Extended(*parts)
        return total

    def rounded(self) -> tuple[Tensor, Tensor]:
        """A float64 tensor and a bound on its distance from the exact value."""
        value = self.high + self.low
        return value, (self.error + UNIT * value.abs()) * SAFETY + UNDERFLOW


def sum_of(parts: Sequence[Tensor]) -> tuple[Extended, Tensor]:
    """The sum of tensors of one shape, and the sum of their absolute values, in float64.

    The errors of the additions are added up without compensation (Ogita, Rump and Oishi 2005,
    "Accurate sum and dot product", Sum2), so ``γ_n²`` of the absolute values is missing.
    """
    high = parts[0].double()
    low, size = torch.zeros_like(high), high.abs()
    for part in parts[1:]:
        wide = part.double()
        high, rest = two_sum(high, wide)
        low, size = low + rest, size + wide.abs()
    missed = (2 * len(parts) * UNIT) ** 2 * size
    high, low = two_sum(high, low)
    return Extended(high, low, missed * SAFETY), size


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum and its exact error (Knuth)."""
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded product and its exact error, up to underflow (Dekker)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(value: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers of at most 26 bits whose sum is the value (Veltkamp)."""
    scaled = value * (2.0**27 + 1)
    high = scaled - (scaled - value)
    return high, value - high


def reciprocal(number: int) -> Extended:
    """``1 / number`` with about 106 bits, as a scalar."""
    exact = Fraction(1, number)
    high = float(exact)
    low = float(exact - Fraction(high))
    error = math.nextafter(float(abs(exact - Fraction(high) - Fraction(low))), math.inf)
    return Extended(*(torch.tensor(part, dtype=torch.float64) for part in (high, low, error)))


def matmul(left: Extended, right: Extended) -> Extended:
    """The matrix product over the last two dimensions, the others broadcast.

    The bound covers the bits below the last slice, the products of slices that are left out, the
    compensated additions and the operands' own errors.
    """
    inner = left.high.shape[-1]
    # a product of two slices has at most 2 * bits + log2(inner) <= 50 bits, so that the sum of the
    # products of one level, which are multiples of one power of two, has no rounding error either
    bits = (50 - math.ceil(math.log2(max(inner, 1)))) // 2
    left_slices, left_top = _slices(left, bits, dim=-1)
    right_slices, right_top = _slices(right, bits, dim=-2)
    high = left.high @ right.high
    total = Extended.of(torch.zeros_like(high))
    for level in range(_SLICES):
        exact: Tensor | None = None
        for i in range(level + 1):
            a, b = left_slices[i], right_slices[level - i]
            if a is not None and b is not None:
                exact = a @ b if exact is None else exact + a @ b
        if exact is not None:
            total = total + exact
    missing = inner * (_SLICES**2 + 2) * 2.0 ** (-bits * _SLICES) * (left_top * right_top)
    magnitude = right.high.abs() + right.low.abs() + right.error
    operands = left.error @ magnitude + (left.high.abs() + left.low.abs()) @ right.error
    return Extended(total.high, total.low, (total.error + missing + operands) * SAFETY + UNDERFLOW)


def _slices(value: Extended, bits: int, dim: int) -> tuple[list[Tensor | None], Tensor]:
    """Cut into slices of ``bits`` bits below a power of two that covers each row or column.

    Slice i holds multiples of ``top * 2^(-bits (i + 1))`` of magnitude at most
    ``top * 2^(-bits i)``. A slice of zeros is None. The second value is ``top``.
    """
    largest = (value.high.abs() + value.low.abs()).amax(dim, keepdim=True)
    exponent = torch.frexp(largest).exponent.long() + 1
    exponent = torch.where(largest > 0, exponent, torch.full_like(exponent, _LEAST_EXPONENT))
    exponent = exponent.clamp(min=_LEAST_EXPONENT)
    high, low, slices = value.high, value.low, list[Tensor | None]()
    for number in range(1, _SLICES + 1):
        shift = bits * number - exponent
        up, down = _power_of_two(shift), _power_of_two(-shift)
        part_high = torch.round(high * up) * down
        part_low = torch.round(low * up) * down
        high, low = high - part_high, low - part_low
        part = part_high + part_low
        slices.append(part if bool(part.any()) else None)
    return slices, _power_of_two(exponent).masked_fill(exponent > _LARGEST_EXPONENT, math.inf)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2 to an integer power, exactly: the library's pow may round."""
    return ((exponent.clamp(-1022, 1023) + 1023) << 52).view(torch.float64)
