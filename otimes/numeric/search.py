"""Best-first search for the largest paths among any number of them.

The leaf that a guide puts first is split, again and again; complete paths fall out of the splits.
The guides are

    energy   the estimated energy of a leaf: large where it hides large paths, also cancelling ones
    exact    the exact energy, on small models: also proves the list complete
    value    the absolute value of the sum over a leaf
    norm     the norm of how the suffix reads times the norm of what it reads

With exact energies the list is proved complete once no open leaf has an energy above the square of
its smallest path; with any guide, once no leaf is left.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import fsum, sqrt
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.energy import Estimate, SignedEnergies
from otimes.numeric.moments import SecondMoments
from otimes.numeric.nodes import ANY, Children, Guide, Node
from otimes.numeric.paths import Components
from otimes.numeric.prefixes import MEMORY_BUDGET, Reading
from otimes.numeric.tree import PathTree

GuideName = Literal["energy", "exact", "value", "norm"]
Stopped = Literal["budget", "proved", "exhausted", "interrupted"]


_Found = tuple[float, int, float, int, Components]
"""Absolute value, tie-breaker, value, source and components of a complete path."""


class Norms:
    """A guide: ``‖row‖ ‖inner‖ ‖moved‖``, which bounds the value of a child, not of its paths."""

    def __init__(self, tree: PathTree) -> None:
        self._norms = [
            # [pos, component, width, draw of 1, state] -> [state, component]
            [moved[..., 0, :].square().sum((0, 2)).sqrt().T for moved in branches]
            for branches in tree.prefixes.moved
        ]

    def __call__(
        self, reading: Reading, values: Float[Tensor, "n component"]
    ) -> Float[Tensor, "n component"]:
        """The bound of each child's value."""
        del values
        norms = self._norms[reading.block][reading.branch]
        if reading.accept is None:
            stream = norms[0]
        else:
            stream = torch.einsum("nsc,sc->nc", reading.accept[:, :-1].to(norms.dtype), norms)
        return reading.rows.norm(dim=1)[:, None] * reading.inner.norm(dim=2) * stream


def by_value(
    reading: Reading, values: Float[Tensor, "n component"]
) -> Float[Tensor, "n component"]:
    """A guide: the absolute value of each child."""
    del reading
    return values.abs()


def guide_of(
    name: GuideName,
    tree: PathTree,
    draws: int = 128,
    seed: int = 0,
    budget: int = MEMORY_BUDGET,
) -> Guide:
    """Make a guide; ``draws`` and ``seed`` are for ``"energy"``, ``budget`` for both energies.

    Raises:
        LimitError: if an energy would take more memory than the budget.
    """
    if name == "energy":
        return SignedEnergies(tree, draws, seed, budget=budget)
    if name == "exact":
        return SecondMoments(tree, budget)
    return Norms(tree) if name == "norm" else by_value


@dataclass(frozen=True)
class SearchResult:
    """What a search knows when it stops; ``total == shown + remainder``.

    ``explained`` is the share of the energy of all paths that the shown ones hold. ``proved`` says
    that no path that is not shown is larger than one that is.
    """

    found: tuple[Node, ...]
    total: float
    shown: float
    remainder: float
    explained: Estimate
    expansions: int
    proved: bool
    stopped: Stopped


class Search:
    """A search that goes on step by step and can be read at any moment.

    ``expansions`` counts the leaves that were split.
    """

    def __init__(self, tree: PathTree, guide: Guide, top: int = 100, limit: int = 1000) -> None:
        """Begin at the root.

        Args:
            tree: whose paths are searched.
            guide: which leaf is split next: that with the largest number.
            top: how many paths are looked for.
            limit: the most expansions; more children of one leaf than are left are not kept.
        """
        if top < 1 or limit < 1:
            raise ValueError(f"top and limit are at least 1, not {top} and {limit}")
        self.tree = tree
        self.guide = guide
        self.top = top
        self.limit = limit
        self.expansions = 0
        self.energy_seen = 0.0
        self._serial = count()
        # the smallest of the best paths first; of equal ones, the latest
        self._best = list[_Found]()
        # the next leaf of every split one; inf is the root's
        self._open = list[tuple[float, int, _Leaves | None]]()
        heapq.heappush(self._open, (-float("inf"), next(self._serial), None))

    @property
    def found(self) -> tuple[Node, ...]:
        """The largest complete paths so far, largest first."""
        best = sorted(self._best, key=lambda one: (-one[0], -one[1]))
        return tuple(Node(source, components, value, 1) for _, _, value, source, components in best)

    @property
    def bound(self) -> float:
        """The guide's number of the best open leaf; 0 where none is left."""
        return -self._open[0][0] if self._open else 0.0

    @property
    def exhausted(self) -> bool:
        """Whether no leaf is left: every path was seen."""
        return not self._open

    @property
    def proved(self) -> bool:
        """Whether no path is larger than those found."""
        if self.exhausted:
            return True
        full = len(self._best) == self.top
        return isinstance(self.guide, SecondMoments) and full and (
            sqrt(self.bound) <= self._best[0][0]
        )  # fmt: skip

    @property
    def ended(self) -> Stopped | None:
        """Why the search is at its end; None where it can go on."""
        if self.exhausted:
            return "exhausted"
        if self.proved:
            return "proved"
        return "budget" if self.expansions >= self.limit else None

    def step(self, batch: int = 1) -> bool:
        """Split the best open leaf, or the best few at once; False where the search is at its end.

        A step that is interrupted changes nothing: its leaves stay open.
        """
        if self.ended is not None:
            return False
        size = min(batch, self.limit - self.expansions)
        rest = list(self._open)
        chosen = list[Components]()
        while rest and len(chosen) < size:
            _, serial, leaves = heapq.heappop(rest)
            chosen.append(() if leaves is None else leaves.components)
            following = None if leaves is None else leaves.next()
            if following is not None:
                heapq.heappush(rest, (-following.number, serial, following))
        # one more than can still be split: a leaf that is left over says that not all was seen
        most = self.limit - self.expansions - len(chosen) + 1
        best, energy = list(self._best), self.energy_seen
        for children in self.tree.expand(chosen, self.guide):
            energy += self._take_paths(children, best)
            leaves = _Leaves.of(children, most)
            if leaves is not None:
                heapq.heappush(rest, (-leaves.number, next(self._serial), leaves))
        self._open, self._best, self.energy_seen = rest, best, energy
        self.expansions += len(chosen)
        return True

    def _take_paths(self, children: Children, best: list[_Found]) -> float:
        """Keep the largest complete paths; their energy, of all of them, is returned."""
        complete = (children.parts[:, 0] != ANY).nonzero().flatten()
        values = children.values[complete]
        for place, value in zip(complete.tolist(), values.tolist(), strict=True):
            full = len(best) >= self.top
            if full and abs(value) <= best[0][0]:
                break  # children stand by absolute value
            source, components = children.name(place)
            entry = (abs(value), -next(self._serial), value, source, components)
            (heapq.heappushpop if full else heapq.heappush)(best, entry)
        return float(values.square().sum())


@dataclass(frozen=True)
class _Leaves:
    """The open children of one split leaf, best first, from one of them on."""

    children: Children
    numbers: list[float]
    place: int = 0

    @staticmethod
    def of(children: Children, most: int) -> _Leaves | None:
        """The best of them, ``most`` at most; None where all children are complete paths."""
        assert children.guides is not None
        leaves = (children.parts[:, 0] == ANY).nonzero().flatten()
        numbers = children.guides[leaves]
        order = numbers.argsort(descending=True, stable=True)[:most]
        if not len(order):
            return None
        chosen = leaves[order]
        kept = Children(
            children.suffix, children.parts[chosen], children.values[chosen], None, children.counter
        )
        return _Leaves(kept, numbers[order].tolist())

    @property
    def number(self) -> float:
        """The guide's number of the first of them."""
        return self.numbers[self.place]

    @property
    def components(self) -> Components:
        """The components of the first of them."""
        return self.children.name(self.place)[1]

    def next(self) -> _Leaves | None:
        """The same without the first; None where that was the last."""
        if self.place + 1 == len(self.numbers):
            return None
        return _Leaves(self.children, self.numbers, self.place + 1)


def search(
    tree: PathTree,
    top: int = 100,
    expansions: int = 1000,
    guide: GuideName = "energy",
    draws: int = 128,
    seed: int = 0,
    batch: int = 1,
    budget: int = MEMORY_BUDGET,
    progress: Callable[[Search], None] | None = None,
) -> SearchResult:
    """Look for the ``top`` largest paths by absolute value.

    Args:
        tree: whose paths are searched.
        top: how many.
        expansions: the most leaves that are split.
        guide: see the head of the file.
        draws: draws of signs, for the guide's energies and again for the explained energy.
        seed: of the draws; the same seed gives the same result.
        batch: how many of the best leaves are split at a time. More are faster on deep models; as
            those behind the first are chosen without what it brings, the order changes a little.
        budget: bytes that energies may take.
        progress: called after each step with the search itself; an exception goes through.

    Returns:
        What was found. An interrupt from the keyboard ends the search and returns what is known.
    """
    one = Search(tree, guide_of(guide, tree, draws, seed, budget), top, expansions)
    stopped: Stopped | None = None
    try:
        while one.step(batch):
            if progress is not None:
                progress(one)
    except KeyboardInterrupt:
        stopped = "interrupted"
    return result_of(one, stopped or one.ended or "interrupted", draws, seed)


def result_of(one: Search, stopped: Stopped, draws: int = 128, seed: int = 0) -> SearchResult:
    """What a search knows, with the share of the energy estimated by draws of its own."""
    found, tree = one.found, one.tree
    shown, energy = fsum(node.value for node in found), fsum(node.value**2 for node in found)
    exact = None
    if one.exhausted:
        exact = one.energy_seen
    elif isinstance(one.guide, SecondMoments):
        exact = one.guide.energy()
    if exact is None:
        # other draws than those that led to these paths, which would favour them
        fresh = SignedEnergies(tree, draws, seed + 1_000_003, root_alone=True)
        explained = fresh.explained(list(found))
    else:
        explained = Estimate.exactly(energy / exact if exact else 1.0)
    return SearchResult(
        found, tree.total, shown, tree.total - shown, explained, one.expansions, one.proved, stopped
    )
