"""``otimes scores`` as a user meets it."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from click.testing import CliRunner

from otimes.cli import cli, tables
from otimes.errors import InputError, UnsupportedError
from tests.factory import make_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("checkpoint")
    make_checkpoint(folder, seed=3, biases={"b_Q", "b_K"})
    return str(folder)


def scores(checkpoint: str, *options: str) -> Any:
    """Run the command; errors of otimes come out as they are."""
    given = ["scores", checkpoint, "--tokens", "1,2,3,4,5", *options]
    done = CliRunner().invoke(cli, given)
    if done.exception is not None:
        raise done.exception
    return done


HEAD = ("--head", "1.2", "--query", "-1", "--key", "-3")


def test_json_is_that_of_the_contract(checkpoint: str) -> None:
    done = scores(checkpoint, *HEAD, "--top", "3", "--json")

    found = json.loads(done.stdout)
    assert {"score", "shown_sum", "remainder", "by_kind", "terms"} <= set(found)
    assert set(found["by_kind"]) == {"direct", "q", "k", "qk", "position"}
    assert found["score"] == pytest.approx(sum(found["by_kind"].values()))
    assert found["score"] == pytest.approx(found["shown_sum"] + found["remainder"])
    assert len(found["terms"]) == 3
    assert set(found["terms"][0]) == {"query_path", "key_path", "kind", "value"}
    assert (found["tokens"], found["query"], found["key"]) == ([1, 2, 3, 4, 5], 4, 2)
    assert done.stderr == ""


def test_two_keys(checkpoint: str) -> None:
    one, other = (
        json.loads(
            scores(checkpoint, "--head", "1.2", "--query", "4", "--key", key, "--json").stdout
        )
        for key in ("2", "0")
    )
    both = json.loads(scores(checkpoint, *HEAD, "--minus-key", "0", "--json").stdout)

    assert both["minus_key"] == 0
    assert both["score"] == pytest.approx(one["score"] - other["score"])


def test_the_report(checkpoint: str) -> None:
    out = scores(checkpoint, *HEAD, "--top", "2").stdout

    assert out.startswith("Score of head 1.2, query 4 ")
    rows = [line.split() for line in out.splitlines()]
    assert ["query", "path", "key", "path", "kind", "value"] in rows
    assert any(row[:2] == ["other", "terms"] for row in rows)
    assert "frozen: attention patterns of the layers before 1" in out


def test_tables_as_files(checkpoint: str, tmp_path: Path) -> None:
    files = ("--csv", str(tmp_path / "t.csv"), "--parquet", str(tmp_path / "t.parquet"))
    parquet = importlib.util.find_spec("pyarrow") is not None

    done = scores(checkpoint, *HEAD, "--json", *(files if parquet else files[:2]))

    terms = json.loads(done.stdout)["terms"]
    assert f"wrote {tmp_path / 't.csv'}" in done.stderr
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row | {"value": float(row["value"])} for row in rows] == terms
    if parquet:
        assert pandas.read_parquet(tmp_path / "t.parquet").to_dict("records") == terms


@pytest.mark.parametrize(
    ("option", "absent", "match"),
    [
        ("--csv", "pandas", r"--csv needs pandas: pip install 'otimes\[pandas\]', or use --json"),
        ("--parquet", "pyarrow", r"--parquet needs pyarrow: pip install pyarrow, or use --json"),
    ],
)
def test_packages_that_are_not_there(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    option: str, absent: str, match: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(tables, "find_spec", lambda name: None if name == absent else object())

    with pytest.raises(UnsupportedError, match=match):
        scores(checkpoint, *HEAD, option, str(tmp_path / "t"))

    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--head", "1.2", "--query", "1", "--key", "2"), "key 2 comes after query 1"),
        (("--head", "1.2", "--query", "5", "--key", "2"), "query position 5 is out of range"),
        ((*HEAD, "--prompt", "a"), "give the input as --prompt TEXT or as --tokens 1,2,3"),
    ],
)
def test_input_that_cannot_be_used(checkpoint: str, options: tuple[str, ...], match: str) -> None:
    with pytest.raises(InputError, match=match):
        scores(checkpoint, *options)
