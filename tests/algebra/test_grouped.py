"""Grouped-query attention: query heads that share a key-value head share its symbols."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from otimes import algebra
from otimes.algebra import (
    Architecture,
    Expr,
    Factor,
    Product,
    Sum,
    Valuation,
    equivalent,
    grouped,
    head,
    latex,
    normal_form,
    parse,
    partial_expansion,
    pattern,
    tensor,
    text,
    weight,
)
from otimes.algebra.definitions import definition
from otimes.algebra.paper import derive_paths
from otimes.algebra.rules import ExpandHead, ExpandOV, ExpandQK, FoldHead, FoldOV, FoldQK
from otimes.algebra.vocabulary import of_head, ov
from otimes.errors import NotationError, TypeMismatchError
from tests.oracles import scores as oracle

GROUPED = Architecture(2, (4, 8), kv_heads=2, biases=True, norm="layer")
PLAIN = Architecture(2, (4, 8), biases=True, norm="layer")


def test_only_shared_matrices_have_the_name_of_a_key_value_head() -> None:
    names = set(GROUPED.symbols)

    for name in ("W_K", "W_V", "b_K", "b_V"):
        found = {n for n in names if n.startswith(f"{name}[")}
        assert found == {f"{name}[{layer}.kv{g}]" for layer in (0, 1) for g in (0, 1)}
    for name in ("A", "W_Q", "W_O", "W_OV", "W_QK", "b_Q", "h"):
        assert {f"{name}[0.3]", f"{name}[1.7]"} <= names
    assert {"W_K[1.7]", "W_V[0.3]", "b_V[0.0]"} <= set(PLAIN.symbols)
    assert not any("kv" in name for name in PLAIN.symbols)


def test_layers_are_grouped_one_by_one() -> None:
    arch = Architecture(2, 4, kv_heads=(4, 1))

    assert "W_K[0.3]" in arch.symbols
    assert "W_K[1.kv0]" in arch.symbols
    assert arch.group((0, 3)) is None
    assert arch.group((1, 3)) == 0


@pytest.mark.parametrize("symbol", GROUPED.symbols.values(), ids=str)
def test_symbols_round_trip(symbol: Factor) -> None:
    assert parse(str(symbol), context=GROUPED) is symbol
    assert eval(repr(symbol), vars(algebra)) is symbol
    assert pickle.loads(pickle.dumps(symbol)) is copy.deepcopy(symbol) is symbol


def test_names_without_a_model() -> None:
    shared = weight("W_K", "d_head", "d_model", label="1.kv2")

    assert parse("W_K[1.kv2]") is parse("W_K^{1.kv2}") is shared
    assert latex(shared) == r"W_{K}^{1.\mathrm{kv2}}"
    assert text(Product(of_head("W_Q", (1, 4)).T, shared), "row") == "W_Q[1.4] W_K[1.kv2]ᵀ"
    for wrong in ("W_Q[1.kv2]", "A[1.kv2]", "W_OV[1.kv2]"):
        with pytest.raises(NotationError, match="unknown symbol"):
            parse(wrong)
    for wrong in ("W_K[1.7]", "W_K[1.kv2]"):
        with pytest.raises(NotationError, match="unknown symbol"):
            parse(wrong, context=GROUPED)


def test_definitions_of_grouped_heads() -> None:
    symbols = GROUPED.symbols

    assert str(definition(symbols["W_OV[1.5]"])) == "W_O[1.5] W_V[1.kv1]"
    assert str(definition(symbols["W_QK[1.3]"])) == "W_Q[1.3]ᵀ W_K[1.kv0]"
    assert str(definition(symbols["h[0.2]"])) == "(Id ⊗ W_O[0.2])(A[0.2] ⊗ Id)(Id ⊗ W_V[0.kv1])"
    assert symbols["W_OV[1.5]"] != ov((1, 5))


@pytest.mark.parametrize(
    ("name", "expand", "fold"),
    [
        ("W_OV", ExpandOV(), FoldOV()),
        ("W_QK", ExpandQK(), FoldQK()),
        ("h", ExpandHead(), FoldHead()),
    ],
)
@pytest.mark.parametrize("label", ["1.0", "1.7"])
def test_rules_go_both_ways(name: str, label: str, expand, fold) -> None:
    symbol = GROUPED.symbols[f"{name}[{label}]"]

    assert ".kv" in str(expand.apply(symbol))
    assert fold.apply(expand.apply(symbol)) is symbol


def test_a_key_value_head_of_another_layer_is_not_folded() -> None:
    other = Product(of_head("W_O", (1, 0)), weight("W_V", "d_head", "d_model", label="11.kv0"))

    assert "of one label side by side" in str(FoldOV().why_not(other))


def heads(*numbers: int, arch: Architecture = GROUPED) -> list[Factor]:
    return [arch.symbols[f"W_OV[1.{number}]"] for number in numbers]


def by_hand(first: int, second: int, kv: str) -> Expr:
    """``(W_O + W_O′) W_V``: what two heads write through one matrix of values."""
    write = Sum(of_head("W_O", (1, first)), of_head("W_O", (1, second)))
    return Product(write, weight("W_V", "d_head", "d_model", label=kv))


def test_an_identity_that_holds_because_heads_share_their_values() -> None:
    assert equivalent(Sum(*heads(0, 3)), by_hand(0, 3, "1.kv0"))
    assert equivalent(Sum(*heads(5, 7)), by_hand(5, 7, "1.kv1"))
    # heads of two groups, the other group, and heads that share nothing
    assert not equivalent(Sum(*heads(0, 4)), by_hand(0, 4, "1.kv0"))
    assert not equivalent(Sum(*heads(0, 3)), by_hand(0, 3, "1.kv1"))
    assert not equivalent(Sum(*heads(0, 3, arch=PLAIN)), by_hand(0, 3, "1.kv0"))


def test_keys_are_shared_in_scores() -> None:
    a, b = (GROUPED.symbols[f"W_QK[1.{number}]"] for number in (0, 3))
    queries = Sum(of_head("W_Q", (1, 0)).T, of_head("W_Q", (1, 3)).T)
    keys = weight("W_K", "d_head", "d_model", label="1.kv0")

    assert equivalent(a + b, queries @ keys)
    assert normal_form(a + b) == normal_form(queries @ keys)


def test_exact_values_share_their_draws() -> None:
    values = Valuation(seed=3)
    one, other = (values(symbol) for symbol in heads(0, 3))
    sum_by_hand = values(by_hand(0, 3, "1.kv0"))
    added = np.array(one, dtype=object) + np.array(other, dtype=object)

    assert (added == np.array(sum_by_hand, dtype=object)).all()


def test_the_expansion_of_a_grouped_model_is_that_of_its_matrices() -> None:
    arch = Architecture(2, 4, kv_heads=2, biases={"b_V"})
    model = oracle.Model(heads=arch.heads, kv_heads=arch.kv_heads, biases=arch.biases)

    for term in arch.logits.expand().where("order=1"):
        spelled = oracle.word(model, str(normal_form(term.weight)))
        np.testing.assert_allclose(spelled, oracle.word(model, str(term.weight)), rtol=1e-12)


def test_derivations_of_grouped_models() -> None:
    arch = Architecture(2, 4, kv_heads=2)
    derivation = arch.logits.derive()
    chosen = derive_paths(arch.logits.expand().where("0.3 > 1.0"))

    assert "(Id ⊗ W_V[1.kv1])" in str(derivation)
    assert "W_V[1.3]" not in str(derivation)
    assert derivation.check().holds
    assert "(Id ⊗ W_V[0.kv1])" in str(chosen)
    assert chosen.end == arch.logits.expand()["0.3 > 1.0"].operator
    assert chosen.check().holds
    part = partial_expansion(arch, heads=["0.1"])
    assert equivalent(part.whole, arch.logits.expression, part.definitions)


def test_scores_and_graph_name_the_key_value_head() -> None:
    arch = Architecture(2, 4, kv_heads=2, positions="rotary", biases={"b_K", "b_Q", "b_V"})
    scores = arch.scores("1.3")
    edges = {data["symbol"] for *_, data in arch.graph().edges(data=True)}

    assert "W_K[1.kv1]" in str(scores)
    assert "b_K[1.kv1]" in str(scores)
    assert any("b_K[1.kv1]" in str(term) for term in scores.expand().terms(10_000))
    assert any("W_V[1.kv1]" in symbol for symbol in edges)
    assert not any("W_V[1.3]" in symbol or "W_K[1.3]" in symbol for symbol in edges)


def test_two_meanings_of_one_name_are_told_apart() -> None:
    both = grouped(head("1.4"), "1.kv2") + head("1.4")

    with pytest.raises(TypeMismatchError, match=r"the name h\[1.4\] stands for two factors"):
        _ = both.symbols
    assert not equivalent(tensor(pattern("A", label="1.4"), ov((1, 4), 2)), head("1.4"))
