"""Error bounds against the exact network in rational arithmetic: rigorous, and not vacuous."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from otimes.bridge import Run, load
from otimes.bridge.binding import numbered
from otimes.numeric.extended import Extended
from otimes.numeric.frozen import FrozenBlock, FrozenModel, FrozenPart
from otimes.numeric.magnitudes import (
    block_magnitude,
    gamma,
    linear_block,
    roundings,
    underflow,
    unit_roundoff,
)
from otimes.numeric.measured import exact_block
from otimes.numeric.rounding import Step, Trace, carry, recorded_trace, steps, worst_ratio
from otimes.numeric.scores import score_bounds, sums_of_terms
from otimes.numeric.traces import PathTrace, enumerated_trace, order_trace
from tests.factory import make_checkpoint
from tests.kit import fractions, heads_of, run_of
from tests.oracles import rational
from tests.strategies import Case, cases

DTYPES = (torch.float64, torch.float32)


@dataclass(frozen=True)
class Exact:
    """The network of the frozen model in fractions: streams before each block, and logits."""

    streams: list[np.ndarray]
    logits: np.ndarray


def exact_block_of(model: FrozenModel, layer: int, x: np.ndarray) -> np.ndarray:
    block = heads_of(model, layer)
    total = x
    for index in range(block.size):
        kv = index // block.group
        value = x @ fractions(block.W_V[kv])
        if block.b_V is not None:
            value = value + fractions(block.b_V[kv])
        patterns = fractions(block.pattern[:, index])
        moved = np.stack([A @ v for A, v in zip(patterns, value, strict=True)])
        total = total + moved @ fractions(block.W_O[index])
    return total + written(model, layer + 1)


def written(model: FrozenModel, entry: int) -> np.ndarray | Fraction:
    parts = [fractions(part.stream) for source in model.sources
             if source.entry == entry for part in source.parts]  # fmt: skip
    return sum(parts, Fraction(0))


def exact_of(model: FrozenModel) -> Exact:
    shape = (model.batch, model.length, model.W_U.shape[0])
    streams = [np.full(shape, Fraction(0)) + written(model, 0)]
    for layer in range(len(model.blocks)):
        streams.append(exact_block_of(model, layer, streams[-1]))
    logits = streams[-1] @ fractions(model.W_U)
    return Exact(streams, logits if model.b_U is None else logits + fractions(model.b_U))


def traces_of(run: Run, dtype: torch.dtype) -> dict[str, Trace]:
    model, recording = run.frozen(dtype).model, run.recording(dtype)
    terms = [numbered(term) for term in run.model.architecture.logits.expand().depth_first()]
    return {
        "judge": recorded_trace(recording.streams, recording.logits),
        "enumerated": enumerated_trace(model, terms).trace,
        "by order": order_trace(model, len(terms)).trace,
    }


def value_of(extended: Extended) -> np.ndarray:
    """The exact value that a trace stands for; its own error is 0 or far below a rounding."""
    return fractions(extended.high) + fractions(extended.low)


def assert_within(error: np.ndarray, bound: torch.Tensor, what: str) -> None:
    over = np.abs(error) > fractions(bound)
    assert not over.any(), f"{what}: {float(np.abs(error).max())} > {float(bound.max())}"


def check_bounds(run: Run, dtype: torch.dtype) -> None:
    model = run.frozen(dtype).model
    exact = exact_of(model)
    for name, trace in traces_of(run, dtype).items():
        measured = steps(model, trace)
        for any_order in (False, True):
            carried = carry(model, measured, any_order=any_order)
            for layer, (stream, bound) in enumerate(
                zip(trace.streams, carried.streams, strict=True)
            ):
                error = value_of(stream) - exact.streams[layer]
                assert_within(error, bound, f"{name}: stream {layer}")
            assert_within(value_of(trace.logits) - exact.logits, carried.logits, f"{name}: logits")
        for layer, step in enumerate(measured[1:-1]):
            deviation = value_of(trace.streams[layer + 1]) - exact_block_of(
                model, layer, value_of(trace.streams[layer])
            )
            error = deviation - fractions(step.deviation)
            assert_within(error, step.uncertainty, f"{name}: measuring {step.name}")
        assert all(step.excess <= 1 for step in measured), name


@settings(max_examples=5)
@given(cases(max_layers=2, max_heads=2, max_ctx=4))
def test_errors_are_within_the_carried_bounds(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), **case.architecture)
        run = load(folder).run(tokens=case.tokens, mask=case.mask)
        for dtype in DTYPES:
            check_bounds(run, dtype)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_of(
        tmp_path, tokens=[3, 1, 4, 1], n_layers=3, n_heads=2, n_kv_heads=1,
        biases=("b_V", "b_O", "b_U"), positions="learned",
    )[0]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_bounds_are_not_vacuous(run: Run, dtype: torch.dtype) -> None:
    """Within a small factor of errors as they are measured, whatever the depth."""
    model = run.frozen(dtype).model
    exact = exact_of(model)
    unit = unit_roundoff(dtype)
    for name, trace in traces_of(run, dtype).items():
        carried = carry(model, steps(model, trace))
        error = np.abs(value_of(trace.logits) - exact.logits).max()
        bound = float(carried.logits.max())

        assert 0 < error <= bound, name
        assert bound < 3 * error, name
        assert bound < 500 * unit * float(trace.logits.high.abs().max()), name


def test_the_exact_forward_pass_is_the_oracles(run: Run, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(
        tmp_path / "same", n_layers=3, n_heads=2, n_kv_heads=1, biases=("b_V", "b_O", "b_U"),
        positions="learned",
    )  # fmt: skip
    patterns = [layer[0].numpy() for layer in run.recording().patterns]

    expected = rational.forward_logits(checkpoint.config, checkpoint.arrays, [3, 1, 4, 1], patterns)

    assert exact_of(run.frozen().model).logits[0].tolist() == expected


@pytest.mark.parametrize("layer", [0, 2])
def test_the_measuring_block_is_exact(run: Run, layer: int) -> None:
    model, stream = run.frozen().model, run.stream(layer)

    found = exact_block(model, layer, Extended.of(stream))

    error = value_of(found) - exact_block_of(model, layer, fractions(stream))
    assert_within(error, found.error, "block")
    assert float(found.error.max()) < 1e-28


def test_a_deviation_is_measured_to_many_digits(run: Run) -> None:
    """A change of 1e-25 of one number of the stream is below any rounding, and is found."""
    model, trace = run.frozen().model, traces_of(run, torch.float64)["judge"]
    stream = trace.streams[1]
    change = torch.zeros_like(stream.high)
    change[0, 2, 1] = 1e-25
    changed = replace(trace, streams=(trace.streams[0], stream + change, *trace.streams[2:]))

    before, after = (steps(model, one)[1].deviation for one in (trace, changed))
    exact = value_of(changed.streams[1]) - value_of(stream)

    assert float(exact[0, 2, 1]) == pytest.approx(1e-25)
    step = steps(model, changed)[1]
    assert step.uncertainty.max() < 1e-28
    assert float((after - before)[0, 2, 1]) == pytest.approx(1e-25, rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bounds_fail_where_a_deviation_is_left_out(run: Run, dtype: torch.dtype) -> None:
    """The comparison can fail: without one step's deviation the carried bounds are too small."""
    model, trace = run.frozen(dtype).model, traces_of(run, dtype)["judge"]
    exact, measured = exact_of(model), steps(model, trace)
    nothing = torch.zeros_like(measured[2].deviation)
    broken = [*measured[:2], replace(measured[2], deviation=nothing), *measured[3:]]

    with pytest.raises(AssertionError, match="stream 2"):
        assert_within(
            value_of(trace.streams[2]) - exact.streams[2],
            carry(model, broken).streams[2],
            "stream 2",
        )


def test_magnitudes_are_the_absolute_network(run: Run) -> None:
    model, x = run.frozen().model, run.stream(1)
    blocks = [heads_of(model, layer) for layer in range(model.depth)]
    absolute = replace(
        model,
        blocks=tuple(
            FrozenBlock(replace(b, pattern=b.pattern.abs(), W_V=b.W_V.abs(), W_O=b.W_O.abs(),
                                b_V=None if b.b_V is None else b.b_V.abs()))
            for b in blocks
        ),
        sources=tuple(replace(s, parts=tuple(FrozenPart(p.stream.abs()) for p in s.parts))
                      for s in model.sources),
    )  # fmt: skip

    found = block_magnitude(model, 1, x.abs())
    linear = linear_block(model.blocks[1], x, absolute=False)

    expected = exact_block_of(absolute, 1, fractions(x.abs()))
    torch.testing.assert_close(found, torch.tensor(expected.astype(float)))
    zero = linear_block(model.blocks[1], torch.zeros_like(x))
    torch.testing.assert_close(linear_block(model.blocks[1], 2 * x), 2 * linear - zero)
    assert float(zero.abs().max()) == 0


def test_rounding_counts(run: Run) -> None:
    """d_model and pos for the value and its mixing, heads * d_head for the output, and sums."""
    model = run.frozen().model

    assert roundings(model, 0) >= 10 + 4 + 2 * 4 + 4
    assert gamma(10, 2.0**-53) > 10 * 2.0**-53
    assert unit_roundoff(torch.float64) == 2.0**-53
    assert unit_roundoff(torch.float32) == 2.0**-24
    assert underflow(torch.float64) < 1e-280 < underflow(torch.float32)


def test_what_is_not_finite_exceeds_every_bound() -> None:
    one, nan, inf = (torch.tensor([x]).double() for x in (1.0, float("nan"), float("inf")))

    assert worst_ratio(one, 2 * one) == 0.5
    for error, bound in ((nan, one), (one, nan), (one, inf), (inf, one), (inf, inf)):
        assert worst_ratio(error, bound) == float("inf")
    assert Step("x", nan, one, one).excess == float("inf")


@settings(max_examples=4)
@given(cases(max_layers=2, max_heads=2, max_ctx=4))
def test_scores_are_within_their_bound_of_the_exact_ones(case: Case) -> None:
    """Both the recorded scores and the sums of terms, about the exact network's scores."""
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), **case.architecture)
        run = load(folder).run(tokens=case.tokens, mask=case.mask)
        for dtype in DTYPES:
            check_scores(run, dtype)


def bounds_of(
    run: Run, layer: int, pairs: int, engine: PathTrace, far: Sequence[Sequence[Tensor]]
) -> Tensor:
    dtype = engine.trace.dtype
    size = run.recording(dtype).streams[layer].double().abs()
    size = torch.maximum(size, engine.trace.magnitudes[layer])
    distance = far[0][layer] + far[1][layer]
    count = pairs + len(engine.parts[layer])
    return score_bounds(run.frozen(dtype).readers[layer], count, dtype, size, distance)


def check_scores(run: Run, dtype: torch.dtype) -> None:
    frozen, recording = run.frozen(dtype), run.recording(dtype)
    exact = exact_of(frozen.model)
    terms = [numbered(term) for term in run.model.architecture.logits.expand().depth_first()]
    engine = enumerated_trace(frozen.model, terms)
    judge = recorded_trace(recording.streams, recording.logits)
    far = [carry(frozen.model, steps(frozen.model, t)).streams for t in (judge, engine.trace)]
    for layer, reader in enumerate(frozen.readers):
        values, pairs = sums_of_terms(reader, engine.parts[layer])
        bounds = bounds_of(run, layer, pairs, engine, far)
        for head in range(run.model.config.n_heads):
            value, bound = values[:, head], bounds[:, head]
            kv = head // (run.model.config.n_heads // run.model.config.n_kv_heads)
            added = Fraction(0) if reader.positions is None else fractions(reader.positions)
            queries = (exact.streams[layer] + added) @ fractions(reader.W_Q[head])
            keys = (exact.streams[layer] + added) @ fractions(reader.W_K[kv])
            queries = queries if reader.b_Q is None else queries + fractions(reader.b_Q[head])
            keys = keys if reader.b_K is None else keys + fractions(reader.b_K[kv])
            right = Fraction(reader.scale) * np.stack(
                [q @ k.T for q, k in zip(queries, keys, strict=True)]
            )
            assert_within(fractions(recording.scores[layer][:, head]) - right, bound, "recorded")
            assert_within(fractions(value) - right, bound, "sum of terms")
            assert_within(
                fractions(recording.scores[layer][:, head]) - fractions(value), bound, "difference"
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_score_bounds_are_not_vacuous(run: Run, dtype: torch.dtype) -> None:
    """A change of one recorded score by 3e5 roundings of the largest exceeds the bound."""
    frozen, recording = run.frozen(dtype), run.recording(dtype)
    terms = [numbered(term) for term in run.model.architecture.logits.expand().depth_first()]
    engine = enumerated_trace(frozen.model, terms)
    judge = recorded_trace(recording.streams, recording.logits)
    far = [carry(frozen.model, steps(frozen.model, t)).streams for t in (judge, engine.trace)]
    for layer in range(len(frozen.readers)):
        bound = bounds_of(run, layer, 400, engine, far)[:, 1]
        assert float(bound.max()) < 3e5 * unit_roundoff(dtype) * float(
            recording.scores[layer].abs().max()
        )
