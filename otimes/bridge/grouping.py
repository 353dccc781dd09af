"""Groups of paths in an attribution: partitions, and what goes through a head or an edge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from otimes.algebra import PathSum
from otimes.bridge.binding import state_tables
from otimes.bridge.counting import Counts
from otimes.bridge.run import Run
from otimes.errors import InputError, LimitError
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.functionals import Target
from otimes.numeric.halves import accepted_sum, order_sums
from otimes.numeric.marginals import component_marginals, edge_marginals
from otimes.numeric.partitions import (
    last_component_sums,
    last_edge_sums,
    source_position_sums,
    source_sums,
)
from otimes.results.attribution import AttributionRow

MOST_GROUPS = 20_000
"""More groups than this are refused."""

_MOST_SUMMED = 2_000
DIRECT = "direct"

Rows = tuple[AttributionRow, ...]


def groups(
    run: Run,
    model: FrozenModel,
    target: Target,
    selection: PathSum | None,
    *,
    by: str,
    through: str | None,
) -> tuple[Rows, str]:
    """The rows of a grouping, and how they were computed.

    Orders, sources and positions stand in their own order, other groups by absolute value.

    Raises:
        InputError: for a grouping that a selection of paths does not have.
        LimitError: for more groups than can be shown.
    """
    kind = f"through {through}" if through else by
    if selection is not None:
        rows = _selected(run, model, target, selection, kind)
        method = "each group summed over the states of its automaton"
    else:
        rows = _whole(run, model, target, kind)
        method = {
            "order": "one stream for each order",
            "source": "one backward pass",
            "source-position": "one backward pass",
            "last-head": "one forward pass",
            "last-edge": "one forward pass",
        }.get(kind, "one forward and one backward pass")
    if kind in ("last-head", "last-edge") or through:
        rows = tuple(sorted(rows, key=lambda row: -abs(row.value)))
    return rows, method


def _whole(run: Run, model: FrozenModel, target: Target, kind: str) -> Rows:
    architecture = run.model.architecture
    counts, sources = Counts(architecture), architecture.sources
    components = [
        (number, index)
        for number, block in enumerate(model.blocks)
        for index in range(block.components)
    ]
    if kind in ("last-head", "through head"):
        _limit(len(components))
    if kind == "order":
        sums = order_sums(model, target).tolist()
        numbers = run.paths("..").order_counts
        return _rows((str(k), n, v) for k, (n, v) in enumerate(zip(numbers, sums, strict=False)))
    if kind == "source":
        sums = source_sums(model, target).tolist()
        return _rows((s.name, counts.of_source(i), sums[i]) for i, s in enumerate(sources))
    if kind == "source-position":
        sums = source_position_sums(model, target).sum(0).tolist()
        return _rows((str(place), run.paths("..").count, v) for place, v in enumerate(sums))
    if kind == "last-head":
        last = last_component_sums(model, target)
        return _rows(
            [
                (DIRECT, counts.direct, float(last.direct)),
                *(
                    (counts.name(*c), counts.into(*c), value)
                    for c, value in zip(components, last.components.tolist(), strict=True)
                ),
            ]
        )
    if kind == "through head":
        sums = component_marginals(model, target).tolist()
        return _rows(
            (counts.name(*c), counts.through(*c), value)
            for c, value in zip(components, sums, strict=True)
        )
    if kind == "last-edge":
        return _last_edges(model, target, counts)
    return _edges(model, target, counts, components)


def _last_edges(model: FrozenModel, target: Target, counts: Counts) -> Rows:
    _limit(sum(counts.pairs_into))
    found, sources = last_edge_sums(model, target), counts.architecture.sources
    rows = list[tuple[str, int, float]]()
    words = found.single
    for number, pairs, value in zip(
        words.sources.tolist(), words.components.tolist(), words.values.tolist(), strict=True
    ):
        named = [counts.name(block, index) for block, index in pairs if block >= 0]
        rows.append((" > ".join([sources[number].name, *named]), 1, float(value)))
    words = found.pairs
    for pairs, value in zip(words.components.tolist(), words.values.tolist(), strict=True):
        earlier, later = pairs
        key = f"{counts.name(*earlier)} > {counts.name(*later)}"
        rows.append((key, counts.into(*earlier), float(value)))
    return _rows(rows)


def _edges(
    model: FrozenModel, target: Target, counts: Counts, components: list[tuple[int, int]]
) -> Rows:
    _limit(sum(counts.pairs_into))
    found, sources = edge_marginals(model, target), counts.architecture.sources
    rows = list[tuple[str, int, float]]()
    between, first = found.between.tolist(), found.sources.tolist()
    for place, later in enumerate(components):
        after = counts.after[later[0] + 1]
        for number, source in enumerate(sources):
            if counts.reads(later, number):
                key = f"{source.name} > {counts.name(*later)}"
                rows.append((key, after, first[number][place]))
        for other, earlier in enumerate(components):
            if earlier[0] < later[0]:
                key = f"{counts.name(*earlier)} > {counts.name(*later)}"
                rows.append((key, counts.into(*earlier) * after, between[other][place]))
    for place, value in enumerate(found.outputs.tolist()):
        key = f"{counts.name(*components[place])} > output"
        rows.append((key, counts.into(*components[place]), value))
    return _rows(rows)


def _selected(run: Run, model: FrozenModel, target: Target, selection: PathSum, kind: str) -> Rows:
    """The same groups among chosen paths, each by its own expression."""
    if kind in ("source-position", "through edge"):
        raise InputError(
            f"{kind.replace('through edge', '--through edge')} is over all paths: leave the path "
            "and the order out, or group by source, order, last-head or last-edge"
        )
    expressions = dict(_expressions(run, kind))
    if len(expressions) > _MOST_SUMMED:
        raise LimitError(
            f"{len(expressions):,} groups of chosen paths are more than {_MOST_SUMMED:,}: leave "
            "the path and the order out, or group by order, source or last-head",
            len(expressions),
            _MOST_SUMMED,
        )
    rows = list[tuple[str, int, float]]()
    for key, expression in expressions.items():
        paths = selection.where(expression)
        if not paths.is_empty:
            value = float(accepted_sum(model, state_tables(paths), target))
            rows.append((key, paths.count, value))
    return _rows(rows)


def _expressions(run: Run, kind: str) -> Iterator[tuple[str, str]]:
    """The key and the path expression of each group."""
    architecture = run.model.architecture
    counts, grid = Counts(architecture), architecture.language.grid
    names = [
        [counts.name(number, index) for index in range(block.heads + block.neurons)]
        for number, block in enumerate(architecture.blocks)
    ]
    if kind == "order":
        yield from ((str(k), f"order={k}") for k in range(len(architecture.heads) + 1))
        return
    if kind == "source":
        yield from ((s.name, f"{s.name} > ..") for s in architecture.sources)
        return
    every = [(number, name) for number, block in enumerate(names) for name in block]
    if kind == "through head":
        yield from ((name, f".. > {name} > ..") for _, name in every)
        return
    if kind == "last-head":
        yield DIRECT, DIRECT
        yield from ((name, f".. > {name}") for _, name in every)
        return
    inside = {grid.locate(s.component): s.name for s in architecture.sources
              if s.component is not None}  # fmt: skip
    for number, source in enumerate(architecture.sources):
        if source.component is None:
            yield source.name, f"{source.name} & direct"
        for block, name in every:
            if source.component is None and counts.enters(number, block):
                yield f"{source.name} > {name}", f"{source.name} > {name}"
    yield from (
        (f"{name} > {counts.name(*c)}", f"{name} > {counts.name(*c)}") for c, name in inside.items()
    )
    for block, name in every:
        for earlier, other in every:
            if earlier < block:
                yield f"{other} > {name}", f".. > {other} > {name}"


def _limit(count: int) -> None:
    if count > MOST_GROUPS:
        raise LimitError(
            f"these are {count:,} groups, more than {MOST_GROUPS:,}: group by order, source or "
            "source-position",
            count,
            MOST_GROUPS,
        )


def _rows(found: Iterable[tuple[str, int, float]]) -> Rows:
    return tuple(AttributionRow(*row) for row in found)
