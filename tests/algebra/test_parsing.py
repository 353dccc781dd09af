"""Blackboard notation: what is written reads back, what is typed is understood, errors point."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otimes import algebra
from otimes.algebra import (
    Architecture,
    Expr,
    Id,
    Product,
    Scaled,
    Sum,
    Transpose,
    pattern,
    tensor,
    vector,
    weight,
)
from otimes.algebra.kinds import diagonal, head, norm, operator
from otimes.algebra.measures import Eigenvalues, FrobeniusNorm
from otimes.algebra.node import MAX_DEPTH
from otimes.algebra.parsing import MAX_LENGTH, MAX_NESTING, parse
from otimes.algebra.printing import text
from otimes.algebra.stacked import Column, Row
from otimes.errors import NotationError, UnsupportedError
from tests.algebra.random_expressions import expressions

A1, A2 = pattern("A1"), pattern("A2")
W1, W2 = weight("W1", "d_model", "d_model"), weight("W2", "d_model", "d_model")
OUT, IN = weight("W_O", "d_model", "d_head"), weight("W_V", "d_head", "d_model")
CONTEXT = [A1, A2, W1, W2, OUT, IN]


@settings(max_examples=100)
@given(expressions)
def test_what_is_written_reads_back(expr: Expr) -> None:
    assert parse(str(expr), context=expr.symbols) == expr
    assert parse(str(expr), context=expr) == expr


@settings(max_examples=50)
@given(expressions)
def test_repr_and_pickle_are_the_expression(expr: Expr) -> None:
    names = {**vars(algebra), "Fraction": Fraction}

    assert eval(repr(expr), names) == expr
    assert pickle.loads(pickle.dumps(expr)) == expr


@settings(max_examples=50)
@given(expressions)
def test_ascii_is_the_same(expr: Expr) -> None:
    typed = str(expr).replace("⊗", "(x)").replace("ᵀ", "^T").replace("·", "*")

    assert parse(typed, context=expr) == expr


def test_the_logits_of_architectures_read_back() -> None:
    for arch in (
        Architecture(2, 2),
        Architecture(2, 2, norm="layer", mlp="frozen", neurons=2, biases=True, positions="learned"),
        Architecture(
            1, 1, norm="layer", norm_placement="sandwich", mlp="source", biases=True,
            token_types=True, embed_norm=True, multipliers=["embed", "residual", "logits"],
        ),
    ):  # fmt: skip
        expr = arch.logits.expression
        assert parse(str(expr), context=arch) == expr
        assert parse(str(expr)) == expr  # all are standard symbols
        assert parse(str(expr), context=expr.symbols) == expr


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("A1", A1),
        ("Id", Id),
        ("(A1)", A1),
        ("A1 A2", A1 @ A2),
        ("A1 @ A2", A1 @ A2),
        ("A1·A2", A1 @ A2),
        ("A1*A2", A1 @ A2),
        ("A1(A2)", A1 @ A2),
        ("(A2 ⊗ W2)(A1 ⊗ W1)", tensor(A2, W2) @ tensor(A1, W1)),
        ("(A2(x)W2)(A1(x)W1)", tensor(A2, W2) @ tensor(A1, W1)),
        ("A2 A1 (x) W2 W1", tensor(A2 @ A1, W2 @ W1)),
        ("Id ⊗ W_O W_V", tensor(Id, OUT @ IN)),
        ("W_Oᵀ", OUT.T),
        ("W_V W_O", IN @ OUT),
        ("W_O.T", OUT.T),
        ("W_O^{T}", OUT.T),
        ("(W_O W_V)^T", (OUT @ IN).T),
        ("W1ᵀᵀ", W1.T.T),
        ("W1 + W2", W1 + W2),
        ("W1 - W2", W1 - W2),
        ("W1 − W2", W1 - W2),
        ("-W1", -W1),
        ("2 W1", 2 * W1),
        ("2*W1", 2 * W1),
        ("-2/3 W1", Scaled(Fraction(-2, 3), W1)),
        ("W1 - 2 W2", Sum(W1, Scaled(-2, W2))),
        ("W1 - (2 W2)", Sum(W1, Scaled(-1, 2 * W2))),
        ("W1 + -W2", W1 - W2),
        ("W1 - -W2", Sum(W1, Scaled(-1, -W2))),
        ("2 A1 ⊗ W1", 2 * tensor(A1, W1)),
        ("(2 A1) ⊗ W1", tensor(2 * A1, W1)),
        ("W1 + (W2 + W1)", Sum(W1, Sum(W2, W1))),
        ("W1 (W2 W1)", Product(W1, Product(W2, W1))),
        ("+W1", Sum(W1)),
        ("(·W1)", Product(W1)),
        ("(·W1)ᵀ", Transpose(Product(W1))),
        ("  W1\n\t+ W2 ", W1 + W2),
        ("[W1 | W_O]", Row(W1, OUT)),
        ("[W1; W_V]", Column(W1, IN)),
        ("[W1 | W_O] [W1; W_V]", Row(W1, OUT) @ Column(W1, IN)),
        ("λ(W1 W2)", Eigenvalues(W1 @ W2)),
        ("eig(W1)", Eigenvalues(W1)),
        ("‖W1 + W2‖", FrobeniusNorm(W1 + W2)),
        ("||W1||", FrobeniusNorm(W1)),
    ],
)
def test_what_people_type(typed: str, expected: Expr) -> None:
    found = parse(typed, context=CONTEXT)

    assert found == expected
    assert parse(str(found), context=CONTEXT) == found


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("A[1.4]", pattern("A", label="1.4")),
        ("A^{1.4}", pattern("A", label="1.4")),
        ("A[L1H4]", pattern("A", label="1.4")),
        ("A[10.11]", pattern("A", label="10.11")),
        ("W_OV[10.11]", weight("W_OV", "d_model", "d_model", label="10.11")),
        ("h[1.4]", head("1.4")),
        ("N[3.ln1]", norm("3.ln1")),
        ("D[3.ln1]", diagonal("D", label="3.ln1")),
        ("Γ[final]", weight("Γ", "d_model", "d_model", label="final")),
        ("β[3.ln1_post]", weight("β", "d_model", "1", label="3.ln1_post")),
        ("t", vector("t", "pos", "vocab")),
        ("x[1]", vector("x", "pos", "d_model", label="1")),
        ("m[3]", vector("m", "pos", "d_model", label="3")),
        ("w_out[3.n17] w_in[3.n17]ᵀ", None),
    ],
)
def test_standard_symbols_need_no_context(typed: str, expected: Expr | None) -> None:
    found = parse(typed)

    assert expected is None or found == expected
    assert parse(str(found)) == found


def test_a_context_may_name_whole_expressions() -> None:
    assert parse("W_OV", context={"W_OV": OUT @ IN}) == OUT @ IN


@pytest.mark.parametrize(
    ("typed", "position", "message"),
    [
        ("A1 + + W", 5, r"unexpected '\+'"),
        ("A1 A3", 3, "unknown symbol 'A3': do you mean A2 or A1\\?"),
        ("A1 +", 4, "the expression ends where a symbol is missing"),
        ("A1 + ", 4, "the expression ends where a symbol is missing"),
        ("", 0, "an empty expression"),
        ("  ", 0, "an empty expression"),
        ("A1 A1)", 5, r"this '\)' closes nothing"),
        ("(A1 ⊗ (W1 + W2)", 0, r"this '\(' is never closed"),
        ("(A1 ⊗ [W1)", 9, r"this '\)' does not close the '\[' at character 6"),
        ("A1 2", 3, "a number stands in front of a term"),
        ("1/0 A1", 0, "a number with the denominator 0"),
        ("A1 ? A2", 3, r"unexpected character '\?'"),
        ("⊗ W1", 0, "unexpected '⊗'"),
        ("(x) W1", 1, "unknown symbol 'x'"),
        ("W1 W_O W_O", 7, r"the product W_O W_O does not fit: W_O is d_model <- d_head"),
        ("W1 + A1", 5, "the sum W1 . A1 does not fit: W1 is d_model <- d_model, A1 is pos <- pos"),
        ("(A2 ⊗ W2) ⊗ A1", 0, "a slot of a tensor product takes a map between single spaces"),
        ("A1 ⊗ (A2 ⊗ W2)", 5, "a slot of a tensor product takes a map between single spaces"),
        ("λ(W_O)", 0, "only a map of a space to itself has eigenvalues"),
        ("λ(W1) + W1", 6, r"unexpected '\+'"),
        ("()", 1, r"unexpected '\)'"),
        ("[W1]", 3, r"unexpected '\]'"),
        ("A1 + é", 5, "unknown symbol 'é'"),
    ],
)
def test_errors_point_at_the_character(typed: str, position: int, message: str) -> None:
    with pytest.raises(NotationError, match=message) as caught:
        parse(typed, context=CONTEXT)

    assert caught.value.position == position
    assert caught.value.text == typed
    shown, pointer = str(caught.value).splitlines()[-2:]
    if typed:
        assert shown[2:] == typed
        assert pointer.index("^") - 2 == position


def test_the_pointer_of_a_long_text_stands_below_its_character() -> None:
    typed = " + ".join(["W1"] * 200) + " + Q + " + " + ".join(["W1"] * 200)

    with pytest.raises(NotationError, match=r"unknown symbol 'Q'.*at character 1000") as caught:
        parse(typed, context=CONTEXT)

    shown, pointer = str(caught.value).splitlines()[-2:]
    assert caught.value.position == 1000 == typed.index("Q")
    assert shown[pointer.index("^")] == "Q"
    assert len(shown) < 160


def test_a_text_of_several_lines_is_shown_in_one() -> None:
    with pytest.raises(NotationError) as caught:
        parse("W1 +\nQ", context=CONTEXT)

    shown, pointer = str(caught.value).splitlines()[-2:]
    assert shown[pointer.index("^")] == "Q"


@pytest.mark.parametrize(
    "typed",
    [
        "(" * 100_000 + "A1" + ")" * 100_000,
        "(" * (MAX_NESTING + 1) + "A1" + ")" * (MAX_NESTING + 1),
        "A1" + "ᵀ" * 10_000,
        "9" * 5000 + " A1",
        "A1 + " * (MAX_LENGTH // 5) + "A1",
        "-" * 10_000 + "A1",
        "A1 ⊗ " * 1000 + "(",
        "\0",
        "A1[",
        "'; drop table",
    ],
)
def test_absurd_texts_are_refused_quickly(typed: str) -> None:
    started = time.perf_counter()
    with pytest.raises(NotationError) as caught:
        parse(typed, context=CONTEXT)

    assert time.perf_counter() - started < 1
    assert len(str(caught.value)) < 600


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(
            [*"()[]{}|;+-−*·@⊗ᵀ^. ‖λ", "A1", "W1", "W_O", "Id", "2", "1/0", "(x)", "eig("]
        ),
        max_size=12,
    ).map("".join)
    | st.text(max_size=12)
)
def test_any_text_is_an_expression_or_an_error_with_a_position(typed: str) -> None:
    try:
        found = parse(typed, context=CONTEXT)
    except NotationError as error:
        position = error.position
    else:
        position = 0
        assert parse(str(found), context=CONTEXT) == found

    assert 0 <= position <= len(typed)


def test_nesting_up_to_the_limit_is_read() -> None:
    deep = "(W1 + " * MAX_DEPTH + "W1" + ")" * MAX_DEPTH

    assert str(parse(deep, context=CONTEXT)) == deep[1:-1]


@pytest.mark.parametrize(
    "deeper",
    [
        lambda inner: Sum(W1, Product(W1, inner)),
        lambda inner: Scaled(2, Transpose(inner)),
        Product,
        Sum,
        lambda inner: Row(inner, W1) @ Column(W1, W1),
    ],
    ids=["sums and products", "multiples", "products of one", "sums of one", "rows"],
)
def test_what_prints_at_the_greatest_depth_is_read_again(deeper: Callable[[Expr], Expr]) -> None:
    deep: Expr = W1
    while (more := deeper(deep)).depth <= MAX_DEPTH - 2:
        deep = more

    assert deep.depth >= MAX_DEPTH - 5
    assert parse(str(deep), context=CONTEXT) == deep
    assert repr(deep)
    assert deep.latex


def test_what_is_too_deep_is_refused_with_a_position() -> None:
    deep = "(W1 + " * (MAX_DEPTH + 1) + "W1" + ")" * (MAX_DEPTH + 1)

    with pytest.raises(NotationError, match="nest at most 150 deep"):
        parse(deep, context=CONTEXT)


def test_a_long_sum_is_read_in_a_moment() -> None:
    typed = " + ".join(["A1 ⊗ W1 W2"] * 1500)
    started = time.perf_counter()

    assert len(parse(typed, context=CONTEXT).children) == 1500
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("joined", [" + ".join(["A1"] * 60_000), "A1 " * 90_000])
def test_a_text_that_would_take_half_a_minute_says_what_to_do(joined: str) -> None:
    with pytest.raises(NotationError, match="read the terms one by one"):
        parse(joined, context=CONTEXT)


@pytest.mark.parametrize("text", [None, 3, b"A1", A1])
def test_what_is_no_text(text: Any) -> None:
    with pytest.raises(NotationError, match="an expression is a text such as 'A ⊗ W'"):
        parse(text, context=CONTEXT)


@pytest.mark.parametrize("context", [3, "A1", ["A1"]])
def test_what_is_no_context(context: Any) -> None:
    with pytest.raises(UnsupportedError, match="a context is an architecture, an expression"):
        parse("A1", context=context)


def test_unknown_symbols_say_what_there_is() -> None:
    with pytest.raises(NotationError, match=r"unknown symbol 'W_OX\[0\.0\]': do you mean W_O\[0"):
        parse("W_OX[0.0]", context=Architecture(1, 1))
    with pytest.raises(NotationError, match="without a context the standard symbols are known"):
        parse("Q")
    with pytest.raises(NotationError, match="the context has no symbols"):
        parse("Q", context=[])
    with pytest.raises(NotationError, match="known are A1, A2, W1, W2, W_O, W_V"):
        parse("blob", context=CONTEXT)


def test_operators_of_several_slots_read_back() -> None:
    both = operator("F", ("pos", "pos"), ("vocab", "d_model"))

    assert (
        parse("F x", context=[both, vector("x", "pos", "d_model")]).type
        == Product(both, vector("x", "pos", "d_model")).type
    )
    assert eval(repr(both), {"operator": operator}) == both


@settings(max_examples=100)
@given(expressions)
def test_the_row_convention_is_the_transposed_algebra(expr: Expr) -> None:
    """In the row convention a weight is stored transposed: the text names the same maps."""
    from tests.algebra.dense import Dense
    from tests.algebra.random_expressions import ends

    slots = expr.type.slots
    if ends(expr) is None or slots is None or len(slots) != 1 or slots[0] is None:
        return
    if slots[0][0] == "pos":
        assert text(expr, "row") == str(expr)
        return
    dense = Dense(3)
    # each symbol W: a <- b is stored as its transpose, named the same, b <- a
    stored = {
        name: weight(factor.name + "_stored", *_ends(factor)[::-1], label=factor.label)
        for name, factor in expr.symbols.items()
    }
    written = parse(text(expr, "row"), context=stored)
    substituted = _replace(written, {s: expr.symbols[n].T for n, s in stored.items()})
    if ends(substituted) is None:
        return
    expected = dense(expr, ends(expr) or ()).T
    np.testing.assert_allclose(dense(substituted, ends(substituted) or ()), expected, atol=1e-9)


def _ends(factor: Expr) -> tuple[str, str]:
    slots = factor.type.slots
    assert slots is not None
    assert slots[0] is not None
    return slots[0]


def _replace(expr: Expr, by: dict[Any, Expr]) -> Expr:
    if expr in by:
        return by[expr]
    return expr.with_children(*(_replace(child, by) for child in expr.children))
