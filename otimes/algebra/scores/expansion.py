"""The attention scores of a head as a lazy sum over pairs of paths.

The sum is kept as a product of two sums: ``(Σ query paths) × (Σ key paths)``, so its size is known
and each side is selected, grouped and counted by itself. Pairs are made one by one, and only when
the sum is iterated.

>>> from otimes.algebra import Architecture
>>> scores = Architecture(layers=100, heads=100).scores("99.7").expand()
>>> scores.count == 101**99 * 101**99
True
>>> scores.where(key="0.7 > 98.1").count == 101**99
True
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from otimes.algebra.architecture import Architecture
from otimes.algebra.counts import large
from otimes.algebra.expansion import DEFAULT_LIMIT, PathSum
from otimes.algebra.expressions import Expr, Factor, Product, Transpose, weight
from otimes.algebra.held import Held, displayed, held_by_scores, with_held
from otimes.algebra.layout import EMPTY, total
from otimes.algebra.literal import component
from otimes.algebra.paths import PathExpression
from otimes.algebra.printing import Convention, in_form, latex, text
from otimes.algebra.projections import projection_bias
from otimes.algebra.scores.notation import Scale, transposed
from otimes.algebra.scores.sides import KEY, QUERY, ReadStream
from otimes.algebra.scores.terms import KINDS, PositionTerm, ScoreTerm, additive, kind_of
from otimes.algebra.types import D_MODEL, POS
from otimes.algebra.vocabulary import (
    ROTATION,
    Head,
    Neuron,
    head_name,
    kv_name,
    of_head,
    standard,
)
from otimes.errors import LimitError, NotationError, UnknownComponentError, UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra.derivations import Derivation

ADDITIVE = ("alibi", "relative")
"""Positions that add a matrix to the scores."""


@dataclass(frozen=True, init=False, repr=False)
class Scores:
    """The pre-softmax scores ``[dest, src]`` of one head, unexpanded.

    Args:
        architecture: the model.
        head: ``1.4``, ``L1H4`` or (1, 4).
        scale: what raw dot products are multiplied by; None is the model's own.

    Raises:
        UnknownComponentError: if the model does not have the head.
        NotationError: if the text names no head.
    """

    architecture: Architecture
    head: Head
    scale: Scale

    def __init__(
        self, architecture: Architecture, head: str | Head, *, scale: float | None = None
    ) -> None:
        found = read_head(head)
        architecture.check_head(found)
        object.__setattr__(self, "architecture", architecture)
        object.__setattr__(self, "head", found)
        own = architecture.attention_scale if scale is None else scale
        object.__setattr__(self, "scale", Scale(own))

    @cached_property
    def query_stream(self) -> ReadStream:
        """What the head reads with its queries."""
        return ReadStream(self.architecture, self.head, QUERY)

    @cached_property
    def key_stream(self) -> ReadStream:
        """What the head reads with its keys."""
        return ReadStream(self.architecture, self.head, KEY)

    @property
    def kv_head(self) -> int:
        """The key-value group whose ``W_K`` and ``b_K`` this query head uses."""
        return self.architecture.kv_head(self.head)

    @property
    def shares_keys(self) -> bool:
        """Whether other query heads of the layer use the same keys."""
        layer = self.head[0]
        return self.architecture.kv_heads[layer] < self.architecture.heads[layer]

    @property
    def form(self) -> Expr:
        """The head's own bilinear form: ``W_QK``, or ``W_Qᵀ R(j−i) W_K`` with rotary positions.

        The gains of norms of queries and keys are in it, ``W_Qᵀ Γᵀ Γ W_K``; their scales are not.
        """
        query, key = self.query_stream, self.key_stream
        gains = [side.norm_behind.weight for side in (query, key)]
        if not self.is_rotary and not any(gains):
            return of_head("W_QK", self.head, self._group)
        turn = (ROTATION,) if self.is_rotary else ()
        left = map(transposed, (query.projection, *reversed(gains[0])))
        return Product(*left, *turn, *gains[1], key.projection)

    @property
    def is_rotary(self) -> bool:
        """Whether queries and keys turn with their positions."""
        return self.architecture.turns(self.head[0])

    @property
    def _group(self) -> int | None:
        return self.architecture.group(self.head)

    def expand(self) -> ScoreSum:
        """The lazy sum over pairs of paths."""
        return ScoreSum(self, self.query_stream.paths, self.key_stream.paths)

    def derive(self) -> Derivation:
        """The derivation of the sum over pairs from the streams, step by step, without the scale.

        With rotary positions it is that of the part of one frequency, in closed form.

        Raises:
            UnsupportedError: where positions add a matrix of their own (ALiBi, T5).
            LimitError: if there are too many pairs to write out.
        """
        from otimes.algebra.scores.deriving import derive_scores

        return derive_scores(self)

    def text(self, convention: Convention = "column") -> str:
        """The factored form with what its symbols are, in the column or the row convention."""
        meaning = "" if self.reads is None else f" = {text(self.reads, convention)}"
        notes = [f"{self._reads}{meaning} is what head {head_name(self.head)} reads"]
        if self.is_rotary:
            notes.append("R(j−i) turns by the offset of the key's slot j from the query's slot i")
        if self.shares_keys:
            notes.append(f"W_K is that of key-value head {kv_name(self.head, self.kv_head)}")
        if self.architecture.qk_norm is not None:
            notes.append("D and Γ beside W_Q and W_K are the norms of queries and keys")
        return f"{self.formula(convention)}, where {'; '.join(notes)}"

    @property
    def latex(self) -> str:
        """LaTeX of the factored form, without dollar signs, and what of it is held fixed."""
        formula = self.formula(as_latex=True)
        if self.reads is not None:
            formula = rf"{formula}, \quad {latex(self._reads)} = {latex(self.reads)}"
        return with_held(formula, self.held)

    def _repr_latex_(self) -> str:
        return displayed(self.latex)

    @property
    def held(self) -> tuple[Held, ...]:
        """What is held fixed at a run's values in these scores, in what the head reads too."""
        return held_by_scores(self)

    @property
    def reads(self) -> Expr | None:
        """What queries and keys are made of, of the stream ``x[l]``; None where it is the stream.

        It is the stream through the norm that the head reads through, and what is added behind.
        """
        side, stream = self.query_stream, standard("x", str(self.head[0]))
        assert stream is not None
        norm = side.words.tails["stream"]
        added = [s for s in side.sources if s.joins == "logits" and not side.is_projected(s)]
        if norm == EMPTY and not added:
            return None
        through = stream if norm == EMPTY else Product(norm.expression, stream)
        return total([through, *(source.written for source in added)])

    @property
    def _reads(self) -> Factor:
        """The symbol of what is read, here as a matrix ``[pos, d_model]``."""
        label = str(self.head[0]) if self.reads is None else f"{self.head[0]}.read"
        return weight("x", POS, D_MODEL, label=label)

    def formula(self, convention: Convention = "column", *, as_latex: bool = False) -> str:
        """The factored form alone: scale, queries and keys."""
        scale = rf"{self.scale.latex}\, " if as_latex else f"{self.scale} · "
        return scale + self._factored(convention, as_latex=as_latex)

    def _factored(self, convention: Convention = "column", *, as_latex: bool = False) -> str:
        """The scores as a product over what the head reads, ``D x W_Qᵀ R(j−i) W_K xᵀ D``."""
        plain = latex if as_latex else text
        sides = self.query_stream, self.key_stream
        query, key = (side.norm_behind for side in sides)
        biased = any(side.is_biased for side in sides)
        if biased or self.architecture.qk_norm is not None or self.is_rotary:
            middle = [*map(transposed, reversed(query.weight))]
            middle += [*([ROTATION] if self.is_rotary else []), *key.weight]
            parts = [
                *map(plain, query.pattern),
                self._read(self.query_stream, convention, as_latex=as_latex),
                *(in_form(factor, convention, as_latex=as_latex) for factor in middle),
                self._read(self.key_stream, convention, as_latex=as_latex),
                *map(plain, key.pattern),
            ]
        else:
            form = in_form(self.form, convention, as_latex=as_latex)
            parts = [plain(self._reads), form, plain(Transpose(self._reads))]
        added = f" + {plain(additive(self.head))}" if self.is_shifted else ""
        return " ".join(parts) + added

    def _read(self, side: ReadStream, convention: Convention, *, as_latex: bool) -> str:
        """A side's queries or keys, before their norm: ``x W_Qᵀ + b_Qᵀ`` or ``W_K xᵀ + b_K``."""
        plain, queries = latex if as_latex else text, side.letter == "q"

        def written(factor: Expr) -> str:
            turned = transposed(factor) if queries else factor
            return in_form(turned, convention, as_latex=as_latex)

        x, matrix = self._reads, written(side.projection)
        made = f"{plain(x)} {matrix}" if queries else f"{matrix} {plain(Transpose(x))}"
        if not side.is_biased:
            return made
        bias = written(projection_bias(self.architecture, self.head, side.letter))
        left, right = (r"\left(", r"\right)") if as_latex else ("(", ")")
        return f"{left}{made} + {bias}{right}"

    def __str__(self) -> str:
        return self.text()

    @property
    def is_shifted(self) -> bool:
        """Whether positions add a matrix of their own to the scores (ALiBi, T5)."""
        return self.architecture.positions in ADDITIVE

    def __repr__(self) -> str:
        own = self.scale.value == self.architecture.attention_scale
        scale = "" if own else f", scale={self.scale.value!r}"
        return f"{self.architecture!r}.scores({head_name(self.head)!r}{scale})"


@dataclass(frozen=True, repr=False)
class ScoreSum:
    """Pairs of a query path and a key path, and what positions add: lazy, with its exact size.

    Iteration is by the number of heads on both sides, query-side terms before key-side ones; what
    positions add comes last. Narrow it by ``where``, ``kind`` and ``order``.

    Attributes:
        scores: the unexpanded scores.
        query_paths: the paths of the query side.
        key_paths: the paths of the key side.
        kinds: the kinds that are in it.
        only_order: the number of heads on both sides, None for any.
    """

    scores: Scores
    query_paths: PathSum
    key_paths: PathSum
    kinds: tuple[str, ...] = KINDS
    only_order: int | None = None

    def where(
        self, query: str | PathExpression | None = None, key: str | PathExpression | None = None
    ) -> ScoreSum:
        """The pairs whose sides match path expressions; what positions add is no pair of paths.

        Args:
            query: a path expression for the query side, such as ``0.7 > ..`` or ``pos``; None for
                all.
            key: the same for the key side.
        """
        narrowed = self
        if query is not None:
            narrowed = replace(narrowed, query_paths=self.query_paths.where(query))
        if key is not None:
            narrowed = replace(narrowed, key_paths=self.key_paths.where(key))
        if narrowed is self:
            return self
        return replace(narrowed, kinds=tuple(k for k in self.kinds if k != "position"))

    def kind(self, *kinds: str) -> ScoreSum:
        """The terms of some kinds: ``direct``, ``q``, ``k``, ``qk``, ``position``.

        Raises:
            UnsupportedError: for a kind that there is not.
        """
        for kind in kinds:
            if kind not in KINDS:
                raise UnsupportedError(f"unknown kind {kind!r} of score terms; {_known()}")
        return replace(self, kinds=tuple(k for k in self.kinds if k in kinds))

    def order(self, order: int) -> ScoreSum:
        """The pairs with exactly ``order`` heads on both sides together."""
        return replace(self, only_order=order)

    def _cells(self) -> Iterator[tuple[int, int]]:
        """The numbers of heads on the query and on the key side that pairs have, few heads first.

        One at a time: a deep model has thousands, and numbers of pairs of thousands of digits.
        """
        query, key = self.query_paths.order_counts, self.key_paths.order_counts
        wanted = range(len(query) + len(key) - 1) if self.only_order is None else [self.only_order]
        for order in wanted:
            for i in range(min(order, len(query) - 1), max(order - len(key), -1), -1):
                if query[i] and key[order - i] and kind_of(i, order - i) in self.kinds:
                    yield i, order - i

    @cached_property
    def kind_counts(self) -> dict[str, int]:
        """How many terms there are of each kind that there is."""
        found = dict.fromkeys(KINDS, 0)
        if self.only_order is None:
            # by moved or not, and not by every pair of orders, of which deep models have many
            sides = [
                (side.where("order=0").count, side.count)
                for side in (self.query_paths, self.key_paths)
            ]
            (still_q, all_q), (still_k, all_k) = sides
            for i, queries in enumerate((still_q, all_q - still_q)):
                for j, keys in enumerate((still_k, all_k - still_k)):
                    if kind_of(i, j) in self.kinds:
                        found[kind_of(i, j)] = queries * keys
        else:
            query, key = self.query_paths.order_counts, self.key_paths.order_counts
            for i, j in self._cells():
                found[kind_of(i, j)] += query[i] * key[j]
        found["position"] = int(
            "position" in self.kinds and self.only_order in (None, 0) and self.scores.is_shifted
        )
        return {kind: number for kind, number in found.items() if number}

    @property
    def count(self) -> int:
        """The exact number of terms: query paths × key paths, and 1 for what positions add."""
        return sum(self.kind_counts.values())

    def __len__(self) -> int:
        if self.count > sys.maxsize:
            raise LimitError(
                f"{large(self.count)} terms are more than len() can say; use .count",
                self.count,
                sys.maxsize,
            )
        return self.count

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[ScoreTerm | PositionTerm]:
        for on_query, on_key in self._cells():
            yield from self._pairs(on_query, on_key)
        if "position" in self.kind_counts:
            yield self.position

    def _pairs(self, on_query: int, on_key: int) -> Iterator[ScoreTerm]:
        scale = self.scores.scale
        for query in self.query_paths.order(on_query):
            for key in self.key_paths.order(on_key):
                yield ScoreTerm(query, key, scale)

    @property
    def position(self) -> PositionTerm:
        """What positions add to the scores.

        Raises:
            UnknownComponentError: if they add nothing.
        """
        if not self.scores.is_shifted:
            positions = self.scores.architecture.positions
            raise UnknownComponentError(
                f"positions {positions!r} add nothing to the scores; {' and '.join(ADDITIVE)} do",
                "position",
            )
        return PositionTerm(self.scores.query_stream)

    def __getitem__(self, paths: tuple[str, str]) -> ScoreTerm:
        """The one term of a query path and a key path.

        Raises:
            UnknownComponentError: if either matches none of these paths, or several.
        """
        query, key = paths
        return ScoreTerm(self.query_paths[query], self.key_paths[key], self.scores.scale)

    def contains(self, term: ScoreTerm | PositionTerm) -> bool:
        """Whether a term is one of these."""
        if term.kind not in self.kinds or self.only_order not in (None, term.order):
            return False
        if isinstance(term, PositionTerm):
            return self.scores.is_shifted and term == self.position
        return (
            term.scale == self.scores.scale
            and self.query_paths.contains(term.query)
            and self.key_paths.contains(term.key)
        )

    def terms(self, limit: int = DEFAULT_LIMIT) -> list[ScoreTerm | PositionTerm]:
        """All terms as a list.

        Raises:
            LimitError: if there are more than ``limit``; it says how many and what to ask instead.
        """
        if self.count > limit:
            raise LimitError(
                f"these scores have {large(self.count)} terms, more than the limit of {limit:,}; "
                "ask for their count, for one kind, for a path on either side, or raise the limit",
                self.count,
                limit,
            )
        return list(self)

    def __repr__(self) -> str:
        return f"<ScoreSum of {large(self.count)} terms>"

    def __str__(self) -> str:
        query, key = large(self.query_paths.count), large(self.key_paths.count)
        more = " and what positions add" if "position" in self.kind_counts else ""
        return (
            f"a sum over {query} query paths × {key} key paths{more} of {self.scores!r}, "
            f"each scaled by {self.scores.scale}"
        )


def read_head(head: str | Head) -> Head:
    """Read ``1.4``, ``L1H4`` or a pair of numbers.

    Raises:
        NotationError: for anything else.
    """
    if isinstance(head, str):
        found = component(head.strip())
        if found is not None and not isinstance(found, Neuron):
            return found
    elif (
        isinstance(head, tuple)
        and len(head) == 2
        and all(isinstance(number, int) for number in head)
    ):
        return head
    raise NotationError("scores belong to a head such as 1.4", str(head), 0)


def _known() -> str:
    return f"known are {', '.join(KINDS)}"
