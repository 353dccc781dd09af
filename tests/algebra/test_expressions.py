"""Nodes: typed, immutable, hashable, interned; errors show both sides."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import pytest
from hypothesis import given, settings

from otimes.algebra import (
    Expr,
    Factor,
    Id,
    Identity,
    Product,
    Scaled,
    Sum,
    Tensor,
    Transpose,
    pattern,
    tensor,
    vector,
    weight,
)
from otimes.algebra.node import MAX_DEPTH
from otimes.algebra.types import Type
from otimes.errors import LimitError, TypeMismatchError
from tests.algebra.random_expressions import expressions

A = pattern("A")
W = weight("W", "d_model", "d_model")
OUT, IN = weight("W_O", "d_model", "d_head"), weight("W_V", "d_head", "d_model")
U = weight("W_U", "vocab", "d_model")


def test_equal_factors_are_one_object() -> None:
    assert weight("W", "d_model", "d_model") is W
    assert Factor("W", W.type) is W
    assert pickle.loads(pickle.dumps(W)) is W
    assert copy.deepcopy(W) is W
    assert weight("W", "d_model", "d_model", label="0.1") is not W
    assert weight("W", "d_head", "d_model") != W


def test_factors_that_nobody_holds_are_forgotten() -> None:
    before = len(Factor._interned)
    for number in range(1000):
        pattern(f"forgotten{number}")
    gc.collect()

    assert len(Factor._interned) <= before + 10


@settings(max_examples=60)
@given(expressions)
def test_expressions_cannot_change(expr: Expr) -> None:
    for name in ("type", "args", "arg", "name", "_hash", "anything"):
        with pytest.raises(AttributeError, match=f"is immutable; '{name}' cannot be set"):
            setattr(expr, name, None)
    with pytest.raises(AttributeError, match="is immutable; 'type' cannot be deleted"):
        del expr.type


@settings(max_examples=60)
@given(expressions, expressions)
def test_equality_is_that_of_structure(a: Expr, b: Expr) -> None:
    assert (a == b) == (repr(a) == repr(b))
    assert a != b or hash(a) == hash(b)
    again = pickle.loads(pickle.dumps(a))
    assert again == a
    assert hash(again) == hash(a)
    assert again.type == a.type


def test_nothing_is_rewritten() -> None:
    assert A @ (A @ A) != (A @ A) @ A == Product(A, A, A)
    assert W + (W + W) != W + W + W == Sum(W, W, W)
    assert W.T.T != W
    assert Id @ W != W
    assert 1 * W != W
    assert W != "W"


def test_operators_build_one_node_each() -> None:
    assert -W == Scaled(-1, W) == W * -1
    assert Sum(W, Scaled(-1, W)) == W - W
    assert Fraction(1, 2) * W == W * Fraction(1, 2) == Scaled(Fraction(1, 2), W)
    assert Transpose(W) == W.T
    assert tensor(A, W) == Tensor(A, W)
    assert Identity() == Id


@pytest.mark.parametrize(
    ("build", "message", "left", "right"),
    [
        (
            lambda: U @ OUT @ U,
            r"the product W_O W_U does not fit: W_O is d_model <- d_head, W_U is vocab <- d",
            OUT,
            U,
        ),
        (
            lambda: W + U,
            r"the sum W \+ W_U does not fit: W is d_model <- d_model, W_U is vocab <- d_model\.",
            W,
            U,
        ),
        (lambda: Id + U, r"the sum Id \+ W_U does not fit: Id is any <- the same", Id, U),
        (lambda: tensor(A, W) @ W, "is pos ⊗ d_model <- pos ⊗ d_model, W is d_model", None, W),
        (lambda: W + A, "W is d_model <- d_model, A is pos <- pos", W, A),
        (
            lambda: tensor(A, tensor(A, W)),
            "a slot of a tensor product takes a map between single spaces; A ⊗ W is pos ⊗ d_model",
            None,
            None,
        ),
    ],
)
def test_errors_show_both_sides(build: Any, message: str, left: Any, right: Any) -> None:
    with pytest.raises(TypeMismatchError, match=message) as caught:
        build()

    assert left is None or caught.value.left == left
    assert right is None or caught.value.right == right


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Sum, r"a sum takes 1 or more expressions, not \(\)"),
        (Product, r"a product takes 1 or more expressions, not \(\)"),
        (lambda: Tensor(A), "a tensor product takes 2 or more expressions"),
        (lambda: Sum(W, 3), r"a sum takes 1 or more expressions, not \(W, 3\)"),
        (lambda: W @ "W", r"a product takes 1 or more expressions, not \(W, W\)"),
        (lambda: 0.5 * W, "a coefficient is an int or a Fraction, not 0.5; exact values keep"),
        (lambda: Scaled(True, W), "a coefficient is an int or a Fraction, not True"),
        (lambda: Scaled(2, 3), r"a multiple takes 1 or more expressions, not \(3\)|multiple"),
        (lambda: Transpose(3), "a transpose"),
        (lambda: pattern("two words"), "'two words' with label '' cannot name a factor"),
        (lambda: pattern("Id"), "'Id' with label '' cannot name a factor"),
        (lambda: pattern("A", label="1 4"), "label '1 4' cannot name a factor"),
        (lambda: pattern("Aᵀ"), "'Aᵀ' with label '' cannot name a factor"),
        (lambda: pattern(""), "'' with label '' cannot name a factor: a name is letters"),
    ],
)
def test_what_is_no_expression(build: Any, message: str) -> None:
    with pytest.raises(TypeMismatchError, match=message):
        build()


def test_spaces_flow_through_open_slots() -> None:
    assert (tensor(Id, U) @ tensor(A, W)).type == Type.of(("pos", "pos"), ("vocab", "d_model"))
    assert (Id + tensor(A, W)).type == tensor(A, W).type
    assert (tensor(A, W) @ vector("x", "pos", "d_model")).type == Type.of(
        ("pos", "1"), ("d_model", "1")
    )
    assert U.T.type == Type.of(("d_model", "vocab"))


def test_an_identity_between_two_spaces_is_refused() -> None:
    with pytest.raises(TypeMismatchError, match="does not fit"):
        Product(OUT, Id, Id, OUT)


def test_absurd_nesting_is_refused_with_its_limit() -> None:
    expr: Expr = W
    for _ in range(MAX_DEPTH):
        expr = expr.T
    with pytest.raises(LimitError, match=f"expressions nest at most {MAX_DEPTH} deep") as caught:
        Transpose(expr)

    assert caught.value.limit == MAX_DEPTH


def test_wide_expressions_are_no_problem() -> None:
    wide = Sum(*[W] * 20_000)

    assert len(str(wide)) == 20_000 * 4 - 3
    assert hash(wide) == hash(Sum(*[W] * 20_000))


def test_symbols_are_named_as_they_print() -> None:
    expr = tensor(pattern("A", label="1.4"), OUT @ IN)

    assert expr.symbols == {"A[1.4]": pattern("A", label="1.4"), "W_O": OUT, "W_V": IN}
    assert expr.factors == (pattern("A", label="1.4"), OUT, IN)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pattern(cast("Any", 3)), "the name of a factor is a text such as 'W', not 3"),
        (lambda: pattern("A", label=cast("Any", 3)), "the label of a factor is a text .*, not 3"),
        (
            lambda: weight("W", cast("Any", 3), cast("Any", 4)),
            "the spaces of W are names such as 'd_model', not 3; sizes are given where",
        ),
        (lambda: weight("W", "d_model", ""), "the spaces of W are names .*, not ''"),
        (lambda: vector("t", "pos", cast("Any", None)), "the spaces of t are names .*, not None"),
        (lambda: pattern(cast("Any", ["A"])), r"the name of a factor is a text .*, not \['A'\]"),
    ],
)
def test_what_names_nothing_is_refused_in_words(make: Callable[[], Factor], message: str) -> None:
    with pytest.raises(TypeMismatchError, match=message):
        make()
