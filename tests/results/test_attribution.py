"""Attributions as results: they print, convert, draw, save and load."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from otimes.errors import InputError
from otimes.results import Attribution, AttributionRow, Interval
from otimes.results.tables import write_csv, write_parquet

PATHS = Attribution(
    model="small",
    tokens=(0, 7, 3),
    pieces=("<bos>", "=x", "$a$"),
    position=2,
    target=" b",
    target_id=4,
    minus=None,
    minus_id=None,
    by="path",
    total=1.5,
    gap=1e-15,
    path="0.1 > ..",
    selected=1.25,
    paths=10**30,
    rows=(
        AttributionRow("embed > 0.1", 1, 2.0, 1, (0.5, 1.5, 0.0), 1.75),
        AttributionRow("bias[0.1] > 0.1", 1, -0.5, 1, (0.0, -0.25, -0.25), -0.5),
    ),
    overlapping=False,
    explained=Interval(0.5, 0.4, 0.75),
    method="searched",
    at="output",
    frozen=("patterns",),
)
GROUPS = replace(
    PATHS, by="last-head", path=None, selected=1.5, at=None, explained=None,
    rows=(AttributionRow("direct", 1, 0.25), AttributionRow("1.4", 9, 1.0)),
)  # fmt: skip
THROUGH = replace(GROUPS, by="head", overlapping=True)


def test_what_is_shown_and_what_is_not_add_up() -> None:
    assert PATHS.shown == 1.5
    assert PATHS.remainder == 0.0
    assert GROUPS.shown + GROUPS.remainder == GROUPS.total
    assert PATHS.rows[0].gap == -0.25


def test_json_is_that_of_the_contract() -> None:
    found = PATHS.to_json()

    assert found["total"] == found["shown_sum"] + found["remainder"] == 1.5
    assert found["paths"] == "1" + "0" * 30
    assert found["explained_energy"] == {"value": 0.5, "low": 0.4, "high": 0.75}
    assert found["terms"][0] == {
        "path": "embed > 0.1", "order": 1, "value": 2.0, "causal": 1.75, "gap": -0.25,
        "sources": [
            {"position": 0, "token": 0, "value": 0.5}, {"position": 1, "token": 7, "value": 1.5},
            {"position": 2, "token": 3, "value": 0.0},
        ],
    }  # fmt: skip
    assert GROUPS.to_json()["terms"][1] == {"key": "1.4", "count": "9", "value": 1.0}
    through = THROUGH.to_json()
    assert through["overlapping"] is True
    assert "remainder" not in through
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("found", [PATHS, GROUPS, THROUGH])
def test_saved_ones_come_back(found: Attribution, tmp_path: Path) -> None:
    found.save(tmp_path / "a.json")
    again = Attribution.load(tmp_path / "a.json")

    assert again == found
    assert repr(again) == repr(found)
    with pytest.raises(InputError, match="a saved attribution has no run"):
        again.tree()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": 3}', "null"])
def test_files_that_hold_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)

    with pytest.raises(InputError, match=r"a\.json is no saved attribution"):
        Attribution.load(tmp_path / "a.json")


def test_it_prints_as_a_report() -> None:
    text = repr(PATHS)

    assert "logit of ' b' at position 2" in text
    assert "paths 0.1 > ..: 1,000,000,000,000" in text
    assert "energy explained 50.0% (40.0% to 75.0%)" in text
    assert "remainder" in text
    assert "these overlap" in repr(THROUGH)
    assert "above the mean" in repr(replace(PATHS, minus="mean"))
    assert "minus that of ' c'" in repr(replace(PATHS, minus=" c", minus_id=5))


def test_tables() -> None:
    frame = PATHS.to_pandas()

    assert list(frame.columns) == [
        "path", "count", "value", "order", "causal", "gap", "source 0", "source 1", "source 2",
    ]  # fmt: skip
    assert frame["value"].tolist() == [2.0, -0.5]
    assert list(GROUPS.to_pandas().columns) == ["key", "count", "value"]


def test_a_figure_has_a_bar_for_each_row_and_sum() -> None:
    figure = PATHS.plot()
    (axes,) = figure.axes

    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "embed > 0.1", "bias[0.1] > 0.1", "not shown", "total",
    ]  # fmt: skip
    assert [patch.get_width() for patch in axes.patches] == [2.0, -0.5, 0.0, 1.5]
    assert len(THROUGH.plot().axes[0].patches) == 3


def test_text_in_a_figure_is_no_mathematics(tmp_path: Path) -> None:
    named = replace(PATHS, target="$\\bad$", rows=(AttributionRow("$x$", 1, 1.0, 0),))

    named.plot().savefig(tmp_path / "a.png")

    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_spreadsheet_runs_nothing_of_a_table(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {"token": ["=1+1", "+x", "@y", "-z", "a"], "value": [-1.0, 2, 3, 4, 5]}
    )

    write_csv(frame, tmp_path / "a.csv")

    again = pandas.read_csv(tmp_path / "a.csv")
    assert again["token"].tolist() == ["'=1+1", "'+x", "'@y", "'-z", "a"]
    assert again["value"].tolist() == [-1.0, 2, 3, 4, 5]


def test_parquet_comes_back(tmp_path: Path) -> None:
    write_parquet(PATHS.to_pandas(), tmp_path / "a.parquet")

    pandas.testing.assert_frame_equal(
        pandas.read_parquet(tmp_path / "a.parquet"), PATHS.to_pandas()
    )


def test_a_table_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.csv"
    target.write_text("before")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pandas.DataFrame, "to_csv", full)
    with pytest.raises(InputError, match=r"cannot write .*a\.csv: No space left on device"):
        write_csv(PATHS.to_pandas(), target)
    assert target.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"]
    with pytest.raises(InputError, match=r"cannot write .*: No such file or directory"):
        write_csv(PATHS.to_pandas(), tmp_path / "no" / "a.csv")
