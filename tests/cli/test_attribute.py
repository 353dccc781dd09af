"""`otimes attribute` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest

import otimes as ox
from otimes.results import Attribution
from tests.cli.test_commands import fails, otimes

PROMPT = ("attribute", "attn-only-2l", "--prompt", "The sea was")


def test_paths_as_json(tmp_path: Path) -> None:
    files = {name: str(tmp_path / name) for name in ("a.csv", "a.parquet", "a.json")}
    done = otimes(
        *PROMPT, "--target", " the", "--minus", "mean", "--top", "3", "--path", "0.* > ..",
        "--sources", "--causal", "output", "--csv", files["a.csv"], "--parquet",
        files["a.parquet"], "--save", files["a.json"], "--json",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = ox.attribute(
        ox.load("attn-only-2l").run("The sea was"), " the", "mean", top=3, path="0.* > ..",
        sources=True, causal="output",
    )  # fmt: skip
    assert found == expected.to_json()
    assert found["total"] == pytest.approx(found["shown_sum"] + found["remainder"], abs=1e-12)
    assert found["paths"] == "72"
    assert found["tokens"][0] == 0
    assert set(found["terms"][0]) == {"path", "order", "value", "sources", "causal", "gap"}
    assert Attribution.load(files["a.json"]) == expected
    assert pandas.read_csv(files["a.csv"])["path"].tolist() == [row.key for row in expected.rows]
    assert len(pandas.read_parquet(files["a.parquet"])) == 3
    assert f"wrote {files['a.csv']}" in done.stderr


def test_groups_list_all_rows_without_top() -> None:
    done = otimes(*PROMPT, "--by", "last-head", "--json")

    found = json.loads(done.stdout)
    assert len(found["terms"]) == 17
    assert set(found["terms"][0]) == {"key", "count", "value"}
    assert found["remainder"] == pytest.approx(0, abs=1e-10)
    through = json.loads(otimes(*PROMPT, "--through", "head", "--json").stdout)
    assert through["overlapping"] is True
    assert "remainder" not in through


def test_the_report() -> None:
    done = otimes(*PROMPT, "--target-id", "259", "--top", "2")

    assert done.returncode == 0
    assert done.stderr == ""
    for part in ("The logit of ' a' at position 4", "not shown", "total", "all 81 paths", "frozen"):
        assert part in done.stdout


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--target", "sea"), "the target 'sea' is not one token of this model but 2 tokens"),
        (("--position", "9"), "position 9 is out of range: -5 to 4"),
        (("--target", " a", "--target-id", "3"), "give the target either as --target TEXT or as"),
        (("--by", "order", "--through", "head"), "give either --by or --through"),
        (("--path", "1.0 > 0.0"), "1.0 > 0.0"),
    ],
)
def test_what_cannot_be_meant(options: tuple[str, ...], why: str) -> None:
    assert why in fails(*PROMPT, *options)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    assert "cannot write" in fails(*PROMPT, "--csv", str(tmp_path / "no" / "a.csv"))
