"""What was once answered wrongly: false identities that hold for small matrices, lost symbols."""

from __future__ import annotations

from itertools import permutations
from typing import Any, cast

import pytest

from otimes.algebra import (
    Eigenvalues,
    Expr,
    Factor,
    Id,
    Product,
    Sum,
    check_derivation,
    check_step,
    diagonal,
    equivalent,
    normal_form,
    parse,
    pattern,
    rotation,
    tensor,
    weight,
)
from otimes.algebra.derivations import Derivation
from otimes.algebra.rules import CollectOrder, Rotate
from otimes.errors import InputError, LimitError, NotationError, TypeMismatchError


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


A, B, C, E = (pattern(name) for name in "ABCE")
K = A @ B - B @ A
R1, R2 = rotation("R1", "pos"), rotation("R2", "pos")


def standard_identity(*maps: Expr) -> Expr:
    """``S_n``: the signed sum of all products, zero for matrices of half the size."""
    terms = list[Expr]()
    for order in permutations(range(len(maps))):
        swaps = sum(i > j for k, j in enumerate(order) for i in order[:k])
        terms.append((-1) ** swaps * Product(*(maps[k] for k in order)))
    return Sum(*terms)


def small(name: str) -> Factor:
    """A map of a space that would have two dimensions if nothing were said."""
    return weight(name, "bb", "bb")


SMALL_ONLY = [
    (K @ K @ C, C @ K @ K),
    (standard_identity(A, B, C, E), 0 * A),
    (R1 @ R2, R2 @ R1),
    ((A - A.T) @ (B - B.T), (B - B.T) @ (A - A.T)),
    (
        standard_identity(*map(small, "ABCE")),
        0 * small("A"),
    ),
    (Eigenvalues(K), Eigenvalues(-K)),
    (tensor(K @ K @ C, Id) @ tensor(Id, Id), tensor(C @ K @ K, Id)),
]


@pytest.mark.parametrize(("left", "right"), SMALL_ONLY)
def test_an_identity_of_small_matrices_is_not_one_of_maps(left: Expr, right: Expr) -> None:
    found = equivalent(left, right)

    assert not found.holds
    assert found.counterexample is not None
    assert found.counterexample.left_value != found.counterexample.right_value
    assert not check_step(left, right)
    chain = check_derivation([left, left, right])
    assert chain.first_bad == 1
    assert chain.counterexample is not None


def test_what_would_take_too_large_matrices_is_not_said_to_hold() -> None:
    u, v = weight("u", "1", "d_model"), weight("v", "d_model", "1")
    scalar = Product(u, v)
    left = tensor(Product(*[A] * 80), scalar, weight("W", "vocab", "vocab"))
    right = tensor(Product(*[A] * 80), scalar.T, weight("W", "vocab", "vocab"))

    with pytest.raises(LimitError, match="is not decided: they agree on small matrices"):
        equivalent(left, right)
    with pytest.raises(LimitError, match=r"step 2 of 3 is not decided: whether .* they agree on"):
        check_derivation([left, left, right, left])


def test_measures_say_that_they_were_compared_on_draws() -> None:
    o, v = weight("W_O", "d_model", "d_head"), weight("W_V", "d_head", "d_model")

    assert "no size decides" in equivalent(Eigenvalues(o @ v), Eigenvalues(v @ o)).method
    assert equivalent(Eigenvalues(A + B), Eigenvalues(B + A)).method == "normal form"


def test_one_expression_is_itself_however_large_its_normal_form_would_be() -> None:
    large = Product(*(A + B for _ in range(40)))

    assert equivalent(large, large).holds
    assert str(equivalent(large, large).difference) == "0 Id"
    other = Product(*(B + A for _ in range(40)))
    found = equivalent(large, other)
    assert found.holds
    assert "the normal form is too large" in found.method


def test_a_step_that_does_not_parse_or_fit_is_the_first_bad_one() -> None:
    good = "W_U W_O[0.0] W_V[0.0] W_E"

    found = check_derivation([good, good, "W_U W_V[0.0] W_O[0.0] W_E", good])
    assert found.checked == (True, False, False)
    assert "does not fit" in (found.reason or "")
    found = check_derivation([good, "W_U W_O[0.0"])
    assert found.first_bad == 0
    assert found.reason is not None
    with pytest.raises(NotationError):
        check_derivation(["W_U W_O[0.0"])


@pytest.mark.parametrize("chain", [[], 3, "W_U", A])
def test_what_is_no_chain_is_refused(chain: Any) -> None:
    with pytest.raises(InputError, match=r"nothing to check|a chain is a list"):
        check_derivation(chain)


def test_texts_are_not_compared_unread() -> None:
    with pytest.raises(InputError, match="read a text with"):
        equivalent(cast("Any", "A"), cast("Any", "A"))
