"""Counts, kinds, order, selection and errors of score expansions."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given, settings

from otimes.algebra import Architecture
from otimes.algebra.scores import PositionTerm, ScoreTerm
from otimes.errors import LimitError, NotationError, UnknownComponentError, UnsupportedError
from tests.algebra.scores.models import EXAMPLES, architectures


def small() -> Any:
    return Architecture(layers=2, heads=12).scores("1.4").expand()


def test_the_papers_second_order_expansion() -> None:
    terms = small().terms()

    assert len(terms) == small().count == 1 + 12 + 12 + 144
    assert small().kind_counts == {"direct": 1, "q": 12, "k": 12, "qk": 144}
    texts = [str(term.operator) for term in terms]
    assert texts[0] == "Id ⊗ Id ⊗ W_Eᵀ W_QK[1.4] W_E"
    assert texts[1:13] == [f"A[0.{h}] ⊗ Id ⊗ W_Eᵀ W_OV[0.{h}]ᵀ W_QK[1.4] W_E" for h in range(12)]
    assert texts[13:25] == [f"Id ⊗ A[0.{h}] ⊗ W_Eᵀ W_QK[1.4] W_OV[0.{h}] W_E" for h in range(12)]
    assert texts[25:] == [
        f"A[0.{g}] ⊗ A[0.{h}] ⊗ W_Eᵀ W_OV[0.{g}]ᵀ W_QK[1.4] W_OV[0.{h}] W_E"
        for g, h in product(range(12), repeat=2)
    ]


def test_the_scale_is_shown_in_every_form() -> None:
    term = small()["0.3", "direct"]

    assert str(term) == "1/√d_head · A[0.3] ⊗ Id ⊗ W_Eᵀ W_OV[0.3]ᵀ W_QK[1.4] W_E"
    assert term.latex.startswith(r"\tfrac{1}{\sqrt{d_{\mathrm{head}}}}\, A^{0.3} \otimes ")
    own = Architecture(2, 12).scores("1.4", scale=0.25).expand()["0.3", "direct"]
    assert str(own).startswith("0.25 · A[0.3]")
    assert own != term


def test_the_row_convention_keeps_the_query_on_the_left() -> None:
    term = small()["0.3", "0.5"]
    rotary = Architecture(1, 1, positions="rotary", biases={"b_Q"}).scores("0.0").expand()

    assert term.text("row").endswith("A[0.3] ⊗ A[0.5] ⊗ W_E W_OV[0.3] W_QK[1.4] W_OV[0.5]ᵀ W_Eᵀ")
    assert r"W_{E} W_{OV}^{0.3} W_{QK}^{1.4}" in term.to_latex("row")
    assert rotary["embed", "direct"].text("row").endswith("W_E W_Q[0.0] R(j−i)ᵀ W_K[0.0]ᵀ W_Eᵀ")
    assert rotary["bias", "direct"].text("row").endswith("b_Q[0.0] R(j−i)ᵀ W_K[0.0]ᵀ W_Eᵀ")
    (turned,) = [p for p in rotary["bias", "direct"].planes(["2"]) if p.sign == -1]
    assert turned.text("row") == "-sin[2] ⊗ cos[2] ⊗ b_Q[0.0] J[2]ᵀ W_K[0.0]ᵀ W_Eᵀ"
    with pytest.raises(UnsupportedError, match="unknown convention 'rows'"):
        term.text("rows")


def test_sources_of_both_sides() -> None:
    arch = Architecture(
        2, 1, positions="shortformer", norm="layer", biases={"b_Q", "b_K", "b_ln1", "b_O"}
    )
    scores = arch.scores("1.0").expand()

    shared = ["embed", "bias[0.attn]", "pos", "bias[1.ln1]"]
    assert [path.path for path in scores.query_paths.order(0)] == [*shared, "bias[1.0.q]"]
    assert [path.path for path in scores.key_paths.order(0)] == [*shared, "bias[1.0.k]"]
    assert scores.where("bias[0.0] > 0.0").count == scores.key_paths.count
    both = scores["bias[1.0.q]", "bias[1.0.k]"]
    assert str(both.operator) == "Id ⊗ Id ⊗ b_Q[1.0]ᵀ b_K[1.0]"
    assert both.kind == "direct"
    assert str(both.query_input) == "ones"
    assert str(scores["pos", "embed"].operator) == ("Id ⊗ D[1.ln1] ⊗ W_posᵀ W_QK[1.0] Γ[1.ln1] W_E")
    assert str(scores["pos", "pos"].weight) == "W_posᵀ W_QK[1.0] W_pos"


def test_a_constant_inside_a_head_is_moved_by_it() -> None:
    scores = Architecture(2, 1, biases={"b_V"}).scores("1.0").expand()

    term = scores["bias[0.0] > 0.0", "embed"]

    assert term.kind == "q"
    assert str(term.operator) == ("A[0.0] ⊗ Id ⊗ b_V[0.0]ᵀ W_O[0.0]ᵀ W_QK[1.0] W_E")


def test_what_positions_add_is_a_term_of_its_own() -> None:
    scores = Architecture(2, 2, positions="alibi").scores("1.1").expand()

    last = scores.terms()[-1]

    assert scores.count == 3 * 3 + 1
    assert isinstance(last, PositionTerm)
    assert (last.kind, str(last), last.latex) == ("position", "B[1.1]", "B^{1.1}")
    assert scores.where(key="..").count == 9
    assert scores.kind("position").terms() == [last]
    assert scores.contains(last)
    assert not scores.kind("q").contains(last)
    with pytest.raises(UnknownComponentError, match="positions 'none' add nothing"):
        _ = small().position


def test_the_key_value_group_is_said() -> None:
    scores = Architecture(1, 4, kv_heads=2).scores("0.3")

    assert scores.kv_head == 1
    assert "W_K is that of key-value head 0.kv1" in str(scores)
    assert "key-value" not in str(Architecture(1, 4).scores("0.3"))


def test_the_factored_scores_have_all_that_is_added() -> None:
    arch = Architecture(2, 1, positions="rotary", biases={"b_Q", "b_K[1]"})

    assert str(arch.scores("0.0")).startswith(
        "1/√d_head · (x[0] W_Q[0.0]ᵀ + b_Q[0.0]ᵀ) R(j−i) W_K[0.0] x[0]ᵀ, where"
    )
    assert (
        arch.scores("1.0")
        .text("row")
        .startswith(
            "1/√d_head · (x[1] W_Q[1.0] + b_Q[1.0]) R(j−i)ᵀ (W_K[1.0]ᵀ x[1]ᵀ + b_K[1.0]ᵀ), where"
        )
    )
    assert str(Architecture(1, 1, positions="alibi").scores("0.0", scale=2.0)).startswith(
        "2.0 · x[0] W_QK[0.0] x[0]ᵀ + B[0.0], where"
    )


@settings(max_examples=40, deadline=None)
@given(architectures())
def test_counts_are_those_of_the_terms(arch: Architecture) -> None:
    heads = [(layer, h) for layer, n in enumerate(arch.heads) for h in range(n)]
    assume(heads)
    scores = arch.scores(heads[-1]).expand()
    assume(scores.count < 2000)

    terms = scores.terms()

    assert len(terms) == len(set(terms)) == scores.count == len(scores)
    for kind in ("direct", "q", "k", "qk", "position"):
        own = [term for term in terms if term.kind == kind]
        assert len(own) == scores.kind_counts.get(kind, 0) == scores.kind(kind).count
        assert scores.kind(kind).terms() == own
    for order in range(3):
        own = [term for term in terms if term.order == order]
        assert scores.order(order).terms() == own
        assert scores.order(order).count == len(own)
    orders = [term.order for term in terms if isinstance(term, ScoreTerm)]
    assert orders == sorted(orders)
    assert all(scores.contains(term) for term in terms)


def test_the_first_terms_of_a_deep_model_come_at_once() -> None:
    times = list[float]()
    for _ in range(3):
        scores = Architecture(100, 100).scores("99.7").expand()
        started = time.process_time()
        first = next(iter(scores))
        times.append(time.process_time() - started)

    assert isinstance(first, ScoreTerm)
    assert (first.query_path, first.key_path) == ("direct", "direct")
    assert min(times) < 0.1
    # (q, k) heads: by their number together, those of the query side first
    orders = [(t.query.order, t.key.order) for t in Architecture(3, 1).scores("2.0").expand()]
    cells = [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (2, 1), (1, 2), (2, 2)]
    assert list(dict.fromkeys(orders)) == cells


@pytest.mark.parametrize("name", EXAMPLES)
def test_repr_names_the_term(name: str) -> None:
    arch = Architecture(**EXAMPLES[name])
    names = {"Architecture": Architecture}
    last = [(layer, h) for layer, n in enumerate(arch.heads) for h in range(n)][-1]
    scores = arch.scores(last)

    assert eval(repr(scores), names) == scores
    assert eval(repr(scores.query_stream), names) == scores.query_stream
    for term in scores.expand().terms()[::17]:
        assert eval(repr(term), names) == term


EXPRESSIONS = (
    "..", "direct", "0.*", "0.1 > ..", "order=1", "pos", "bias > ..", "!(0.0 > ..) & order=1",
    "{0.0,1.1} | embed", "bias[2.0.q]", "bias[2.ln1]", "embed > *?", "1.0{2}",
)  # fmt: skip


def test_path_expressions_on_each_side() -> None:
    arch = Architecture(3, 2, positions="shortformer", norm="layer", biases=True)
    scores = arch.scores("2.0").expand()
    pairs = scores.terms()
    for query, key in product(EXPRESSIONS, repeat=2):
        if "bias[2.0.q]" in key:  # a source of queries alone
            continue
        narrowed = scores.where(query=query, key=key)
        left, right = scores.query_paths.where(query), scores.key_paths.where(key)

        assert narrowed.count == left.count * right.count
        expected = [
            t
            for t in pairs
            if isinstance(t, ScoreTerm) and left.contains(t.query) and right.contains(t.key)
        ]
        assert narrowed.terms() == expected
    assert scores.where("pos").query_paths.count == 1
    assert scores.where("0.1 > ..").query_paths.count == 2 * 3
    with pytest.raises(UnknownComponentError, match=r"no source 'bias\[2\.0\.q\]'"):
        scores.where(key="bias[2.0.q]")


def test_deep_models_are_counted_and_never_enumerated() -> None:
    start = time.process_time()
    scores = Architecture(100, 100, biases={"b_Q"}).scores("99.7").expand()
    paths = 101**99

    assert scores.count == (paths + 1) * paths
    assert scores.kind("k").count == 2 * (paths - 1)
    assert scores.where("0.1 > 3.4", "direct").count == 1
    assert next(iter(scores)).kind == "direct"
    assert time.process_time() - start < 10
    with pytest.raises(LimitError, match=r"about 10\^396 .* terms, more than the limit of 10,000"):
        scores.terms()
    with pytest.raises(LimitError, match=r"more than len\(\) can say; use \.count"):
        len(scores)


@pytest.mark.parametrize(
    ("head", "error", "message"),
    [
        ("2.0", UnknownComponentError, "no head 2.0: the model has layers 0 to 1"),
        ("1.12", UnknownComponentError, "no head 1.12: layer 1 has heads 0 to 11"),
        ("mlp0.n1", NotationError, "scores belong to a head such as 1.4"),
        ("", NotationError, "scores belong to a head such as 1.4"),
        ((1, 4, 2), NotationError, "scores belong to a head such as 1.4"),
    ],
)
def test_unknown_heads(head: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Architecture(2, 12).scores(head)


def test_other_refusals() -> None:
    with pytest.raises(UnsupportedError, match="unknown kind 'Q' of score terms; known are direct"):
        small().kind("Q")
    with pytest.raises(UnsupportedError, match="only rotary positions turn queries and keys"):
        small()["direct", "direct"].planes(["0"])
    with pytest.raises(
        UnknownComponentError, match=r"1\.4 is on no path to head 1\.4, which reads"
    ):
        small().where(key="1.4")
    with pytest.raises(LimitError, match="169 terms, more than the limit of 100"):
        small().terms(100)
