"""What all beginnings of paths add up to before each block, in the space that components move.

A suffix of a path reads a component through a row over positions and a vector of the component's
inner space (width ``d_head``, or 1 for a neuron), so one array for each block answers every suffix:

    moved[pos, component, width, draw, state] = A_c X W_V      of the stream X before the block

There is one stream for each state of an automaton (one where all paths are meant) and for each draw
of random signs (one where there are none). With signs ``±1`` on each component and each source, the
stream of a draw is Σ_p ±p, the product of the signs of a path's parts standing before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from otimes.errors import LimitError
from otimes.numeric.frozen import Branch, FrozenModel
from otimes.numeric.states import StateTables

MEMORY_BUDGET = 2 * 2**30
"""Bytes that the arrays of one :class:`Prefixes` may take."""

_CHUNK = 2**27
"""Bytes of one temporary array of a pass over many draws."""


@dataclass(frozen=True)
class Signs:
    """Independent signs ±1 of every component, block by block, and of every source."""

    # a tuple's arrays differ in the axes without a name
    components: tuple[Float[Tensor, "draw _"], ...]
    sources: Float[Tensor, "draw source"]

    @staticmethod
    def draw(model: FrozenModel, draws: int, seed: int, dtype: torch.dtype) -> Signs:
        """Draw them, always the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)

        def signs(size: int) -> Tensor:
            bits = torch.randint(0, 2, (draws, size), generator=generator)
            return (2 * bits - 1).to(device=model.W_U.device, dtype=dtype)

        sources = signs(len(model.sources))
        return Signs(tuple(signs(block.components) for block in model.blocks), sources)

    def __getitem__(self, chosen: slice) -> Signs:
        return Signs(tuple(found[chosen] for found in self.components), self.sources[chosen])

    def of_path(self, source: int, components: tuple[tuple[int, int], ...]) -> Tensor:
        """The product of the signs of a path's parts, in every draw."""
        product = self.sources[:, source]
        for block, index in components:
            product = product * self.components[block][:, index]
        return product


class Transitions:
    """The tables of an automaton as tensors, with one state more at each boundary: of no path.

    ``after[b]`` is ``[state, component]`` and ``skip[b]`` is ``[state]``, states before block
    ``b`` to states behind it; ``start[i]`` is a source's state, -1 for none.
    ``trivial`` where all paths are meant: then there is a single state beside that of no path.
    """

    def __init__(self, model: FrozenModel, tables: StateTables | None = None) -> None:
        self.trivial = tables is None
        tables = everything(model) if tables is None else tables
        sizes = tuple(len(found) for found in tables.member)
        if sizes != tuple(block.components for block in model.blocks):
            raise ValueError("the automaton is of another model: the components differ")
        if len(tables.start) != len(model.sources):
            raise ValueError("the automaton is of another model: the sources differ")
        self.states = [tables.states(block) for block in range(model.depth + 1)]
        self.start = tables.start
        self.entry = tables.entry
        self.after = list[Tensor]()
        self.skip = list[Tensor]()
        device = model.W_U.device
        for number, member in enumerate(tables.member):
            dead = self.states[number + 1]
            # class -1 stands last in each row of moves
            moves = [[*row, -1] for row in tables.move[number]]
            moves.append([-1] * (1 + max((len(row) for row in tables.move[number]), default=0)))
            move = torch.tensor(moves, device=device)
            after = move[:, torch.tensor(member, dtype=torch.long, device=device)]
            skip = torch.tensor([*tables.skip[number], -1], device=device)
            self.after.append(torch.where(after < 0, dead, after))
            self.skip.append(torch.where(skip < 0, dead, skip))

    def accepting(self, model: FrozenModel, leaves: int) -> Bool[Tensor, "leaf state"]:
        """Which states accept at the output."""
        found = torch.zeros(leaves, self.states[-1] + 1, dtype=torch.bool, device=model.W_U.device)
        found[:, 0] = True
        return found


def everything(model: FrozenModel) -> StateTables:
    """The automaton that accepts every path, in one state."""
    return StateTables(
        tuple((0,) * block.components for block in model.blocks),
        (((0,),),) * model.depth,
        ((0,),) * model.depth,
        tuple(source.entry for source in model.sources),
        (0,) * len(model.sources),
    )


def constant_sources(model: FrozenModel, device: torch.device) -> list[Int[Tensor, " _"]]:
    """For every block the source that is the constant of each component; -1 where there is none."""
    found = [torch.full((block.components,), -1, device=device) for block in model.blocks]
    for number, source in enumerate(model.sources):
        if source.component is not None:
            block, index = source.component
            found[block][index] = number
    return found


@dataclass(frozen=True)
class Reading:
    """How ``n`` suffixes read what the components of one branch of a block move.

    The component ``c`` of suffix ``i`` adds ``rows[i] · moved[c] · inner[i, c]``, from the states
    ``accept[i, :, c]`` (None: from all), and ``constants[i, c]``, the path that ``begins`` in it.
    """

    block: int
    branch: int
    first: int
    rows: Float[Tensor, "n pos"]
    inner: Float[Tensor, "n component width"]
    constants: Float[Tensor, "n component"] | None
    begins: Bool[Tensor, "n component"] | None
    accept: Bool[Tensor, "n state component"] | None


@dataclass(frozen=True)
class Prefixes:
    """The sums of all beginnings of paths before each block; see the head of the file.

    ``moved[b][i]`` is of branch ``i`` of block ``b``; there are none where they were not kept.
    ``last [draw, pos, d_model]`` is the stream behind the last block, of accepted paths; ``signs``
    is None where there are none; ``constants[b]`` are the sources inside components, -1 for none.
    """

    transitions: Transitions
    moved: tuple[tuple[Float[Tensor, "pos _ _ draw _"], ...], ...]
    last: Float[Tensor, "draw pos d_model"]
    signs: Signs | None
    constants: tuple[Int[Tensor, " _"], ...]

    @property
    def draws(self) -> int:
        """The number of draws of signs; 1 without signs."""
        return len(self.last)

    def read(self, reading: Reading) -> Float[Tensor, "n draw component"]:
        """The values of a suffix longer by each component, in every draw.

        With signs, those of the suffix itself are left out.
        """
        moved = self.moved[reading.block][reading.branch]
        rows, inner = reading.rows.to(moved.dtype), reading.inner.to(moved.dtype)
        used = rows.any(0).nonzero().flatten()
        if len(used):  # a slice is no copy; positions behind the target are never read
            low, high = int(used[0]), int(used[-1]) + 1
            rows, moved = rows[:, low:high], moved[low:high]
        # [n, pos] x [pos, component * width * draw * state]: of all suffixes and draws at once
        mixed = rows @ moved.reshape(len(moved), -1)
        mixed = mixed.reshape(*inner.shape, -1)
        # [n, component, 1, width] x [n, component, width, draw * state]
        value = (inner[:, :, None] @ mixed)[:, :, 0].unflatten(-1, moved.shape[3:])
        if reading.accept is None:
            value = value[..., 0].transpose(1, 2)
        else:
            accept = reading.accept[:, :-1].to(value.dtype)
            value = torch.einsum("ncds,nsc->ndc", value, accept)
        if reading.constants is not None:
            constants = reading.constants.to(moved.dtype)[:, None]
            value = value + constants * self._constant_signs(reading)
        return value

    def _constant_signs(self, reading: Reading) -> Tensor | float:
        if self.signs is None:
            return 1.0
        size = reading.inner.shape[1]
        chosen = self.constants[reading.block][reading.first : reading.first + size]
        # a component without such a source has 0 as its constant's value
        return self.signs.sources[:, chosen.clamp(min=0)]


def bytes_of(model: FrozenModel, transitions: Transitions, draws: int) -> int:
    """The bytes that :func:`prefixes` keeps."""
    numbers = model.W_U.shape[0] * model.length
    for number, block in enumerate(model.blocks):
        inner = sum(branch.size * branch.width for branch in block.branches)
        numbers += model.length * transitions.states[number] * inner
    return draws * numbers * model.dtype.itemsize


def prefixes(
    model: FrozenModel,
    transitions: Transitions,
    signs: Signs | None = None,
    budget: int = MEMORY_BUDGET,
    *,
    keep: bool = True,
) -> Prefixes:
    """Carry the streams of all states and draws through the blocks, some draws at a time.

    Args:
        model: of a single sequence, in the dtype of the result.
        transitions: which paths are meant.
        signs: signs of components and sources; None is one draw without signs.
        budget: bytes that the result may take.
        keep: False keeps the last streams alone.

    Raises:
        LimitError: where it would take more.
    """
    draws = 1 if signs is None else len(signs.sources)
    size = bytes_of(model, transitions, draws)
    if keep and size > budget:
        raise LimitError(
            f"the streams of {draws} draws would take {size / 2**30:.2f} GiB, more than the budget "
            f"of {budget / 2**30:.2f} GiB; take fewer draws or a shorter prompt",
            size,
            budget,
        )
    constants = tuple(constant_sources(model, model.W_U.device))
    widest = max((b.size * b.width for block in model.blocks for b in block.branches), default=1)
    one = max(transitions.states) * model.length * max(widest, model.W_U.shape[0])
    step = max(1, _CHUNK // (one * model.dtype.itemsize))
    new, length = model.W_U.new_empty, model.length
    moved = tuple(
        tuple(
            new(length, branch.size, branch.width, draws, transitions.states[number])
            for branch in block.branches
            if keep
        )
        for number, block in enumerate(model.blocks)
    )
    last = new(draws, length, model.W_U.shape[0])
    whole = Prefixes(transitions, moved, last, signs, constants)
    for first in range(0, draws, step):
        chosen = slice(first, min(first + step, draws))
        part = None if signs is None else signs[chosen]
        _Pass(model, whole, part, chosen).run()
    return whole


@dataclass(frozen=True)
class _Pass:
    """One pass of some draws, which fills their part of the arrays."""

    model: FrozenModel
    whole: Prefixes
    signs: Signs | None
    chosen: slice

    def run(self) -> None:
        model, transitions = self.model, self.whole.transitions
        streams = self._add_sources(0, self._nothing(0))
        for number, block in enumerate(model.blocks):
            skip = transitions.skip[number]
            later = self._nothing(number + 1)
            if transitions.trivial:
                later += block.skip.apply(streams[:, :, None])[:, :, 0]
            else:
                passing = (skip[:-1] < transitions.states[number + 1]).nonzero().flatten()
                skipped = block.skip.apply(streams[:, passing, None])[:, :, 0]
                later.index_add_(1, skip[passing], skipped)
            first = 0
            for place, branch in enumerate(block.branches):
                # [draw, state, batch of 1, pos, component, width]
                moved = branch.moved(streams[:, :, None])[:, :, 0]
                if self.whole.moved[number]:
                    kept = self.whole.moved[number][place]
                    kept[..., self.chosen, :] = moved.permute(2, 3, 4, 0, 1)
                later += self._written(number, branch, first, moved)
                first += branch.size
            streams = self._add_sources(number + 1, later)
        self.whole.last[self.chosen] = streams[:, 0]

    def _nothing(self, boundary: int) -> Float[Tensor, "draw state pos d_model"]:
        model, states = self.model, self.whole.transitions.states[boundary]
        draws = self.chosen.stop - self.chosen.start
        return model.W_U.new_zeros(draws, states, model.length, model.W_U.shape[0])

    def _add_sources(self, entry: int, streams: Tensor) -> Tensor:
        for number, start in direct_sources(self.model, self.whole.transitions, entry):
            stream = self.model.start(number)
            assert stream is not None
            if self.signs is not None:
                stream = stream * self.signs.sources[:, number, None, None]
            streams[:, start] += stream
        return streams

    def _written(
        self,
        number: int,
        branch: Branch,
        first: int,
        moved: Float[Tensor, "draw state pos component width"],
    ) -> Float[Tensor, "draw after pos d_model"]:
        transitions, states = self.whole.transitions, self.whole.transitions.states[number + 1]
        chosen = slice(first, first + branch.size)
        if not transitions.trivial:
            after = transitions.after[number][:-1, chosen]
            onto = torch.nn.functional.one_hot(after, states + 1)[..., :states].to(moved.dtype)
            moved = torch.einsum("dspcw,sct->dtpcw", moved, onto)
        constant = self._constant(number, branch, chosen)
        if constant is not None:
            moved = moved + constant
        if self.signs is not None:
            moved = moved * self.signs.components[number][:, None, None, chosen, None]
        # a batch axis of one sequence for the writing edge
        return branch.written(moved[:, :, None])[:, :, 0]

    def _constant(self, number: int, branch: Branch, chosen: slice) -> Tensor | None:
        """What components move of their constants ``[draw or 1, after, pos, component, width]``."""
        constant = branch.constant()
        sources = self.whole.constants[number][chosen]
        if constant is None or not bool((sources >= 0).any()):
            return None
        states = self.whole.transitions.states[number + 1]
        starts = torch.tensor([*self.whole.transitions.start, -1], device=sources.device)[sources]
        # [after, component]; start -1 and a component without such a source: none
        into = torch.arange(states, device=sources.device)[:, None] == starts
        constant = constant[0] * into[:, None, :, None]
        if self.signs is None:
            return constant[None]
        return constant * self.signs.sources[:, None, None, sources.clamp(min=0), None]


def direct_sources(
    model: FrozenModel, transitions: Transitions, entry: int
) -> Iterator[tuple[int, int]]:
    """The sources that write to the stream before block ``entry``, and the state they start in.

    Constants inside components are not among them.
    """
    for number, source in enumerate(model.sources):
        start = transitions.start[number]
        here = source.entry == entry and source.joins == "stream" and source.component is None
        if here and start >= 0:
            yield number, start
