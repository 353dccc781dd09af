"""The judge's rotations and slopes against numbers that transformers 5.24 computed in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from otimes.models.reference.positions import alibi_slopes, frequencies, rotate

THETA = {"theta": 100.0, "pairing": "half"}
LLAMA3 = {
    "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_n_ctx": 40,
}  # fmt: skip


def close(actual: torch.Tensor, expected: list[float]) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.flatten(), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        # LlamaRotaryEmbedding(...).inv_freq: head_dim 16, rope_theta 100
        (
            {"type": "linear", "factor": 3.0},
            [0.3333333, 0.1874471, 0.1054093, 0.05927598, 0.03333334, 0.01874471, 0.01054093,
             0.005927598],
        ),
        # the first is kept, the next three are blends, the rest is divided by 8
        (
            LLAMA3,
            [1.0, 0.4934506, 0.1329761, 0.02907942, 0.0125, 0.007029266, 0.003952847, 0.002222849],
        ),
    ],
)  # fmt: skip
def test_scaled_frequencies(scaling: dict[str, Any], expected: list[float]):
    close(frequencies(THETA | {"scaling": scaling}, 16), expected)


def test_ntk_scaling_slows_the_last_plane_by_the_factor_and_keeps_the_first():
    plain = frequencies(THETA, 16)
    scaled = frequencies(THETA | {"scaling": {"type": "ntk", "factor": 4.0}}, 16)
    ratio = (plain / scaled).tolist()
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(4)
    assert ratio == sorted(ratio)


@pytest.mark.parametrize(
    ("rotary", "expected"),
    [
        # llama's apply_rotary_pos_emb
        (
            THETA,
            [8.91398, -5.131511, -11.03044, -6.798038, -1.844619, 1.87966, 4.550843, 6.547648,
             1.594036, -8.812922, 2.886074, 10.66708, 13.8057, 15.11512, 15.91508, 16.64717],
        ),
        # GPT-J's, with 8 of 16 coordinates turning
        (
            {"theta": 10_000.0, "pairing": "interleaved", "dim": 8},
            [2.201511, -0.3915999, 0.7150455, 4.948607, 4.693877, 6.242398, 6.959912, 8.0349,
             *range(9, 17)],
        ),
    ],
)  # fmt: skip
def test_one_to_sixteen_turned_at_position_five(rotary: dict[str, Any], expected: list[float]):
    x = torch.arange(1, 17, dtype=torch.float64).reshape(1, 1, 1, 16)
    close(rotate(x, torch.tensor([[5]]), rotary), expected)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_scores_depend_on_the_offset_alone(pairing: str):
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).double()
    rotary = {"theta": 50.0, "pairing": pairing, "dim": 6, "scaling": None}

    def score(i: int, j: int) -> float:
        turned = (rotate(x, torch.tensor([[p]]), rotary) for x, p in ((q, i), (k, j)))
        first, second = turned
        return float((first * second).sum())

    assert score(7, 4) == pytest.approx(score(3, 0), abs=1e-12)
    assert abs(score(7, 4) - score(4, 7)) > 1e-2


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (1, [1 / 256]),
        (8, [1 / 2**n for n in range(1, 9)]),
        # bloom's build_alibi_tensor
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
    ],
)
def test_slopes(heads: int, expected: list[float]):
    assert alibi_slopes(heads).tolist() == expected
