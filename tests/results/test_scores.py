"""The decomposition of a score as a report, as JSON, as a table and as a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from otimes.errors import InputError
from otimes.results import ScoreAttribution, ScoreShare

ONE = ScoreAttribution(
    model="small",
    tokens=(0, 5, 3),
    texts=("<|bos|>", " a", "[b]"),
    head="1.4",
    query=2,
    key=1,
    minus_key=None,
    score=0.75,
    by_kind={"direct": 1.0, "q": -0.25, "k": 0.5, "qk": -0.5, "position": 0.0},
    terms=(
        ScoreShare("embed", "embed", "direct", 1.0),
        ScoreShare("embed > 0.3", "bias[1.4.k]", "q", -0.5),
    ),
    pairs=169,
    grouped=False,
    recorded=0.7500001,
    attention=(0.25,),
    frozen=("attention patterns of the layers before 1, as the run recorded them",),
)
TWO = replace(ONE, minus_key=0, attention=(0.25, 0.125), grouped=True, pairs=13**22)


def test_the_report() -> None:
    assert repr(ONE) == (
        "score of head 1.4, query 2 '[b]', key 1 ' a'\n"
        "============================================\n"
        "score +0.7500; the query attends 0.2500 to this key\n"
        "by kind  direct +1.0000  q -0.2500  k +0.5000  qk -0.5000  position +0.0000\n"
        "169 pairs of paths, listed; the model's own score is 1.0e-07 away\n"
        "frozen   attention patterns of the layers before 1, as the run recorded them\n"
        "\n"
        "query path   key path     kind      value\n"
        "embed        embed        direct  +1.0000\n"
        "embed > 0.3  bias[1.4.k]  q       -0.5000\n"
        "other terms                       +0.2500\n"
        "total                             +0.7500"
    )


def test_the_report_of_two_keys() -> None:
    lines = repr(TWO).splitlines()

    assert lines[0] == "scores of head 1.4, query 2 '[b]': key 1 ' a' − key 0 '<|bos|>'"
    assert lines[2] == "log-odds +0.7500; the query attends 0.2500 and 0.1250 to these keys"
    assert lines[4].startswith("about 10^24 pairs of paths, grouped by the last components of both")


def test_json_has_the_keys_of_the_contract() -> None:
    found = json.loads(json.dumps(ONE.to_json(), allow_nan=False))

    assert found["score"] == 0.75 == found["shown_sum"] + found["remainder"] == ONE.total
    assert found["shown_sum"] == 0.5
    assert found["by_kind"] == ONE.by_kind
    assert found["terms"][1] == {
        "query_path": "embed > 0.3", "key_path": "bias[1.4.k]", "kind": "q", "value": -0.5,
    }  # fmt: skip
    assert found["tokens"] == [0, 5, 3]
    assert found["pairs"] == "169"
    assert TWO.to_json()["minus_key"] == 0
    assert ONE.gap == pytest.approx(-1e-7)


def test_the_table() -> None:
    frame = ONE.to_pandas()

    assert list(frame.columns) == ["query_path", "key_path", "kind", "value"]
    assert frame.value.tolist() == [1.0, -0.5]
    assert list(replace(ONE, terms=()).to_pandas().columns) == list(frame.columns)


@pytest.mark.parametrize("result", [ONE, TWO])
def test_a_saved_one_is_read_back(result: ScoreAttribution, tmp_path: Path) -> None:
    result.save(tmp_path / "scores.json")

    found = ScoreAttribution.load(tmp_path / "scores.json")

    assert found == result
    assert repr(found) == repr(result)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tokens": ["a"]}, "tokens is 'a', not of the type int"),
        ({"by_kind": []}, "expected an object, not list"),
        ({"attention": None}, "attention is None"),
        (None, "it has no 'by_kind'"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, change: dict[str, object] | None, why: str) -> None:
    file = tmp_path / "scores.json"
    ONE.save(file)
    value = {} if change is None else json.loads(file.read_text()) | change
    file.write_text(json.dumps(value))

    with pytest.raises(InputError, match=r"is no saved score attribution: ") as error:
        ScoreAttribution.load(file)

    assert why in str(error.value)
