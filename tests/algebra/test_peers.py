"""Where other algebra systems get ``Id + A ⊗ W`` wrong, and otimes gets it right.

The faults were found in SymPy 1.14 and DisCoPy 1.2. A test that fails because a peer has been
corrected should be dropped, and the page on notation with it.
"""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy
from sympy.matrices.expressions.kronecker import combine_kronecker

from otimes.algebra import Expr, Id, pattern, tensor, weight
from otimes.algebra.checking import equivalent
from otimes.algebra.normal import normal_form
from otimes.algebra.sympy_bridge import from_sympy, to_sympy

A1, A2 = pattern("A1"), pattern("A2")
W1, W2 = weight("W1", "d_model", "d_model"), weight("W2", "d_model", "d_model")
SIZES = {"pos": 2, "d_model": 2}


def explicit_difference(left: Any, right: Any) -> Any:
    return (left.as_explicit() - right.as_explicit()).expand()


@pytest.mark.parametrize(
    "residual",
    [
        Id + tensor(A1, W1),
        tensor(Id, Id) + tensor(A1, W1),
        2 * tensor(A1, W1) + tensor(A2, W2),
    ],
)
def test_sympy_fails_on_a_residual_block(residual: Expr) -> None:
    value = to_sympy(residual, SIZES, form="kronecker")

    with pytest.raises(TypeError, match="unsupported operand"):
        combine_kronecker(value)

    # otimes leaves alone what has no common slot
    assert equivalent(normal_form(residual), residual).holds
    assert explicit_difference(to_sympy(normal_form(residual), SIZES, form="kronecker"), value) == (
        sympy.zeros(4, 4)
    )


def test_sympy_merges_two_different_heads() -> None:
    heads = tensor(A1, W1) + tensor(A2, W2)
    value = to_sympy(heads, SIZES, form="kronecker")
    merged = combine_kronecker(value)

    assert merged == to_sympy(tensor(A1 + A2, W1 + W2), SIZES, form="kronecker")
    assert explicit_difference(merged, value) != sympy.zeros(4, 4)

    answer = equivalent(heads, tensor(A1 + A2, W1 + W2))
    assert not answer.holds
    assert answer.difference is not None
    assert equivalent(answer.difference, -tensor(A1, W2) - tensor(A2, W1)).holds


def test_sympy_doubles_the_pattern_that_two_heads_share() -> None:
    heads = tensor(A1, W1) + tensor(A1, W2)
    value = to_sympy(heads, SIZES, form="kronecker")
    merged = combine_kronecker(value)

    assert explicit_difference(merged, value) != sympy.zeros(4, 4)
    assert explicit_difference(merged, 2 * value) == sympy.zeros(4, 4)
    assert equivalent(heads, tensor(A1, W1 + W2)).holds
    assert not equivalent(heads, 2 * tensor(A1, W1 + W2)).holds


def test_sympy_and_otimes_agree_on_a_product() -> None:
    """The comparison is fair: where SymPy is right the two say the same."""
    product = tensor(A2, W2) @ tensor(A1, W1)
    combined = combine_kronecker(to_sympy(product, SIZES, form="kronecker"))

    assert from_sympy(combined, product) == tensor(A2 @ A1, W2 @ W1) == normal_form(product)


def test_discopy_truncates_a_residual_block_to_integers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own imports warn
        from discopy.tensor import Box, Diagram, Dim

    a, w = [[0.5, 0.0], [0.25, 0.75]], [[0.1, 0.2], [0.3, 0.4]]
    two = Dim(2)
    block = Diagram.id(Dim(2, 2)) + Box("A", two, two, a) @ Box("W", two, two, w)
    value = block.eval().array.reshape(4, 4)

    # the head is gone: the identity is made of integers, and the sum takes its type
    assert value.dtype.kind == "i"
    assert np.array_equal(value, np.eye(4))

    expected = np.eye(4) + np.kron(a, w)
    expr = Id + tensor(A1, W1)
    numbers = {}
    for factor, array in ((A1, a), (W1, w)):
        symbol = sympy.MatrixSymbol(str(factor), 2, 2)
        numbers |= {
            symbol[i, j]: sympy.Rational(str(Fraction(str(array[i][j]))))
            for i in range(2)
            for j in range(2)
        }
    found = to_sympy(expr, SIZES).xreplace(numbers)
    np.testing.assert_allclose(np.array(found.tolist(), dtype=float), expected)
