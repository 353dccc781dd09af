"""The attention scores of a head, unexpanded: what is paired, and how it is written.

>>> from otimes.algebra import Architecture
>>> scores = Architecture(2, 4, norm="rms", qk_norm="head", positions="rotary").scores("1.3")
>>> print(scores.formula())
1/√d_head · D[1.3.q_norm] x[1.read] W_Q[1.3]ᵀ Γ[1.q_norm]ᵀ R(j−i) Γ[1.k_norm] W_K[1.3] x[1.read]ᵀ
D[1.3.k_norm]
>>> print(scores.queries)
(D[1.3.q_norm] ⊗ Γ[1.q_norm])((Id ⊗ W_Q[1.3])((D[1.ln1] ⊗ Γ[1.ln1]) x[1]))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from otimes.algebra.architecture import Architecture
from otimes.algebra.expressions import Expr, Factor, Id, Product, Transpose, tensor, weight
from otimes.algebra.held import Held, displayed, held_by_scores, with_held
from otimes.algebra.layout import EMPTY, total
from otimes.algebra.literal import component
from otimes.algebra.printing import Convention, in_form, latex, text
from otimes.algebra.projections import projection_bias
from otimes.algebra.scores.notation import Scale, transposed
from otimes.algebra.scores.sides import KEY, QUERY, ReadStream
from otimes.algebra.scores.terms import additive
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
from otimes.errors import NotationError

if TYPE_CHECKING:
    from otimes.algebra.derivations import Derivation
    from otimes.algebra.scores.expansion import ScoreSum

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
        from otimes.algebra.scores.expansion import ScoreSum

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
        if "attention" in self.architecture.softcaps:
            notes.append("a soft-cap comes behind it")
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
    def queries(self) -> Expr:
        """The queries before they turn, a vector in pos ⊗ d_head, of the stream ``x[l]``."""
        return self._made(self.query_stream)

    @property
    def keys(self) -> Expr:
        """The keys before they turn, a vector in pos ⊗ d_head, of the stream ``x[l]``."""
        return self._made(self.key_stream)

    def _made(self, side: ReadStream) -> Expr:
        """A side's projection of what is read, its bias, and its norm."""
        stream = standard("x", str(self.head[0]))
        assert stream is not None
        parts = [tensor(Id, side.projection) @ (stream if self.reads is None else self.reads)]
        parts += [s.written for s in side.sources if side.is_projected(s)]
        made = total(parts)
        return made if side.norm_behind == EMPTY else side.norm_behind.expression @ made

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
