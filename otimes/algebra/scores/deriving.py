"""The expansion of attention scores derived from the stream, step by step.

A score is a form on the stream that is read: as a map from the key side to the query side it is
``x_qᵀ (Id ⊗ Id ⊗ W_QK) x_k``, in which ``x_q`` acts on the query's position (the first slot) and
``x_k`` on the key's (the second). Substituting each layer's stream and multiplying out gives a
term for each pair of paths (Elhage et al. 2021, "Path Expansion of Attention Scores QK Circuit").
A map turns round when it is transposed, so the query's pattern stands as ``A_qᵀ``: what is written
``A_q ⊗ A_k ⊗ W`` as a term is the map ``A_qᵀ ⊗ A_k ⊗ W``. The scale multiplies all of it and is
left out.

>>> from otimes.algebra import Architecture
>>> derivation = derive_scores(Architecture(layers=2, heads=1).scores("1.0"))
>>> print(derivation.start)
x_q[1]ᵀ (Id ⊗ Id ⊗ W_QK[1.0]) x_k[1]
>>> for addend in derivation.end.args:
...     print(addend)
Id ⊗ Id ⊗ W_Eᵀ W_QK[1.0] W_E
Id ⊗ A[0.0] ⊗ W_Eᵀ W_QK[1.0] W_OV[0.0] W_E
A[0.0]ᵀ ⊗ Id ⊗ W_Eᵀ W_OV[0.0]ᵀ W_QK[1.0] W_E
A[0.0]ᵀ ⊗ A[0.0] ⊗ W_Eᵀ W_OV[0.0]ᵀ W_QK[1.0] W_OV[0.0] W_E
>>> derivation.check().holds
True

Where there are more inputs than the tokens (positions, the ones that biases are multiples of), a
stream acts on all of them stacked, and ``ι[n]ᵀ`` takes the n-th: the first is the tokens. With b_Q
or b_K the start is ``qᵀ k``, the queries and keys themselves:

>>> derivation = derive_scores(Architecture(layers=1, heads=1, biases={"b_Q"}).scores("0.0"))
>>> print(derivation.start)
q[0.0]ᵀ k[0.0]
>>> for addend in derivation.end.args:
...     print(addend)
Id ⊗ Id ⊗ ι[0] W_Eᵀ W_QK[0.0] W_E ι[0]ᵀ
Id ⊗ Id ⊗ ι[1] b_Q[0.0]ᵀ W_K[0.0] W_E ι[0]ᵀ

With rotary positions it is the part of one frequency, ``f``, whose rotation ``R[f](j−i)`` is put
in closed form (:mod:`otimes.algebra.scores.rotary`); the scores are the sum of these parts over all
frequencies, and of the same with ``cos = 1, sin = 0`` for coordinates that do not turn.

>>> derivation = derive_scores(Architecture(1, 1, positions="rotary").scores("0.0"))
>>> for expression in derivation.expressions[:2]:
...     print(expression)
q[0.0]ᵀ R[f](j−i) k[0.0]
q[0.0]ᵀ (cos[f] ⊗ cos[f] ⊗ P[f] + sin[f] ⊗ sin[f] ⊗ P[f] + cos[f] ⊗ sin[f] ⊗ J[f]
- sin[f] ⊗ cos[f] ⊗ J[f]) k[0.0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otimes.algebra.counts import large
from otimes.algebra.derivations import Derivation
from otimes.algebra.expressions import Expr, Factor, Id, Product, Transpose, tensor
from otimes.algebra.held import sentence
from otimes.algebra.layout import total
from otimes.algebra.rules import (
    Distribute,
    DropIdentity,
    Flatten,
    FoldQK,
    MixedProduct,
    PullScalar,
    Substitute,
    TransposeLinear,
    TransposeProduct,
    TransposeTensor,
)
from otimes.algebra.scores.rotary import REST, closed_form, plane, turn
from otimes.algebra.scores.stacked_streams import StackedStreams, inputs_of
from otimes.algebra.scores.terms import ScoreTerm
from otimes.algebra.vocabulary import ROTATION, head_name
from otimes.errors import LimitError, UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra.scores.expansion import ScoreSum
    from otimes.algebra.scores.factored import Scores

MAX_PAIRS: Final = 400
"""How many pairs of paths a derivation writes out."""
FREQUENCY: Final = "f"
"""The label of the one frequency whose part is derived with rotary positions."""


def derive_scores(scores: Scores, limit: int = MAX_PAIRS) -> Derivation:
    """The scores of a head as a sum over pairs of paths, from the streams that it reads.

    Args:
        scores: the unexpanded scores.
        limit: the number of terms that may be written out; with rotary positions a pair is four.

    Raises:
        UnsupportedError: where positions add a matrix to the scores (ALiBi, T5).
        LimitError: if there are more terms; it says how many.
    """
    sides, projected = _sides(scores)
    _check(scores, scores.expand().count, limit)
    (read_q, on_query), (read_k, on_key) = (side.read(projected=projected) for side in sides)
    start = _form(scores, read_q, read_k, projected)
    derivation = _turned(Derivation(start, on_query | on_key | _meaning(scores)))
    for symbols in zip(on_query.items(), on_key.items(), strict=True):
        derivation = derivation.everywhere(*[Substitute(x, meaning) for x, meaning in symbols])
    return _worked_out(derivation)


def derive_pairs(pairs: ScoreSum, limit: int = MAX_PAIRS) -> Derivation:
    """Chosen pairs of paths, each a product of what they go through, as terms.

    ``((Id ⊗ Id ⊗ W_E))ᵀ (Id ⊗ Id ⊗ W_QK) (Id ⊗ A ⊗ W_OV)(Id ⊗ Id ⊗ W_E)`` becomes one term.

    Args:
        pairs: a non-empty part of the expansion of scores.
        limit: the number of terms that may be written out.

    Raises:
        UnsupportedError: for no pairs, and where positions add a matrix to the scores.
        LimitError: if there are more terms; it says how many.
    """
    scores = pairs.scores
    (on_query, on_key), projected = _sides(scores)
    _check(scores, pairs.count, limit)
    written = [
        _form(
            scores,
            on_query.path(term.query, projected=projected),
            on_key.path(term.key, projected=projected),
            projected,
        )
        for term in pairs
        if isinstance(term, ScoreTerm)
    ]
    if not written:
        raise UnsupportedError("there is nothing to derive: no pair of paths is chosen")
    return _worked_out(_turned(Derivation(total(written), _meaning(scores))))


def _sides(scores: Scores) -> tuple[list[StackedStreams], bool]:
    """Both sides, and whether the start is queries and keys: biased, normed or turned ones."""
    streams, inputs = [scores.query_stream, scores.key_stream], inputs_of(scores)
    biased = any(side.is_projected(s) for side in streams for s in side.sources)
    stacked = [StackedStreams(side, slot, inputs) for slot, side in enumerate(streams)]
    normed = scores.architecture.qk_norm is not None
    return stacked, biased or normed or scores.is_rotary


def _check(scores: Scores, pairs: int, limit: int) -> None:
    name = head_name(scores.head)
    if scores.is_shifted:
        raise UnsupportedError(
            f"{scores.architecture.positions} positions add B[{name}] to the scores, a matrix over "
            "pairs of positions that no step leads to; all terms and B are listed by "
            f"'otimes expand --target scores:{name}', or arch.scores({name!r}).expand()"
        )
    rotary = scores.is_rotary
    count = pairs * (4 if rotary else 1)
    if count > limit:
        raise LimitError(
            f"this derivation would write out {large(count)} "
            f"{'terms, four for each pair' if rotary else 'pairs'} of paths, more than {limit:,}; "
            "choose paths, derive fewer layers or heads, or list them: "
            f"'otimes expand --target scores:{name}', or .expand()",
            count,
            limit,
        )


def _form(scores: Scores, query: Expr, key: Expr, projected: bool) -> Expr:
    """The score of what the sides read, or of queries and keys where they are projected."""
    if scores.is_rotary:
        return Product(Transpose(query), turn(FREQUENCY), key)
    form = [] if projected else [tensor(Id, Id, scores.form)]
    return Product(Transpose(query), *form, key)


def _meaning(scores: Scores) -> dict[Factor, Expr]:
    """What the rotation at one frequency stands for, where queries and keys turn."""
    return {turn(FREQUENCY): closed_form(FREQUENCY)} if scores.is_rotary else {}


def _turned(derivation: Derivation) -> Derivation:
    """The rotation at one frequency in closed form, where there is one."""
    return derivation.where_possible(Substitute(turn(FREQUENCY), closed_form(FREQUENCY)))


def _worked_out(derivation: Derivation) -> Derivation:
    """Transposes taken to the factors, products of sums multiplied out, slots composed."""
    for rules in _STEPS:
        derivation = derivation.where_possible(*rules)
    return derivation


def notes(scores: Scores) -> list[str]:
    """What the derivation of scores leaves unsaid: inputs, frequency, scale, what is held fixed."""
    found, inputs = list[str](), inputs_of(scores)
    if len(inputs) > 1:
        picked = ", ".join(f"ι[{n}]ᵀ takes {vector}" for n, vector in enumerate(inputs))
        found.append(f"of all inputs stacked, {picked}")
    if scores.is_rotary:
        found.append(
            f"{ROTATION}, i the query's slot and j the key's, is the sum of {turn(FREQUENCY)} over "
            f"all frequencies {FREQUENCY}, and of {plane(REST)} for coordinates that do not turn"
        )
    found.append(f"all of it is multiplied by the scale {scores.scale}")
    return [*found, *([sentence(scores.held)] if scores.held else [])]


_TIDY: Final = (DropIdentity(), Flatten())
_STEPS: Final = (
    (TransposeProduct(), TransposeLinear(), TransposeTensor(), *_TIDY),
    (TransposeLinear(), TransposeProduct(), TransposeTensor(), *_TIDY),
    (TransposeTensor(), TransposeProduct(), TransposeLinear(), *_TIDY),
    (Distribute(), PullScalar(), *_TIDY),
    (MixedProduct(), *_TIDY),
    (FoldQK(),),
)
