"""The walk over suffixes of paths from the output back, in batches, so that everything is a GEMM.

A batch holds suffixes of one length, each a row over positions ``r`` and a vector ``v`` of the
stream before its first block. For a component c of an earlier block that moved ``z [pos, width]``
of what stands in front (`otimes.numeric.standing`), the suffix that c begins has the value

    Σ_width (r z) · (W_O Γ_wᵀ v),

two products for all suffixes and all components of a block; with one more pair of products it
becomes a row and a vector of the next batch. Vectors of the stream are made only for suffixes that
go on, never for the last length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from otimes.numeric.batches import Found, Suffixes, array, component_numbers, joined
from otimes.numeric.branches import Branch
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.functionals import Target, of_target, past_norm
from otimes.numeric.standing import (
    SUM,
    Prefix,
    Prefixes,
    on_device,
    reachable,
    starts_of_constants,
)
from otimes.numeric.states import StateTables

BUDGET = 2**29
"""Bytes that a walk may use for its batches, beside what the heads moved of the prefixes."""

_ROWS = 2048  # suffixes of one product: what it makes stays in the cache


@dataclass(frozen=True)
class _Place:
    """A branch of a block: its number there, its components among the block's, what orders count.

    ``heads`` is 1 for heads and 0 for neurons.
    """

    block: int
    which: int
    branch: Branch
    part: slice
    heads: int


@dataclass(frozen=True)
class Walk:
    """What to enumerate: words up to an order and a length, accepted by an automaton.

    ``by_position`` splits every value by the position that the first component reads (by the
    target's position for words without a component).
    """

    model: FrozenModel
    target: Target
    prefixes: Prefixes
    tables: StateTables | None = None
    order: int | None = None
    length: int | None = None
    by_position: bool = False
    budget: int = BUDGET

    def run(self) -> Iterator[Found]:
        """All words, in order among those of one length: by reversed word, last component first."""
        start = self._start()
        yield self._direct(start)
        if self.length != 0 and self.model.depth:
            yield from self._from(start)

    @cached_property
    def numbering(self) -> Integer[np.ndarray, "component 2"]:
        """The block of every component, and its number there."""
        return component_numbers(self.model)

    @cached_property
    def _offsets(self) -> np.ndarray:
        """The number of components before each block."""
        return np.cumsum([0, *(block.components for block in self.model.blocks)])

    @cached_property
    def _first_neurons(self) -> int:
        """The first block with components that no order counts."""
        found = [i for i, b in enumerate(self.model.blocks) if b.components > b.heads]
        return found[0] if found else self.model.depth

    @cached_property
    def _moves(self) -> list[np.ndarray]:
        """The state ``[state, component]`` behind each component of each block."""
        assert self.tables is not None
        return [
            np.array([[r[k] if k >= 0 else -1 for k in member] for r in move]).reshape(
                len(move), -1
            )
            for member, move in zip(self.tables.member, self.tables.move, strict=True)
        ]

    @cached_property
    def _reached(self) -> Bool[np.ndarray, "boundary state"]:
        assert self.tables is not None
        most = max(self.tables.states(b) for b in range(self.model.depth + 1))
        found = np.zeros((self.model.depth + 1, most), dtype=bool)
        for boundary, states in enumerate(reachable(self.tables)):
            found[boundary, list(states)] = True
        return found

    @cached_property
    def _owned(self) -> list[np.ndarray]:
        """The state behind every component of each block for its own constant, -1 for none."""
        assert self.tables is not None
        starts = starts_of_constants(self.model, self.tables)
        return [
            np.array([starts.get((b, i), -1) for i in range(block.components)], dtype=int)
            for b, block in enumerate(self.model.blocks)
        ]

    @cached_property
    def moved(self) -> dict[tuple[int, int, int], Tensor]:
        """What is moved (by position: read) of each prefix, by group, block and branch."""
        return {}

    @cached_property
    def _constant_sources(self) -> np.ndarray:
        """The source number of every component's own constant."""
        found = np.full(len(self.numbering), SUM)
        for number, source in enumerate(self.model.sources):
            if source.component is not None:
                block, index = source.component
                found[self._offsets[block] + index] = number
        return found

    def _start(self) -> Suffixes:
        last = of_target(self.model, self.target)
        accepts = None
        if self.tables is not None:
            accepts = np.zeros((1, self._reached.shape[1]), dtype=bool)
            accepts[0, 0] = True
        none = np.zeros(1, dtype=np.int64)
        return Suffixes(
            np.zeros((1, 0, 2), dtype=np.int32), none, none + self.model.depth, none,
            last.rows, last.vectors, accepts,
        )  # fmt: skip

    def _direct(self, start: Suffixes) -> Found:
        """The word without a component; constants behind the norm or of the logits join it."""
        depth, at = self.model.depth, self.target.position
        values = dict[int, Tensor]()

        def add(source: int, value: Tensor) -> None:
            values[source] = values[source] + value if source in values else value

        for group in self.prefixes.groups:
            stream = group.streams[depth]
            if stream is None or (group.states is not None and group.states[depth] != 0):
                continue
            # [pos, d_model] x [d_model], then the row over positions
            read = (stream[0] @ start.vectors[0]) * start.rows[0]
            add(self.prefixes.sources[group.column], read)
        for number, source in enumerate(self.model.sources):
            off = self.tables is not None and self.tables.start[number] < 0
            if off or source.joins == "stream":
                continue
            read = start.rows.new_zeros(self.model.length)
            if source.joins == "logits":
                read[at] = self.target.bias
            else:
                stream = self.model.start(number)
                assert stream is not None
                read[at] = stream[0, at] @ past_norm(self.model, self.target)
            add(number if self.prefixes.owned else SUM, read)
        sources = sorted(values)
        split = [values[s] if self.by_position else values[s].sum() for s in sources]
        empty = start.rows.new_zeros(0, *(self.by_position * (self.model.length,)))
        found = torch.stack(split) if split else empty
        return Found(
            array(found), np.array(sources, dtype=np.int64), np.zeros(len(sources), dtype=np.int64),
            None, start.words, self.numbering,
        )  # fmt: skip

    def _from(self, batch: Suffixes) -> Iterator[Found]:
        """The words that begin in front of a batch, in parts that the budget allows."""
        order = np.argsort(batch.ranks)
        until = np.cumsum(self._cost(batch)[order])
        start = 0
        while start < len(batch):
            before = 0 if start == 0 else until[start - 1]
            stop = int(np.searchsorted(until, before + self.budget, "right"))
            if stop == start:
                raise ValueError(
                    f"one suffix needs {int(until[start] - before)} bytes, "
                    f"and the budget is {self.budget}"
                )
            part = batch if stop - start == len(batch) else batch.chosen(np.sort(order[start:stop]))
            found, children = self._step(part)
            yield found
            if children is not None:
                yield from self._from(children)
            start = stop

    def _cost(self, batch: Suffixes) -> np.ndarray:
        """The bytes that each suffix takes: its values, and what becomes of it."""
        size, length = self.model.W_U.element_size(), self.model.length
        before = self._offsets[batch.boundaries]
        each = self.prefixes.columns * (length if self.by_position else 1) * (size + 8)
        each += 40 + 8 * batch.words.shape[1]
        # what goes on has one head more, unless a neuron may stand in front
        orders = batch.orders + (self._first_neurons == self.model.depth)
        if self._extends(batch.words.shape[1] + 1, orders, self.model.depth).any():
            each += 2 * (length + self.model.W_U.shape[0]) * size
        return before * each

    def _extends(self, length: int, orders: np.ndarray, block: int) -> np.ndarray:
        """Whether words of some orders whose first block is ``block`` may go on."""
        if self.length is not None and length >= self.length:
            return np.zeros_like(orders, dtype=bool)
        most = np.inf if self.order is None else self.order
        heads = (orders < most) & (self._offsets[block] > 0)
        return heads | ((orders <= most) & (self._first_neurons < block))

    def _step(self, batch: Suffixes) -> tuple[Found, Suffixes | None]:
        """The words that one more component makes of a batch, and those of them that go on."""
        model, total = self.model, len(self.numbering)
        shape = (len(batch), total, self.prefixes.columns)
        values = batch.rows.new_zeros(*shape, *(self.by_position * (model.length,)))
        exists = np.zeros(shape, dtype=bool)
        children = list[Suffixes]()
        rows, vectors, accepts = batch.rows, batch.vectors, batch.accepts
        top = int(batch.boundaries.max())
        if any(not block.skip.is_identity for block in model.blocks[:top]):
            rows, vectors = rows.clone(), vectors.clone()
        accepts = None if accepts is None else accepts.copy()
        for number in reversed(range(top)):
            block = model.blocks[number]
            active = int((batch.boundaries > number).sum())
            passing = int((batch.boundaries > number + 1).sum())
            if passing and not model.blocks[number + 1].skip.is_identity:
                skip = model.blocks[number + 1].skip
                rows[:passing] = skip.pattern_adjoint(rows[:passing])
                vectors[:passing] = skip.weight_adjoint(vectors[:passing])
            if passing and accepts is not None:
                accepts[:passing] = self._passed(accepts[:passing], number + 1)
            offset, inside = int(self._offsets[number]), 0
            for which, branch in enumerate(block.branches):
                part = slice(inside, inside + branch.size)
                heads = int(which == 0 and block.heads > 0)
                columns = slice(offset + part.start, offset + part.stop)
                for start in range(0, active, _ROWS):
                    some = slice(start, min(start + _ROWS, active))
                    here = replace(
                        batch.between(some), rows=rows[some], vectors=vectors[some],
                        accepts=None if accepts is None else accepts[some],
                    )  # fmt: skip
                    place = _Place(number, which, branch, part, heads)
                    children += self._branch(
                        here, place, values[some, columns], exists[some, columns]
                    )
                inside += branch.size
        return self._emitted(batch, values, exists), joined(children)

    def _passed(self, accepts: np.ndarray, block: int) -> np.ndarray:
        """Accepting states in front of a block that a path passes by."""
        assert self.tables is not None
        skip = np.array(self.tables.skip[block])
        found = np.zeros_like(accepts)
        found[:, : len(skip)] = _at(accepts, skip)
        return found

    def _branch(
        self, here: Suffixes, place: _Place, values: Tensor, exists: np.ndarray
    ) -> list[Suffixes]:
        """Fill in the words that begin with a branch's components; return those that go on."""
        orders = here.orders + place.heads
        allowed = np.ones(len(here), dtype=bool) if self.order is None else orders <= self.order
        if not allowed.any():
            return []
        # the states in front of each component: [n, state, component]
        after = None
        if here.accepts is not None:
            after = _at(here.accepts, self._moves[place.block][:, place.part])
        reader = _Reader(self, here, place)
        for number, group in enumerate(self.prefixes.groups):
            mask = allowed[:, None] & group.stands(self.model, place.block)[place.part]
            if here.accepts is not None and after is not None:
                if group.constants:
                    mask &= _at(here.accepts, self._owned[place.block][place.part])
                else:
                    assert group.states is not None
                    state = group.states[place.block]
                    mask = mask & after[:, state] if state >= 0 else np.zeros_like(mask)
            if not mask.any():
                continue
            value = reader.value(number, group)
            if after is not None:
                kept = on_device(mask, value)
                value = value * (kept[..., None] if self.by_position else kept)
            values[:, :, group.column] += value
            exists[:, :, group.column] |= mask
        return self._children(here, place, orders, after, reader)

    def _children(
        self,
        here: Suffixes,
        place: _Place,
        orders: np.ndarray,
        after: np.ndarray | None,
        reader: _Reader,
    ) -> list[Suffixes]:
        extends = self._extends(here.words.shape[1] + 1, orders, place.block)
        mask = np.repeat(extends[:, None], place.branch.size, axis=1)
        if after is not None:
            after = after.transpose(0, 2, 1) & self._reached[place.block, : after.shape[1]]
            mask &= after.any(-1)
        if not mask.any():
            return []
        parents, components = mask.nonzero()
        rows = place.branch.reads.pattern_adjoint(reader.rows)
        vectors = place.branch.vectors(reader.inner)
        chosen = on_device(mask, rows)
        first = int(self._offsets[place.block]) + place.part.start + components
        accepts = None
        if after is not None and here.accepts is not None:
            accepts = np.zeros((len(parents), here.accepts.shape[1]), dtype=bool)
            accepts[:, : after.shape[2]] = after[mask]
        child = Suffixes(
            np.concatenate([self.numbering[first, None], here.words[parents]], axis=1),
            orders[parents],
            np.full(len(parents), place.block),
            here.ranks[parents] * len(self.numbering) + first,
            rows.flatten(0, 1) if mask.all() else rows[chosen],
            vectors.flatten(0, 1) if mask.all() else vectors[chosen],
            accepts,
        )
        return [child]

    def _emitted(self, batch: Suffixes, values: Tensor, exists: np.ndarray) -> Found:
        order = np.argsort(batch.ranks)
        exists = exists[order]
        parents, firsts, columns = exists.nonzero()
        sources = np.array([*self.prefixes.sources, SUM])[columns]
        if self.prefixes.owned:
            own = columns == len(self.prefixes.sources)
            sources[own] = self._constant_sources[firsts[own]]
        return Found(
            array(values)[order][exists], sources, order[parents], firsts, batch.words,
            self.numbering,
        )  # fmt: skip


class _Reader:
    """What a batch of suffixes makes of a branch: values of prefixes, rows, inner vectors."""

    def __init__(self, walk: Walk, here: Suffixes, place: _Place) -> None:
        self._walk, self._place = walk, place
        self.inner = place.branch.inner(here.vectors)
        self._written = place.branch.writes.pattern_adjoint(here.rows)

    @cached_property
    def rows(self) -> Float[Tensor, "n component pos"]:
        """Rows over the positions that the components read, in front of their reading edge."""
        return self._place.branch.rows(self._written)

    def value(self, number: int, group: Prefix) -> Float[Tensor, "n component *pos"]:
        """The value of each suffix and component with a group of prefixes."""
        n, components, width = self.inner.shape
        moved = self._moved(number, group)
        if self._walk.by_position:
            # [component, n, width] x [component, width, pos]
            read = torch.bmm(self.inner.transpose(0, 1), moved.permute(1, 2, 0))
            return read.transpose(0, 1) * self.rows
        # [n, pos] x [pos, component * width], then over the width
        found = self._written @ moved.flatten(1)
        found *= self.inner.reshape(n, -1)
        return found.view(n, components, width).sum(-1)

    def _moved(self, number: int, group: Prefix) -> Float[Tensor, "pos component width"]:
        branch, place = self._place.branch, self._place
        key = number, place.block, place.which
        cache = self._walk.moved
        if key not in cache:
            stream, split = group.streams[place.block], self._walk.by_position
            found: Tensor | None = None
            if stream is not None:
                found = (branch.values if split else branch.moved)(stream)[0]
            if group.constants:
                added = branch.value_constants() if split else branch.constant()
                if added is not None:
                    added = added if split else added[0]
                    found = added if found is None else found + added
            assert found is not None
            cache[key] = found.expand(self._walk.model.length, *found.shape[-2:])
        return cache[key]


def _at(accepts: np.ndarray, states: np.ndarray) -> np.ndarray:
    """``accepts[:, states]``, False for the state -1."""
    padded = np.concatenate([accepts, np.zeros((len(accepts), 1), dtype=bool)], axis=1)
    return padded[:, states]
