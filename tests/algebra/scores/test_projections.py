"""Norms of queries and keys in score terms: what is printed, derived, and refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otimes.algebra import Architecture, equivalent, normal_form, parse, tensor
from otimes.algebra.scores import ScoreTerm
from otimes.algebra.scores.notation import transposed
from otimes.algebra.sympy_bridge import from_sympy
from otimes.algebra.vocabulary import ROTATION
from otimes.errors import NotationError, UnsupportedError
from tests.algebra.scores.models import model_of
from tests.oracles import scores as oracle

QWEN3 = Architecture(2, 4, kv_heads=2, norm="rms", qk_norm="head", positions="rotary")
OLMO2 = Architecture(2, 4, kv_heads=2, norm="rms", norm_placement="output", qk_norm="all",
                     positions="rotary")  # fmt: skip
COUPLED = Architecture(2, 4, kv_heads=2, norm="layer", qk_norm="all", biases={"b_Q"})
PLAIN = Architecture(2, 1, norm="layer", qk_norm="head", biases={"b_K"})


@pytest.mark.parametrize(
    ("arch", "pair", "expected"),
    [
        (
            QWEN3, ("direct", "direct"),
            ("D[1.3.q_norm] D[1.ln1] ⊗ D[1.kv1.k_norm] D[1.ln1] ⊗ W_Eᵀ Γ[1.ln1]ᵀ W_Q[1.3]ᵀ "
            "Γ[1.q_norm]ᵀ R(j−i) Γ[1.k_norm] W_K[1.kv1] Γ[1.ln1] W_E"),
        ),
        (
            OLMO2, ("0.1", "direct"),
            ("D[1.q_norm] D[0.ln1_post] A[0.1] ⊗ D[1.k_norm] ⊗ W_Eᵀ W_OV[0.1]ᵀ Γ[0.ln1_post]ᵀ "
            "W_Q[1.3]ᵀ Γ[1.3.q_norm]ᵀ R(j−i) Γ[1.kv1.k_norm] W_K[1.kv1] W_E"),
        ),
        (
            COUPLED, ("bias", "embed"),
            ("D[1.q_norm] ⊗ D[1.k_norm] D[1.ln1] ⊗ b_Q[1]ᵀ Γ[1.3.q_norm]ᵀ Γ[1.kv1.k_norm] W_K[1] "
            "Γ[1.ln1] W_E"),
        ),
    ],
)  # fmt: skip
def test_terms_print_scales_gains_and_the_rotation(arch, pair, expected) -> None:
    term = arch.scores("1.3").expand()[pair]

    assert str(term) == f"1/√d_head · {expected}"
    assert parse(expected, context=arch) == term.operator


def test_the_factored_scores_show_where_norms_stand() -> None:
    assert (
        QWEN3.scores("1.3")
        .text()
        .startswith(
            "1/√d_head · D[1.3.q_norm] x[1.read] W_Q[1.3]ᵀ Γ[1.q_norm]ᵀ R(j−i) Γ[1.k_norm] "
            "W_K[1.kv1] x[1.read]ᵀ D[1.kv1.k_norm], where x[1.read] = (D[1.ln1] ⊗ Γ[1.ln1]) x[1] "
            "is what head 1.3 reads"
        )
    )
    assert COUPLED.scores("0.0").formula("row") == (
        "1/√d_head · D[0.q_norm] (x[0.read] W_Q[0] + b_Q[0]) Γ[0.0.q_norm] Γ[0.kv0.k_norm]ᵀ "
        "W_K[0]ᵀ x[0.read]ᵀ D[0.k_norm]"
    )
    assert str(QWEN3.scores("1.3").form) == ("W_Q[1.3]ᵀ Γ[1.q_norm]ᵀ R(j−i) Γ[1.k_norm] W_K[1.kv1]")


def test_latex_of_the_rotation_and_the_norms() -> None:
    found = QWEN3.scores("1.3").latex

    assert r"R(j-i) \Gamma^{1.\mathrm{k\,norm}} W_{K}^{1.\mathrm{kv1}}" in found
    assert r"1/\sigma\text{ of norms, those of queries and keys too) held at" in found
    assert r"R(j-i)" in QWEN3.scores("1.3").expand()["direct", "0.2"].latex
    assert ROTATION.latex == "R(j-i)"


@pytest.mark.parametrize("typed", ["R(j−i)", "R(j-i)", "R( j - i )"])
def test_the_rotation_is_read_back(typed: str) -> None:
    assert parse(typed) is ROTATION
    form = parse(f"W_Q[0.0]ᵀ {typed}(W_K[0.0] + W_K[0.0])", context=Architecture(1, 1))
    assert parse(str(form), context=form.symbols) == form
    with pytest.raises(NotationError, match=r"unknown symbol 'R\("):
        parse(typed, context=[])


def test_the_rotation_is_not_an_orthogonal_matrix_of_its_own() -> None:
    """It depends on both slots: what a rotation cancels with does not cancel with it."""
    assert not equivalent(ROTATION.T @ ROTATION, parse("R(j-i)") @ ROTATION.T).holds
    assert str(normal_form(ROTATION.T @ ROTATION)) == "R(j−i)ᵀ R(j−i)"


@pytest.mark.parametrize("arch", [QWEN3, OLMO2, COUPLED, PLAIN], ids=repr)
def test_scores_with_norms_of_queries_and_keys_are_derived(arch: Architecture) -> None:
    scores = Architecture(
        2, 1, norm=arch.norm, qk_norm=arch.qk_norm, norm_placement=arch.norm_placement,
        positions=arch.positions,
    ).scores("1.0")  # fmt: skip

    derivation = scores.derive()

    assert derivation.check().holds
    operators = list[Any]()
    for term in scores.expand():
        assert isinstance(term, ScoreTerm)
        parts: list[Any] = term.planes(["f"]) if term.is_rotary else [term]
        for part in parts:
            form = tensor(transposed(part.query_pattern), part.key_pattern, part.weight)
            operators.append(form * getattr(part, "sign", 1))
    assert len(operators) == len(derivation.end.children)
    assert equivalent(derivation.end, sum(operators[1:], operators[0])).holds
    without = operators[1:]
    assert not equivalent(derivation.end, sum(without[1:], without[0])).holds
    assert r"\text{with } A \text{ (attention patterns) and } D" in derivation.latex


def test_the_bias_of_queries_goes_through_their_norm() -> None:
    derivation = PLAIN.scores("1.0").derive()

    assert derivation.check().holds
    assert "Γ[1.k_norm] b_K[1.0]" in str(derivation.end)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("head", "D[1.3.q_norm] ", ""),
        ("head", "Γ[1.q_norm]ᵀ", "Γ[1.q_norm]"),
        ("head", "Γ[1.k_norm]", "Γ[1.q_norm]"),
        ("all", "Γ[1.kv1.k_norm]", "Γ[1.kv0.k_norm]"),
        ("coupled", "Γ[1.3.q_norm]", "Γ[1.2.q_norm]"),
        ("coupled", "D[1.k_norm]", "D[1.q_norm]"),
    ],
)
def test_a_damaged_norm_is_seen(name: str, old: str, new: str) -> None:
    arch = {
        "head": Architecture(2, 4, kv_heads=2, norm="rms", qk_norm="head"),
        "all": Architecture(2, 4, kv_heads=2, norm="rms", qk_norm="all"),
        "coupled": COUPLED,
    }[name]
    model = model_of(arch, seed=1)
    term = arch.scores("1.3").expand()["embed", "embed > 0.1"]
    alone = oracle.pair_scores(model, 1, 3, "embed", "embed > 0.1") * np.sqrt(oracle.D_HEAD)
    damaged = str(term.operator).replace(old, new)

    assert damaged != str(term.operator)
    np.testing.assert_allclose(oracle.term(model, str(term.operator), "t", "t"), alone, rtol=1e-9)
    assert not np.allclose(oracle.term(model, damaged, "t", "t"), alone)


@pytest.mark.parametrize("arch", [QWEN3, OLMO2, COUPLED], ids=repr)
def test_symbols_round_trip(arch: Architecture) -> None:
    import otimes.algebra as algebra

    for symbol in arch.symbols.values():
        assert parse(str(symbol), context=arch) is symbol
        assert eval(repr(symbol), vars(algebra)) is symbol
    assert eval(repr(arch), vars(algebra)) == arch


def test_forms_go_to_sympy_and_back() -> None:
    term = COUPLED.scores("1.3").expand()["embed", "embed"]
    sizes = {"d_model": 4, "d_head": 2, "d_heads": 8, "d_kv_heads": 4, "vocab": 3, "pos": 2}

    value = term.weight.to_sympy(sizes, form="kronecker")

    assert from_sympy(value, COUPLED) == term.weight
    assert QWEN3.scores("1.3").form.to_sympy({"d_model": 1, "d_head": 2}).shape == (1, 1)


def test_layers_that_do_not_turn_have_no_rotation() -> None:
    arch = Architecture(3, 1, positions="rotary", rotary_layers=[0, 2])

    assert "R(j−i)" in str(arch.scores("2.0").expand()["direct", "direct"])
    assert str(arch.scores("1.0").expand()["direct", "direct"]) == (
        "1/√d_head · Id ⊗ Id ⊗ W_Eᵀ W_QK[1.0] W_E"
    )
    assert "R(j−i)" not in str(arch.scores("1.0"))
    assert "rotary positions but in layers 1" in str(arch)
    assert eval(repr(arch)) == arch
    with pytest.raises(UnsupportedError, match="only rotary positions turn queries and keys"):
        arch.scores("1.0").expand()["direct", "direct"].planes(["f"])


def test_the_models_own_scale_is_shown() -> None:
    arch = Architecture(1, 1, attention_scale=0.35)

    assert str(arch.scores("0.0")).startswith("0.35 · x[0] W_QK[0.0]")
    assert str(arch.scores("0.0", scale=2.0).expand()["direct", "direct"]).startswith("2.0 · ")
    assert eval(repr(arch)) == arch
    for scores in (arch.scores("0.0"), arch.scores("0.0", scale=2.0)):
        assert eval(repr(scores)) == scores
        for term in scores.expand():
            assert eval(repr(term)) == term


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qk_norm": "head"}, "qk_norm needs a norm, which says of what kind it is"),
        ({"qk_norm": "each", "norm": "rms"}, "unknown qk_norm 'each'; known are None, head, all"),
        ({"rotary_layers": [0]}, "rotary_layers need rotary positions, not 'none'"),
        ({"rotary_layers": [2], "positions": "rotary"}, "rotary_layers are of 0 to 1, not 2"),
        ({"attention_scale": float("nan")}, "attention_scale is a finite number, or None"),
        ({"attention_scale": True}, "attention_scale is a finite number, or None"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Architecture(2, 1, **options)
