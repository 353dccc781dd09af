"""The sum over paths: the logits expanded into named terms, lazily, with counts in closed form.

Distributing ``(Id ⊗ W_U) Π_l (Id + Σ_h A ⊗ W_OV) (Id ⊗ W_E)`` and applying the mixed-product
property gives one term for each choice of at most one head in each layer:

>>> from otimes.algebra import Architecture
>>> paths = Architecture(layers=2, heads=1).logits.expand()
>>> paths.count
4
>>> for term in paths:
...     print(f"{term.path:20} {term.kind:8} {term}")
embed                direct   Id ⊗ W_U W_E
embed > 0.0          head     A[0.0] ⊗ W_U W_OV[0.0] W_E
embed > 1.0          head     A[1.0] ⊗ W_U W_OV[1.0] W_E
embed > 0.0 > 1.0    virtual  A[1.0] A[0.0] ⊗ W_U W_OV[1.0] W_OV[0.0] W_E

The count is Σ over sources of Π over later blocks of (1 + heads), known without enumerating:

>>> Architecture(layers=100, heads=100).logits.expand().count == 101**100
True
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise, product

from otimes.algebra.architecture import W_U, Architecture, Head, Source, attention, ov
from otimes.algebra.expressions import Expr, Id, Product, tensor
from otimes.algebra.literal import Selection, parse_literal, reaches, write_path
from otimes.errors import LimitError, UnknownComponentError

DEFAULT_LIMIT = 10_000


class PathTerm:
    """One path from a source through heads to the logits, and its ``A ⊗ W``.

    ``heads`` are in reading order, earliest first. Words are built when asked for.
    """

    __slots__ = ("architecture", "heads", "source")

    def __init__(self, architecture: Architecture, source: Source, heads: tuple[Head, ...]) -> None:
        """Name a path; whether it is one is checked by ``PathSum`` and not here."""
        self.architecture = architecture
        self.source = source
        self.heads = heads

    @property
    def path(self) -> str:
        """The path with its source, such as ``embed > 0.7 > 1.4``."""
        return write_path(self.source, self.heads)

    @property
    def short_path(self) -> str:
        """The path without its source where the model has no other."""
        only = len(self.architecture.sources) == 1
        return write_path(None if only else self.source, self.heads)

    @property
    def order(self) -> int:
        """The number of attention heads on the path."""
        return len(self.heads)

    @property
    def kind(self) -> str:
        """``direct``, ``head`` (one head) or ``virtual`` (two or more)."""
        return ("direct", "head")[self.order] if self.order < 2 else "virtual"

    @property
    def pattern(self) -> Expr:
        """The pattern word, ``A[1.4] A[0.7]``; ``Id`` for a direct path."""
        return _word([attention(head) for head in reversed(self.heads)])

    @property
    def weight(self) -> Expr:
        """The weight word from the source to the logits, ``W_U W_OV[1.4] W_OV[0.7] W_E``."""
        if self.source.name == "bias[unembed]":
            return self.source.weight[0]
        inner = self.heads if self.source.head is None else self.heads[1:]
        return _word([W_U, *(ov(head) for head in reversed(inner)), *self.source.weight])

    @property
    def operator(self) -> Expr:
        """``pattern ⊗ weight``."""
        return tensor(self.pattern, self.weight)

    @property
    def expression(self) -> Expr:
        """The term as it stands in the sum: applied to its input where there are several."""
        if len(self.architecture.sources) == 1:
            return self.operator
        return Product(self.operator, self.source.input)

    @property
    def latex(self) -> str:
        """LaTeX of ``pattern ⊗ weight``."""
        return self.operator.latex

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {self.latex}$"

    def __str__(self) -> str:
        return str(self.operator)

    def __repr__(self) -> str:
        return f"{self.architecture!r}.logits.expand()[{self.path!r}]"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PathTerm)
            and self.heads == other.heads
            and self.source == other.source
            and self.architecture == other.architecture
        )

    def __hash__(self) -> int:
        return hash((self.heads, self.source.name))


def _word(factors: list[Expr]) -> Expr:
    if not factors:
        return Id
    return factors[0] if len(factors) == 1 else Product(*factors)


@dataclass(frozen=True)
class PathSum:
    """A set of paths of an architecture: lazy, with its exact size.

    Iteration is by order, then by source, then by layer and head, and always the same.
    ``only_order`` and ``selection`` narrow it; use ``order`` and ``where`` rather than these.
    """

    architecture: Architecture
    only_order: int | None = None
    selection: Selection | None = None

    def where(self, path: str) -> PathSum:
        """The paths that a literal path matches; see :mod:`otimes.algebra.literal`."""
        return PathSum(self.architecture, self.only_order, parse_literal(path, self.architecture))

    def order(self, order: int) -> PathSum:
        """The paths with exactly ``order`` heads."""
        return PathSum(self.architecture, order, self.selection)

    @cached_property
    def _sources(self) -> tuple[Source, ...]:
        return self.architecture.sources if self.selection is None else self.selection.sources

    @cached_property
    def _fixed(self) -> tuple[Head, ...] | None:
        return None if self.selection is None else self.selection.heads

    @cached_property
    def _later(self) -> list[list[int]]:
        """``_later[l][k]``: the ways to choose k heads in different layers from l on."""
        ways = [[1]]
        for heads in reversed(self.architecture.heads):
            last = [*ways[-1], 0]
            ways.append([last[k] + (heads * last[k - 1] if k else 0) for k in range(len(last))])
        return ways[::-1]

    @cached_property
    def order_counts(self) -> tuple[int, ...]:
        """How many of the paths have 0, 1, 2, … heads."""
        counts = [0] * (self.architecture.layers + 1)
        if self._fixed is not None:
            counts[len(self._fixed)] = len(self._sources)
        else:
            for source in self._sources:
                first = 0 if source.head is None else 1
                for k, ways in enumerate(self._later[source.entry]):
                    counts[first + k] += ways
        if self.only_order is not None:
            counts = [n if k == self.only_order else 0 for k, n in enumerate(counts)]
        return tuple(counts)

    @property
    def count(self) -> int:
        """The exact number of paths."""
        return sum(self.order_counts)

    @property
    def head_words(self) -> int:
        """The number of different sequences of heads, sources not distinguished."""
        if self._fixed is not None:
            return int(self.count > 0)
        whole = self._later[0]
        if self.only_order is None:
            return sum(whole)
        return whole[self.only_order] if 0 <= self.only_order < len(whole) else 0

    def __len__(self) -> int:
        if self.count > sys.maxsize:
            raise LimitError(
                f"{_large(self.count)} paths are more than len() can say; use .count",
                self.count,
                sys.maxsize,
            )
        return self.count

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[PathTerm]:
        arch = self.architecture
        if self._fixed is not None:
            if self.count:
                for source in self._sources:
                    yield PathTerm(arch, source, self._fixed)
            return
        heads = [[(layer, head) for head in range(n)] for layer, n in enumerate(arch.heads)]
        orders = range(arch.layers + 1) if self.only_order is None else (self.only_order,)
        for order in orders:
            for source in self._sources:
                first = () if source.head is None else (source.head,)
                more = order - len(first)
                if more < 0:
                    continue
                for layers in combinations(range(source.entry, arch.layers), more):
                    for rest in product(*(heads[layer] for layer in layers)):
                        yield PathTerm(arch, source, first + rest)

    def depth_first(self) -> Iterator[PathTerm]:
        """All paths such that each follows its longest prefix: evaluation shares prefixes."""
        arch = self.architecture
        if self._fixed is not None:
            yield from self
            return
        deepest = arch.layers if self.only_order is None else self.only_order

        def extend(source: Source, path: tuple[Head, ...], layer: int) -> Iterator[PathTerm]:
            if self.only_order in (None, len(path)):
                yield PathTerm(arch, source, path)
            if len(path) < deepest:
                for later in range(layer, arch.layers):
                    for head in range(arch.heads[later]):
                        yield from extend(source, (*path, (later, head)), later + 1)

        for source in self._sources:
            first = () if source.head is None else (source.head,)
            if len(first) <= deepest:
                yield from extend(source, first, source.entry)

    def __getitem__(self, path: str) -> PathTerm:
        """The one path that a literal path matches.

        Raises:
            UnknownComponentError: if it matches none of these paths, or several.
        """
        found = self.where(path)
        own = [
            term
            for term in (found if found.count <= DEFAULT_LIMIT else ())
            if self.contains(term)
        ]
        if len(own) == 1:
            return own[0]
        names = ", ".join(term.path for term in own[:3]) or _large(found.count)
        raise UnknownComponentError(
            f"{path!r} matches {_large(found.count) if not own else len(own)} paths, not one"
            + (f" ({names}{', …' if len(own) > 3 else ''}); name its source" if own else ""),
            path,
        )

    def contains(self, term: PathTerm) -> bool:
        """Whether a term is one of these paths."""
        layers = [layer for layer, _ in term.heads]
        return (
            self.architecture == term.architecture
            and all(earlier < later for earlier, later in pairwise(layers))
            and all(layer < self.architecture.layers for layer in layers)
            and all(0 <= head < self.architecture.heads[layer] for layer, head in term.heads)
            and self.only_order in (None, term.order)
            and term.source in self._sources
            and self._fixed in (None, term.heads)
            and reaches(term.source, term.heads)
        )

    def terms(self, limit: int = DEFAULT_LIMIT) -> list[PathTerm]:
        """All paths as a list.

        Raises:
            LimitError: if there are more than ``limit``; it says how many and what to ask instead.
        """
        if self.count > limit:
            raise LimitError(
                f"this sum has {_large(self.count)} terms, more than the limit of {limit:,}; "
                "ask for their count, for one order, for one path, or raise the limit",
                self.count,
                limit,
            )
        return list(self)

    def __str__(self) -> str:
        return f"a sum over {_large(self.count)} paths of {self.architecture!r}"


def _large(count: int) -> str:
    """An exact count, with its magnitude where the digits are many."""
    digits = f"{count:,}"
    return digits if len(digits) <= 40 else f"about 10^{len(str(count)) - 1} (exactly {count})"
