"""What was once answered wrongly: false identities that hold for small matrices, lost symbols."""

from __future__ import annotations

import pytest

from otimes.algebra import (
    Id,
    diagonal,
    normal_form,
    parse,
    pattern,
    rotation,
    tensor,
    weight,
)
from otimes.algebra.derivations import Derivation
from otimes.algebra.rules import CollectOrder, Rotate
from otimes.errors import TypeMismatchError


def test_the_transpose_of_a_product_of_diagonals_keeps_their_order() -> None:
    d1, d2 = diagonal("D", label="1"), diagonal("D", label="2")
    a = pattern("A")

    assert str(normal_form((d1 @ d2).T)) == "D[1] D[2]"
    assert str(normal_form((d1 @ d2 @ a).T)) == "Aᵀ D[1] D[2]"


def test_two_factors_of_one_name_are_not_one_symbol() -> None:
    expr = tensor(pattern("W"), weight("W", "d_model", "d_model"))

    with pytest.raises(TypeMismatchError, match=r"W stands for two factors: .* is pos <- pos, "):
        _ = expr.symbols
    with pytest.raises(TypeMismatchError, match="rename one of them"):
        parse(str(expr), context=expr)
    with pytest.raises(TypeMismatchError, match="rename one of them"):
        _ = Derivation(expr).symbols


def test_terms_of_one_printed_form_have_one_order() -> None:
    plain, known = weight("W", "d_model", "d_model"), diagonal("W", "d_model")

    assert normal_form(plain + known) == normal_form(known + plain)


def test_a_pattern_called_s_counts_as_a_head() -> None:
    s, w = pattern("S"), weight("W", "d_model", "d_model")
    expr = tensor(s, w) + Id + tensor(s @ s, w)

    assert str(CollectOrder().apply(expr)) == "Id + S ⊗ W + S S ⊗ W"


def test_a_rotation_of_one_part_of_a_direct_sum_is_refused() -> None:
    whole = "d_head ⊕ d_model"
    u, e = weight("U", "vocab", whole), weight("E", whole, "vocab")
    inner = weight("P", "vocab", "d_model") @ weight("Q", "d_model", "vocab")
    rule = Rotate(rotation("R"))

    assert rule.why_not(inner) is None
    assert "d_model is a part of d_head ⊕ d_model" in (rule.why_not(inner + u @ e) or "")
