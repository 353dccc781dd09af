"""The sum over paths: the logits expanded into named terms, lazily, with counts in closed form.

Distributing ``(Id ⊗ W_U) Π_l (Id + Σ_h A ⊗ W_OV) (Id ⊗ W_E)`` and applying the mixed-product
property gives one term for each choice of at most one component in each block:

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

The count is Σ over sources of Π over later blocks of (1 + components), known without enumerating:

>>> Architecture(layers=100, heads=100).logits.expand().count == 101**100
True
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, pairwise, product
from math import floor, log10

from otimes.algebra.architecture import Architecture, Component, Neuron, Source
from otimes.algebra.literal import Selection, parse_literal, reaches
from otimes.algebra.terms import PathTerm
from otimes.errors import LimitError, UnknownComponentError

__all__ = ["DEFAULT_LIMIT", "PathSum", "PathTerm"]

DEFAULT_LIMIT = 10_000

_Group = tuple[int, list[Component]]
"""The number of a block, and its heads or its neurons."""


@dataclass(frozen=True)
class PathSum:
    """A set of paths of an architecture: lazy, with its exact size.

    Iteration is by order (the number of heads), then by source, then by the number of neurons, by
    layer and by head, and always the same. ``only_order`` and ``selection`` narrow it; use
    ``order`` and ``where`` rather than these.
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
    def _fixed(self) -> tuple[Component, ...] | None:
        return None if self.selection is None else self.selection.components

    @cached_property
    def _later(self) -> list[list[int]]:
        """``_later[b][k]``: the ways through the blocks from b on with k heads.

        The coefficients of ``Π (1 + neurons + heads z)`` over these blocks.
        """
        ways = [[1]]
        for block in reversed(self.architecture.blocks):
            last = [*ways[-1], 0] if block.heads else ways[-1]
            stay = 1 + block.neurons
            ways.append(
                [stay * n + (block.heads * last[k - 1] if k else 0) for k, n in enumerate(last)]
            )
        return ways[::-1]

    @cached_property
    def order_counts(self) -> tuple[int, ...]:
        """How many of the paths have 0, 1, 2, … heads."""
        counts = [0] * (self.architecture.layers + 1)
        if self._fixed is not None:
            counts[_order(self._fixed)] = len(self._sources)
        else:
            for source in self._sources:
                first = 0 if source.head is None else 1
                for k, ways in enumerate(self._ways(source)):
                    counts[first + k] += ways
        if self.only_order is not None:
            counts = [n if k == self.only_order else 0 for k, n in enumerate(counts)]
        return tuple(counts)

    def _ways(self, source: Source) -> list[int]:
        return self._later[source.entry] if source.joins == "stream" else [1]

    @property
    def count(self) -> int:
        """The exact number of paths: Σ over sources of Π over later blocks of (1 + components)."""
        if self.only_order is not None or self._fixed is not None:
            return sum(self.order_counts)
        through = [1]
        for block in reversed(self.architecture.blocks):
            through.append(through[-1] * (1 + block.heads + block.neurons))
        through.reverse()
        return sum(through[s.entry] if s.joins == "stream" else 1 for s in self._sources)

    @property
    def head_words(self) -> int:
        """The number of different sequences of heads, sources and neurons not distinguished."""
        if self._fixed is not None:
            return int(self.count > 0)
        whole = [1]
        for heads in self.architecture.heads:
            last = [*whole, 0]
            whole = [n + (heads * last[k - 1] if k else 0) for k, n in enumerate(last)]
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
        orders = range(arch.layers + 1) if self.only_order is None else (self.only_order,)
        for order in orders:
            for source in self._sources:
                first = () if source.component is None else (source.component,)
                more = order - _order(first)
                for rest in self._ways_with(source, more):
                    yield PathTerm(arch, source, first + rest)

    def _ways_with(self, source: Source, order: int) -> Iterator[tuple[Component, ...]]:
        """The components after a source, with ``order`` heads among them."""
        if order < 0 or (source.joins != "stream" and order):
            return
        if source.joins != "stream":
            yield ()
            return
        heads, neurons = self._groups(source.entry)
        for more in range(len(neurons) + 1):
            for chosen in combinations(heads, order):
                for others in combinations(neurons, more):
                    groups = sorted((*chosen, *others), key=_number) if others else chosen
                    # a parallel block is passed once, through a head or through a neuron
                    if not others or len({number for number, _ in groups}) == len(groups):
                        yield from product(*[parts for _, parts in groups])

    def _groups(self, first: int) -> tuple[list[_Group], list[_Group]]:
        """The heads and the neurons of each block from ``first`` on."""
        words = self.architecture.words
        blocks = list(zip(words.blocks, words.components, strict=True))[first:]
        heads: list[_Group] = []
        neurons: list[_Group] = []
        for number, (block, components) in enumerate(blocks, first):
            if block.heads:
                heads.append((number, components[: block.heads]))
            if block.neurons:
                neurons.append((number, components[block.heads :]))
        return heads, neurons

    def depth_first(self) -> Iterator[PathTerm]:
        """All paths such that each follows its longest prefix: evaluation shares prefixes."""
        arch = self.architecture
        if self._fixed is not None:
            yield from self
            return
        deepest = arch.layers if self.only_order is None else self.only_order
        everything = arch.words.components
        # once a path has all its heads only neurons can follow
        neurons = [
            parts[block.heads :] for parts, block in zip(everything, arch.blocks, strict=True)
        ]
        for source in self._sources:
            first = () if source.component is None else (source.component,)
            entry = source.entry if source.joins == "stream" else len(everything)
            path, order = first, _order(first)
            if order > deepest:
                continue
            if self.only_order in (None, order):
                yield PathTerm(arch, source, path)
            waiting = [_continuations(everything if order < deepest else neurons, entry)]
            while waiting:
                step = next(waiting[-1], None)
                if step is None:
                    waiting.pop()
                    path = path[:-1]
                    continue
                block, component = step
                path = (*path, component)
                order = _order(path)
                if self.only_order in (None, order):
                    yield PathTerm(arch, source, path)
                parts = everything if order < deepest else neurons
                waiting.append(_continuations(parts, block + 1))

    def __getitem__(self, path: str) -> PathTerm:
        """The one path that a literal path matches.

        Raises:
            UnknownComponentError: if it matches none of these paths, or several.
        """
        found = self.where(path)
        own = [
            term for term in (found if found.count <= DEFAULT_LIMIT else ()) if self.contains(term)
        ]
        if len(own) == 1:
            return own[0]
        names = ", ".join(term.path for term in own[:3]) or _large(found.count)
        raise UnknownComponentError(
            f"{path!r} matches {_large(found.count) if not own else len(own)} paths, not one"
            + (f" ({names}{', …' if len(own) > 3 else ''}); name its source" if own else ""),
            path,
        )

    @cached_property
    def _names(self) -> dict[str, Source]:
        return {source.name: source for source in self._sources}

    def contains(self, term: PathTerm) -> bool:
        """Whether a term is one of these paths."""
        return (
            self.architecture == term.architecture
            and self._exist(term.components)
            and self.only_order in (None, term.order)
            and self._names.get(term.source.name) == term.source
            and self._fixed in (None, term.components)
            and reaches(term.source, term.components, self.architecture)
        )

    def _exist(self, components: tuple[Component, ...]) -> bool:
        arch = self.architecture
        for component in components:
            if not 0 <= component[0] < arch.layers:
                return False
            neuron = isinstance(component, Neuron)
            there = arch.neurons[component[0]] if neuron else arch.heads[component[0]]
            if not 0 <= component[1] < there:
                return False
        numbers = [arch.words.block_of(component) for component in components]
        return all(earlier < later for earlier, later in pairwise(numbers))

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


def _number(group: _Group) -> int:
    return group[0]


def _order(components: tuple[Component, ...]) -> int:
    return sum(not isinstance(component, Neuron) for component in components)


def _continuations(
    blocks: Sequence[list[Component]], first: int
) -> Iterator[tuple[int, Component]]:
    return chain.from_iterable(
        ((number, component) for component in blocks[number])
        for number in range(first, len(blocks))
    )


def _large(count: int) -> str:
    """An exact count, with its magnitude where the digits are many."""
    if count < 10**30:
        return f"{count:,}"
    magnitude = f"about 10^{floor(log10(count))}"
    # Python refuses to write integers of more digits than a few thousand
    return f"{magnitude} (exactly {count})" if count < 10**1000 else magnitude
