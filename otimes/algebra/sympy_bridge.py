"""To SymPy and back: the outside judge of the algebra.

``to_sympy`` needs the dimension of each space and gives explicit matrices of symbols, in which
``A ⊗ W`` is ``kron(A, W)`` on the row-major flattening, or matrix expressions over
``KroneckerProduct``. ``from_sympy`` reads the latter back.

>>> from otimes.algebra import Id, pattern, tensor, weight
>>> A, W = pattern("A"), weight("W", "d_model", "d_model")
>>> sizes = {"pos": 2, "d_model": 3}
>>> to_sympy(Id + tensor(A, W), sizes, form="kronecker")
I + KroneckerProduct(A, W)
>>> to_sympy(tensor(A, W), {"pos": 1, "d_model": 2})
Matrix([
[A[0, 0]*W[0, 0], A[0, 0]*W[0, 1]],
[A[0, 0]*W[1, 0], A[0, 0]*W[1, 1]]])
>>> from_sympy(to_sympy(Id + tensor(A, W), sizes, form="kronecker"), [A, W]) == Id + tensor(A, W)
True
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import reduce
from math import prod
from operator import add, matmul
from typing import Any, Final, Literal

from otimes.algebra.contexts import Lookup, lookup
from otimes.algebra.expressions import (
    Expr,
    Factor,
    Id,
    Identity,
    Product,
    Scaled,
    Sum,
    Tensor,
    Transpose,
)
from otimes.algebra.stacked import Column, Row
from otimes.algebra.types import ONE, Type, compose, summands, unify
from otimes.errors import LimitError, NotationError, TypeMismatchError, UnsupportedError

Form = Literal["explicit", "kronecker"]
Spaces = tuple[str, ...]

MAX_ENTRIES: Final = 100_000
"""The entries of the largest explicit matrix that is built, a few seconds' work."""


def to_sympy(
    expr: Expr, dimensions: Mapping[str, int], *, form: Form = "explicit", type_: Type | None = None
) -> Any:
    """Turn an expression into SymPy.

    Args:
        expr: a linear map.
        dimensions: the dimension of each space; that of ``1`` is known.
        form: ``explicit`` for a matrix of symbols ``A[0, 1]``, in which a diagonal factor is
            diagonal; ``kronecker`` for ``MatrixSymbol``, ``MatMul``, ``MatAdd`` and
            ``KroneckerProduct``.
        type_: the spaces of an expression that leaves some open, such as ``Id`` or ``Id ⊗ W``.

    Raises:
        UnsupportedError: for a space without a dimension, an open space, or a measure.
        LimitError: for an explicit matrix of more than 100,000 entries.
    """
    if form not in ("explicit", "kronecker"):
        raise UnsupportedError(f"unknown form {form!r}: use 'explicit' or 'kronecker'")
    if not expr.type.is_map:
        raise UnsupportedError(f"{expr} is no linear map; convert the map that it measures")
    closed = expr.type if type_ is None else unify(expr.type, type_) or compose(type_, expr.type)
    if closed is None or (type_ is not None and closed != type_):
        raise TypeMismatchError(f"{expr} is {expr.type}, not {type_}", expr.type, type_)
    if closed.slots is None or None in closed.slots:
        raise UnsupportedError(
            f"{expr} leaves a space open; say which with type_=Type.of(('pos', 'pos'), …)"
        )
    codomain = tuple(slot[0] for slot in closed.slots if slot is not None)
    return _Converter(dimensions, form).convert(expr, codomain)[0]


class _Converter:
    """From expressions to SymPy; each node is told its codomain and says its domain."""

    def __init__(self, dimensions: Mapping[str, int], form: Form) -> None:
        import sympy

        self.sympy, self.dimensions = sympy, dimensions
        self.explicit = form == "explicit"

    def size(self, spaces: Spaces) -> int:
        return prod(self._dimension(space) for space in spaces)

    def _dimension(self, space: str) -> int:
        if space in self.dimensions:
            size = self.dimensions[space]
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise UnsupportedError(f"the dimension of {space} is {size!r}, not 1, 2, …")
            return size
        if space == ONE:
            return 1
        parts = summands(space)
        if len(parts) > 1:
            return sum(map(self._dimension, parts))
        raise UnsupportedError(
            f"no dimension for the space {space}; give dimensions={{{space!r}: …, …}}"
        )

    def _limit(self, rows: int, columns: int) -> None:
        if self.explicit and rows * columns > MAX_ENTRIES:
            raise LimitError(
                f"an explicit matrix of {rows:,} × {columns:,} entries is more than the limit of "
                f"{MAX_ENTRIES:,}; use smaller dimensions or form='kronecker'",
                rows * columns,
                MAX_ENTRIES,
            )

    def convert(self, expr: Expr, codomain: Spaces) -> tuple[Any, Spaces]:
        self._limit(self.size(codomain), self.size(_domain(expr.type, codomain)))
        match expr:
            case Factor():
                return self._factor(expr)
            case Identity():
                return self._identity(codomain), codomain
            case Transpose():
                domain = _domain(expr.type, codomain)
                inner, _ = self.convert(expr.arg, domain)
                return inner.T if self.explicit else self.sympy.Transpose(inner), domain
            case Scaled():
                inner, domain = self.convert(expr.arg, codomain)
                p, q = expr.coefficient.as_integer_ratio()
                number = self.sympy.Rational(p, q)
                # MatMul keeps a multiple of 1 or 0, which * would not
                return number * inner if self.explicit else self.sympy.MatMul(number, inner), domain
            case Sum():
                parts = [self.convert(arg, codomain) for arg in expr.args]
                return self._add([part for part, _ in parts]), parts[0][1]
            case Product():
                return self._product(expr.args, codomain)
            case Tensor():
                parts = [
                    self.convert(arg, (space,))
                    for arg, space in zip(expr.args, codomain, strict=True)
                ]
                domain = tuple(space for _, spaces in parts for space in spaces)
                return self._kronecker([part for part, _ in parts]), domain
            case Row() | Column():
                return self._blocks(expr, codomain)
            case _:
                raise UnsupportedError(f"no SymPy form of a {type(expr).__name__}")

    def _factor(self, factor: Factor) -> tuple[Any, Spaces]:
        slots = [slot for slot in factor.type.slots or () if slot is not None]
        codomain, domain = tuple(s[0] for s in slots), tuple(s[1] for s in slots)
        rows, columns = self.size(codomain), self.size(domain)
        if factor.kind == "inclusion":
            return self._inclusion(codomain[0], int(factor.label)), domain
        symbol = self.sympy.MatrixSymbol(str(factor), rows, columns)
        if not self.explicit:
            return symbol, domain
        if factor.kind == "diagonal":
            return self.sympy.ImmutableMatrix(
                rows, rows, lambda i, j: symbol[i, i] if i == j else 0
            ), domain
        return symbol.as_explicit(), domain

    def _identity(self, spaces: Spaces) -> Any:
        identity = self.sympy.Identity(self.size(spaces))
        return identity.as_explicit() if self.explicit else identity

    def _product(self, args: tuple[Expr, ...], codomain: Spaces) -> tuple[Any, Spaces]:
        parts, at = list[Any](), codomain
        for arg in args:
            part, at = self.convert(arg, at)
            parts.append(part)
        # MatMul keeps identities and a product of one, where * would drop them
        if self.explicit:
            return reduce(matmul, parts), at
        return self.sympy.MatMul(*parts), at

    def _add(self, parts: list[Any]) -> Any:
        return reduce(add, parts) if self.explicit else self.sympy.MatAdd(*parts)

    def _kronecker(self, parts: list[Any]) -> Any:
        if self.explicit:
            return reduce(self.sympy.kronecker_product, parts)
        # the function multiplies identities out: Id ⊗ Id is an identity
        return self.sympy.KroneckerProduct(*parts)

    def _inclusion(self, space: str, number: int) -> Any:
        sizes = [self._dimension(part) for part in summands(space)]
        before = sum(sizes[:number])
        return self.sympy.ImmutableMatrix(
            sum(sizes), sizes[number], lambda i, j: int(i == before + j)
        )

    def _blocks(self, expr: Row | Column, codomain: Spaces) -> tuple[Any, Spaces]:
        """``Σ M_i (Id ⊗ ιᵀ_i)`` for a row, ``Σ (Id ⊗ ι_i) M_i`` for a column."""
        whole, parts = _domain(expr.type, codomain), list[Any]()
        total = whole[-1] if isinstance(expr, Row) else codomain[-1]
        for number, arg in enumerate(expr.args):
            shared = self._identity(whole[:-1] if isinstance(expr, Row) else codomain[:-1])
            lift = self._inclusion(total, number)
            if len(codomain) > 1:
                lift = self._kronecker([shared, lift])
            if isinstance(expr, Row):
                parts.append(self.convert(arg, codomain)[0] * lift.T)
            else:
                own = (*codomain[:-1], summands(total)[number])
                parts.append(lift * self.convert(arg, own)[0])
        return self._add(parts), whole


def _domain(type_: Type, codomain: Spaces) -> Spaces:
    """The domain of a map of this type with this codomain: an open slot is an endomorphism."""
    if type_.slots is None:
        return codomain
    return tuple(
        slot[1] if slot is not None else space
        for slot, space in zip(type_.slots, codomain, strict=True)
    )


def from_sympy(value: Any, context: object = None) -> Expr:
    """Read a SymPy matrix expression back.

    Args:
        value: built from ``MatrixSymbol``, ``Identity``, ``MatMul``, ``MatPow`` with a positive
            exponent, ``MatAdd``, ``Transpose``, ``KroneckerProduct`` and rational multiples.
        context: what symbols there are, by their names; see :func:`otimes.algebra.parsing.parse`.

    Raises:
        UnsupportedError: for any other node; it names it.
        NotationError: for an unknown symbol.
    """
    import sympy

    return _read(value, lookup(context), sympy)


def _read(value: Any, find: Lookup, sympy: Any) -> Expr:
    def read_all(args: Any) -> list[Expr]:
        return [_read(arg, find, sympy) for arg in args]

    match value:
        case sympy.MatrixSymbol():
            factor = find(value.name)
            if factor is None:
                raise NotationError(f"unknown symbol {value.name!r}", value.name, 0)
            return factor
        case sympy.Identity():
            return Id
        case sympy.Transpose():
            return Transpose(_read(value.arg, find, sympy))
        case sympy.MatAdd():
            return Sum(*read_all(value.args))
        case sympy.KroneckerProduct():
            return Tensor(*read_all(value.args))
        case sympy.MatPow() if value.exp.is_Integer and value.exp >= 1:
            return _word(read_all([value.base]) * int(value.exp))
        case sympy.MatMul():
            scalar, matrices = value.as_coeff_matrices()
            if not scalar.is_Rational:
                raise UnsupportedError(f"the coefficient {scalar} is not rational")
            word = _word(read_all(matrices))
            return word if scalar == 1 else Scaled(Fraction(int(scalar.p), int(scalar.q)), word)
        case _:
            raise UnsupportedError(
                f"otimes has no {type(value).__name__}: {str(value)[:80]}. It reads sums, "
                "products, transposes, Kronecker products and rational multiples of matrix symbols"
            )


def _word(factors: list[Expr]) -> Expr:
    return factors[0] if len(factors) == 1 else Product(*factors)
