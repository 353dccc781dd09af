"""Exact values, normal forms of chosen expressions, equivalence and its counterexamples."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from otimes.algebra import (
    Architecture,
    Column,
    Eigenvalues,
    Expr,
    FrobeniusNorm,
    Id,
    Product,
    Row,
    Valuation,
    check_step,
    diagonal,
    equivalent,
    head,
    inclusion,
    norm,
    normal_form,
    pattern,
    polynomial,
    rotation,
    tensor,
    vector,
    weight,
)
from otimes.algebra.definitions import ov_circuit, qk_circuit, read, write
from otimes.errors import LimitError, TypeMismatchError, UnsupportedError

A, B = pattern("A"), pattern("B")
W, V = weight("W", "d_model", "d_model"), weight("V", "d_model", "d_model")
W_U, W_E = weight("W_U", "vocab", "d_model"), weight("W_E", "d_model", "vocab")
D, E = diagonal("D"), diagonal("E")
R = rotation("R")
t = vector("t", "pos", "vocab")


def dense(value: object) -> np.ndarray:
    return np.array(value, dtype=object)


def test_values_are_those_of_kronecker_products_of_rectangular_matrices() -> None:
    values = Valuation(seed=3)
    a, w = dense(values(A)), dense(values(W_U))
    assert w.shape == (5, 4)

    assert (dense(values(tensor(A, W_U))) == np.kron(a, w)).all()
    assert (dense(values(A @ B - 2 * A)) == a @ dense(values(B)) - 2 * a).all()
    assert (dense(values(tensor(Id, W_U).T)) == np.kron(np.eye(2, dtype=int), w).T).all()


def test_a_tensor_product_acts_as_a_x_w_transposed() -> None:
    values = Valuation(seed=4)
    x = dense(values(t)).reshape(2, 5)  # [pos, vocab], row-major
    moved = dense(values(tensor(A, W_E) @ t)).reshape(2, 4)

    assert (moved == dense(values(A)) @ x @ dense(values(W_E)).T).all()


def test_a_row_times_a_column_is_that_of_numpy_blocks() -> None:
    values = Valuation(seed=5)
    row, column = Row(write("0"), W), Column(read("V", "0"), V)

    assert (dense(values(row)) == np.hstack([dense(values(write("0"))), dense(values(W))])).all()
    assert (
        dense(values(column)) == np.vstack([dense(values(read("V", "0"))), dense(values(V))])
    ).all()
    # two slots: the features are stacked at each position
    r0, r1 = vector("r", "pos", "d_head", label="0"), vector("r", "pos", "vocab", label="1")
    stacked = dense(values(Column(r0, r1))).reshape(2, 8)
    parts = [dense(values(r0)).reshape(2, 3), dense(values(r1)).reshape(2, 5)]
    assert (stacked == np.hstack(parts)).all()


def test_rotations_are_orthogonal_diagonals_diagonal_and_inclusions_one_hot() -> None:
    values = Valuation(seed=6)
    r, d = dense(values(R)), dense(values(D))

    assert (r.T @ r == np.eye(4, dtype=int)).all()
    assert (r != r.T).any()
    assert (d == np.diag(np.diag(d))).all()
    whole = dense(values(inclusion(1, "d_head", "vocab")))
    assert (whole == np.vstack([np.zeros((3, 5), int), np.eye(5, dtype=int)])).all()


def test_a_factor_has_the_same_matrix_whatever_else_is_there() -> None:
    assert Valuation(7)(W) == Valuation(7)(W)
    assert Valuation(7)(W) != Valuation(8)(W)
    assert Valuation(7)(W) != Valuation(7)(V)


def test_eigenvalues_are_compared_by_the_characteristic_polynomial_without_zeros() -> None:
    values = Valuation(seed=8)
    small, large = read("V", "0") @ write("0"), write("0") @ read("V", "0")

    assert values(Eigenvalues(small)) == values(Eigenvalues(large))
    numbers = np.linalg.eigvals(dense(values(small)).astype(float))
    expected = np.poly(numbers)
    assert np.allclose(dense(values(Eigenvalues(small)))[0].astype(float), expected)
    assert values(FrobeniusNorm(small)) != values(FrobeniusNorm(large))
    assert values(FrobeniusNorm(W)) == ((int((dense(values(W)) ** 2).sum()),),)


def test_an_eigenvalue_step_is_checked_and_a_norm_is_not_mistaken_for_it() -> None:
    o, v = write("0"), read("V", "0")

    assert equivalent(Eigenvalues(o @ v), Eigenvalues(v @ o)).holds
    assert not equivalent(FrobeniusNorm(o @ v), FrobeniusNorm(v @ o)).holds
    assert not equivalent(Eigenvalues(o @ v), Eigenvalues(2 * (v @ o))).holds
    with pytest.raises(TypeMismatchError, match=r"λ\(W\) and ‖W‖ cannot be compared"):
        equivalent(Eigenvalues(W), FrobeniusNorm(W))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (tensor(A, W) @ tensor(B, V), tensor(A @ B, W @ V)),
        (
            (Id + tensor(A, W)) @ (Id + tensor(B, V)),
            Id + tensor(A, W) + tensor(B, V) + tensor(A @ B, W @ V),
        ),
        (tensor(Id, Id), Id),
        (A - A, 0 * B),
        (D @ E, E @ D),
        (D.T, D),
        (R.T @ R, Id),
        (W_U @ R.T @ R @ W_E, W_U @ W_E),
        (head("1.0"), tensor(pattern("A", label="1.0"), ov_circuit("1.0"))),
        (qk_circuit("1.0").T, read("K", "1.0").T @ read("Q", "1.0")),
        (
            norm("1.ln1"),
            tensor(diagonal("D", label="1.ln1"), weight("Γ", "d_model", "d_model", label="1.ln1")),
        ),
        (Row(W, V) @ Column(V, W), W @ V + V @ W),
        (Row(Row(W, V), V) @ Column(V, Column(W, W)), W @ V + V @ W + V @ W),
        ((Row(W, V) @ Column(V, W)).T, V.T @ W.T + W.T @ V.T),
        (tensor(A, W_E) @ t + tensor(B, W_E) @ t, tensor(A + B, W_E) @ t),
        (Fraction(1, 2) * A + Fraction(1, 2) * A, A),
    ],
)
def test_equal_maps_are_found_equal_by_their_normal_form(left: Expr, right: Expr) -> None:
    found = equivalent(left, right)

    assert found.holds
    assert found.method == "normal form"
    assert found.counterexample is None
    assert "(by normal form)" in str(found)
    assert check_step(left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (A @ B, B @ A),
        (tensor(A, W) + tensor(B, V), tensor(A + B, W + V)),
        (D @ A, A @ D),
        (R, R.T),
        (R @ R, Id),
        (A.T, A),
        (head("1.0") @ head("0.0"), head("0.0") @ head("1.0")),
        (Row(W, V) @ Column(V, W), V @ W),
        (A, 2 * A),
        (qk_circuit("1.0"), qk_circuit("1.0").T),
    ],
)
def test_different_maps_come_with_a_counterexample(left: Expr, right: Expr) -> None:
    found = equivalent(left, right)

    assert not found.holds
    assert not found
    example = found.counterexample
    assert example is not None
    row, column = example.entry
    assert example.left_value[row][column] != example.right_value[row][column]
    assert equivalent(left - right, found.difference or left).holds
    # the matrices that it shows give the values that it shows
    assert set(example.matrices) >= {str(f) for f in left.factors if f.name in "ABRWV"}


def test_the_smallest_counterexample_is_made_of_numbers() -> None:
    assert str(equivalent(A, 2 * A).counterexample) == (
        "A ≠ 2 A: entry [0, 0] is 3 on the left and 6 on the right, where\n  A = 3"
    )


def test_the_question_is_refused_where_it_has_no_sense() -> None:
    with pytest.raises(TypeMismatchError) as caught:
        equivalent(W_U, W_E)

    assert str(caught.value) == (
        "W_U and W_E cannot be compared: W_U is vocab <- d_model, W_E is d_model <- vocab. "
        "Equal maps have equal spaces on both sides"
    )


def test_what_the_rules_do_not_reach_is_decided_by_values_and_says_so() -> None:
    # numbers commute and are their own transposes, which no rule of words knows
    u, v = weight("u", "1", "d_model"), weight("v", "d_model", "1")

    found = equivalent((u @ v).T, u @ v)

    assert found.holds
    assert found.method == "evaluation"


def test_definitions_of_a_stream_are_used() -> None:
    x0, x1 = (vector("x", "pos", "d_model", label=label) for label in "01")
    meaning = {x1: (Id + head("0.0")) @ x0}

    assert equivalent(x1, x0 + head("0.0") @ x0, meaning).holds
    assert not equivalent(x1, head("0.0") @ x0, meaning).holds
    assert not equivalent(x1, x0 + head("0.0") @ x0).holds


def test_a_normal_form_reads_from_short_words_to_long_ones() -> None:
    expr = tensor(A @ B, W @ V) + tensor(A, W) + Id - tensor(A, W) + 2 * tensor(B, V)

    assert str(normal_form(expr)) == "Id + 2 B ⊗ V + A B ⊗ W V"
    assert polynomial(expr) == polynomial(normal_form(expr))
    assert str(normal_form(A - A)) == "0 Id"
    # the identity of two slots was once another polynomial than that of one
    assert polynomial(tensor(Id, Id) + 0 * tensor(A, W)) == polynomial(Id)
    assert normal_form(W_U - W_U).type == W_U.type


def test_the_logits_of_an_architecture_are_the_sum_of_their_paths() -> None:
    logits = Architecture(layers=2, heads=2).logits
    terms = [term.expression for term in logits.expand()]
    total = terms[0]
    for term in terms[1:]:
        total = total + term

    assert equivalent(logits.expression, total).holds
    dropped = equivalent(logits.expression, total.with_children(*total.children[:-1]))
    assert equivalent(dropped.difference or total, terms[-1]).holds


def test_a_normal_form_that_nobody_could_read_is_refused_with_its_size() -> None:
    sums = Product(*(A + B for _ in range(40)))

    with pytest.raises(LimitError, match=r"the normal form has about 131,072 monomials, more than"):
        normal_form(sums)
    with pytest.raises(UnsupportedError, match="only maps have a normal form"):
        normal_form(Eigenvalues(W))
