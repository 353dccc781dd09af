"""One term of an attention score: a path on the query side and one on the key side.

The term is ``A_q ⊗ A_k ⊗ W``. With the inputs ``X_q [pos, n]`` and ``X_k [pos, m]`` of the two
paths its score matrix ``[dest, src]`` is ``scale · A_q X_q W X_kᵀ A_kᵀ``. A head on the query side
contributes ``W_OVᵀ`` on the left of ``W_QK`` and a head on the key side ``W_OV`` on its right
(Elhage et al. 2021, "Path Expansion of Attention Scores QK Circuit").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otimes.algebra.expressions import Expr, Factor, tensor, vector
from otimes.algebra.layout import product
from otimes.algebra.printing import Convention, latex, text
from otimes.algebra.scores.notation import Scale, Written, factors_of, transposed
from otimes.algebra.scores.rotary import PlaneTerm, plane_terms
from otimes.algebra.scores.sides import ReadStream
from otimes.algebra.terms import DIRECT, PathTerm
from otimes.algebra.types import POS
from otimes.algebra.vocabulary import ROTATION, Head, head_name, of_head
from otimes.errors import UnsupportedError

KINDS: Final[tuple[str, ...]] = ("direct", "q", "k", "qk", "position")
"""What a term tells: which sides a head has moved; ``position`` for what is added to the scores."""


def kind_of(query_order: int, key_order: int) -> str:
    """``direct``, ``q``, ``k`` or ``qk``: the sides on whose path there is a head."""
    return ("q" if query_order else "") + ("k" if key_order else "") or DIRECT


def additive(head: Head) -> Factor:
    """``B[1.4]``: what ALiBi or T5 add to a head's scores, a vector in pos ⊗ pos."""
    return vector("B", POS, POS, label=head_name(head))


class ScoreTerm(Written):
    """One pair of paths and its ``A_q ⊗ A_k ⊗ W``; words are built when asked for."""

    __slots__ = ("key", "query", "scale")

    def __init__(self, query: PathTerm, key: PathTerm, scale: Scale) -> None:
        """Pair two paths to the two sides of one head."""
        self.query, self.key, self.scale = query, key, scale

    @property
    def head(self) -> Head:
        """The head whose score it is."""
        return self._stream.reader

    @property
    def _stream(self) -> ReadStream:
        return _stream_of(self.query)

    @property
    def query_path(self) -> str:
        """The path of the query-side information, without its source where there is one alone."""
        return self._shown(self.query)

    @property
    def key_path(self) -> str:
        """The path of the key-side information."""
        return self._shown(self.key)

    def _shown(self, side: PathTerm) -> str:
        several = any(len(s.architecture.sources) > 1 for s in (self.query, self.key))
        return side.path if several else side.short_path

    @property
    def kind(self) -> str:
        """``direct``, ``q``, ``k`` or ``qk``: the sides that a head has moved information on."""
        return kind_of(self.query.order, self.key.order)

    @property
    def order(self) -> int:
        """The number of heads on both sides."""
        return self.query.order + self.key.order

    @property
    def query_pattern(self) -> Expr:
        """``A_q``, scales of norms included, that of the queries' own norm too."""
        return _normed(self.query)

    @property
    def key_pattern(self) -> Expr:
        """``A_k``, scales of norms included, that of the keys' own norm too."""
        return _normed(self.key)

    @property
    def pattern(self) -> Expr:
        """``A_q ⊗ A_k``."""
        return tensor(self.query_pattern, self.key_pattern)

    @property
    def is_rotary(self) -> bool:
        """Whether the form depends on the offset of the two slots."""
        return self._stream.whole.turns(self.head[0])

    @property
    def weight(self) -> Expr:
        """The bilinear form ``W``, the query's input on its left and the key's on its right.

        With rotary positions it holds ``R(j−i)``, i the query's slot and j the key's; ``planes``
        gives terms that do not depend on the slots.
        """
        return self._form(ROTATION if self.is_rotary else None)

    def _form(self, between: Expr | None) -> Expr:
        """The form, with a matrix of d_head between ``W_Qᵀ`` and ``W_K`` if there is one."""
        left = tuple(transposed(f) for f in reversed(factors_of(self.query.weight)))
        right = factors_of(self.key.weight)
        query, key = _made_with(self.query), _made_with(self.key)
        middle = (
            *(transposed(f) for f in reversed(query)),
            *(() if between is None else (between,)),
            *key,
        )
        plain = [(_stream_of(side).projection,) for side in (self.query, self.key)]
        if between is None and [query, key] == plain:
            middle = (of_head("W_QK", self.head, self._stream.whole.group(self.head)),)
        return product((*left, *middle, *right))

    def planes(self, frequencies: Iterable[str], *, partial: bool = False) -> list[PlaneTerm]:
        """The rotary term as a sum of terms that do not depend on the slots, four a frequency.

        Args:
            frequencies: their labels, such as ``["0", "1"]``, or ``["f"]`` for a generic one.
            partial: whether only some of the coordinates are rotated.

        Raises:
            UnsupportedError: if the model's positions are not rotary.
        """
        if not self.is_rotary:
            raise UnsupportedError(
                "only rotary positions turn queries and keys; the positions of this model are "
                f"{self._stream.positions!r}"
            )
        return list(
            plane_terms(
                self.query_pattern, self.key_pattern, self._form, frequencies, partial=partial
            )
        )

    @property
    def query_input(self) -> Expr:
        """The vector that the query side acts on, such as the tokens ``t``."""
        return self.query.source.input

    @property
    def key_input(self) -> Expr:
        """The vector that the key side acts on."""
        return self.key.source.input

    @property
    def operator(self) -> Expr:
        """``A_q ⊗ A_k ⊗ W``, without the scale."""
        return tensor(self.query_pattern, self.key_pattern, self.weight)

    def text(self, convention: Convention = "column") -> str:
        """``scale · A_q ⊗ A_k ⊗ W`` in the column or the row convention."""
        return f"{self.scale.text} · {text(self.operator, convention)}"

    def to_latex(self, convention: Convention = "column") -> str:
        """LaTeX of ``scale · A_q ⊗ A_k ⊗ W`` in the column or the row convention."""
        return rf"{self.scale.latex}\, {latex(self.operator, convention)}"

    def __repr__(self) -> str:
        return f"{_sum(self._stream, self.scale)}[{self.query.path!r}, {self.key.path!r}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScoreTerm) and (self.query, self.key, self.scale) == (
            other.query,
            other.key,
            other.scale,
        )

    def __hash__(self) -> int:
        return hash((self.query, self.key))


class PositionTerm(Written):
    """What is added to a head's scores whatever it reads: ALiBi's slopes or T5's relative biases.

    ALiBi adds ``m_h (j − i)`` (Press, Smith and Lewis 2022); T5 adds a learned number for each
    bucket of offsets (Raffel et al. 2020). The score's scale does not apply to it.
    """

    __slots__ = ("stream",)
    kind = "position"
    order = 0
    query_path = key_path = "position"

    def __init__(self, stream: ReadStream) -> None:
        """Name the term of the head that a stream belongs to."""
        self.stream = stream

    @property
    def head(self) -> Head:
        """The head whose score it is."""
        return self.stream.reader

    @property
    def operator(self) -> Expr:
        """``B[1.4]``, the matrix that is added, as a vector in pos ⊗ pos."""
        return additive(self.head)

    def __repr__(self) -> str:
        scale = Scale(self.stream.whole.attention_scale)  # it does not apply here
        return f"{_sum(self.stream, scale)}.position"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PositionTerm) and self.stream == other.stream

    def __hash__(self) -> int:
        return hash(self.head)


def _stream_of(side: PathTerm) -> ReadStream:
    stream = side.architecture
    assert isinstance(stream, ReadStream)
    return stream


def _normed(side: PathTerm) -> Expr:
    """The pattern of a side, with the scales of its queries' or keys' norm."""
    scales = _stream_of(side).norm_behind.pattern
    return product((*scales, *factors_of(side.pattern))) if scales else side.pattern


def _made_with(side: PathTerm) -> tuple[Expr, ...]:
    """What makes a query or key of what is read: its norm's gain, and its projection."""
    stream = _stream_of(side)
    own = () if stream.is_projected(side.source) else (stream.projection,)
    return (*stream.norm_behind.weight, *own)


def _sum(stream: ReadStream, scale: Scale) -> str:
    own = scale.value == stream.whole.attention_scale
    more = "" if own else f", scale={scale.value!r}"
    return f"{stream.whole!r}.scores({head_name(stream.reader)!r}{more}).expand()"
