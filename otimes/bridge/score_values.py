"""The value of attention scores as they are written, given the tensors of their symbols.

A term ``scale · A_q ⊗ A_k ⊗ W`` has the score matrix ``scale · A_q X_q W X_kᵀ A_kᵀ [dest, src]``.
Its factors are applied one after another, so nothing is made larger than an input. With rotary
positions ``W`` is ``W_l R(j−i) W_r``; since ``R(j−i) = R(i)ᵀ R(j)``, each side turns by itself.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from otimes.algebra import Expr, Factor
from otimes.algebra.scores import PlaneTerm, PositionTerm, Scores, ScoreTerm
from otimes.algebra.scores.notation import Scale, factors_of
from otimes.algebra.scores.rotary import REST
from otimes.algebra.vocabulary import ROTATION
from otimes.bridge.values import Symbols, applied, slot
from otimes.errors import UnknownComponentError
from otimes.numeric.head_spaces import Rotation


@runtime_checkable
class ScoreSymbols(Symbols, Protocol):
    """What gives the tensors of symbols, and what positions do to queries, keys and scores."""

    @property
    def d_head(self) -> int:
        """The size of a head's queries and keys."""
        ...

    def rotation(self, layer: int) -> Rotation:
        """How the queries and keys of a layer turn."""
        ...

    def shift(self, layer: int, head: int) -> Tensor:
        """What positions add to the scores of a head, ``[batch, dest, src]``."""
        ...


def score_value(
    scores: Scores | ScoreTerm | PositionTerm,
    symbols: ScoreSymbols,
    plane: PlaneTerm | None = None,
) -> Tensor:
    """The value of the scores of a head, or of one of their terms.

    The unexpanded scores are those of the recorded stream, ``x[l]``; a term is made from the
    inputs of its two paths.

    Args:
        scores: the scores, or a term.
        symbols: what gives the tensors.
        plane: of a rotary term, the part to evaluate; its frequency is the number of a plane, or
            names the coordinates that do not turn.

    Returns:
        ``[batch, dest, src]``.

    Raises:
        UnknownComponentError: for a symbol that the model does not have.
    """
    if isinstance(scores, PositionTerm):
        return symbols.shift(*scores.head)
    turn = symbols.rotation(scores.head[0]) if scores.is_rotary else None
    scale = _number(scores.scale, symbols)
    if isinstance(scores, Scores):
        query, key = (applied(side, None, symbols) for side in (scores.queries, scores.keys))
        if turn is not None:
            query, key = turn.apply(query), turn.apply(key)
        found = scale * query @ key.mT
        return found + symbols.shift(*scores.head) if scores.is_shifted else found
    inputs = applied(scores.query_input, None, symbols), applied(scores.key_input, None, symbols)
    if plane is None:
        words = scores.query_pattern, scores.key_pattern, scores.weight
        return scale * _between(*words, *inputs, symbols, turn)
    assert turn is not None
    words = plane.query_pattern, plane.key_pattern, plane.weight
    return plane.sign * scale * _between(*words, *inputs, _Planes(symbols, turn), None)


def _number(scale: Scale, symbols: ScoreSymbols) -> float:
    return symbols.d_head**-0.5 if scale.value is None else scale.value


def _between(
    query_pattern: Expr,
    key_pattern: Expr,
    form: Expr,
    query: Tensor,
    key: Tensor,
    symbols: Symbols,
    turn: Rotation | None,
) -> Tensor:
    """``A_q X_q W X_kᵀ A_kᵀ``; both sides turn where they meet at the rotation in ``W``."""
    factors = factors_of(form)
    cut = factors.index(ROTATION) if ROTATION in factors else len(factors)
    for factor in factors[:cut]:
        # [batch, pos, codomain] x [codomain, domain]
        query = _times(query, slot(factor, symbols))
    for factor in reversed(factors[cut + 1 :]):
        matrix = slot(factor, symbols)
        key = _times(key, matrix if matrix is None or not matrix.ndim else matrix.mT)
    left, right = slot(query_pattern, symbols), slot(key_pattern, symbols)
    query = query if left is None else left @ query
    key = key if right is None else right @ key
    if turn is not None:
        query, key = turn.apply(query), turn.apply(key)
    return query @ key.mT


def _times(x: Tensor, matrix: Tensor | None) -> Tensor:
    if matrix is None:
        return x
    return x @ matrix if matrix.ndim else x * matrix


class _Planes:
    """The symbols of a model, and those of the planes in which one layer turns."""

    def __init__(self, symbols: ScoreSymbols, rotation: Rotation) -> None:
        self.symbols, self.rotation, self.d_head = symbols, rotation, symbols.d_head

    def vector(self, factor: Factor) -> Tensor:
        return self.symbols.vector(factor)

    def matrix(self, factor: Factor) -> Tensor:
        """``cos[n]`` and ``sin[n]`` over positions; ``P[n]``, ``J[n]`` and ``P[rest]``."""
        if factor.name not in ("cos", "sin", "P", "J"):
            return self.symbols.matrix(factor)
        planes = range(self.rotation.angle.shape[-1])
        if factor.label == REST and factor.name == "P":
            return self._turned(0, 0.0) - sum(self._projector(plane) for plane in planes)
        if not factor.label.isdecimal() or int(factor.label) not in planes:
            raise UnknownComponentError(
                f"{factor} is no symbol of this model: its planes are 0 to {len(planes) - 1}",
                str(factor),
            )
        number = int(factor.label)
        if factor.name in ("cos", "sin"):
            angle = self.rotation.angle[..., number]
            return torch.diag_embed(angle.cos() if factor.name == "cos" else angle.sin())
        if factor.name == "P":
            return self._projector(number)
        quarter = math.pi / 2
        return (self._turned(number, quarter) - self._turned(number, -quarter)) / 2

    def _projector(self, plane: int) -> Tensor:
        """Half of what is lost where half a turn makes minus one of one."""
        return (self._turned(plane, 0.0) - self._turned(plane, math.pi)) / 2

    def _turned(self, plane: int, angle: float) -> Tensor:
        """The matrix ``[d_head, d_head]`` that turns one plane."""
        angles = torch.zeros(1, 1, self.rotation.angle.shape[-1], dtype=torch.float64)
        angles[..., plane] = angle
        every = torch.eye(self.d_head, dtype=torch.float64)[None]  # one query at each position
        return replace(self.rotation, angle=angles).apply(every)[0].T
