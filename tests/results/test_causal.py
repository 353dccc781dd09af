"""Frozen values and causal effects side by side: report, JSON, table, file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otimes.errors import InputError
from otimes.results import CausalEffect, CausalEffects

FOUND = CausalEffects(
    model="small",
    tokens=(0, 5),
    position=1,
    target="logit of ' a' − ' b'",
    at="output",
    original=2.5,
    effects=(CausalEffect("direct", 1.0, 1.5), CausalEffect("0.3 > 1.4", -0.25, 0.25)),
)


def test_the_report() -> None:
    assert repr(FOUND) == (
        "causal effects on the logit of ' a' − ' b' at position 1, at='output'\n"
        "path          frozen     causal        gap\n"
        "direct       +1.0000    +1.5000    +0.5000\n"
        "0.3 > 1.4    -0.2500    +0.2500    +0.5000"
    )


def test_json_table_and_arrays() -> None:
    found = json.loads(json.dumps(FOUND.to_json(), allow_nan=False))

    assert found["effects"][1] == {"path": "0.3 > 1.4", "frozen": -0.25, "causal": 0.25, "gap": 0.5}
    assert found["original"] == 2.5
    assert FOUND.to_pandas().to_dict("list") == {
        "path": ["direct", "0.3 > 1.4"], "frozen": [1.0, -0.25], "causal": [1.5, 0.25],
        "gap": [0.5, 0.5],
    }  # fmt: skip
    assert FOUND.gap.tolist() == [0.5, 0.5]


def test_a_saved_one_is_read_back(tmp_path: Path) -> None:
    FOUND.save(tmp_path / "effects.json")

    assert CausalEffects.load(tmp_path / "effects.json") == FOUND
    (tmp_path / "effects.json").write_text("[]")
    with pytest.raises(InputError, match="is no saved causal effects: expected an object"):
        CausalEffects.load(tmp_path / "effects.json")
