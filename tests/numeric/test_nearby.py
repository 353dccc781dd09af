"""Bounds on the distance of two computations: real float32 ones are within, mistakes are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from otimes.numeric import nearby
from otimes.numeric.nearby import Nearby

UNIT = 2.0**-24 + 2.0**-53
SHAPE = (2, 5, 12)


def drawn(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * spread


def off(value: Tensor, seed: int, relative: float) -> tuple[Nearby, Tensor]:
    """A value with its bound, and a float32 one that is about as far away as the bound allows."""
    error = relative * (value.abs() + 0.1)
    signs = drawn(*value.shape, seed=seed + 100).sign()
    return Nearby(value, error + 2.0**-23 * value.abs()), (value + signs * error).float()


def within(near: Nearby, other: Tensor) -> float:
    """The largest part of its bound that a distance takes."""
    distance = (near.value - other.double()).abs()
    return float((distance / near.distance).masked_fill(distance == 0, 0.0).max())


MATRIX, BIAS, GAIN = drawn(12, 7, seed=1), drawn(7, seed=2), drawn(12, seed=3) + 0.8
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
ANGLE = torch.arange(5)[:, None] * torch.tensor([1.0, 0.3, 0.01], dtype=torch.float64)


def layer_norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, (12,), GAIN.to(x.dtype), drawn(12, seed=9).to(x.dtype), 1e-5)


def rms_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * GAIN.to(x.dtype)


def turned(x: Tensor, angle: Tensor = ANGLE) -> Tensor:
    cos, sin = (part(angle.to(x.dtype)) for part in (torch.cos, torch.sin))
    a, b, rest = x[..., :3], x[..., 3:6], x[..., 6:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def softmax(x: Tensor) -> Tensor:
    square = x[..., :5].masked_fill(~CAUSAL, -torch.inf)
    return square.softmax(-1)


#: what is bounded: the bound, and the formula as another program computes it
FORMULAS: dict[str, tuple[Callable[[Nearby], Nearby], Callable[[Tensor], Tensor]]] = {
    "linear": (
        lambda x: nearby.linear(x, MATRIX, BIAS, UNIT),
        lambda x: x @ MATRIX.to(x.dtype) + BIAS.to(x.dtype),
    ),
    "product": (
        lambda x: nearby.product(x, x.each(lambda t: t.mT), UNIT), lambda x: x @ x.mT,
    ),
    "times": (lambda x: nearby.times(x, x, UNIT), lambda x: x * x),
    "add": (lambda x: nearby.add(x, x, x, unit=UNIT), lambda x: x + (x + x)),
    "scale": (lambda x: nearby.scale(x, 1 / 3, UNIT), lambda x: x * (1 / 3)),
    "cap": (lambda x: nearby.cap(x, 1.5, UNIT), lambda x: 1.5 * torch.tanh(x / 1.5)),
    "gelu": (lambda x: nearby.activate(x, functional.gelu, UNIT), functional.gelu),
    "silu": (lambda x: nearby.activate(x, functional.silu, UNIT), functional.silu),
    "layer norm": (
        lambda x: nearby.norm(x, "layer", 1e-5, GAIN, drawn(12, seed=9), UNIT), layer_norm,
    ),
    "rms norm": (lambda x: nearby.norm(x, "rms", 1e-5, GAIN, None, UNIT), rms_norm),
    "norm, then linear": (
        lambda x: nearby.linear(nearby.norm(x, "rms", 1e-5, GAIN, None, UNIT), MATRIX, BIAS, UNIT),
        lambda x: rms_norm(x) @ MATRIX.to(x.dtype) + BIAS.to(x.dtype),
    ),
    "softmax": (
        lambda x: nearby.softmax(x.each(lambda t: t[..., :5]), CAUSAL, UNIT), softmax,
    ),
    "turn": (
        lambda x: nearby.turn(x, ANGLE, "half", 4 * UNIT * ANGLE, UNIT), turned,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_another_program_is_within_the_bound(name: str, spread: float) -> None:
    """In float32, from the same input and from one that is off as far as its bound says."""
    bounded, formula = FORMULAS[name]
    for seed in range(5):
        exact = drawn(*SHAPE, seed=seed, spread=spread).float().double()
        assert within(bounded(Nearby.exact(exact)), formula(exact.float())) <= 1
        near, other = off(exact, seed, 1e-6)
        assert within(bounded(near), formula(other)) <= 1


@pytest.mark.parametrize("name", FORMULAS)
def test_the_bound_says_something(name: str) -> None:
    """It is a few hundred roundings, and what is carried in is not lost."""
    bounded, _ = FORMULAS[name]
    exact = drawn(*SHAPE)
    found = bounded(Nearby.exact(exact))
    assert float(found.distance.max()) < 2e-4 * float(found.value.abs().max())
    assert float(found.distance.min()) > 0 or name == "softmax"
    carried = bounded(Nearby(exact, torch.full_like(exact, 1e-3)))
    assert float(carried.distance.max()) > 50 * float(found.distance.max())


@pytest.mark.parametrize("name", FORMULAS)
def test_a_smaller_unit_is_not_enough_for_float32(name: str) -> None:
    """Were the bounds loose by ten orders, this would not fail."""
    _, formula = FORMULAS[name]
    exact = drawn(*SHAPE).float().double()
    # the bound in which float64's roundings alone are counted
    narrow = _narrow(name)(Nearby.exact(exact))
    assert within(narrow, formula(exact.float())) > 1


def _narrow(name: str) -> Callable[[Nearby], Nearby]:
    unit = 2.0**-52
    return {
        "linear": lambda x: nearby.linear(x, MATRIX, BIAS, unit),
        "product": lambda x: nearby.product(x, x.each(lambda t: t.mT), unit),
        "times": lambda x: nearby.times(x, x, unit),
        "add": lambda x: nearby.add(x, x, x, unit=unit),
        "scale": lambda x: nearby.scale(x, 1 / 3, unit),
        "cap": lambda x: nearby.cap(x, 1.5, unit),
        "gelu": lambda x: nearby.activate(x, functional.gelu, unit),
        "silu": lambda x: nearby.activate(x, functional.silu, unit),
        "layer norm": lambda x: nearby.norm(x, "layer", 1e-5, GAIN, drawn(12, seed=9), unit),
        "rms norm": lambda x: nearby.norm(x, "rms", 1e-5, GAIN, None, unit),
        "norm, then linear": lambda x: nearby.linear(
            nearby.norm(x, "rms", 1e-5, GAIN, None, unit), MATRIX, BIAS, unit
        ),
        "softmax": lambda x: nearby.softmax(x.each(lambda t: t[..., :5]), CAUSAL, unit),
        "turn": lambda x: nearby.turn(x, ANGLE, "half", 4 * unit * ANGLE, unit),
    }[name]


def test_a_common_error_stays_common_through_a_matrix() -> None:
    """1 % of every coordinate is 1 % of what a matrix makes of them, whatever cancels in it."""
    x = drawn(1, 1, 12)
    near = Nearby(x, torch.zeros_like(x), x, torch.full((1, 1, 1), 0.01, dtype=torch.float64))
    found = nearby.linear(near, MATRIX, BIAS, 2.0**-52)

    expected = 0.01 * (x @ MATRIX).abs()
    torch.testing.assert_close(found.distance, expected, rtol=1e-5, atol=1e-12)
    assert within(found, 1.01 * x @ MATRIX + BIAS) <= 1
    assert within(found, 1.011 * x @ MATRIX + BIAS) > 1


def test_a_row_that_attends_to_nothing() -> None:
    x = Nearby.exact(drawn(1, 3, 3))
    allowed = torch.tensor([[False, False, False], [True, False, False], [True, True, False]])
    found = nearby.softmax(x, allowed, UNIT)

    assert float(found.value[0, 0].abs().max()) == float(found.distance[0, 0].max()) == 0
    assert bool((found.value[0, 1] == torch.tensor([1.0, 0.0, 0.0])).all())


def test_patterns_are_never_more_than_one_apart() -> None:
    scores = Nearby(drawn(1, 4, 4), torch.full((1, 4, 4), 1e9, dtype=torch.float64))
    found = nearby.softmax(scores, torch.ones(4, 4, dtype=torch.bool), UNIT)

    assert 1 <= float(found.distance.max()) < 1.1


def test_a_square_that_may_vanish_bounds_nothing() -> None:
    x = Nearby(torch.full((1, 1, 4), 1e-3, dtype=torch.float64), torch.ones(1, 1, 4).double())
    found = nearby.norm(x, "rms", 1e-9, torch.ones(4), None, UNIT)

    assert not bool(found.distance.isfinite().any())


def test_scores_that_are_converted_before_the_softmax() -> None:
    """Large scores lose more by the conversion than their differences do."""
    scores = drawn(1, 5, 5) + 3000.0
    there = scores.float().masked_fill(~CAUSAL, -torch.inf).softmax(-1)

    near = nearby.softmax(Nearby.exact(scores), CAUSAL, UNIT)

    assert 0.01 < within(near, there) <= 1
    far = (scores - scores.masked_fill(~CAUSAL, -torch.inf).amax(-1, keepdim=True)).abs()
    of_differences = near.value * torch.expm1(4 * UNIT * (far + 30))
    assert bool(((near.value - there.double()).abs() > of_differences).any())


def test_a_gain_that_is_stored_less_one() -> None:
    """A small one is off by the rounding of what is stored, not by its own."""
    x, stored = drawn(*SHAPE), drawn(12, seed=3) * 1e-4 - 1.0
    there = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
    there = there * (1.0 + stored.float())

    near = nearby.norm(Nearby.exact(x), "rms", 1e-5, stored + 1.0, None, UNIT)

    assert 0.1 < within(near, there) <= 1
