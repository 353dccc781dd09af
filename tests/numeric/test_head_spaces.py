"""Norms and rotations of queries and keys against plain numpy, and bounds that hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from otimes.numeric.edges import FrozenEdge
from otimes.numeric.head_spaces import HeadNorm, Rotation
from otimes.numeric.scores import FrozenReader, cap_error, score_bounds, sums_of_terms
from tests.kit import close
from tests.oracles.transformer import frequencies, rotated

BATCH, LENGTH, HEADS, KV, WIDTH, D = 2, 5, 4, 2, 6, 7
THETA = 50.0


def angles(positions: np.ndarray, dim: int) -> torch.Tensor:
    turns = np.array(frequencies({"theta": THETA, "dim": dim}, WIDTH))
    return torch.from_numpy(positions[..., None] * turns)


def rotation(dim: int = WIDTH, pairing: str = "half", dtype: Any = torch.float64) -> Rotation:
    positions = np.array([[0, 0, 1, 2, 3], [4, 5, 6, 17, 1000]])
    return Rotation(angles(positions, dim), pairing, 1e-14, dtype)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("dim", [2, 4, 6])
def test_vectors_turn_as_by_rotation_matrices(pairing: str, dim: int) -> None:
    turn = rotation(dim, pairing)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, BATCH, LENGTH, WIDTH)))
    before = x.clone()
    positions = np.array([[0, 0, 1, 2, 3], [4, 5, 6, 17, 1000]])
    expected = np.zeros(x.shape)
    for place in np.ndindex(3, BATCH, LENGTH):
        how = {"theta": THETA, "dim": dim, "pairing": pairing}
        expected[place] = rotated(x[place].numpy(), positions[place[1:]], how)

    close(turn.apply(x), expected, 1e-12)
    close(turn.apply(x[:, :, [3, 1]], [3, 1]), expected[:, :, [3, 1]], 1e-12)
    close(turn.adjoint(turn.apply(x)), before, 1e-13)
    close(turn.sequence(1).apply(x[:, 1:]), expected[:, 1:], 1e-12)
    assert torch.equal(x, before)
    y = torch.flip(x, (0, 2))
    assert float((turn.apply(x) * y).sum()) == pytest.approx(float((x * turn.adjoint(y)).sum()))


def test_the_pairings_are_not_the_same() -> None:
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((BATCH, LENGTH, WIDTH)))

    assert float((rotation().apply(x) - rotation(pairing="interleaved").apply(x)).abs().max()) > 0.1


def normed(q: np.ndarray, gain: np.ndarray, over: str, centred: bool) -> tuple[Any, Any]:
    """Queries [head, pos, d_head] normed, and 1/σ."""
    axes = (0, 2) if over == "all" else (2,)
    q = q - q.mean(axes, keepdims=True) if centred else q
    scale = 1 / np.sqrt((q**2).mean(axes, keepdims=True) + 0.1)
    return q * scale * gain[:, None], np.broadcast_to(scale, (*q.shape[:2], 1))[..., 0]


@pytest.mark.parametrize("over", ["head", "all"])
@pytest.mark.parametrize("centred", [True, False])
def test_a_folded_norm_is_the_norm(over: Literal["head", "all"], centred: bool) -> None:
    rng = np.random.default_rng(2)
    x, W = rng.standard_normal((LENGTH, D)), rng.standard_normal((HEADS, D, WIDTH))
    bias = rng.standard_normal((HEADS, WIDTH))
    gain = 1 + 0.5 * rng.standard_normal((HEADS if over == "all" else 1, WIDTH))
    raw = np.stack([x @ W[h] + bias[h] for h in range(HEADS)])
    expected, scale = normed(raw, gain, over, centred)
    norm = HeadNorm(torch.from_numpy(scale.copy())[None], torch.from_numpy(gain), over, centred)

    matrices, biases = norm.fold(torch.from_numpy(W)), norm.fold(torch.from_numpy(bias))

    for h in range(HEADS):
        q = torch.from_numpy(x) @ matrices[h] + biases[h]
        close(q * norm.scale[0, h][:, None], expected[h], 1e-12)
    sizes = norm.fold_magnitudes(torch.from_numpy(W).abs())
    assert bool((sizes >= matrices.abs()).all())


@st.composite
def readers(draw: st.DrawFn) -> tuple[FrozenReader, list[torch.Tensor]]:
    """A reader with anything, and the parts of a stream, some of which cancel."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))

    def random(*size: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(size))

    def norm(heads: int) -> HeadNorm | None:
        if not draw(st.booleans()):
            return None
        over = draw(st.sampled_from(["head", "all"]))
        gain = 1 + random(heads if over == "all" else 1, WIDTH)
        return HeadNorm(random(BATCH, heads, LENGTH).exp(), gain, over, draw(st.booleans()))

    edge = FrozenEdge()
    if draw(st.booleans()):
        edge = FrozenEdge(
            random(BATCH, LENGTH).exp(), random(D), draw(st.booleans()), 1.0, random(D)
        )
    turn = None
    if draw(st.booleans()):
        turn = rotation(
            draw(st.sampled_from([2, 6])), draw(st.sampled_from(["half", "interleaved"]))
        )
    reader = FrozenReader(
        random(HEADS, D, WIDTH), random(KV, D, WIDTH), random(HEADS, WIDTH), random(KV, WIDTH),
        random(BATCH, LENGTH, D) if draw(st.booleans()) else None, 0.4, edge,
        random(BATCH, HEADS, LENGTH, LENGTH) if draw(st.booleans()) else None,
        norm(HEADS), norm(KV), turn,
    )  # fmt: skip
    large = draw(st.sampled_from([1.0, 1e4])) * random(BATCH, LENGTH, D)
    return reader, [large, random(BATCH, LENGTH, D), -large]


def in_dtype(reader: FrozenReader, dtype: torch.dtype) -> FrozenReader:
    """The same numbers, rounded where the dtype is narrower."""

    def norm(found: HeadNorm | None) -> HeadNorm | None:
        if found is None:
            return None
        return replace(found, scale=found.scale.to(dtype), gain=found.gain.to(dtype))

    names = ("W_Q", "W_K", "b_Q", "b_K", "positions", "shift")
    tensors = {name: getattr(reader, name) for name in names}
    turn = reader.rotation
    return replace(
        reader, reads=reader.reads.to(dtype), q_norm=norm(reader.q_norm),
        k_norm=norm(reader.k_norm),
        rotation=None if turn is None else replace(turn, dtype=dtype),
        **{name: None if value is None else value.to(dtype) for name, value in tensors.items()},
    )  # fmt: skip


@settings(max_examples=60)
@given(readers())
def test_the_bound_holds_in_float32(made: tuple[FrozenReader, list[torch.Tensor]]) -> None:
    """The float32 sum over pairs, and the float32 scores of the sum, are that near to the exact."""
    reader, parts = made
    small = in_dtype(reader, torch.float32)
    streams = [part.float() for part in parts]
    added = sum(streams[1:], streams[0])
    exact_parts = [stream.double() for stream in streams]
    exact, _ = sums_of_terms(in_dtype(small, torch.float64), [sum(exact_parts)])
    sizes = sum(part.abs() for part in exact_parts)
    away = (added.double() - sum(exact_parts)).abs()

    found, pairs = sums_of_terms(small, streams)
    judged, _ = sums_of_terms(small, [added])
    size = torch.maximum(added.double().abs(), sizes)
    bound = score_bounds(small, pairs, torch.float32, size, away)

    assert bool(((found.double() - exact).abs() <= bound).all())
    assert bool(((judged.double() - found.double()).abs() <= bound).all())
    assert bool(
        (bound <= 1e-2 * (1 + (sizes.max() * 100) ** 2)).all()
    )  # and is a bound on rounding


@settings(max_examples=30)
@given(readers())
def test_another_computation_of_the_angles_is_within_the_bound(
    made: tuple[FrozenReader, list[torch.Tensor]],
) -> None:
    reader, parts = made
    if reader.rotation is None:
        return
    away = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, reader.rotation.angle.shape))
    angle = reader.rotation.angle * (1 + 1e-6 * away)
    turn = replace(reader.rotation, uncertainty=1.0001e-6)
    other = replace(reader, rotation=replace(turn, angle=angle))
    reader = replace(reader, rotation=turn)
    stream = parts[1]

    one, pairs = sums_of_terms(reader, [stream])
    two, _ = sums_of_terms(other, [stream])
    size, nothing = stream.abs(), torch.zeros_like(stream)
    bound = score_bounds(reader, pairs, torch.float64, size, nothing)

    assert bool(((one - two).abs() <= bound).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_capped_scores(dtype: torch.dtype) -> None:
    scores = torch.from_numpy(np.random.default_rng(3).standard_normal(1000) * 20).to(dtype)
    for cap in (0.5, 3.0, 50.0):
        error, bound = cap_error(scores, cap * torch.tanh(scores / cap), cap)
        assert bool((error <= bound).all())
        wrong, bound = cap_error(scores, cap * torch.tanh(scores / (1.001 * cap)), cap)
        assert bool((wrong > bound).any())
