"""Attention scores expanded into terms ``A_q ⊗ A_k ⊗ W``: Q- and K-composition.

A head reads sums over paths on both sides, so its score matrix is a sum over pairs of paths, one
that carries the query-side information and one that carries the key-side information (Elhage et
al. 2021, "Path Expansion of Attention Scores QK Circuit").

>>> from otimes.algebra import Architecture
>>> scores = Architecture(layers=2, heads=12).scores("1.4").expand()
>>> scores.count, scores.kind_counts
(169, {'direct': 1, 'q': 12, 'k': 12, 'qk': 144})
>>> print(scores["direct", "0.3"].operator)
Id ⊗ A[0.3] ⊗ W_Eᵀ W_QK[1.4] W_OV[0.3] W_E
>>> print(scores["0.3", "direct"].operator)
A[0.3] ⊗ Id ⊗ W_Eᵀ W_OV[0.3]ᵀ W_QK[1.4] W_E
"""

from otimes.algebra.scores.expansion import ScoreSum
from otimes.algebra.scores.factored import Scores
from otimes.algebra.scores.rotary import PlaneTerm
from otimes.algebra.scores.sides import KEY, QUERY, ReadStream
from otimes.algebra.scores.terms import KINDS, PositionTerm, ScoreTerm

__all__ = [
    "KEY",
    "KINDS",
    "QUERY",
    "PlaneTerm",
    "PositionTerm",
    "ReadStream",
    "ScoreSum",
    "ScoreTerm",
    "Scores",
]
