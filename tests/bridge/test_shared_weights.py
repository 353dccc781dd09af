"""The trained models of ``../shared/weights``: verified, and explained by their circuits."""

from __future__ import annotations

from pathlib import Path

import pytest

import otimes as ox
from tests.bridge.loading import shared_models
from tests.kit import close


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_induction_model_verifies(shared_path: Path, dtype: str) -> None:
    run = shared_models.induction(shared_path).run(tokens=[[3, 9, 14, 5, 20, 7, 1, 14]])

    certificate = ox.verify(run, dtype=dtype)

    assert certificate.holds, certificate
    assert certificate.method == "enumerated"


def test_the_induction_model_looks_behind_the_first_occurrence(shared_path: Path) -> None:
    """Head 1.0 attends there, through the key side; the path through it writes the token."""
    run = shared_models.induction(shared_path).run(tokens=[[3, 9, 14, 5, 20, 7, 1, 14]])
    assert int(run.logits[0, -1].argmax()) == 5

    score = ox.scores(run, head="1.0", query=7, key=3)
    assert score.score == pytest.approx(float(run.scores(1)[0, 0, 7, 3]), abs=1e-10)
    assert score.by_kind["k"] == max(score.by_kind.values())
    found = ox.attribute(run, target=5, minus="mean", by="last-head")
    best = max(found.rows, key=lambda row: row.value)
    assert best.key == "1.0"
    assert best.value > 0.5 * found.total


@pytest.mark.parametrize("mlp", ["source", "frozen"])
def test_the_sorting_model_verifies(shared_path: Path, mlp: str) -> None:
    loaded = shared_models.nano_sort(shared_path, mlp=mlp)
    run = loaded.run(tokens=[[2, 0, 1, 1, 0, 2, 0, 0, 1, 1, 2], [1, 1, 2, 0, 0, 0, 0, 0, 0, 1, 1]])

    for dtype in ("float64", "float32"):
        certificate = ox.verify(run, dtype=dtype, primes=1)
        assert certificate.holds, certificate
    close(run.by_order().sum(0), run.logits, 1e-11)
    # behind the six digits each next token is the sorted one
    assert run.logits[0, 5:].argmax(-1).tolist() == [0, 0, 1, 1, 2, 2]
    assert run.logits[1, 5:].argmax(-1).tolist() == [0, 0, 0, 1, 1, 2]
    total = ox.attribute(run, target=2, minus=0, position=-1, top=5)
    assert total.shown + total.remainder == pytest.approx(
        float(run.logits[0, -1, 2] - run.logits[0, -1, 0]), rel=1e-10
    )
