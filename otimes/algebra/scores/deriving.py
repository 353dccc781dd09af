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
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otimes.algebra.derivations import Derivation
from otimes.algebra.expressions import Expr, Factor, Id, Product, Transpose, tensor
from otimes.algebra.kinds import operator
from otimes.algebra.layout import EMPTY, Word, product, total
from otimes.algebra.rules import (
    Distribute,
    DropIdentity,
    Flatten,
    MixedProduct,
    Substitute,
    TransposeLinear,
    TransposeProduct,
    TransposeTensor,
)
from otimes.algebra.types import D_MODEL, POS, VOCAB
from otimes.errors import LimitError, UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra.scores.expansion import Scores
    from otimes.algebra.scores.sides import ReadStream

MAX_PAIRS: Final = 400
"""How many pairs of paths a derivation writes out."""


def derive_scores(scores: Scores, limit: int = MAX_PAIRS) -> Derivation:
    """The scores of a head as a sum over pairs of paths, from the streams that it reads.

    Args:
        scores: the unexpanded scores; the tokens are the only source.
        limit: the number of pairs that may be written out.

    Raises:
        UnsupportedError: where there are other sources, or positions act on scores.
        LimitError: if there are more pairs; it says how many.
    """
    query, key = scores.query_stream, scores.key_stream
    others = [s.name for side in (query, key) for s in side.sources if s.name != "embed"]
    positions = scores.architecture.positions
    if others or positions not in ("none", "learned", "shortformer"):
        raise UnsupportedError(
            "this derivation is written for scores whose one source is the tokens; here there are "
            f"also {', '.join(dict.fromkeys(others)) or f'{positions} positions'}; expand "
            "them instead, which has all terms"
        )
    count = scores.expand().count
    if count > limit:
        raise LimitError(
            f"this derivation would write out {count:,} pairs of paths, more than {limit:,}; "
            "derive fewer layers or heads, or iterate over .expand()",
            count,
            limit,
        )
    x_q, on_query = _streams(query, 0)
    x_k, on_key = _streams(key, 1)
    start = Product(Transpose(x_q), tensor(Id, Id, scores.form), x_k)
    derivation = Derivation(start, on_query | on_key)
    for symbols in zip(on_query.items(), on_key.items(), strict=True):
        derivation = derivation.everywhere(*[Substitute(x, meaning) for x, meaning in symbols])
    return (
        derivation.where_possible(TransposeProduct(), TransposeLinear(), *_TRANSPOSED)
        .where_possible(*_TRANSPOSED)
        .where_possible(Distribute(), DropIdentity(), Flatten())
        .where_possible(MixedProduct(), DropIdentity(), Flatten())
    )


_TRANSPOSED: Final = (TransposeTensor(), DropIdentity(), Flatten())


def _streams(side: ReadStream, slot: int) -> tuple[Factor, dict[Factor, Expr]]:
    """What a side reads, and what each stream is in terms of the one before, the last first."""
    blocks, found = side.blocks, dict[Factor, Expr]()
    name = ("x_q", "x_k")[slot]
    symbols = [
        operator(name, (POS, POS), (POS, POS), (D_MODEL, VOCAB), label=str(number))
        for number in range(len(blocks) + 1)
    ]
    read = side.words.tails["stream"]
    for number in range(len(blocks), 0, -1):
        block = blocks[number - 1]
        parts = [_lifted(block.word(component), slot) for component in block.components()]
        stream = product([total([_lifted(block.skip, slot), *parts]), symbols[number - 1]])
        found[symbols[number]] = stream
    found[symbols[0]] = _lifted(Word(side.sources[0].pattern, side.sources[0].weight), slot)
    if read == EMPTY:
        return symbols[-1], found
    # the norm that the head reads through is part of what it reads
    whole = operator(name, (POS, POS), (POS, POS), (D_MODEL, VOCAB), label=f"{len(blocks)}.normed")
    return whole, {whole: Product(_lifted(read, slot), symbols[-1]), **found}


def _lifted(word: Word, slot: int) -> Expr:
    """A word on the query's or the key's position, the other being left alone."""
    if word == EMPTY:
        return Id
    pattern, weights = product(word.pattern), product(word.weight)
    return tensor(pattern, Id, weights) if slot == 0 else tensor(Id, pattern, weights)
