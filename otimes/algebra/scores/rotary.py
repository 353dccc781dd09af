r"""Rotary scores in closed form: one frequency at a time they are terms ``A_q ⊗ A_k ⊗ W`` again.

Rotary positions turn the query at slot ``i`` by ``iθ`` and the key at slot ``j`` by ``jθ``, so the
score is ``q_iᵀ R(j − i) k_j`` (Su et al. 2021, "RoFormer"). In the plane of one frequency ``f``,

    R(m) = cos(m θ_f) P_f + sin(m θ_f) J_f,

``P_f`` the projector on the plane and ``J_f`` its quarter turn, the rotation by +90°. With
``c = diag(cos iθ_f)``, ``s = diag(sin iθ_f)`` the angle-difference formulas give four terms,

    c A_q ⊗ c A_k ⊗ W_P + s A_q ⊗ s A_k ⊗ W_P + c A_q ⊗ s A_k ⊗ W_J − s A_q ⊗ c A_k ⊗ W_J,

``W_P = W_Qᵀ P_f W_K`` and ``W_J = W_Qᵀ J_f W_K``. How coordinates pair up is in ``P_f`` and ``J_f``
alone: half-split pairs coordinate ``n`` with ``n + r/2`` of the ``r`` rotated ones, interleaved
pairs ``2n`` with ``2n + 1``. Where rotation is partial, the coordinates that do not turn are one
more plane without cosines: ``A_q ⊗ A_k ⊗ W_Qᵀ P[rest] W_K``.

>>> from otimes.algebra import Architecture
>>> scores = Architecture(1, 1, positions="rotary").scores("0.0").expand()
>>> for plane in scores["direct", "direct"].planes(["f"]):
...     print(plane)
cos[f] ⊗ cos[f] ⊗ W_Eᵀ W_Q[0.0]ᵀ P[f] W_K[0.0] W_E
sin[f] ⊗ sin[f] ⊗ W_Eᵀ W_Q[0.0]ᵀ P[f] W_K[0.0] W_E
cos[f] ⊗ sin[f] ⊗ W_Eᵀ W_Q[0.0]ᵀ J[f] W_K[0.0] W_E
-sin[f] ⊗ cos[f] ⊗ W_Eᵀ W_Q[0.0]ᵀ J[f] W_K[0.0] W_E
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from otimes.algebra.expressions import Expr, Factor, Scaled, Sum, tensor, weight
from otimes.algebra.kinds import diagonal, offset_form
from otimes.algebra.layout import product
from otimes.algebra.scores.notation import Written, factors_of
from otimes.algebra.types import D_HEAD, POS

REST: Final = "rest"
"""The label of the coordinates that partial rotation leaves alone."""


def cosine(frequency: str) -> Factor:
    """``diag(cos iθ_f)`` over positions."""
    return diagonal("cos", POS, label=frequency)


def sine(frequency: str) -> Factor:
    """``diag(sin iθ_f)`` over positions."""
    return diagonal("sin", POS, label=frequency)


def plane(frequency: str) -> Factor:
    """``P_f``, the projector on the plane of a frequency: a diagonal of zeros and ones."""
    return diagonal("P", D_HEAD, label=frequency)


def quarter_turn(frequency: str) -> Factor:
    """``J_f``, the rotation by +90° in the plane of a frequency, zero outside of it."""
    return weight("J", D_HEAD, D_HEAD, label=frequency)


def turn(frequency: str) -> Factor:
    """``R_f(j − i)``: what the plane of one frequency adds to ``R(j − i)``, on both slots."""
    return offset_form("R", label=frequency)


def closed_form(frequency: str) -> Expr:
    """``R_f(j − i)`` as four terms that do not depend on the offset."""
    c, s, still, turned = (make(frequency) for make in (cosine, sine, plane, quarter_turn))
    return Sum(
        tensor(c, c, still),
        tensor(s, s, still),
        tensor(c, s, turned),
        Scaled(-1, tensor(s, c, turned)),
    )


@dataclass(frozen=True, slots=True)
class PlaneTerm(Written):
    """One of the four parts of a rotary score term at one frequency, or its part that stands still.

    Attributes:
        frequency: the label of the frequency.
        sign: 1, or -1 for the last of the four.
        query_pattern: ``c A_q`` or ``s A_q``.
        key_pattern: ``c A_k`` or ``s A_k``.
        weight: the bilinear form with ``W_P`` or ``W_J``.
    """

    frequency: str
    sign: int
    query_pattern: Expr
    key_pattern: Expr
    weight: Expr

    @property
    def operator(self) -> Expr:
        """``± A_q ⊗ A_k ⊗ W``."""
        term = tensor(self.query_pattern, self.key_pattern, self.weight)
        return term if self.sign == 1 else Scaled(self.sign, term)


def plane_terms(
    query_pattern: Expr,
    key_pattern: Expr,
    form: Callable[[Expr], Expr],
    frequencies: Iterable[str],
    *,
    partial: bool = False,
) -> Iterator[PlaneTerm]:
    """The parts of a score term, four for each frequency.

    Args:
        query_pattern: ``A_q``.
        key_pattern: ``A_k``.
        form: makes the bilinear form with a matrix of d_head between ``W_Qᵀ`` and ``W_K``.
        frequencies: their labels.
        partial: whether some coordinates do not turn.
    """
    queries, keys = factors_of(query_pattern), factors_of(key_pattern)
    for f in frequencies:
        c, s = cosine(f), sine(f)
        still, turned = form(plane(f)), form(quarter_turn(f))
        for sign, left, right, weights in (
            (1, c, c, still),
            (1, s, s, still),
            (1, c, s, turned),
            (-1, s, c, turned),
        ):
            yield PlaneTerm(f, sign, product((left, *queries)), product((right, *keys)), weights)
    if partial:
        yield PlaneTerm(REST, 1, query_pattern, key_pattern, form(plane(REST)))
