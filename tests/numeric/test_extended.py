"""Extended products against exact fractions: the bound holds, and it is small."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from otimes.numeric import extended
from otimes.numeric.extended import Extended, matmul, reciprocal, two_product, two_sum
from tests.kit import fractions


def exact(value: Extended | Tensor) -> np.ndarray:
    """An array of fractions."""
    if isinstance(value, Extended):
        return fractions(value.high) + fractions(value.low)
    return fractions(value)


def check(value: Extended, right: np.ndarray, relative: float | None, size: np.ndarray) -> None:
    """Raise unless the error is within the stated bound, and the bound within ``relative``."""
    assert value.high.shape == right.shape
    error = np.abs(exact(value) - right)
    stated = exact(value.error)
    assert (error <= stated).all(), float(np.max(error - stated))
    if relative is not None:
        assert (stated <= Fraction(relative) * size + Fraction(1e-289)).all()


def random(seed: int, *shape: int, spread: float = 0.0) -> Tensor:
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-spread, spread, shape)
    return torch.from_numpy(rng.standard_normal(shape) * scale)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 5), (5, 2)),
        ((1, 1), (1, 1)),
        ((2, 3, 5), (5, 4)),
        ((2, 1, 3, 5), (4, 5, 2)),
        ((3, 40), (40, 2)),
        ((2, 300), (300, 1)),
    ],
)
def test_a_product_of_floats(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = random(1, *left), random(2, *right)

    found = Extended.of(a) @ b

    check(found, exact(a) @ exact(b), 1e-25, np.abs(exact(a)) @ np.abs(exact(b)))


@given(st.integers(0, 2**16), st.sampled_from([0.0, 3.0, 10.0]))
def test_a_chain_of_products_and_sums(seed: int, spread: float) -> None:
    """Rows and columns of very different size: relative to the largest of each is enough."""
    a, b = random(seed, 3, 4, spread=spread), random(seed + 1, 4, 5, spread=spread)
    c, d = random(seed + 2, 5, 2, spread=spread), random(seed + 3, 3, 2, spread=spread)

    found = Extended.of(a) @ b @ c + d - (Extended.of(d) - d)

    right = exact(a) @ exact(b) @ exact(c) + exact(d)
    rows, columns = (np.abs(exact(x)).max(1, keepdims=True) for x in (a, b)), c.abs().max()
    largest_row, largest_b = rows
    size = 20 * largest_row * largest_b.max() * Fraction(float(columns)) + np.abs(exact(d)).max()
    check(found, right, 1e-25, size)


@pytest.mark.parametrize("left", [1e-300, 1e-270, 2.0**-900, 1e-150, 1.0, 1e150, 1e300])
@pytest.mark.parametrize("right", [1e-300, 2.0**-880, 1e-160, 1.0, 1e100, 2.0**900, 1e300])
@pytest.mark.parametrize("inner", [1, 2, 7])
def test_hostile_scales(left: float, right: float, inner: int) -> None:
    """Powers of two that do not exist made slices of tiny numbers twice too large."""
    a, b = random(5, 3, inner) * left, random(6, inner, 2) * right

    found = Extended.of(a) @ b

    if left * right > 1e305:
        assert not torch.isfinite(found.error).any() or not torch.isfinite(found.high).any()
        return
    relative = 1e-25 if min(left, right) >= 1e-250 else None
    check(found, exact(a) @ exact(b), relative, np.abs(exact(a)) @ np.abs(exact(b)))


def test_zeros_and_denormals() -> None:
    a = torch.tensor([[0.0, 0.0, 0.0], [5e-324, -3e-310, 1.0], [0.0, 2.0**-1022, -0.0]]).double()
    b = torch.tensor([[1e300, 0.0], [3.0, 5e-324], [0.0, 1.0]], dtype=torch.float64)

    for left, right in ((a, b), (b.T, a), (a, a.T), (a, torch.zeros(3, 4, dtype=torch.float64))):
        check(Extended.of(left) @ right, exact(left) @ exact(right), None, np.zeros(1))


def test_cancellation_to_the_last_bit() -> None:
    a = torch.tensor([[1.0, 2.0**-53, -1.0]], dtype=torch.float64)
    b = torch.tensor([[1.0], [2.0**-50], [1.0]], dtype=torch.float64)

    found = Extended.of(a) @ b

    assert exact(found)[0, 0] == Fraction(2) ** -103
    assert float(a @ b) in (0.0, 2.0**-103)


def test_operands_with_errors_of_their_own() -> None:
    a, b = random(8, 3, 4), random(9, 4, 2)
    wrong = 1e-20 * torch.ones_like(a)
    left = Extended(a, torch.zeros_like(a), 2 * wrong)

    found = left @ b

    check(found, (exact(a) + exact(wrong)) @ exact(b), None, np.zeros(1))
    check(Extended.of(b.T) @ Extended(left.high.T, left.low.T, left.error.T),
          exact(b.T) @ (exact(a) - exact(wrong)).T, None, np.zeros(1))  # fmt: skip


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=12))
def test_sums(numbers: list[float]) -> None:
    values = torch.tensor(numbers, dtype=torch.float64)[:, None]

    total = Extended.of(values).sum(0)

    right = np.array([sum(map(Fraction, numbers))], dtype=object)
    size = np.array([sum(abs(Fraction(number)) for number in numbers)], dtype=object)
    check(total, right, 1e-30, size)
    rounded, bound = total.rounded()
    assert abs(exact(rounded)[0] - right[0]) <= exact(bound)[0]
    assert exact(bound)[0] <= Fraction(2.0**-52) * (abs(right[0]) + size[0] / 2**50) + Fraction(
        1e-289
    )


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
def test_two_sum_has_no_error(a: float, b: float) -> None:
    total, rest = two_sum(*(torch.tensor(x, dtype=torch.float64) for x in (a, b)))

    assert Fraction(float(total)) + Fraction(float(rest)) == Fraction(a) + Fraction(b)
    assert float(total) == a + b


def test_float32_is_taken_exactly() -> None:
    value = random(3, 4).float()

    assert (exact(Extended.of(value)) == exact(value)).all()


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1.7e308])
def test_numbers_that_are_not_finite_leave_no_finite_bound(bad: float) -> None:
    a = torch.tensor([[bad, bad], [1.0, 2.0]], dtype=torch.float64)

    found = Extended.of(a) @ a

    assert not torch.isfinite(found.high[0] + found.error[0]).any()


@pytest.mark.parametrize("number", range(5))
def test_a_dropped_slice_is_seen(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of these tests can fail: one slice less breaks the bound."""
    right_slices = extended._slices

    def broken(value, bits, dim):
        slices, top = right_slices(value, bits, dim)
        return [None if i == number else part for i, part in enumerate(slices)], top

    a = Extended.of(random(1, 3, 5))
    a = a @ random(3, 5, 5) + random(4, 3, 5)  # 100 bits in each number
    b = random(2, 5, 2)
    expected = exact(a) @ exact(b)
    check(Extended(a.high, a.low, 0 * a.error) @ b, expected, None, np.zeros(1))
    monkeypatch.setattr(extended, "_slices", broken)

    with pytest.raises(AssertionError):
        check(matmul(Extended(a.high, a.low, 0 * a.error), Extended.of(b)), expected, None,
              np.zeros(1))  # fmt: skip


@settings(max_examples=12)
@given(st.integers(0, 2**16), st.integers(1, 60))
def test_float64_products_of_slices_are_exact(seed: int, inner: int) -> None:
    bits = (52 - math.ceil(math.log2(max(inner, 1)))) // 2
    a, _ = extended._slices(Extended.of(random(seed, 2, inner)), bits, dim=-1)
    b, _ = extended._slices(Extended.of(random(seed + 1, inner, 2)), bits, dim=-2)
    for left in a:
        for right in b:
            if left is not None and right is not None:
                assert (exact(left @ right) == exact(left) @ exact(right)).all()


@given(st.integers(0, 2**16), st.sampled_from([0.0, 3.0, 40.0]))
def test_elementwise_products(seed: int, spread: float) -> None:
    """Of numbers with 100 bits and errors of their own, with broadcasting."""
    a, b = random(seed, 3, 4, spread=spread), random(seed + 1, 4, spread=spread)
    left = Extended.of(a) + 1e-20 * random(seed + 2, 3, 4) * a
    right = Extended.of(b) + 1e-20 * random(seed + 3, 4) * b

    found = left.times(right)

    expected = exact(left) * exact(right)
    check(found, expected, 1e-30, np.abs(expected))
    off = Extended(left.high, left.low, left.error + 1e-18 * a.abs())
    shifted = (exact(left) + Fraction(1e-18) * np.abs(exact(a))) * exact(right)
    check(off.times(right), shifted, None, np.zeros(1))


@given(st.floats(-1e140, 1e140), st.floats(-1e140, 1e140))
def test_two_product_has_no_error(a: float, b: float) -> None:
    product, rest = two_product(*(torch.tensor(x, dtype=torch.float64) for x in (a, b)))

    assert float(product) == a * b
    if abs(a * b) > 1e-260 or a == 0 or b == 0:
        assert Fraction(float(product)) + Fraction(float(rest)) == Fraction(a) * Fraction(b)


@pytest.mark.parametrize("number", [1, 3, 10, 768, 2**20, 12289])
def test_reciprocals(number: int) -> None:
    found = reciprocal(number)

    check(found, np.array(Fraction(1, number)), 2**-100, np.array(Fraction(1, number)))
    assert (number & (number - 1) == 0) == (float(found.low) == 0)
