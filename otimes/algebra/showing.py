r"""How derivations are shown: plain text, Markdown, LaTeX ``align*``.

>>> from otimes.algebra import pattern
>>> from otimes.algebra.derivations import Derivation
>>> from otimes.algebra.rules import TransposeProduct
>>> derivation = Derivation((pattern("B") @ pattern("A")).T).apply(TransposeProduct())
>>> print(align(derivation))
\begin{align*}
& \left(B A\right)^{\top} \\
={}& A^{\top} B^{\top} && \text{transpose of a product}
\end{align*}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otimes.algebra.expressions import Expr, Scaled, Sum
from otimes.algebra.held import Held, held_in, latex_sentence, sentence
from otimes.algebra.rules.base import scaled

if TYPE_CHECKING:
    from otimes.algebra.derivations import Derivation

_WIDTH: Final = 96
_LATEX_WIDTH: Final = 240


def plain(derivation: Derivation) -> str:
    """One expression after another with the reason at the right; long sums go over lines."""
    blocks = [_lines(expr, _WIDTH) for expr in derivation.expressions]
    reasons = ["", *(f"({step.rule})" for step in derivation.steps)]
    fits = [len(line) for lines in blocks for line in lines if len(line) <= _WIDTH // 2]
    column = max(fits, default=0) + 4
    shown = list[str]()
    for number, (lines, reason) in enumerate(zip(blocks, reasons, strict=True)):
        signs = ["= " if number else "  ", *["  "] * (len(lines) - 1)]
        if not reason:
            shown.extend(sign + line for sign, line in zip(signs, lines, strict=True))
        elif len(lines) == 1 and len(lines[0]) < column:
            shown.append(f"= {lines[0]:{column}}{reason}")
        else:
            shown.extend(sign + line for sign, line in zip(signs, lines, strict=True))
            shown.append(f"  {'':{column}}{reason}")
    return "\n".join(shown)


def markdown(derivation: Derivation) -> str:
    """A numbered list, with each expression as displayed mathematics."""
    parts = [f"$$\n{derivation.start.latex}\n$$"]
    for number, step in enumerate(derivation.steps, 1):
        parts.append(f"{number}. By *{step.rule}*:\n\n   $$\n   = {step.after.latex}\n   $$")
    held = held_of(derivation)
    if held:
        parts.append(f"With {sentence(held)}.")
    return "\n\n".join(parts)


def align(derivation: Derivation) -> str:
    r"""An ``align*`` environment; the reasons stand in a second column."""
    rows = list[str]()
    for number, expr in enumerate(derivation.expressions):
        reason = (
            "" if not number else rf" && \text{{{_escaped(derivation.steps[number - 1].rule)}}}"
        )
        first, *more = _latex_lines(expr)
        rows.append(f"{'={}' if number else ''}& {first}{reason}")
        rows.extend(rf"& \quad {line}" for line in more)
    said = latex_sentence(held_of(derivation))
    if said:
        rows.append(f"& {said}")
    return "\\begin{align*}\n" + " \\\\\n".join(rows) + "\n\\end{align*}"


def held_of(derivation: Derivation) -> tuple[Held, ...]:
    """What is held fixed at a run's values in the expressions of a derivation."""
    return held_in(factor for expr in derivation.expressions for factor in expr.factors)


def _escaped(rule: str) -> str:
    return rule.replace("_", r"\_")


def _addends(expr: Expr, *, latex: bool) -> list[str]:
    """A sum as pieces that carry their signs and brackets; any other expression as one piece."""
    if not isinstance(expr, Sum) or len(expr.args) < 2:
        return [expr.latex if latex else str(expr)]
    pieces = list[str]()
    for number, arg in enumerate(expr.args):
        sign = "+ " if number else ""
        if isinstance(arg, Sum) and len(arg.args) > 1:
            inner = _addends(arg, latex=latex)
            pieces.extend([f"{sign}({inner[0]}", *inner[1:-1], f"{inner[-1]})"])
        elif number and isinstance(arg, Scaled) and arg.coefficient < 0:
            pieces.append(f"- {_addend(scaled(-arg.coefficient, arg.arg), latex=latex)}")
        else:
            pieces.append(f"{sign}{_addend(arg, latex=latex)}")
    return pieces


def _addend(expr: Expr, *, latex: bool) -> str:
    if isinstance(expr, Scaled) and expr.coefficient < 0:
        return expr.latex if latex else str(expr)
    # the printer knows the brackets of an addend: "S + S" holds it twice
    twice = Sum(expr, expr)
    shown = twice.latex if latex else str(twice)
    return shown[: (len(shown) - len(" + ")) // 2]


def _filled(pieces: list[str], width: int) -> list[str]:
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1]) + 1 + len(piece) > width:
            lines.append(piece)
        else:
            lines[-1] += f" {piece}"
    return lines


def _lines(expr: Expr, width: int) -> list[str]:
    whole = str(expr)
    return [whole] if len(whole) <= width else _filled(_addends(expr, latex=False), width)


def _latex_lines(expr: Expr) -> list[str]:
    return _filled(_addends(expr, latex=True), _LATEX_WIDTH)
