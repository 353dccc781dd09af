"""The path tree: a partition of all paths of a scalar target that is exact at every moment.

A node is either one complete path, or a suffix of paths (their last components) with whatever comes
before it. The value of a suffix is its functional applied to the whole stream before its first
component, so it is exact however many paths it stands for. Splitting a suffix by the component
before it gives one suffix for each component of every earlier block and one complete path for each
source that reaches it directly. The root is the empty suffix, whose value is the total.

A suffix of a single path that a source reaches directly is that path: the two are one node. A path
that begins with a constant inside a component belongs to the suffix that begins there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from otimes.numeric.frozen import FrozenModel
from otimes.numeric.functionals import (
    Functionals,
    Target,
    check_single,
    of_target,
    past_norm,
    through_components,
    through_skip,
)
from otimes.numeric.multiplicity import Multiplicity
from otimes.numeric.nodes import ANY, Children, Gathered, Guide, Node
from otimes.numeric.paths import Components
from otimes.numeric.prefixes import Reading, Transitions, direct_sources, prefixes
from otimes.numeric.states import StateTables

_KEPT = 4096
"""How many suffixes keep their functional; others are read back anew."""


@dataclass(frozen=True)
class _Suffix:
    """One suffix as a functional of the stream before its first component.

    ``accept`` are the states there from which it is accepted, the state of no path last; the
    ``constant`` is the source and the value of the path that begins in its first component.
    """

    boundary: int
    row: Float[Tensor, " pos"]
    vector: Float[Tensor, " d_model"]
    accept: Bool[Tensor, " state"]
    value: float
    constant: tuple[int, float] | None


@dataclass(frozen=True)
class _Sources:
    """The sources that write to the stream before one block, and the states they start in."""

    numbers: list[int]
    states: list[int]
    streams: Float[Tensor, "source pos d_model"]


@dataclass(frozen=True)
class _Reached:
    """The values of sources that reach suffixes directly, and whether these paths are accepted."""

    numbers: list[int]
    values: list[list[float]]
    accepted: list[list[bool]]


class PathTree:
    """All paths of one scalar target of one sequence, or those that an automaton accepts.

    The arrays that all nodes read are made once, by one frozen pass; a node then costs a few
    products with them. See the head of the file for what a node is.
    """

    def __init__(
        self, model: FrozenModel, target: Target, tables: StateTables | None = None
    ) -> None:
        """Make the tree.

        Args:
            model: of a single sequence.
            target: what paths add to.
            tables: only the paths that this automaton accepts; None is all of them.

        Raises:
            ValueError: if the model is of several sequences, or the automaton of another model.
        """
        check_single(model)
        self.model = model
        self.target = target
        self.transitions = Transitions(model, tables)
        self.prefixes = prefixes(model, self.transitions)
        self._known = dict[Components, _Suffix]()
        self._multiplicity = Multiplicity(model, self.transitions)
        self._direct = [self._sources(boundary) for boundary in range(model.depth + 1)]

    @cached_property
    def root(self) -> Node:
        """The empty suffix: all paths."""
        return Node(ANY, (), self._root.value, self.count(()))

    @property
    def total(self) -> float:
        """What all paths add up to."""
        return self._root.value

    @cached_property
    def last(self) -> Functionals:
        """The target as a functional of the stream behind the last block."""
        return of_target(self.model, self.target)

    @cached_property
    def _root(self) -> _Suffix:
        found = self.last
        value = float(found.of(self.prefixes.last[0])[0])
        value += sum(value for _, value in self.beyond)
        accept = self.transitions.accepting(self.model, 1)[0]
        return _Suffix(self.model.depth, found.rows[0], found.vectors[0], accept, value, None)

    @cached_property
    def beyond(self) -> list[tuple[int, float]]:
        """The paths that never stand in the stream: of what joins the unembedding or the logits."""
        found = list[tuple[int, float]]()
        for number, source in enumerate(self.model.sources):
            if source.joins == "stream" or self.transitions.start[number] < 0:
                continue
            stream = self.model.start(number)
            if stream is None:
                found.append((number, self.target.bias))
            else:
                vector = past_norm(self.model, self.target)
                found.append((number, float(stream[0, self.target.position] @ vector)))
        return found

    def children(self, components: Components = ()) -> Children:
        """The children of the suffix ``components``: they add up to it.

        Raises:
            ValueError: if the components do not stand in increasing blocks of the model.
        """
        return self.expand([components])[0]

    def expand(self, suffixes: Sequence[Components], guide: Guide | None = None) -> list[Children]:
        """The children of several suffixes, with a guide's numbers, by products for all at once.

        What the guide gives must not depend on which other suffixes are read with one.
        """
        found = [self._suffix(components) for components in suffixes]
        gathered = [Gathered(guided=guide is not None) for _ in found]
        for components, one, into in zip(suffixes, found, gathered, strict=True):
            for source, value in [] if components else self.beyond:
                into.add_path(source, value)
            if one.constant is not None:
                into.add_path(*one.constant)
        # suffixes that begin late are read first; they stay while earlier ones join
        order = sorted(range(len(found)), key=lambda place: -found[place].boundary)
        sinks = [gathered[place] for place in order]
        for step in self._down([found[place] for place in order]):
            if isinstance(step, Reading):
                self._read(step, sinks, guide)
            else:
                for sink, values, accepted in zip(sinks, step.values, step.accepted, strict=False):
                    for number, value, yes in zip(step.numbers, values, accepted, strict=True):
                        if yes:
                            sink.add_path(number, value)
        count = self._multiplicity.count
        return [
            into.children(components, count)
            for components, into in zip(suffixes, gathered, strict=True)
        ]

    def _suffix(self, components: Components) -> _Suffix:
        """The functional of a suffix, read back from the longest part of it that is kept."""
        begin = 0
        while begin < len(components) and components[begin:] not in self._known:
            begin += 1
        found = self._root if begin == len(components) else self._known[components[begin:]]
        while begin:
            begin -= 1
            found = self._longer(found, *components[begin])
            if len(self._known) >= _KEPT:
                del self._known[next(iter(self._known))]
            self._known[components[begin:]] = found
        return found

    def value(self, components: Components) -> float:
        """What all paths that end with ``components`` add up to."""
        return self._suffix(components).value

    def count(self, components: Components) -> int:
        """How many paths end with ``components``, an exact integer."""
        return self._multiplicity.count(components)

    def read_first(self, components: Components) -> tuple[Reading, int]:
        """How the other components of a suffix read its first one, and its place in the branch."""
        block, number = components[0]
        behind, accept = self._behind(self._suffix(components[1:]), block, number)
        return self._reading_of(behind, accept, number)

    def _behind(
        self, found: _Suffix, block: int, number: int
    ) -> tuple[Functionals, Bool[Tensor, " state"]]:
        """A suffix read back past the skip edges to where a component writes."""
        if not 0 <= block < found.boundary or not 0 <= number < self.model.blocks[block].components:
            raise ValueError(
                f"no component {number} of block {block} before block {found.boundary}"
            )
        behind = Functionals(found.boundary, found.row[None], found.vector[None])
        accept = found.accept
        for skip in reversed(self.transitions.skip[block + 1 : found.boundary]):
            accept = accept[skip]
        return through_skip(self.model, behind, block + 1), accept

    def _reading_of(self, behind: Functionals, accept: Tensor, number: int) -> tuple[Reading, int]:
        *_, reading = (one for one in self._readings(behind, [accept]) if one.first <= number)
        return reading, number - reading.first

    def _longer(self, found: _Suffix, block: int, number: int) -> _Suffix:
        """A suffix with one component more in front."""
        behind, accept = self._behind(found, block, number)
        rows, vectors = through_components(self.model, behind, block)
        reading, place = self._reading_of(behind, accept, number)
        value, constant = float(self.prefixes.read(reading)[0, 0, place]), None
        if reading.begins is not None and bool(reading.begins[0, place]):
            assert reading.constants is not None
            source = int(self.prefixes.constants[block][number])
            constant = source, float(reading.constants[0, place])
        before = accept[self.transitions.after[block][:, number]]
        return _Suffix(block, rows[0, number], vectors[0, number], before, value, constant)

    def _sources(self, entry: int) -> _Sources | None:
        """The sources that write before a block, None where there are none."""
        found = list(direct_sources(self.model, self.transitions, entry))
        streams = [self.model.start(number) for number, _ in found]
        present = [stream[0] for stream in streams if stream is not None]
        numbers, states = [number for number, _ in found], [state for _, state in found]
        return _Sources(numbers, states, torch.stack(present)) if found else None

    def _down(self, found: Sequence[_Suffix]) -> Iterator[Reading | _Reached]:
        """Read suffixes back through all blocks, latest first; each begins at its boundary."""
        model, joined = self.model, 0
        empty = model.W_U.new_zeros
        here = Functionals(model.depth, empty(0, model.length), empty(0, model.W_U.shape[0]))
        accept = list[Tensor]()
        for boundary in range(model.depth, -1, -1):
            new = [one for one in found[joined:] if one.boundary == boundary]
            if new:
                rows = torch.cat([here.rows, torch.stack([one.row for one in new])])
                vectors = torch.cat([here.vectors, torch.stack([one.vector for one in new])])
                here, joined = Functionals(boundary, rows, vectors), joined + len(new)
                accept += [one.accept for one in new]
            if not joined:
                continue
            sources = self._direct[boundary]
            if sources is not None:
                values = here.of(sources.streams).T.tolist()
                accepted = [[bool(one[state]) for state in sources.states] for one in accept]
                yield _Reached(sources.numbers, values, accepted)
            if boundary:
                yield from self._readings(here, accept)
                here = through_skip(model, here, boundary - 1)
                if not self.transitions.trivial:
                    accept = [one[self.transitions.skip[boundary - 1]] for one in accept]

    def _readings(self, behind: Functionals, accept: Sequence[Tensor]) -> Iterator[Reading]:
        """How functionals of the stream behind a block read what its components move."""
        block, first, after, before = behind.boundary - 1, 0, None, None
        if not self.transitions.trivial:
            after = torch.stack(list(accept))
            before = after[:, self.transitions.after[block]]
        for number, branch in enumerate(self.model.blocks[block].branches):
            rows = branch.writes.pattern_adjoint(behind.rows)
            inner = branch.inner(behind.vectors)
            chosen = slice(first, first + branch.size)
            begins, constants = self._begins(block, chosen, after, len(rows)), None
            moved = branch.constant() if begins is not None else None
            if begins is not None and moved is not None:
                # [n, pos] x [pos, component, width] x [n, component, width]
                constants = torch.einsum("np,pcw,ncw->nc", rows, moved[0], inner) * begins
            yield Reading(
                block, number, first, rows, inner, constants, begins,
                None if before is None else before[:, :, chosen],
            )  # fmt: skip
            first += branch.size

    def _begins(
        self, block: int, chosen: slice, after: Tensor | None, size: int
    ) -> Bool[Tensor, "n component"] | None:
        """Whether a path that is accepted begins in each component; None where none does."""
        sources = self.prefixes.constants[block][chosen]
        if not bool((sources >= 0).any()):
            return None
        if after is None:
            return (sources >= 0).expand(size, -1)
        starts = torch.tensor([*self.transitions.start, -1], device=sources.device)[sources]
        return after[:, starts] & (starts >= 0)

    def _read(self, reading: Reading, sinks: Sequence[Gathered], guide: Guide | None) -> None:
        values = self.prefixes.read(reading)[:, 0]
        guides = None if guide is None else guide(reading, values)
        exists, sources = self._multiplicity.of(reading)
        for place, sink in enumerate(sinks[: len(values)]):
            guided = None if guides is None else guides[place]
            sink.add_components(reading, exists[place], sources[place], values[place], guided)
