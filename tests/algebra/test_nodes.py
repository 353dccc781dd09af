"""Block matrices, measures, factors with a kind, and the limits of nesting."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction

import pytest

from otimes.algebra import (
    Column,
    Eigenvalues,
    Expr,
    Factor,
    FrobeniusNorm,
    Id,
    Product,
    Row,
    Scaled,
    Sum,
    Transpose,
    diagonal,
    head,
    inclusion,
    norm,
    operator,
    pattern,
    rotation,
    tensor,
    vector,
    weight,
)
from otimes.algebra.definitions import checked, definition, ov_circuit, read, write
from otimes.algebra.types import Type
from otimes.errors import LimitError, TypeMismatchError

A = pattern("A")
W, V = weight("W", "d_model", "d_head"), weight("V", "d_head", "d_model")
x = vector("x", "pos", "d_model")


def test_a_row_adds_domains_and_a_column_codomains() -> None:
    row = Row(W, weight("P", "d_model", "vocab"))
    column = Column(V, weight("P", "vocab", "d_model"))

    assert row.type == Type.of(("d_model", "d_head ⊕ vocab"))
    assert column.type == Type.of(("d_head ⊕ vocab", "d_model"))
    assert (row @ column).type == Type.of(("d_model", "d_model"))
    assert Column(x, x).type == Type.of(("pos", "1"), ("d_model ⊕ d_model", "1"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Row(W, V), "the row of W and V does not fit: W is d_model <- d_head, V is d_head"),
        (
            lambda: Column(W, V),
            "Blocks of a column need one domain, and one codomain in every slot",
        ),
        (lambda: Row(W), "a row takes 2 or more expressions, not (W)"),
        (lambda: Row(W, Id), "a block of a row needs known spaces; Id is any <- the same"),
        (lambda: Eigenvalues(V), "only a map of a space to itself has eigenvalues; V is d_head <-"),
        (lambda: Eigenvalues(FrobeniusNorm(V)), "only a map can be measured, not ‖V‖"),
        (lambda: 2 * FrobeniusNorm(V), "a multiple is of a map; ‖V‖ is a number or a spectrum"),
        (lambda: FrobeniusNorm(V).T, "a transpose is of a map; ‖V‖ is a number or a spectrum"),
        (lambda: FrobeniusNorm(V) + FrobeniusNorm(V), "the sum ‖V‖ + ‖V‖ does not fit"),
        (lambda: Eigenvalues(A) @ A, "the product λ(A) A does not fit: λ(A) is a number or a"),
        (lambda: Factor("D", A.type, "", "skew"), "unknown kind of factor 'skew'; known are"),
        (lambda: weight("Wᵀ", "d_head", "d_model"), "'Wᵀ' with label '' cannot name a factor"),
        (lambda: Product(W, W), "the product W W does not fit: W is d_model <- d_head, W is d_m"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_sides(build: object, message: str) -> None:
    with pytest.raises(TypeMismatchError) as caught:
        build()  # pyright: ignore[reportCallIssue]

    assert message in str(caught.value)


EVERY_KIND = [
    Row(W, W),
    Column(V, V),
    Eigenvalues(W @ V),
    FrobeniusNorm(W @ V),
    head("1.0"),
    norm("1.ln1"),
    diagonal("D", label="1.ln1"),
    rotation("R"),
    inclusion(1, "d_head", "vocab"),
    operator("H", ("pos", "pos"), ("vocab", "d_model"), label="2"),
]


@pytest.mark.parametrize("expr", EVERY_KIND, ids=str)
def test_nodes_are_values(expr: Expr) -> None:
    import otimes.algebra as algebra

    again = eval(repr(expr), vars(algebra))

    assert again == expr
    assert hash(again) == hash(expr)
    assert pickle.loads(pickle.dumps(expr)) == expr
    assert copy.deepcopy(expr) == expr
    if isinstance(expr, Factor):
        assert again is expr
    with pytest.raises(AttributeError, match="is immutable"):
        expr.type = A.type


@pytest.mark.parametrize(
    "expr",
    [*EVERY_KIND, Sum(A, A), Product(A, A), tensor(A, W), Transpose(W), Scaled(Fraction(2, 3), A)],
    ids=str,
)
def test_a_node_is_built_again_from_its_children(expr: Expr) -> None:
    assert expr.with_children(*expr.children) == expr


def test_a_factor_of_another_kind_is_another_factor() -> None:
    assert diagonal("D") != pattern("D")
    assert rotation("R") != weight("R", "d_model", "d_model")


def test_factors_and_symbols_come_in_the_order_of_their_appearance() -> None:
    expr = tensor(A, W @ V) @ head("1.0") @ tensor(A, W @ V)

    assert expr.factors == (A, W, V, head("1.0"))
    assert list(expr.symbols) == ["A", "W", "V", "h[1.0]"]
    assert expr.symbols["h[1.0]"] is head("1.0")


def test_nesting_beyond_what_anybody_writes_is_refused_at_once() -> None:
    deep: Expr = A
    for _ in range(150):
        deep = deep.T

    with pytest.raises(LimitError, match="expressions nest at most 150 deep") as caught:
        Transpose(deep)
    assert caught.value.limit == 150
    # as deep as allowed, everything that recurses still works
    assert str(deep).count("ᵀ") == 150
    assert hash(deep) == hash(eval(repr(deep), {"pattern": pattern}))


def test_long_sums_and_products_do_not_nest() -> None:
    total: Expr = A + A
    for _ in range(500):
        total = total + A

    assert total.depth == 1
    assert len(total.children) == 502


def test_definitions_are_those_of_the_field() -> None:
    assert definition(ov_circuit("3.1")) == write("3.1") @ read("V", "3.1")
    # a symbol of the same name between other spaces is free
    assert definition(weight("W_OV", "vocab", "vocab")) is None
    assert definition(A) is None
    assert definition(A, {A: Id}) == Id


def test_definitions_that_do_not_fit_or_go_in_a_circle_are_refused() -> None:
    x0, x1 = (vector("x", "pos", "d_model", label=label) for label in "01")

    assert checked({x1: head("0.0") @ x0}) == {x1: head("0.0") @ x0}
    with pytest.raises(TypeMismatchError, match=r"the definition W = V does not fit: W is d_model"):
        checked({W: V})
    with pytest.raises(TypeMismatchError, match=r"go in a circle: x\[1\] → x\[0\] → x\[1\]"):
        checked({x1: head("0.0") @ x0, x0: head("0.0") @ x1})
