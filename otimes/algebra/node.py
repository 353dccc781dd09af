"""The base of all nodes: what every expression can do, whatever it is made of.

A node knows its type, what it is made of and how deep it nests. Operators build one node each;
rewriting is a matter of rules alone.

>>> from otimes.algebra import pattern
>>> A, B = pattern("A"), pattern("B")
>>> print(2 * A @ B - B.T)
(2 A) B - Bᵀ
>>> (A @ B).children == (A, B), (A @ B @ A).factors == (A, B)
(True, True)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from otimes.algebra.types import Type
from otimes.errors import LimitError, TypeMismatchError

if TYPE_CHECKING:
    from otimes.algebra.expressions import Factor, Product, Scaled, Sum, Transpose

MAX_DEPTH: Final = 150
"""How deep nodes nest: far beyond what anybody writes, and safe for every recursive function."""


class Expr:
    """The base of all nodes: a linear map of a known type.

    Equality is that of structure; two expressions of equal value may differ.
    """

    __slots__: tuple[str, ...] = ("__weakref__", "_hash", "_key", "depth", "type")
    type: Type
    _key: tuple[object, ...]
    _hash: int
    depth: int

    def _set(self, type_: Type, *key: object, depth: int = 0) -> None:
        if depth > MAX_DEPTH:
            raise LimitError(
                f"expressions nest at most {MAX_DEPTH} deep; a sum or product takes any number of "
                "arguments without nesting",
                depth,
                MAX_DEPTH,
            )
        object.__setattr__(self, "type", type_)
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "depth", depth)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; {name!r} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Expr)
            and type(self) is type(other)
            and hash(self) == hash(other)
            and self._key == other._key
        )

    def __hash__(self) -> int:
        # made when first asked for: most words of an expansion are printed and never compared
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((type(self), *self._key)))
            return self._hash

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return type(self), self._key

    def __matmul__(self, other: Expr) -> Product:
        from otimes.algebra.expressions import Product

        left = self.args if isinstance(self, Product) else (self,)
        return Product(*left, other)

    def __add__(self, other: Expr) -> Sum:
        from otimes.algebra.expressions import Sum

        left = self.args if isinstance(self, Sum) else (self,)
        return Sum(*left, other)

    def __sub__(self, other: Expr) -> Sum:
        return self + -other

    def __neg__(self) -> Scaled:
        return self * -1

    def __mul__(self, coefficient: int | Fraction) -> Scaled:
        from otimes.algebra.expressions import Scaled

        return Scaled(coefficient, self)

    __rmul__ = __mul__

    @property
    def T(self) -> Transpose:  # noqa: N802 - the field writes W.T
        """The transpose, as a node of its own."""
        from otimes.algebra.expressions import Transpose

        return Transpose(self)

    @property
    def children(self) -> tuple[Expr, ...]:
        """The expressions that this node is made of; none for a symbol."""
        return ()

    def with_children(self, *children: Expr) -> Expr:
        """The same node over other expressions, type-checked as when it is built."""
        return type(self)(*children) if children else self

    @property
    def factors(self) -> tuple[Factor, ...]:
        """All factors in it, each once, in the order of their first appearance."""
        from otimes.algebra.expressions import Factor

        found = dict[Factor, None]()
        seen = set[Expr]()

        def visit(expr: Expr) -> None:
            if expr not in seen:
                seen.add(expr)
                if isinstance(expr, Factor):
                    found[expr] = None
                for child in expr.children:
                    visit(child)

        visit(self)
        return tuple(found)

    @property
    def symbols(self) -> dict[str, Factor]:
        """Its factors by the names that it prints, ``W_OV[1.4]``: the context to parse it in.

        Raises:
            TypeMismatchError: where one name stands for two factors, so that none could be told
                from the text.
        """
        return named(self.factors)

    def to_sympy(self, dimensions: Mapping[str, int], **options: Any) -> Any:
        """The expression as explicit SymPy matrices; see :mod:`otimes.algebra.sympy_bridge`."""
        from otimes.algebra.sympy_bridge import to_sympy

        return to_sympy(self, dimensions, **options)

    def __repr__(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        from otimes.algebra.printing import text

        return text(self)

    @property
    def latex(self) -> str:
        """LaTeX in the paper's column convention, without dollar signs."""
        from otimes.algebra.printing import latex

        return latex(self)

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {self.latex}$"


def named(factors: Iterable[Factor]) -> dict[str, Factor]:
    """Factors by the names that they print, if each name stands for one of them.

    Raises:
        TypeMismatchError: with both factors and their types, where it stands for two.
    """
    found: dict[str, Factor] = {}
    for factor in factors:
        name = str(factor)
        other = found.setdefault(name, factor)
        if other is not factor:
            raise TypeMismatchError(
                f"the name {name} stands for two factors: {other!r} is {other.type}, {factor!r} "
                f"is {factor.type}; rename one of them",
                other,
                factor,
            )
    return found
