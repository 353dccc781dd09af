"""Exact attribution: a logit, or a difference of logits, as a sum over paths or groups of paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from otimes.algebra import PathSum, PathTerm
from otimes.bridge.binding import numbered, state_tables
from otimes.bridge.causal import causal_effects
from otimes.bridge.grouping import groups
from otimes.bridge.indices import check_count
from otimes.bridge.run import Run
from otimes.bridge.targets import ScalarTarget, scalar_target
from otimes.bridge.trees import AttributionTree
from otimes.errors import InputError, LimitError
from otimes.numeric.energy import Estimate
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.functionals import Target, path_positions
from otimes.numeric.halves import accepted_sum, target_sum
from otimes.numeric.prefixes import MEMORY_BUDGET, bytes_of
from otimes.numeric.search import Search, search
from otimes.numeric.states import StateTables
from otimes.numeric.tree import PathTree
from otimes.numeric.words import top_words, walk_of
from otimes.results.attribution import Attribution, AttributionRow, Interval

GROUPINGS = ("path", "order", "source", "source-position", "last-head", "last-edge")
ENUMERATION_LIMIT = 1_000_000
"""More paths than this are searched for the largest, not enumerated."""

_TOP = 20
_SHALLOW = 12
_DRAWS, _FEWEST_DRAWS, _MOST_DRAWS = 128, 8, 10_000_000
_SEEDS = 2**62


def attribute(
    run: Run,
    target: str | int | None = None,
    minus: str | int | None = None,
    position: int = -1,
    *,
    top: int | None = None,
    path: str | None = None,
    order: int | None = None,
    by: str = "path",
    through: str | None = None,
    sources: bool = False,
    causal: str | None = None,
    batch: int = 0,
    guide: str = "energy",
    draws: int | None = None,
    expansions: int | None = None,
    seed: int = 0,
    enumeration_limit: int = ENUMERATION_LIMIT,
    progress: Callable[[Search], None] | None = None,
    announce: Callable[[str], None] | None = None,
) -> Attribution:
    """Split a logit of a run, or a difference of two, exactly into what its paths add.

    Up to a million paths are enumerated, and the largest shown. Beyond that the largest are
    searched for, best first by the energy of what is still together (the mean square over random
    signs); the remainder is exact in both cases.

    Args:
        run: a recorded run.
        target: the token whose logit is explained, as text or id; None: the predicted one.
        minus: a token whose logit is taken away, or ``mean``, over the vocabulary: a constant over
            the vocabulary changes no probability.
        position: whose logits, from 0 or from the end.
        top: how many rows to show, the largest. By default 20 paths, or all groups.
        path: only the paths that this expression matches, such as ``0.7 > ..``.
        order: only the paths with so many attention heads.
        by: what a row is: ``path``, or all paths with the same ``order``, ``source``,
            ``source-position`` (where the path starts), ``last-head`` (last component) or
            ``last-edge`` (the last two components).
        through: ``head`` or ``edge`` instead: all paths through each; these overlap.
        sources: split each path's value by the position that it starts at.
        causal: ``output`` or ``input``: beside each path's frozen value, the effect of taking away
            what it writes (or what its last head reads of it) and recomputing all that follows.
        batch: which sequence of the run.
        guide: of a search: ``energy`` (estimated), or ``exact``, the exact energies, which prove
            that no larger path was missed; for small inputs, others are refused with what it takes.
        draws: random signs for estimates of energy, where paths are searched for; by default 128,
            or fewer, down to 8, where the streams of so many would not fit into memory.
        expansions: the most splits of the search; by default 300 or three times ``top``.
        seed: of the estimates.
        enumeration_limit: more paths than this are searched for.
        progress: called after each step of a search.
        announce: called once before a search, with what it will cost in words.

    Returns:
        The rows, the total and the exact remainder, in logits; it prints as a report.

    Raises:
        InputError: for a target, position or choice that does not fit the run; before any work.
        NotationError, UnknownComponentError: for a path expression that is not of this model.
        LimitError: if what is asked for is too large; it says what to do.
    """
    _check(by, through, top, order, guide, sources=sources, causal=causal)
    how = _Searching(guide, draws, expansions, seed, enumeration_limit, progress, announce)
    scalar = scalar_target(run, target, minus, position=position, batch=batch)
    asked = _Asked(run, scalar, path, order)
    top = top if top is not None or by != "path" or through else _TOP
    if by == "path" and through is None:
        found = _largest(asked, top or _TOP, how)
        if sources:
            found = found.with_sources(asked)
        if causal is not None:
            found = found.with_effects(asked, causal)
        rows, explained, method = found.rows, found.explained, found.method
    else:
        rows, method = groups(
            run, asked.model, asked.target, asked.selection, by=by, through=through
        )
        explained = None
        if top is not None:
            kept = sorted(range(len(rows)), key=lambda place: -abs(rows[place].value))[:top]
            rows = tuple(rows[place] for place in sorted(kept))
    at = scalar.batch, scalar.position
    gap = float(run.uncapped_logits[at] @ scalar.weights) - asked.total
    softcap = run.model.config.logits_softcap
    names = [run.model.tokenizer.token_text(token) for token in run.tokens[batch].tolist()]
    return Attribution(
        model=run.model.name,
        tokens=tuple(run.tokens[batch].tolist()),
        pieces=tuple(names),
        position=scalar.position,
        target=scalar.text,
        target_id=scalar.token,
        minus=scalar.minus,
        minus_id=scalar.minus_token,
        by=through or by,
        total=asked.total,
        gap=gap,
        path=asked.text,
        selected=asked.selected,
        paths=asked.paths.count,
        rows=rows,
        overlapping=through is not None,
        explained=explained,
        method=method,
        at=causal,
        frozen=run.held_fixed,
        capped=None if softcap is None else float(run.logits[at] @ scalar.weights),
        grow=lambda: AttributionTree(run.model.architecture, PathTree(
            asked.model, asked.target, asked.tables)),
    )  # fmt: skip


def _check(
    by: str,
    through: str | None,
    top: int | None,
    order: int | None,
    guide: str,
    *,
    sources: bool,
    causal: str | None,
) -> None:
    """Refuse what cannot be meant, before any work."""
    if by not in GROUPINGS:
        raise InputError(f"unknown grouping {by!r}: by is one of {', '.join(GROUPINGS)}")
    if through not in (None, "head", "edge"):
        raise InputError(f"through is head or edge, not {through!r}")
    if through is not None and by != "path":
        raise InputError("give either by or through: what goes through a head overlaps")
    if guide not in ("energy", "exact"):
        raise InputError(f"guide is energy or exact, not {guide!r}")
    if causal not in (None, "output", "input"):
        raise InputError(f"causal is output or input, not {causal!r}")
    if (sources or causal is not None) and (by != "path" or through is not None):
        raise InputError("sources and causal are of single paths: leave by and through out")
    if top is not None:
        check_count("top", top, 1)
    if order is not None:
        check_count("an order", order, 0)


class _Asked:
    """A target of one sequence, and which paths of it are meant."""

    def __init__(self, run: Run, scalar: ScalarTarget, path: str | None, order: int | None) -> None:
        self.run = run
        self.scalar = scalar
        paths = run.paths("..") if path is None else run.paths(path)
        self.paths: PathSum = paths if order is None else paths.order(order)
        parts = [path] if path is not None else []
        parts += [f"order={order}"] if order is not None else []
        self.text = " & ".join(f"({part})" if len(parts) > 1 else part for part in parts) or None

    @property
    def selection(self) -> PathSum | None:
        """The paths that were chosen; None where that is all."""
        return None if self.text is None else self.paths

    @cached_property
    def model(self) -> FrozenModel:
        """The frozen model of the sequence alone."""
        return self.run.frozen().model.sequence(self.scalar.batch)

    @cached_property
    def target(self) -> Target:
        """The target as a functional of the stream."""
        return Target.logit(self.model, self.scalar.position, self.scalar.weights)

    @cached_property
    def tables(self) -> StateTables | None:
        """The automaton of the chosen paths; None where that is all."""
        return None if self.selection is None else state_tables(self.paths)

    @cached_property
    def total(self) -> float:
        """The sum over all paths."""
        return float(target_sum(self.model, self.target))

    @cached_property
    def selected(self) -> float:
        """The sum over the chosen paths."""
        if self.tables is None:
            return self.total
        if self.paths.is_empty:
            return 0.0
        return float(accepted_sum(self.model, self.tables, self.target))

    def term(self, source: int, components: Sequence[Sequence[int]]) -> PathTerm:
        """A path given by its numbers."""
        architecture = self.run.model.architecture
        component = architecture.language.grid.component
        named = tuple(component(block, index) for block, index in components)
        return PathTerm(architecture, architecture.sources[source], named)


@dataclass(frozen=True)
class _Largest:
    """The largest paths with their values, and how they were found."""

    terms: tuple[PathTerm, ...]
    rows: tuple[AttributionRow, ...]
    explained: Interval
    method: str

    @staticmethod
    def of(
        asked: _Asked,
        found: Sequence[tuple[int, Sequence[Sequence[int]], float]],
        explained: Estimate,
        method: str,
    ) -> _Largest:
        terms = tuple(asked.term(source, components) for source, components, _ in found)
        rows = tuple(
            AttributionRow(term.short_path, 1, value, term.order)
            for term, (*_, value) in zip(terms, found, strict=True)
        )
        interval = Interval(explained.value, explained.low, explained.high)
        return _Largest(terms, rows, interval, method)

    def with_sources(self, asked: _Asked) -> _Largest:
        """The same, each path split by the position that it starts at."""
        rows = tuple(
            replace(row, sources=tuple(
                path_positions(asked.model, asked.target, *numbered(term)).tolist()))
            for row, term in zip(self.rows, self.terms, strict=True)
        )  # fmt: skip
        return replace(self, rows=rows)

    def with_effects(self, asked: _Asked, at: str) -> _Largest:
        """The same, with the effect of taking each path away."""
        scalar = asked.scalar
        effects = causal_effects(
            asked.run, self.terms, scalar.weights, scalar.position, batch=scalar.batch,
            at="input" if at == "input" else "output",
        )  # fmt: skip
        rows = tuple(
            replace(row, causal=effect.causal)
            for row, effect in zip(self.rows, effects.effects, strict=True)
        )
        return replace(self, rows=rows)


@dataclass(frozen=True)
class _Searching:
    """How the largest paths are found, as :func:`attribute` takes it."""

    guide: str
    draws: int | None
    expansions: int | None
    seed: int
    limit: int
    progress: Callable[[Search], None] | None
    announce: Callable[[str], None] | None

    def __post_init__(self) -> None:
        """Refuse numbers that no search can have."""
        if self.draws is not None:
            check_count("draws", self.draws, 1, _MOST_DRAWS)
        if self.expansions is not None:
            check_count("expansions", self.expansions, 1)
        check_count("seed", self.seed, -_SEEDS, _SEEDS)
        check_count("enumeration_limit", self.limit, 0)


def _largest(asked: _Asked, top: int, how: _Searching) -> _Largest:
    if asked.paths.is_empty:
        return _Largest((), (), Interval(1.0, 1.0, 1.0), "there are no such paths")
    if asked.paths.count <= how.limit:
        return _enumerated(asked, top)
    count = asked.paths.count
    most = max(300, 3 * top) if how.expansions is None else how.expansions
    tree = PathTree(asked.model, asked.target, asked.tables)
    draws = _fitting(tree) if how.draws is None else how.draws
    if how.announce is not None:
        size = f"{count:,}" if count < 10**15 else f"about 10^{len(str(count)) - 1}"
        how.announce(
            f"{size} paths are too many to list: searching for the {top} largest with "
            f"{draws} draws and at most {most:,} splits"
        )
    try:
        result = search(
            tree, top=top, expansions=most, guide="exact" if how.guide == "exact" else "energy",
            draws=draws, seed=how.seed, progress=how.progress,
            # leaves of deep models are split a few at a time, which shares their products
            batch=1 if asked.model.depth <= _SHALLOW else 8,
        )  # fmt: skip
    except LimitError as error:
        raise LimitError(
            f"{error}; take fewer draws= or a shorter input", error.count, error.limit
        ) from error
    found = [(node.source, node.components, node.value) for node in result.found]
    energy = "exact path energy" if how.guide == "exact" else f"path energy, {draws} draws"
    seen = "complete" if result.proved else "the largest of what was seen"
    method = f"{count:,} paths, searched best first by {energy}, {result.expansions} splits; {seen}"
    return _Largest.of(asked, found, result.explained, method)


def _fitting(tree: PathTree) -> int:
    """As many draws as fit into memory, in float32, in which their streams are carried."""
    single = bytes_of(tree.model, tree.transitions, 1) * 4 // tree.model.dtype.itemsize
    return min(_DRAWS, max(_FEWEST_DRAWS, MEMORY_BUDGET // single))


def _enumerated(asked: _Asked, top: int) -> _Largest:
    count = asked.paths.count
    walk = walk_of(asked.model, asked.target, tables=asked.tables, by_source=True)
    best = top_words(walk, top)
    words = best.words
    found = [
        (int(source), [pair for pair in pairs if pair[0] >= 0], float(value))
        for source, pairs, value in zip(
            words.sources.tolist(), words.components.tolist(), words.values.tolist(), strict=True
        )
    ]
    shown = sum(value * value for *_, value in found)
    explained = Estimate.exactly(min(1.0, shown / best.energy) if best.energy else 1.0)
    shape = "path" if count == 1 else "paths"
    return _Largest.of(asked, found, explained, f"all {count:,} {shape} enumerated")
