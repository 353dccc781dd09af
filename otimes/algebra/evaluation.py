"""Exact values of expressions: every symbol an explicit matrix of small rational numbers.

``A ⊗ W`` becomes ``kron(A, W)`` on the row-major flattening, sums and products those of matrices;
nothing is rounded, so two expressions either have one value or do not. Sizes of different spaces
differ and no matrix is symmetric: a transposed or exchanged factor shows.

>>> from otimes.algebra import pattern, tensor, weight
>>> values = Valuation(seed=0, sizes={"pos": 1, "d_model": 2})
>>> A, W = pattern("A"), weight("W", "d_model", "d_model")
>>> values(A), values(W)
(((-1,),), ((2, 3), (0, 1)))
>>> values(tensor(A, W))
((-2, -3), (0, -1))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from random import Random
from types import MappingProxyType
from typing import Final

from otimes.algebra.definitions import NONE, Definitions, definition
from otimes.algebra.expressions import (
    Expr,
    Factor,
    Identity,
    Product,
    Scaled,
    Sum,
    Tensor,
    Transpose,
)
from otimes.algebra.measures import Eigenvalues, FrobeniusNorm
from otimes.algebra.stacked import Column, Row
from otimes.algebra.types import D_HEAD, D_MODEL, N_CTX, ONE, POS, VOCAB, Type, summands
from otimes.errors import UnsupportedError

Number = int | Fraction
Matrix = tuple[tuple[Number, ...], ...]

SIZES: Final[Mapping[str, int]] = MappingProxyType(
    {POS: 2, D_MODEL: 4, D_HEAD: 3, VOCAB: 5, N_CTX: 3, ONE: 1}
)
"""Sizes of the spaces where nothing else is said: small, and neighbours differ."""

_LARGEST: Final = 3
_LARGEST_SKEW: Final = 9


class Valuation:
    """Explicit matrices for all symbols, drawn from a seed; call it with an expression.

    A factor's matrix depends on the seed and on the factor alone, not on what else is evaluated.
    Symbols with a definition have the value of what they stand for.

    Args:
        seed: of the random integers from -3 to 3.
        sizes: of the spaces; those not named have 2 or 3 dimensions.
        definitions: of symbols, beside the built-in ones.
        largest: the integers are from ``-largest`` to ``largest``, 3 if nothing is said; those
            that rotations are made of stay small.
    """

    def __init__(
        self,
        seed: int = 0,
        sizes: Mapping[str, int] = SIZES,
        definitions: Definitions = NONE,
        largest: int = _LARGEST,
    ) -> None:
        self.largest = largest
        self.seed, self.sizes, self.definitions = seed, sizes, definitions
        self._known = dict[tuple[Expr, Type], Matrix]()

    def __call__(self, expr: Expr, type_: Type | None = None) -> Matrix:
        """The value of an expression, as a map of ``type_`` where its own leaves spaces open.

        Eigenvalues are the coefficients of the characteristic polynomial without its zeros, from
        the highest; a Frobenius norm is its square: both are one row of rational numbers.
        """
        type_ = _filled(expr.type if type_ is None else type_)
        known = self._known.get((expr, type_))
        if known is None:
            known = self._known[expr, type_] = self._value(expr, type_)
        return known

    def size(self, space: str) -> int:
        """The number of dimensions of a space."""
        if space in self.sizes:
            return self.sizes[space]
        parts = summands(space)
        if len(parts) > 1:
            return sum(self.size(part) for part in parts)
        return 1 if space == ONE else 2 + sum(map(ord, space)) % 2

    def _value(self, expr: Expr, type_: Type) -> Matrix:
        slots = type_.slots or ()
        match expr:
            case Factor():
                meaning = definition(expr, self.definitions)
                return self._factor(expr) if meaning is None else self(meaning, type_)
            case Identity():
                return identity(prod(self.size(slot[0]) for slot in slots if slot is not None))
            case Transpose():
                return transposed(self(expr.arg, type_.transposed))
            case Scaled():
                c = expr.coefficient
                return tuple(tuple(c * x for x in row) for row in self(expr.arg, type_))
            case Sum():
                return add([self(arg, type_) for arg in expr.args])
            case Product():
                return self._product(expr, type_)
            case Tensor():
                parts = (self(a, Type.of(s)) for a, s in zip(expr.args, slots, strict=True))
                return kron(list(parts))
            case Row() | Column():
                return self._stack(expr, type_)
            case Eigenvalues():
                return (characteristic(self(expr.arg)),)
            case FrobeniusNorm():
                return ((sum(x * x for row in self(expr.arg) for x in row),),)
            case _:
                raise UnsupportedError(f"no value for a {type(expr).__name__}")

    def _product(self, expr: Product, type_: Type) -> Matrix:
        # the whole is closed, so each factor's open slots take the space where the word stands
        at = [slot[0] for slot in type_.slots or () if slot is not None]
        values = list[Matrix]()
        for arg in expr.args:
            own = arg.type.slots or (None,) * len(at)
            slots = [slot or (space, space) for slot, space in zip(own, at, strict=True)]
            values.append(self(arg, Type(tuple(slots))))
            at = [slot[1] for slot in slots]
        value = values.pop()
        while values:
            value = multiply(values.pop(), value)
        return value

    def _stack(self, expr: Row | Column, type_: Type) -> Matrix:
        # Σ (Id ⊗ ι_i) block_i, which is right for any number of slots before the last
        slots = [slot for slot in type_.slots or () if slot is not None]
        side = 1 if isinstance(expr, Row) else 0
        before = prod(self.size(slot[side]) for slot in slots[:-1])
        total, start, terms = self.size(slots[-1][side]), 0, list[Matrix]()
        for arg in expr.args:
            block = self(arg)
            block = transposed(block) if side else block
            width = len(block) // before
            into = [[int(i == start + j) for j in range(width)] for i in range(total)]
            terms.append(multiply(kron([identity(before), _frozen(into)]), block))
            start += width
        whole = add(terms)
        return transposed(whole) if side else whole

    def _factor(self, factor: Factor) -> Matrix:
        slots = [slot for slot in factor.type.slots or () if slot is not None]
        rows, columns = (prod(self.size(slot[side]) for slot in slots) for side in (0, 1))
        random = Random(f"{self.seed} {factor!r}")  # noqa: S311 - reproducible, not secret
        if factor.kind == "inclusion":
            sizes = [self.size(part) for part in summands(slots[0][0])]
            start = sum(sizes[: int(factor.label)])
            return _frozen([[int(i == start + j) for j in range(columns)] for i in range(rows)])
        top = min(self.largest, _LARGEST_SKEW) if factor.kind == "rotation" else self.largest
        drawn = [[random.randint(-top, top) for _ in range(columns)] for _ in range(rows)]
        if factor.kind == "diagonal":
            return _frozen(
                [[x if i == j else 0 for j, x in enumerate(r)] for i, r in enumerate(drawn)]
            )
        if factor.kind == "rotation":
            return _cayley(drawn)
        return _frozen(drawn)


def identity(size: int) -> Matrix:
    """The identity matrix."""
    return tuple(tuple(int(i == j) for j in range(size)) for i in range(size))


def transposed(a: Matrix) -> Matrix:
    """The transpose."""
    return tuple(zip(*a, strict=True))


def add(terms: list[Matrix]) -> Matrix:
    """The sum of matrices of one shape."""
    return tuple(tuple(map(sum, zip(*rows, strict=True))) for rows in zip(*terms, strict=True))


def multiply(a: Matrix, b: Matrix) -> Matrix:
    """The product of two matrices that fit."""
    assert len(a[0]) == len(b)
    columns = list(zip(*b, strict=True))
    return tuple(
        tuple(sum(x * y for x, y in zip(row, column, strict=True)) for column in columns)
        for row in a
    )


def kron(parts: list[Matrix]) -> Matrix:
    """The Kronecker product: ``kron(A, W)`` acts on the row-major flattening of ``x``."""
    whole: Matrix = ((1,),)
    for part in parts:
        whole = tuple(tuple(x * y for x in left for y in right) for left in whole for right in part)
    return whole


def characteristic(a: Matrix) -> tuple[Number, ...]:
    """Coefficients of ``det(λ - M)`` without the factor λ^k, by Faddeev and LeVerrier.

    Two matrices have the same nonzero eigenvalues, with multiplicity, exactly if these agree.
    """
    size = len(a)
    coefficients: list[Number] = [1]
    power = a
    for k in range(1, size + 1):
        c = Fraction(-sum(power[i][i] for i in range(size)), k)
        coefficients.append(c)
        shifted = tuple(
            tuple(x + c if i == j else x for j, x in enumerate(row)) for i, row in enumerate(power)
        )
        power = multiply(a, shifted)
    while len(coefficients) > 1 and coefficients[-1] == 0:
        coefficients.pop()
    return tuple(coefficients)


def _filled(type_: Type) -> Type:
    """An identity's open space may be any; it is one that no symbol has."""
    if type_.slots is None:
        return Type.of(("any", "any"))
    return Type(tuple(slot or ("any", "any") for slot in type_.slots))


def _frozen(rows: Sequence[Sequence[Number]]) -> Matrix:
    return tuple(map(tuple, rows))


def _cayley(drawn: list[list[int]]) -> Matrix:
    """``(Id - S)(Id + S)^{-1}`` with S skew: a rational rotation, and not a symmetric one."""
    n = range(len(drawn))
    skew = [
        [Fraction((i < j) * (drawn[i][j] or 1) - (i > j) * (drawn[j][i] or 1)) for j in n]
        for i in n
    ]
    work = [[(i == j) + skew[i][j] for j in n] + [Fraction(i == j) for j in n] for i in n]
    for k in n:  # Gauss and Jordan; Id + S is never singular, a pivot may vanish all the same
        pivot = next(i for i in n[k:] if work[i][k])
        work[k], work[pivot] = work[pivot], work[k]
        work[k] = [x / work[k][k] for x in work[k]]
        for i in n:
            if i != k:
                work[i] = [x - work[i][k] * y for x, y in zip(work[i], work[k], strict=True)]
    inverse = _frozen([row[len(drawn) :] for row in work])
    return multiply(_frozen([[(i == j) - skew[i][j] for j in n] for i in n]), inverse)
