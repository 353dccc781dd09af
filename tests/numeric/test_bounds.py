"""Bounds on rounding for every shape of block, against the network in exact fractions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from otimes.numeric import apriori
from otimes.numeric.apriori import absolute_bound, adjoint_bound, adjoint_bounds
from otimes.numeric.chosen import Chosen
from otimes.numeric.extended import Extended
from otimes.numeric.frozen import FrozenHeads, FrozenModel
from otimes.numeric.gains import (
    absolute_gain,
    gradient_norm,
    linear_gain,
    spectral_norm,
    stream_norm,
)
from otimes.numeric.rounding import Step, Trace, carry, plain_steps, recorded_trace, steps
from otimes.numeric.traces import enumerated_trace, order_trace
from tests.kit import fractions
from tests.numeric import exact_network
from tests.numeric.exact_network import Exact
from tests.synthetic import SHAPES, Shape, dense, make_frozen

ALL = pytest.mark.parametrize("name", SHAPES)
# float32 differs by its unit alone: for two of the shapes
IN_BOTH = pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float64) for name in SHAPES]
    + [(name, torch.float32) for name in ("batch", "post, centred")],
)


@cache
def small(name: str, dtype: torch.dtype) -> tuple[FrozenModel, Exact]:
    model = make_frozen(replace(SHAPES[name], length=2, d_model=4)).to(dtype)
    return model, exact_network.exact_network(model)


def chosen_of(model: FrozenModel) -> Chosen:
    return Chosen.of((row, 1, token) for row in range(model.batch) for token in (2, 5))


def judge_of(model: FrozenModel, chosen: Chosen | None) -> Trace:
    """A module that adds its stream up block by block, in the model's dtype."""
    streams = model.forward()
    read, joined = model.read(streams[-1]), model.unembedded()
    read = read if joined is None else read + model.direction(joined)
    logits = read @ model.W_U
    logits = logits if model.b_U is None else logits + model.b_U
    return recorded_trace(tuple(streams), logits, chosen)


@cache
def traces_of(name: str, dtype: torch.dtype, *, chosen: bool = False) -> dict[str, Trace]:
    model, _ = small(name, dtype)
    some = chosen_of(model) if chosen else None
    paths = [(path.source, path.components) for path in dense(model.to(torch.float64)).paths()]
    return {
        "judge": judge_of(model, some),
        "enumerated": enumerated_trace(model, paths, some).trace,
        "by order": order_trace(model, len(paths), some).trace,
    }


@cache
def sides_of(name: str, dtype: torch.dtype) -> dict[str, tuple[Trace, list[Step]]]:
    """Every side's trace with its steps, measured with about 100 bits."""
    model, _ = small(name, dtype)
    return {side: (trace, steps(model, trace)) for side, trace in traces_of(name, dtype).items()}


def value_of(extended: Extended) -> np.ndarray:
    return fractions(extended.high) + fractions(extended.low)


def within(error: np.ndarray, bound: torch.Tensor, what: str) -> None:
    over = np.abs(error) > fractions(bound)
    assert not over.any(), f"{what}: {float(np.abs(error).max())} > {float(bound.max())}"


@IN_BOTH
def test_errors_are_within_every_bound(name: str, dtype: torch.dtype) -> None:
    model, exact = small(name, dtype)
    chosen = chosen_of(model)
    for side, (trace, measured) in sides_of(name, dtype).items():
        error = value_of(trace.logits) - exact.logits
        for any_order in (False, True):
            carried = carry(model, measured, any_order=any_order)
            for number, bound in enumerate(carried.streams):
                off = value_of(trace.streams[number]) - exact.streams[number]
                within(off, bound, f"{side}: stream {number}")
            within(error, carried.logits, f"{side}: logits")
        local = [step.bound for step in measured]
        within(error, absolute_bound(model, local), f"{side}: absolute")
        some = error[chosen.rows, chosen.positions, chosen.tokens]
        within(some, adjoint_bound(model, [*local[:-1], chosen.take(local[-1])], chosen), side)
        assert all(step.excess <= 1 for step in measured), side


@ALL
def test_measuring_is_as_exact_as_it_says(name: str) -> None:
    """With about 100 bits, and in float64 alone for chosen logits."""
    dtype = torch.float64
    model, _ = small(name, dtype)
    chosen = chosen_of(model)
    traces = traces_of(name, dtype, chosen=True)
    precise = [steps(model, trace) for trace in traces.values()]
    for trace, first, second in zip(
        traces.values(), precise, plain_steps(model, list(traces.values())), strict=True
    ):
        for number in range(model.depth):
            inputs, outputs = (value_of(x) for x in trace.streams[number : number + 2])
            deviation = outputs - exact_network.block(model, number, inputs)
            for step in (first[number + 1], second[number + 1]):
                within(deviation - fractions(step.deviation), step.uncertainty, step.name)
                assert step.excess <= 1
        assert trace.logits.high.shape == (len(chosen),)


@IN_BOTH
def test_bounds_say_much(name: str, dtype: torch.dtype) -> None:
    """Measured deviations: a few roundings; the others: a factor of the counts of roundings."""
    model, exact = small(name, dtype)
    unit, largest = torch.finfo(dtype).eps / 2, float(np.abs(exact.logits).max())
    chosen = chosen_of(model)
    for _, measured in sides_of(name, dtype).values():
        local = [step.bound for step in measured]

        assert float(carry(model, measured).logits.max()) < 50 * unit * largest
        adjoint = adjoint_bound(model, [*local[:-1], chosen.take(local[-1])], chosen)
        absolute = absolute_bound(model, local)
        assert float(absolute.max()) < 1e5 * unit * largest
        assert (adjoint <= 1.001 * chosen.take(absolute)).all()


@IN_BOTH
def test_the_distance_of_two_sides_weighted_by_the_adjoint(name: str, dtype: torch.dtype) -> None:
    """By local bounds and by measured deviations, which say more in float32; in one pass."""
    model, _ = small(name, dtype)
    chosen = chosen_of(model)
    traces = list(traces_of(name, dtype, chosen=True).values())
    judge, *others = zip(traces, plain_steps(model, traces), strict=True)
    for trace, mine in others:
        local = [a.bound + b.bound for a, b in zip(judge[1], mine, strict=True)]
        apart = [a.apart(b) for a, b in zip(judge[1], mine, strict=True)]
        pairs = zip(judge[0].streams, trace.streams, strict=True)
        far = [stream_norm((b - a).rounded()[0]) for a, b in pairs]
        before, measured = adjoint_bounds(model, [local, apart], far, chosen)
        error = value_of(trace.logits) - value_of(judge[0].logits)
        within(error, before, "local bounds")
        within(error, measured, "measured deviations")
        assert (measured <= (1 + 1e-12) * before).all()
        if dtype == torch.float32:  # measuring in float64 is as uncertain as computing in it
            assert float(measured.max()) < 0.2 * float(before.max())


def test_a_distance_without_a_step_is_seen() -> None:
    """One side's last block is off by 1e-3; bounds that leave the step out are too small."""
    model, _ = small("pre", torch.float64)
    chosen = chosen_of(model)
    judge = judge_of(model, chosen)
    change = torch.zeros_like(judge.streams[-1].high)
    change[..., 1] = 1e-3
    last = judge.streams[-1] + change
    logits = Extended.of(chosen.take(model.read(last.high) @ model.W_U))
    other = replace(judge, streams=(*judge.streams[:-1], last), logits=logits)
    local = [2 * step.bound for step in plain_steps(model, [judge])[0]]
    pairs = zip(judge.streams, other.streams, strict=True)
    far = [stream_norm((b - a).rounded()[0]) for a, b in pairs]

    error = value_of(other.logits) - value_of(judge.logits)
    bound = adjoint_bounds(model, [local], far, chosen)[0]

    with pytest.raises(AssertionError, match="local bounds: "):
        within(error, bound, "local bounds")


def test_adjoints_say_more_than_absolute_values_at_depth() -> None:
    model = make_frozen(Shape(layers=12, heads=2, kv_heads=2, d_model=24, d_head=6, length=6))
    trace = order_trace(model, 1).trace
    chosen = Chosen.of([(0, 5, 3)])
    local = [step.bound for step in plain_steps(model, [trace])[0]]

    adjoint = adjoint_bound(model, [*local[:-1], chosen.take(local[-1])], chosen)

    assert float(adjoint) < 1e-6 * float(trace.logits.high.abs().max())
    assert float(chosen.take(absolute_bound(model, local))) > 100 * float(adjoint)


@pytest.mark.parametrize("name", ["pre", "post, centred", "parallel"])
def test_a_bound_that_leaves_out_a_step_is_seen(name: str) -> None:
    """The comparisons can fail: deviations of 1e-3 of the last block and bounds without it."""
    model, exact = small(name, torch.float64)
    trace = traces_of(name, torch.float64)["judge"]
    change = torch.zeros_like(trace.streams[-1].high)
    change[..., 1] = 1e-3
    moved = trace.streams[-1] + change
    logits = exact_network.unembedded(model, value_of(moved))
    changed = replace(trace, streams=(*trace.streams[:-1], moved))
    local = [step.bound for step in steps(model, changed)]

    assert steps(model, changed)[-2].excess > 1
    with pytest.raises(AssertionError, match="absolute: "):
        within(logits - exact.logits, absolute_bound(model, local), "absolute")


def test_an_adjoint_without_weights_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = small("pre", torch.float64)
    chosen = chosen_of(model)
    local = [step.bound for step in sides_of("pre", torch.float64)["judge"][1]]
    local[-1] = chosen.take(local[-1])
    right = adjoint_bound(model, local, chosen)
    heads = FrozenHeads.moved_adjoint
    monkeypatch.setattr(FrozenHeads, "moved_adjoint", lambda self, g: 0 * heads(self, g))

    assert (adjoint_bound(model, local, chosen) < 0.9 * right).any()


def test_the_adjoints_own_rounding_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = small("pre", torch.float64)
    chosen = chosen_of(model)
    local = [step.bound for step in sides_of("pre", torch.float64)["judge"][1]]
    local[-1] = chosen.take(local[-1])
    right = adjoint_bound(model, local, chosen)
    monkeypatch.setattr(apriori, "absolute_gain", lambda _: 1e24)

    assert (adjoint_bound(model, local, chosen) > 10 * right).all()


@ALL
def test_gains_are_operator_norms(name: str) -> None:
    """No stream is enlarged by more, forwards or backwards, and some by a good part of it."""
    model = make_frozen(SHAPES[name])
    generator = torch.Generator().manual_seed(3)
    for block in model.blocks:
        # 200 streams at once
        x = torch.randn(200, *model.zeros().shape, generator=generator, dtype=torch.float64)
        best = float((stream_norm(block.apply(x)) / stream_norm(x)).max())
        back = gradient_norm(block.adjoint(x)) / gradient_norm(x)
        size = stream_norm(block.absolute().apply(x.abs())) / stream_norm(x)

        assert (back <= linear_gain(block)).all()
        assert (size <= absolute_gain(block)).all()
        assert best <= linear_gain(block) < 40 * best


@pytest.mark.parametrize("shape", [(3, 2), (2, 5), (4, 4), (6, 1), (3, 40, 7)])
@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e150])
def test_spectral_norms(shape: tuple[int, ...], scale: float) -> None:
    matrix = scale * torch.from_numpy(np.random.default_rng(4).standard_normal(shape))

    found, right = spectral_norm(matrix), torch.linalg.matrix_norm(matrix, ord=2)

    assert (found >= right).all()
    assert (found <= 1.13 * right).all()
    assert float(spectral_norm(torch.zeros(3, 2)).max()) < 1e-100
