"""What ``otimes expand --target scores:1.4`` prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otimes.algebra import Architecture
from otimes.cli.score_terms import expand_scores, is_scores
from otimes.errors import LimitError, NotationError, UnsupportedError


def printed(capsys: pytest.CaptureFixture[str], arch: Architecture, **options: Any) -> str:
    expand_scores(arch, options.pop("target", "scores:1.1"), **options)
    return capsys.readouterr().out


def test_json_has_both_paths_the_kind_and_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, Architecture(2, 2), as_json=True))

    assert {k: v for k, v in found.items() if k != "terms"} == {
        "target": "scores:1.1",
        "count": "9",
        "query_paths": "3",
        "key_paths": "3",
        "by_kind": {"direct": "1", "q": "2", "k": "2", "qk": "4"},
        "scale": "1/√d_head",
        "kv_head": "1.1",
    }
    assert len(found["terms"]) == 9
    assert found["terms"][1] == {
        "query_path": "0.0",
        "key_path": "direct",
        "kind": "q",
        "order": 1,
        "pattern": "A[0.0] ⊗ Id",
        "weight": "W_Eᵀ W_OV[0.0]ᵀ W_QK[1.1] W_E",
        "latex": found["terms"][1]["latex"],
    }
    assert r"W_{QK}^{1.1}" in found["terms"][1]["latex"]


def test_selection_count_and_limit(capsys: pytest.CaptureFixture[str]) -> None:
    deep = Architecture(100, 100)

    assert printed(capsys, deep, target="scores:50.1", only_count=True) == f"{101**100:,}\n"
    one = json.loads(printed(capsys, deep, target="scores:50.1", limit=3, as_json=True))
    assert one["count"] == str(101**100)
    assert [term["query_path"] for term in one["terms"]] == ["direct", "0.0", "0.1"]
    keys = json.loads(
        printed(capsys, deep, target="scores:50.1", key="0.7 > 1.4", kinds=["k"], as_json=True)
    )
    assert [(t["query_path"], t["key_path"]) for t in keys["terms"]] == [("direct", "0.7 > 1.4")]
    with pytest.raises(LimitError, match="more than the limit of 10,000"):
        printed(capsys, deep, target="scores:50.1")


def test_a_path_expression_is_for_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    arch = Architecture(3, 2)

    def pairs(**options: Any) -> set[tuple[str, str]]:
        text = printed(capsys, arch, target="scores:2.0", as_json=True, **options)
        return {(term["query_path"], term["key_path"]) for term in json.loads(text)["terms"]}

    ends = {"1.0", "1.1", *(f"0.{g} > 1.{h}" for g in range(2) for h in range(2))}
    assert pairs(path=".. > 1.*") == {(q, k) for q in ends for k in ends}
    assert pairs(path=".. > 1.*", key="0.1 > ..") == {
        (q, k) for q in ends for k in ("0.1 > 1.0", "0.1 > 1.1")
    }
    assert pairs(path=".. > 1.*", query="order=2", key="1.1") == {
        (q, "1.1") for q in ends if ">" in q
    }
    assert pairs(path=".. > 1.*", query="direct") == set()
    assert pairs(path=".. > 1.*", order=2) == {
        (q, k) for q in ("1.0", "1.1") for k in ("1.0", "1.1")
    }
    assert pairs(path="direct") == {("direct", "direct")}


def test_a_source_of_one_side_is_chosen_on_that_side(capsys: pytest.CaptureFixture[str]) -> None:
    arch = Architecture(2, 2, biases={"b_Q[1]"})

    assert printed(capsys, arch, query="bias[1.1.q]", only_count=True) == "3\n"
    with pytest.raises(NotationError, match=r"no source 'bias\[1\.1\.q\]'"):
        printed(capsys, arch, path="bias[1.1.q]", only_count=True)


def test_the_listing_names_paths_and_what_positions_add(capsys: pytest.CaptureFixture[str]) -> None:
    arch = Architecture(2, 2, kv_heads=1, positions="alibi", biases={"b_Q[1]"})

    out = printed(capsys, arch, convention="row", order=0)

    assert "scores = 1/√d_head · (x[1] W_Q[1.1] + b_Q[1.1]) W_K[1.kv0]ᵀ x[1]ᵀ + B[1.1]" in out
    assert "W_K is that of key-value head 1.kv0" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "embed embed direct 1/√d_head · Id ⊗ Id ⊗ W_E W_QK[1.1] W_Eᵀ" in lines
    assert "bias[1.1.q] embed direct 1/√d_head · Id ⊗ Id ⊗ b_Q[1.1] W_K[1.kv0]ᵀ W_Eᵀ" in lines
    assert "position position position B[1.1]" in lines
    assert "\n3 terms: 2 direct, 1 position\n" in out
    assert out.endswith("\nwith A (attention patterns) held at the run's values\n")


def test_json_of_what_positions_add(capsys: pytest.CaptureFixture[str]) -> None:
    arch = Architecture(1, 1, positions="relative")

    found = json.loads(printed(capsys, arch, target="scores:0.0", kinds=["position"], as_json=True))

    (term,) = found["terms"]
    assert (term["kind"], term["query_path"], term["pattern"], term["weight"]) == (
        "position", "position", "B[0.0]", None,
    )  # fmt: skip


def test_bad_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert is_scores("scores:1.4")
    assert not is_scores("logits")
    with pytest.raises(UnsupportedError, match="cannot expand 'score'"):
        printed(capsys, Architecture(2, 2), target="score")
