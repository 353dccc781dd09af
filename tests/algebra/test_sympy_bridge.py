"""To SymPy and back: values agree with plain numpy, structure comes back."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings

from otimes.algebra import Architecture, Expr, Id, Product, Sum, pattern, tensor, vector, weight
from otimes.algebra.kinds import diagonal, inclusion
from otimes.algebra.measures import FrobeniusNorm
from otimes.algebra.stacked import Column, Row
from otimes.algebra.sympy_bridge import from_sympy, to_sympy
from otimes.algebra.types import Type
from otimes.errors import LimitError, NotationError, TypeMismatchError, UnsupportedError
from tests.algebra.dense import SIZES, Dense
from tests.algebra.random_expressions import ends, expressions, maps, operators

A, B = pattern("A"), pattern("B")
W, V = weight("W", "d_model", "d_model"), weight("V", "d_model", "d_model")
OUT, IN = weight("W_O", "d_model", "d_head"), weight("W_V", "d_head", "d_model")


def number(matrix: Any, dense: Dense, expr: Expr) -> np.ndarray:
    """An explicit matrix of symbols with the numbers of ``dense`` put in."""
    values = {}
    for factor in expr.factors:
        slots = [slot for slot in factor.type.slots or () if slot is not None]
        value = dense.symbol(str(factor), [s[0] for s in slots], [s[1] for s in slots])
        symbol = sympy.MatrixSymbol(str(factor), *value.shape)
        values |= {symbol[i, j]: value[i, j] for i, j in np.ndindex(value.shape)}
    return np.array(matrix.xreplace(values).tolist(), dtype=float)


@settings(max_examples=40)
@given(maps(depth=2) | operators(depth=1))
def test_explicit_matrices_have_the_value(expr: Expr) -> None:
    codomain = ends(expr)
    if codomain is None:
        return
    dense = Dense(2)
    found = number(expr.to_sympy(SIZES), dense, expr)

    np.testing.assert_allclose(found, dense(expr, codomain), rtol=1e-9, atol=1e-9)


@settings(max_examples=30)
@given(expressions)
def test_kronecker_expressions_have_the_shape_and_come_back(expr: Expr) -> None:
    codomain = ends(expr)
    if codomain is None:
        return
    value = to_sympy(expr, SIZES, form="kronecker")
    back = from_sympy(value, expr)
    dense = Dense(4)

    assert value.shape == dense(expr, codomain).shape
    if ends(back) is not None:
        expected = dense(expr, codomain)
        np.testing.assert_allclose(dense(back, codomain), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "expr",
    [
        tensor(B, V) @ tensor(A, W),
        tensor(A, OUT @ IN),
        Id + tensor(A, W),
        tensor(A, W) + tensor(B, V),
        tensor(A.T, W.T),
        (tensor(A, W) @ tensor(B, V)).T,
        Fraction(2, 3) * tensor(A, W),
        Product(tensor(Id, W), Sum(Id, tensor(A, V)), tensor(Id, W)),
        tensor(A, W) @ vector("x", "pos", "d_model"),
        Architecture(2, 2, norm="rms").logits.expression,
    ],
)
def test_the_structure_comes_back(expr: Expr) -> None:
    sizes = {"pos": 2, "d_model": 3, "d_head": 2, "vocab": 4}

    assert from_sympy(to_sympy(expr, sizes, form="kronecker"), expr) == expr


def test_a_tensor_product_is_kron_in_row_major_order() -> None:
    narrow = weight("N", "d_head", "d_model")
    value = to_sympy(tensor(A, narrow), {"pos": 2, "d_model": 3, "d_head": 2})
    a, n = sympy.MatrixSymbol("A", 2, 2), sympy.MatrixSymbol("N", 2, 3)

    assert value.shape == (4, 6)
    assert value[1, 5] == a[0, 1] * n[1, 2]


def test_a_diagonal_factor_is_diagonal() -> None:
    value = to_sympy(diagonal("D"), {"pos": 2})

    assert value[0, 1] == 0
    assert value[1, 1] == sympy.MatrixSymbol("D", 2, 2)[1, 1]


def test_blocks_are_concatenated() -> None:
    sizes = {"d_model": 2, "d_head": 1}
    row, column = Row(W, OUT), Column(W, IN)
    explicit = {name: to_sympy(e, sizes) for name, e in {"W": W, "O": OUT, "V": IN}.items()}

    assert to_sympy(row, sizes) == sympy.Matrix.hstack(explicit["W"], explicit["O"])
    assert to_sympy(column, sizes) == sympy.Matrix.vstack(explicit["W"], explicit["V"])
    assert (
        to_sympy(row @ column, sizes).expand()
        == (explicit["W"] ** 2 + explicit["O"] * explicit["V"]).expand()
    )
    assert to_sympy(inclusion(1, "d_model", "d_head"), sizes) == sympy.Matrix([0, 0, 1])


def test_rows_of_heads_share_their_positions() -> None:
    sizes = {"pos": 2, "d_model": 2, "d_head": 1}
    row = Row(tensor(A, OUT), tensor(B, OUT))
    column = Column(tensor(Id, IN) @ tensor(A, W), tensor(B, IN))
    parts = tensor(A, OUT) @ tensor(Id, IN) @ tensor(A, W) + tensor(B, OUT) @ tensor(B, IN)

    found = to_sympy(row @ column, sizes) - to_sympy(parts, sizes)
    assert found.expand() == sympy.zeros(4, 4)


def test_identities_take_their_spaces_from_where_they_stand() -> None:
    sizes = {"pos": 2, "d_model": 3, "d_head": 2}
    whole = Type.of(("pos", "pos"), ("d_model", "d_model"))

    assert to_sympy(tensor(Id, OUT), sizes, type_=Type.of(("pos", "pos"), ("d_model", "d_head")))
    assert to_sympy(Id, sizes, type_=whole) == sympy.eye(6)
    assert to_sympy(Id + tensor(A, W), sizes)[0, 0] == (
        1 + sympy.MatrixSymbol("A", 2, 2)[0, 0] * sympy.MatrixSymbol("W", 3, 3)[0, 0]
    )


@pytest.mark.parametrize(
    ("expr", "sizes", "options", "error", "message"),
    [
        (W, {}, {}, UnsupportedError, "no dimension for the space d_model; give dimensions="),
        (W, {"d_model": 0}, {}, UnsupportedError, "the dimension of d_model is 0"),
        (W, {"d_model": 2.5}, {}, UnsupportedError, "the dimension of d_model is 2.5"),
        (W, {"d_model": 50_257}, {}, LimitError, "50,257 × 50,257 entries"),
        (tensor(A, W), {"pos": 900, "d_model": 900}, {}, LimitError, "810,000 × 810,000 entries"),
        (Id, {}, {}, UnsupportedError, "Id leaves a space open; say which with type_="),
        (tensor(Id, W), {"d_model": 2}, {}, UnsupportedError, "Id ⊗ W leaves a space open"),
        (W, {"d_model": 2}, {"form": "latex"}, UnsupportedError, "unknown form 'latex'"),
        (W, {"d_model": 2}, {"type_": Type.of(("pos", "pos"))}, TypeMismatchError, "W is d_model"),
        (FrobeniusNorm(W), {"d_model": 2}, {}, UnsupportedError, "‖W‖ is no linear map"),
    ],
)
def test_refusals(
    expr: Expr, sizes: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        to_sympy(expr, sizes, **options)


def test_large_kronecker_expressions_are_no_matrices() -> None:
    value = to_sympy(tensor(A, W), {"pos": 1024, "d_model": 768}, form="kronecker")

    assert value.shape == (1024 * 768, 1024 * 768)


def test_what_sympy_can_say_and_otimes_cannot() -> None:
    a = sympy.MatrixSymbol("A", 2, 2)
    x = sympy.Symbol("x")

    with pytest.raises(UnsupportedError, match="otimes has no Inverse"):
        from_sympy(a.I, [A])
    with pytest.raises(UnsupportedError, match="the coefficient x is not rational"):
        from_sympy(x * a, [A])
    with pytest.raises(UnsupportedError, match="otimes has no HadamardProduct"):
        from_sympy(sympy.hadamard_product(a, sympy.MatrixSymbol("B", 2, 2)), [A, B])
    with pytest.raises(NotationError, match="unknown symbol 'A'"):
        from_sympy(a, [B])
    assert from_sympy(a**3, [A]) == A @ A @ A
