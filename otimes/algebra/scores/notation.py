"""How scores are written: their scale, and transposes pushed to the factors of a form.

A form ``V_qᵀ W_QK V_k`` takes the query's input on its left and the key's on its right; what the
row convention makes of it is in :mod:`otimes.algebra.printing`.

>>> from otimes.algebra.vocabulary import W_E, ov
>>> print(transposed(Product(ov((0, 3)), W_E)))
W_Eᵀ W_OV[0.3]ᵀ
>>> print(Scale(), Scale(0.125), Scale(1 / 5**0.5))
1/√d_head 0.125 1/√5
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from otimes.algebra.expressions import Expr, Factor, Identity, Product, Scaled, Sum, Transpose
from otimes.algebra.held import displayed_expression
from otimes.algebra.printing import Convention, latex, text
from otimes.errors import UnsupportedError

_FEW_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class Scale:
    """What raw dot products of queries and keys are multiplied by: ``1/√d_head``, or a number."""

    value: float | None = None

    @property
    def text(self) -> str:
        """As on a blackboard."""
        if self.value is None:
            return "1/√d_head"
        return repr(self.value) if self._root is None else f"1/√{self._root}"

    @property
    def latex(self) -> str:
        """LaTeX, without dollar signs."""
        if self.value is not None and self._root is None:
            return repr(self.value)
        root = r"d_{\mathrm{head}}" if self._root is None else self._root
        return rf"\tfrac{{1}}{{\sqrt{{{root}}}}}"

    @property
    def _root(self) -> int | None:
        """The integer of which a number of many digits is one over the root, if there is one."""
        if self.value is None or self.value <= 0 or len(repr(self.value)) <= _FEW_DIGITS:
            return None
        root = round(self.value**-2)
        return root if root and math.isclose(self.value, root**-0.5, rel_tol=1e-15) else None

    def __str__(self) -> str:
        return self.text


class Written:
    """What is written as its ``operator`` is: in either convention, as text and in LaTeX."""

    __slots__ = ()

    @property
    def operator(self) -> Expr:
        """The expression."""
        raise NotImplementedError

    def text(self, convention: Convention = "column") -> str:
        """As on a blackboard, in the column or the row convention."""
        return text(self.operator, convention)

    def to_latex(self, convention: Convention = "column") -> str:
        """LaTeX in the column or the row convention, without dollar signs."""
        return latex(self.operator, convention)

    @property
    def latex(self) -> str:
        """LaTeX in the column convention, without dollar signs."""
        return self.to_latex()

    def _repr_latex_(self) -> str:
        return displayed_expression(self.operator, self.latex)

    def __str__(self) -> str:
        return self.text()


def factors_of(word: Expr) -> tuple[Expr, ...]:
    """The factors of a word: none of Id."""
    if isinstance(word, Identity):
        return ()
    return word.args if isinstance(word, Product) else (word,)


def transposed(expr: Expr) -> Expr:
    """The transpose, pushed to the factors: ``(A B)ᵀ = Bᵀ Aᵀ``; a diagonal is its own."""
    match expr:
        case Identity():
            return expr
        case Factor():
            return expr if expr.kind == "diagonal" else Transpose(expr)
        case Transpose():
            return expr.arg
        case Product():
            return Product(*map(transposed, expr.args[::-1]))
        case Sum():
            return Sum(*map(transposed, expr.args))
        case Scaled():
            return Scaled(expr.coefficient, transposed(expr.arg))
        case _:
            raise UnsupportedError(f"no transpose of a {type(expr).__name__} in a score")
