"""The outside judge: expressions as explicit SymPy matrices whose entries are symbols.

An identity that holds between matrices of free symbols holds for all matrices of that size. It
shares with the package the types of expressions and nothing else: products, transposes and
Kronecker products are SymPy's own.
"""

from __future__ import annotations

import random
from functools import reduce
from math import prod
from typing import Any

import sympy
from sympy.matrices.expressions.kronecker import matrix_kronecker_product

from otimes.algebra import (
    Column,
    Eigenvalues,
    Expr,
    Factor,
    Identity,
    Product,
    Row,
    Scaled,
    Sum,
    Tensor,
    Transpose,
)
from otimes.algebra.types import Type

# rectangular wherever two spaces meet; as small as symbolic products of Kronecker products allow
SIZES = {"pos": 2, "d_model": 3, "d_head": 2, "vocab": 2, "1": 1, "any": 2}


def size(space: str) -> int:
    return sum(SIZES[part] for part in space.split(" ⊕ "))


class Judge:
    """SymPy matrices for all factors; ``definitions`` maps symbols to what they stand for.

    With a ``seed`` the entries are random integers instead of symbols: polynomials of a whole
    network would be too large to expand.
    """

    def __init__(
        self, definitions: dict[Factor, Expr] | None = None, *, seed: int | None = None
    ) -> None:
        self.definitions = definitions or {}
        self.seed = seed

    def matrix(self, expr: Expr, type_: Type | None = None) -> Any:
        slots = [s or ("any", "any") for s in (type_ or expr.type).slots or (("any", "any"),)]
        match expr:
            case Factor():
                return self.factor(expr, slots)
            case Identity():
                return sympy.eye(prod(size(slot[0]) for slot in slots))
            case Transpose():
                return self.matrix(expr.arg, Type(tuple((b, a) for a, b in slots))).T
            case Scaled():
                c = sympy.Rational(expr.coefficient.numerator, expr.coefficient.denominator)
                return c * self.matrix(expr.arg, Type(tuple(slots)))
            case Sum():
                whole = Type(tuple(slots))
                return reduce(lambda a, b: a + b, (self.matrix(arg, whole) for arg in expr.args))
            case Tensor():
                parts = [self.matrix(a, Type((s,))) for a, s in zip(expr.args, slots, strict=True)]
                return matrix_kronecker_product(*parts)
            case Product():
                return self.product(expr, slots)
            case Row() | Column():
                return self.stack(expr)
            case Eigenvalues():
                inner = self.matrix(expr.arg)
                # traces of powers, one for each possible eigenvalue
                return sympy.Matrix([[(inner**k).trace() for k in (1, 2, 3)]])
            case _:
                raise AssertionError(type(expr))

    def product(self, expr: Product, slots: list[tuple[str, str]]) -> Any:
        at = [slot[0] for slot in slots]
        whole = sympy.eye(prod(map(size, at)))
        for arg in expr.args:
            own = arg.type.slots or (None,) * len(at)
            filled = tuple(slot or (space, space) for slot, space in zip(own, at, strict=True))
            whole = whole * self.matrix(arg, Type(filled))
            at = [slot[1] for slot in filled]
        return whole

    def stack(self, expr: Row | Column) -> Any:
        # blocks of one slot; of two slots, columns that act on one input vector
        parts = [self.matrix(arg) for arg in expr.args]
        if len(expr.type.slots or ()) == 1:
            join = sympy.Matrix.hstack if isinstance(expr, Row) else sympy.Matrix.vstack
            return join(*parts)
        assert isinstance(expr, Column)
        assert all(part.shape[1] == 1 for part in parts)
        tables = [part.reshape(SIZES["pos"], part.shape[0] // SIZES["pos"]) for part in parts]
        joined = sympy.Matrix.hstack(*tables)
        return joined.reshape(len(joined), 1)

    def factor(self, factor: Factor, slots: list[tuple[str, str]]) -> Any:
        meaning = self.meaning(factor)
        if meaning is not None:
            return self.matrix(meaning, Type(tuple(slots)))
        rows, columns = (prod(size(slot[side]) for slot in slots) for side in (0, 1))
        if factor.kind == "rotation":
            a, b = sympy.Rational(3, 5), sympy.Rational(4, 5)
            turn = sympy.Matrix([[a, -b, 0], [b, a, 0], [0, 0, 1]])
            return turn * sympy.Matrix([[1, 0, 0], [0, a, b], [0, -b, a]])
        name = f"{factor.name}_{factor.label}_{'_'.join(a + b for a, b in slots)}"
        if factor.kind == "diagonal":
            return sympy.diag(*(self.entry(f"{name}_{i}") for i in range(rows)))
        return sympy.Matrix(rows, columns, lambda i, j: self.entry(f"{name}_{i}_{j}"))

    def entry(self, name: str) -> Any:
        if self.seed is None:
            return sympy.Symbol(name)
        return sympy.Integer(random.Random(f"{self.seed} {name}").randint(-9, 9))

    def meaning(self, factor: Factor) -> Expr | None:
        """The definitions of the paper, written down here once more."""
        from otimes.algebra import Id, diagonal, pattern, tensor, weight

        if factor in self.definitions:
            return self.definitions[factor]
        w_o = weight("W_O", "d_model", "d_head", label=factor.label)
        w_q, w_k, w_v = (weight(f"W_{n}", "d_head", "d_model", label=factor.label) for n in "QKV")
        a = pattern("A", label=factor.label)
        match factor.name:
            case "W_OV":
                return Product(w_o, w_v)
            case "W_QK":
                return Product(Transpose(w_q), w_k)
            case "h":
                return Product(tensor(Id, w_o), tensor(a, Id), tensor(Id, w_v))
            case "N":
                gain = weight("Γ", "d_model", "d_model", label=factor.label)
                return tensor(diagonal("D", label=factor.label), gain)
            case _:
                return None

    def agree(self, left: Expr, right: Expr) -> bool:
        """Whether two expressions are one matrix of polynomials."""
        from otimes.algebra.checking import common_type

        type_ = common_type(left, right) if left.type.is_map else None
        a, b = self.matrix(left, type_), self.matrix(right, type_)
        return a.shape == b.shape and all(
            sympy.expand(x - y) == 0 for x, y in zip(a, b, strict=True)
        )
