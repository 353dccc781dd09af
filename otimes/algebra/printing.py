r"""Text and LaTeX, in the paper's column convention or in the row convention.

In the column convention, as in the paper, the later factor of a word stands on the left:
``W_OV = W_O W_V``. In the row convention, which TransformerLens users read, matrices multiply
activations from the right, so words of weights are written in the opposite order:
``W_OV = W_V W_O``. Patterns are the same in both.

>>> from otimes.algebra import Id, pattern, tensor, weight
>>> virtual = tensor(
...     pattern("A", label="1.0") @ pattern("A", label="0.3"),
...     weight("W_OV", "d_model", "d_model", label="1.0") @ weight("W_E", "d_model", "vocab"),
... )
>>> print(text(virtual))
A[1.0] A[0.3] ⊗ W_OV[1.0] W_E
>>> print(text(virtual, convention="row"))
A[1.0] A[0.3] ⊗ W_E W_OV[1.0]
>>> print(latex(virtual))
A^{1.0} A^{0.3} \otimes W_{OV}^{1.0} W_{E}
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
from otimes.algebra.types import POS
from otimes.errors import UnsupportedError

Convention = Literal["column", "row"]

_SUM, _SCALED, _TENSOR, _PRODUCT, _ATOM = range(5)


@dataclass(frozen=True, slots=True)
class _Style:
    otimes: str
    transpose: str
    left: str
    right: str

    def name(self, factor: Factor) -> str:
        return f"{factor.name}[{factor.label}]" if factor.label else factor.name

    def number(self, value: Fraction) -> str:
        return str(value)

    identity = "Id"


class _LatexStyle(_Style):
    __slots__ = ()
    identity = r"\mathrm{Id}"

    def name(self, factor: Factor) -> str:
        base, _, subscript = factor.name.partition("_")
        if not subscript and base.rstrip("0123456789") != base:  # A2 is A with an index
            subscript = base[len(base.rstrip("0123456789")) :]
            base = base.rstrip("0123456789")
        subscript = subscript.replace("_", r"\_")
        if len(base) > 1:
            base = rf"\mathrm{{{base}}}"
        if subscript.islower() and len(subscript) > 1:
            subscript = rf"\mathrm{{{subscript}}}"
        lower = f"_{{{subscript}}}" if subscript else ""
        label = factor.label.replace("_", r"\_")
        return f"{base}{lower}^{{{label}}}" if label else f"{base}{lower}"

    def number(self, value: Fraction) -> str:
        sign = "-" if value < 0 else ""
        if value.denominator == 1:
            return str(value)
        return rf"{sign}\tfrac{{{abs(value.numerator)}}}{{{value.denominator}}}"


_TEXT = _Style(" ⊗ ", "ᵀ", "(", ")")
_LATEX = _LatexStyle(r" \otimes ", r"^{\top}", r"\left(", r"\right)")


def text(expr: Expr, convention: Convention = "column") -> str:
    """Write an expression as on a blackboard; ``str`` is this in the column convention."""
    return _Printer(_TEXT, convention).show(expr, _SUM)


def latex(expr: Expr, convention: Convention = "column") -> str:
    """Write an expression in LaTeX, without dollar signs."""
    return _Printer(_LATEX, convention).show(expr, _SUM)


class _Printer:
    def __init__(self, style: _Style, convention: Convention) -> None:
        if convention not in ("column", "row"):
            raise UnsupportedError(f"unknown convention {convention!r}: use 'column' or 'row'")
        self.style, self.convention = style, convention

    def show(self, expr: Expr, level: int) -> str:
        """Write ``expr`` where only nodes that bind at least as tightly as ``level`` stand bare."""
        own, shown = self._node(expr)
        return shown if own >= level else f"{self.style.left}{shown}{self.style.right}"

    def _node(self, expr: Expr) -> tuple[int, str]:
        match expr:
            case Factor():
                return _ATOM, self.style.name(expr)
            case Identity():
                return _ATOM, self.style.identity
            case Transpose():
                inner = self.show(expr.arg, _ATOM)
                if isinstance(expr.arg, Transpose) or (
                    self.style is _LATEX and isinstance(expr.arg, Factor) and expr.arg.label
                ):
                    inner = f"{self.style.left}{inner}{self.style.right}"
                return _ATOM, inner + self.style.transpose
            case Product():
                return _PRODUCT, self._product(expr)
            case Tensor():
                shown = self.style.otimes.join(self.show(arg, _PRODUCT) for arg in expr.args)
                return _TENSOR, shown
            case Scaled():
                return _SCALED, self._scaled(expr)
            case Sum():
                return _SUM, self._sum(expr)
            case _:
                raise UnsupportedError(f"no notation for a {type(expr).__name__}")

    def _product(self, expr: Product) -> str:
        slots = expr.type.slots
        weights = slots is not None and len(slots) == 1 and slots[0] not in (None, (POS, POS))
        args = expr.args[::-1] if weights and self.convention == "row" else expr.args
        # a product of one argument, or with a product inside, keeps its parentheses, so that the
        # text has the structure of the expression
        if len(args) == 1:
            return f"{self.style.left}{self.show(args[0], _SUM)}{self.style.right}"
        shown = ""
        for arg in args:
            part = self.show(arg, _ATOM)
            glued = not shown or (shown.endswith(")") and part.startswith(self.style.left))
            shown += part if glued else f" {part}"
        return shown

    def _scaled(self, expr: Scaled) -> str:
        inner = self.show(expr.arg, _TENSOR)
        if expr.coefficient == -1:
            return f"-{inner}"
        return f"{self.style.number(expr.coefficient)} {inner}"

    def _sum(self, expr: Sum) -> str:
        if len(expr.args) == 1:
            return f"{self.style.left}{self.show(expr.args[0], _SUM)}{self.style.right}"
        shown = self.show(expr.args[0], _SCALED)
        for arg in expr.args[1:]:
            if isinstance(arg, Scaled) and arg.coefficient < 0:
                shown += f" - {self.show(arg.arg, _TENSOR)}" if arg.coefficient == -1 else (
                    f" - {self.show(Scaled(-arg.coefficient, arg.arg), _SCALED)}"
                )
            else:
                shown += f" + {self.show(arg, _SCALED)}"
        return shown
