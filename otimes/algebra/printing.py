r"""Text and LaTeX, in the paper's column convention or in the row convention.

In the column convention, as in the paper, the later factor of a word stands on the left:
``W_OV = W_O W_V`` and ``W_QK = W_Qᵀ W_K``. In the row convention, which TransformerLens users read,
a weight is stored as the transpose and multiplies activations from the right. So a word that acts
on the stream is written in the opposite order, ``W_V W_O``; a bilinear form, which has the query on
its left in both conventions, keeps its order and exchanges what is transposed, ``W_Q W_Kᵀ``.
``W_QK`` is the same matrix in both. Patterns are the same in both.

>>> from otimes.algebra import Id, pattern, tensor, weight
>>> virtual = tensor(
...     pattern("A", label="1.0") @ pattern("A", label="0.3"),
...     weight("W_OV", "d_model", "d_model", label="1.0") @ weight("W_E", "d_model", "vocab"),
... )
>>> print(text(virtual))
A[1.0] A[0.3] ⊗ W_OV[1.0] W_E
>>> print(text(virtual, convention="row"))
A[1.0] A[0.3] ⊗ W_E W_OV[1.0]
>>> form = weight("W_Q", "d_head", "d_model").T @ weight("W_K", "d_head", "d_model")
>>> print(text(form), "|", text(form, convention="row"))
W_Qᵀ W_K | W_Q W_Kᵀ
>>> print(latex(virtual))
A^{1.0} A^{0.3} \otimes W_{OV}^{1.0} W_{E}

The text has the structure of the expression, so that it parses back to it: a sum of one is ``+A``,
a product of one is ``(·A)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

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
from otimes.algebra.latex_names import latex_name
from otimes.algebra.measures import Eigenvalues, FrobeniusNorm
from otimes.algebra.stacked import Column, Row
from otimes.algebra.types import POS
from otimes.errors import UnsupportedError

Convention = Literal["column", "row"]

_SUM, _SCALED, _TENSOR, _PRODUCT, _ATOM = range(5)

_Mode = Literal["as is", "operator", "form"]
"""How the row convention writes a weight word: reversed (an operator), or with the transposes
exchanged (a form)."""


@dataclass(frozen=True, slots=True)
class _Style:
    otimes: str
    transpose: str
    left: str
    right: str
    dot: str
    identity: str
    row: tuple[str, str, str]
    column: tuple[str, str, str]
    eigenvalues: str
    norm: tuple[str, str]

    def name(self, factor: Factor) -> str:
        shown = f"{factor.name}[{factor.label}]" if factor.label else factor.name
        return f"{shown}(j−i)" if factor.kind == "offset" else shown

    def number(self, value: Fraction) -> str:
        return str(value)


class _LatexStyle(_Style):
    __slots__ = ()

    def name(self, factor: Factor) -> str:
        shown = latex_name(factor.name, factor.label)
        return f"{shown}(j-i)" if factor.kind == "offset" else shown

    def number(self, value: Fraction) -> str:
        sign = "-" if value < 0 else ""
        if value.denominator == 1:
            return str(value)
        return rf"{sign}\tfrac{{{abs(value.numerator)}}}{{{value.denominator}}}"


_TEXT = _Style(
    otimes=" ⊗ ",
    transpose="ᵀ",
    left="(",
    right=")",
    dot="·",
    identity="Id",
    row=("[", " | ", "]"),
    column=("[", "; ", "]"),
    eigenvalues="λ",
    norm=("‖", "‖"),
)
_LATEX = _LatexStyle(
    otimes=r" \otimes ",
    transpose=r"^{\top}",
    left=r"\left(",
    right=r"\right)",
    dot=r"\cdot ",
    identity=r"\mathrm{Id}",
    row=(r"\begin{pmatrix} ", " & ", r" \end{pmatrix}"),
    column=(r"\begin{pmatrix} ", r" \\ ", r" \end{pmatrix}"),
    eigenvalues=r"\lambda",
    norm=(r"\left\lVert ", r" \right\rVert_F"),
)


def text(expr: Expr, convention: Convention = "column") -> str:
    """Write an expression as on a blackboard; ``str`` is this in the column convention."""
    return _Printer(_TEXT, convention).show(expr, _SUM)


def latex(expr: Expr, convention: Convention = "column") -> str:
    """Write an expression in LaTeX, without dollar signs; it needs the package amsmath."""
    return _Printer(_LATEX, convention).show(expr, _SUM)


def in_form(expr: Expr, convention: Convention = "column", *, as_latex: bool = False) -> str:
    """Write a factor of a bilinear form by itself: the row convention exchanges transposes."""
    printer = _Printer(_LATEX if as_latex else _TEXT, convention)
    return printer.show(expr, _ATOM, "form" if convention == "row" else "as is")


class _Printer:
    def __init__(self, style: _Style, convention: Convention) -> None:
        if convention not in ("column", "row"):
            raise UnsupportedError(f"unknown convention {convention!r}: use 'column' or 'row'")
        self.style, self.convention = style, convention

    def show(self, expr: Expr, level: int, mode: _Mode = "as is") -> str:
        """Write ``expr`` where only nodes that bind at least as tightly as ``level`` stand bare."""
        if mode == "as is" and self.convention == "row" and _is_weight(expr):
            mode = "form" if _is_form(expr) else "operator"
        own, shown = self._node(expr, mode)
        return shown if own >= level else self._bracket(shown)

    def _bracket(self, shown: str) -> str:
        return f"{self.style.left}{shown}{self.style.right}"

    def _node(  # noqa: C901, PLR0912 - one case for each kind of node
        self, expr: Expr, mode: _Mode
    ) -> tuple[int, str]:
        style = self.style
        match expr:
            case Factor():
                if mode == "form" and not _symmetric_in_meaning(expr):
                    return _ATOM, self._transposed(style.name(expr), expr)
                return _ATOM, style.name(expr)
            case Identity():
                return _ATOM, style.identity
            case Transpose():
                if mode == "form" and isinstance(expr.arg, Factor):
                    if not _symmetric_in_meaning(expr.arg):
                        return _ATOM, style.name(expr.arg)
                    mode = "as is"
                return _ATOM, self._transposed(self.show(expr.arg, _ATOM, mode), expr.arg)
            case Product():
                return self._product(expr, mode)
            case Tensor():
                shown = style.otimes.join(self.show(arg, _PRODUCT) for arg in expr.args)
                return _TENSOR, shown
            case Scaled():
                return _SCALED, self._scaled(expr, mode)
            case Sum():
                return _SUM, self._sum(expr, mode)
            case Row() | Column():
                # the row convention writes the transpose of an operator
                upright = isinstance(expr, Column) != (mode == "operator")
                first, between, last = style.column if upright else style.row
                return _ATOM, first + between.join(
                    self.show(a, _SUM, mode) for a in expr.args
                ) + last
            case Eigenvalues():
                return _ATOM, style.eigenvalues + self._bracket(self.show(expr.arg, _SUM))
            case FrobeniusNorm():
                return _ATOM, style.norm[0] + self.show(expr.arg, _SUM) + style.norm[1]
            case _:
                raise UnsupportedError(f"no notation for a {type(expr).__name__}")

    def _transposed(self, inner: str, arg: Expr) -> str:
        # a second superscript needs a group of its own
        labelled = self.style is _LATEX and isinstance(arg, Factor) and arg.label
        if labelled or isinstance(arg, Transpose | FrobeniusNorm):
            inner = self._bracket(inner)
        return inner + self.style.transpose

    def _product(self, expr: Product, mode: _Mode) -> tuple[int, str]:
        args = expr.args[::-1] if mode == "operator" else expr.args
        if len(args) == 1:
            return _ATOM, self._bracket(self.style.dot + self.show(args[0], _ATOM, mode))
        shown = ""
        for arg in args:
            part = self.show(arg, _ATOM, mode)
            glued = not shown or (shown.endswith(")") and part.startswith(self.style.left))
            shown += part if glued else f" {part}"
        return _PRODUCT, shown

    def _scaled(self, expr: Scaled, mode: _Mode) -> str:
        inner = self.show(expr.arg, _TENSOR, mode)
        if expr.coefficient == -1:
            return f"-{inner}"
        return f"{self.style.number(expr.coefficient)} {inner}"

    def _sum(self, expr: Sum, mode: _Mode) -> str:
        shown = self.show(expr.args[0], _SCALED, mode)
        if len(expr.args) == 1:
            return f"+{shown}"
        for arg in expr.args[1:]:
            if isinstance(arg, Scaled) and arg.coefficient < 0:
                positive = self.show(arg.arg, _TENSOR, mode)
                if arg.coefficient != -1:
                    positive = f"{self.style.number(-arg.coefficient)} {positive}"
                shown += f" - {positive}"
            else:
                shown += f" + {self.show(arg, _SCALED, mode)}"
        return shown


def _is_weight(expr: Expr) -> bool:
    """Whether it is a map between single spaces other than positions: what W stands for."""
    slots = expr.type.slots
    return slots is not None and len(slots) == 1 and slots[0] is not None and POS not in slots[0]


def _is_form(expr: Expr) -> bool:
    """Whether it is a bilinear form with the query side on its left."""
    names = {factor.name for factor in expr.factors}
    queries, keys = names & {"W_Q", "b_Q"}, names & {"W_K", "b_K"}
    return "W_QK" in names or bool(queries and keys)


def _symmetric_in_meaning(factor: Factor) -> bool:
    """Whether both conventions store the same matrix under this name."""
    return factor.name == "W_QK" or factor.kind == "diagonal"
