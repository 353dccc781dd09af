"""What a run of a model with norms, MLPs, windows and caps says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from otimes.errors import InputError
from tests.bridge.test_families import made
from tests.kit import close


def test_streams_are_those_that_layers_read(tmp_path: Path) -> None:
    """A layer of two branches is two blocks; the stream between them is not among these."""
    run, _ = made(tmp_path, "layer norm", "source", d_mlp=2, activation="relu", n_layers=3)
    streams = run.recording().streams
    assert len(streams) == 7

    for layer in range(4):
        assert run.stream(layer) is streams[2 * layer]
    with pytest.raises(InputError, match="no stream 4: there are streams 0 to 3"):
        run.stream(4)


def test_streams_of_parallel_blocks(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "parallel", "frozen")

    assert run.stream(2) is run.recording().streams[2]


def test_what_may_be_attended_to_has_a_window(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "windows", "source")

    assert torch.equal(run.attended(1), run.allowed)
    assert run.attended(0)[1].int().tolist() == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0],
    ]  # fmt: skip
    for layer in range(2):
        assert torch.equal(run.pattern(layer)[:, 0] > 0, run.attended(layer))


def test_logits_before_their_cap(tmp_path: Path) -> None:
    run, checkpoint = made(tmp_path, "logits soft-cap", "source")
    cap = checkpoint.config["logits_softcap"]

    close(run.logits, cap * torch.tanh(run.uncapped_logits / cap), 1e-14)
    close(run.evaluate(".."), run.uncapped_logits, 1e-12)
    assert float(run.uncapped_logits.abs().max()) > cap


HELD = {
    ("post-norms", "frozen"): (
        "attention patterns of 2 layers × 2 heads", "scales of 4 norms",
        "slopes of 2 MLPs × 2 neurons",
    ),
    ("sandwich norms", "frozen"): (
        "attention patterns of 2 layers × 2 heads", "scales of 9 norms",
        "gates of 2 MLPs × 2 neurons",
    ),
    ("parallel", "source"): (
        "attention patterns of 2 layers × 2 heads", "scales of 5 norms", "outputs of 2 MLPs",
    ),
    ("q and k norms", "source"): (
        "attention patterns of 2 layers × 6 heads", "scales of 3 norms",
        "scales of the norms of queries and keys of 2 layers",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "mlp"), HELD)
def test_what_is_held_fixed(tmp_path: Path, name: str, mlp: str) -> None:
    run, _ = made(tmp_path, name, mlp)

    expected = tuple(f"{what}, as the run recorded them" for what in HELD[name, mlp])
    assert run.held_fixed == expected


def test_slopes_at_zero(tmp_path: Path) -> None:
    """The limit of φ(z)/z where a pre-activation is exactly 0."""
    from otimes.bridge.freezing import slopes

    run, _ = made(tmp_path, "plain gelu", "frozen")
    recording = run.recording()
    recording.preactivations[0][0, 0, 0] = 0.0

    for activation, limit in (("gelu", 0.5), ("gelu_tanh", 0.5), ("silu", 0.5), ("relu", 0.0)):
        found = slopes(recording, 0, activation)
        assert float(found[0, 0, 0]) == limit
        assert bool(found.isfinite().all())
    near = torch.tensor(1e-9, dtype=torch.float64)
    assert float(torch.nn.functional.gelu(near) / near) == pytest.approx(0.5)
