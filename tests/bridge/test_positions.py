"""The angles of rotary positions and the slopes of ALiBi, beside two other computations of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from otimes.bridge.loading import Config
from otimes.bridge.loading.rotary import Rotary
from otimes.bridge.positions import alibi_shift, frequencies, rotation
from otimes.models.reference import positions as judge
from tests.kit import close
from tests.oracles import transformer

SCALINGS: list[dict[str, Any] | None] = [
    None,
    {"type": "linear", "factor": 3.0},
    {"type": "ntk", "factor": 8.0},
    {"type": "factors", "factors": [1.0 + 0.3 * f for f in range(16)]},
    {
        "type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_n_ctx": 8192,
    },
    {
        "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.01,
        "original_n_ctx": 300,
    },
]  # fmt: skip


@pytest.mark.parametrize("scaling", SCALINGS, ids=range(len(SCALINGS)))
@pytest.mark.parametrize("theta", [10.0, 1e4, 5e5])
def test_frequencies(scaling: dict[str, Any] | None, theta: float) -> None:
    how = {"theta": theta, "dim": 32, "pairing": "half", "scaling": scaling}
    rotary = Rotary.parse(how, 64, "rotary")

    found = frequencies(rotary)

    np.testing.assert_allclose(found.numpy(), transformer.frequencies(how, 64), rtol=1e-13)
    # what the certificate allows for the difference to the judge's own angles
    places = torch.tensor([[0, 1, 511, 131_071]])
    turn = rotation(rotary, places, torch.float64)
    other = places.double()[..., None] * judge.frequencies(how, 64)
    assert bool(((turn.angle - other).abs() <= turn.uncertainty * turn.angle.abs()).all())
    assert turn.uncertainty < 1e-9


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12])
def test_alibi(heads: int) -> None:
    config = Config.parse({
        "format": "otimes", "version": 1, "n_layers": 1, "n_heads": heads, "d_model": 4,
        "d_head": 2, "n_ctx": 9, "d_vocab": 5, "positions": "alibi", "attention_scale": 1.0,
    })  # fmt: skip
    ids = torch.tensor([[0, 0, 1, 2], [0, 1, 2, 3]])

    found = alibi_shift(config, ids)

    slopes = np.array(transformer.alibi_slopes(heads))
    distance = np.abs(ids.numpy()[:, :, None] - ids.numpy()[:, None, :])
    close(found, -slopes[None, :, None, None] * distance[:, None], 1e-14)
