r"""What is held fixed: which symbols of an expression have the values that a run recorded.

With these fixed a transformer is affine and everything in it is of the form ``A ⊗ W``; an
expression in them says nothing of another run. So texts and LaTeX name them:

>>> from otimes.algebra import Architecture
>>> arch = Architecture(1, 2, norm="rms", mlp="frozen", neurons=1)
>>> print(sentence(held_in(arch.logits.expression.factors)))
A (attention patterns), D (1/σ of norms) and S (slopes of neurons) held at the run's values
>>> print(latex_sentence([SCALES]))
\text{with } D \text{ (}1/\sigma\text{ of norms) held at the run's values}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from otimes.algebra.expressions import Expr, Factor
from otimes.algebra.vocabulary import standard

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture
    from otimes.algebra.scores.factored import Scores


class Held(NamedTuple):
    """Symbols of one kind that are held fixed: their letter, and what they are."""

    symbol: str
    what: str


PATTERNS: Final = Held("A", "attention patterns")
SCALES: Final = Held("D", "1/σ of norms")
HEAD_SCALES: Final = Held("D", "1/σ of norms, those of queries and keys too")
SLOPES: Final = Held("S", "slopes of neurons")
OUTPUTS: Final = Held("m", "outputs of MLPs")


def held_in(factors: Iterable[Factor]) -> tuple[Held, ...]:
    """What of these symbols is held fixed; a symbol of no component, such as ``A``, is any."""
    known = [f for f in factors if f.label and f.name in "ADSm" and _is_standard(f)]
    names = {factor.name for factor in known}
    normed = any(factor.label.endswith("k_norm") for factor in known if factor.name == "D")
    normed |= any(factor.label.endswith("q_norm") for factor in known if factor.name == "D")
    return _chosen(names, queries_and_keys=normed)


def held_by(arch: Architecture) -> tuple[Held, ...]:
    """What is held fixed in an architecture's logits and scores."""
    names = _before(arch, arch.layers)
    if arch.final_norm or arch.embed_norm:
        names.add("D")
    return _chosen(names, queries_and_keys=arch.qk_norm is not None)


def held_by_scores(scores: Scores) -> tuple[Held, ...]:
    """What is held fixed in the scores of a head, in what it reads too."""
    arch, layer = scores.architecture, scores.head[0]
    names = _before(arch, layer)
    reads_normed = arch.norm is not None and arch.norm_placement in ("pre", "sandwich")
    if reads_normed or arch.embed_norm or arch.qk_norm is not None:
        names.add("D")
    return _chosen(names, queries_and_keys=arch.qk_norm is not None)


def sentence(held: Iterable[Held]) -> str:
    """What is held fixed, as text; empty for nothing."""
    shown = [f"{symbol} ({what})" for symbol, what in held]
    return f"{_listed(shown)} held at the run's values" if shown else ""


def latex_sentence(held: Iterable[Held]) -> str:
    """What is held fixed, in LaTeX's mathematics; empty for nothing."""
    shown = [
        rf"}} {symbol} \text{{ ({what})".replace("1/σ", r"}1/\sigma\text{") for symbol, what in held
    ]
    return rf"\text{{with {_listed(shown)} held at the run's values}}" if shown else ""


def with_held(formula: str, held: Iterable[Held]) -> str:
    """A formula in LaTeX with what is held fixed in a line below it, where something is."""
    said = latex_sentence(held)
    if not said:
        return formula
    return rf"\begin{{aligned}} & {formula} \\ & {said} \end{{aligned}}"


def displayed(formula: str) -> str:
    """A formula as notebooks take it, in display style."""
    return f"$\\displaystyle {formula}$"


def displayed_expression(expr: Expr, formula: str) -> str:
    """The LaTeX of an expression as notebooks take it, with what of it is held fixed."""
    return displayed(with_held(formula, held_in(expr.factors)))


def _is_standard(factor: Factor) -> bool:
    return standard(factor.name, factor.label) is factor


def _before(arch: Architecture, layers: int) -> set[str]:
    """The letters of what is held fixed in the layers before one."""
    names = set[str]()
    if any(arch.heads[:layers]):
        names.add("A")
    if arch.norm is not None and layers:
        names.add("D")
    if arch.mlp is not None and layers:
        names.add("m" if arch.mlp == "source" else "S")
    return names


def _chosen(names: set[str], *, queries_and_keys: bool) -> tuple[Held, ...]:
    scales = HEAD_SCALES if queries_and_keys else SCALES
    return tuple(kind for kind in (PATTERNS, scales, SLOPES, OUTPUTS) if kind.symbol in names)


def _listed(parts: list[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
