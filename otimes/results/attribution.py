"""What the paths, or groups of paths, add to one logit or to a difference of logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otimes.errors import InputError
from otimes.results.saved import Saved, read, write

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrapped interval; low and high equal it where it is exact."""

    value: float
    low: float
    high: float

    @property
    def exact(self) -> bool:
        """Whether nothing was estimated."""
        return self.low == self.value == self.high


@dataclass(frozen=True)
class AttributionRow:
    """One path, or one group of paths.

    ``value`` is in logits. ``order`` is the number of attention heads of a path (None for groups).
    ``sources`` splits a path's value by the position that its source wrote at, ``[pos]``, if asked
    for. ``causal`` is the effect of taking away what the path writes and recomputing all that
    follows, in logits, if asked for.
    """

    key: str
    count: int
    value: float
    order: int | None = None
    sources: tuple[float, ...] | None = None
    causal: float | None = None

    @property
    def gap(self) -> float | None:
        """The causal effect minus the frozen value."""
        return None if self.causal is None else self.causal - self.value


@dataclass(frozen=True)
class Attribution:
    """A scalar target of a run as an exact sum over paths.

    Attributes:
        model: the name of the model.
        tokens: the ids that were run, ``[pos]``.
        pieces: their texts.
        position: the position whose logits are explained, from 0.
        target: the text of the target token.
        target_id: its id.
        minus: what was taken away: a token's text, ``mean`` (over the vocabulary), or None.
        minus_id: that token's id.
        by: ``path``, ``order``, ``source``, ``source-position``, ``last-head`` or ``last-edge``;
            with ``overlapping``: ``head`` or ``edge``, the paths *through* each.
        total: the sum over all paths, in logits, ``b_U`` included: the value of ``..``.
        gap: the model's own logits minus ``total``.
        path: the path expression that chose paths, or None.
        selected: the sum over the paths that it chose; ``total`` where there is none.
        paths: how many paths that are, exactly.
        rows: what is shown, largest absolute value first where paths are.
        overlapping: whether rows share paths, so that they do not add up.
        explained: the part of the chosen paths' energy Σ c² that the shown paths have, or None.
        method: how the rows were found.
        at: where the causal check took paths away: ``output``, ``input``, or None.
        frozen: what was held fixed.
    """

    model: str
    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    position: int
    target: str
    target_id: int
    minus: str | None
    minus_id: int | None
    by: str
    total: float
    gap: float
    path: str | None
    selected: float
    paths: int
    rows: tuple[AttributionRow, ...]
    overlapping: bool
    explained: Interval | None
    method: str
    at: str | None
    frozen: tuple[str, ...]
    grow: Callable[[], Any] | None = field(default=None, repr=False, compare=False)

    @property
    def shown(self) -> float:
        """The sum of the rows that are shown; without meaning where they overlap."""
        return math.fsum(row.value for row in self.rows)

    @property
    def remainder(self) -> float:
        """All paths that are not shown: ``total - shown``, exactly what is left."""
        return self.total - self.shown

    def tree(self) -> Any:
        """The exact partition of the total into leaves that can be split further.

        Raises:
            InputError: for a result that was loaded from a file, which has no run.
        """
        if self.grow is None:
            raise InputError("a saved attribution has no run: make it again to grow its tree")
        return self.grow()

    def to_json(self) -> dict[str, Any]:
        """The object that ``otimes attribute --json`` prints."""
        found: dict[str, Any] = {
            "model": self.model,
            "tokens": list(self.tokens),
            "position": self.position,
            "target": self.target,
            "target_id": self.target_id,
            "minus": self.minus,
            "minus_id": self.minus_id,
            "by": self.by,
            "total": self.total,
            "gap": self.gap,
        }
        if self.overlapping:
            found["overlapping"] = True
        else:
            found |= {"shown_sum": self.shown, "remainder": self.remainder}
        if self.path is not None:
            found |= {"path": self.path, "selected": self.selected}
        found |= {"paths": str(self.paths), "terms": [self._term(row) for row in self.rows]}
        if self.explained is not None:
            found["explained_energy"] = asdict(self.explained)
        if self.at is not None:
            found["causal"] = self.at
        return {**found, "method": self.method, "frozen": list(self.frozen)}

    def _term(self, row: AttributionRow) -> dict[str, Any]:
        if row.order is None:
            return {"key": row.key, "count": str(row.count), "value": row.value}
        found: dict[str, Any] = {"path": row.key, "order": row.order, "value": row.value}
        if row.sources is not None:
            found["sources"] = [
                {"position": place, "token": token, "value": value}
                for place, (token, value) in enumerate(zip(self.tokens, row.sources, strict=True))
            ]
        if row.causal is not None:
            found |= {"causal": row.causal, "gap": row.gap}
        return found

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each path or group that is shown, in the order shown."""
        import pandas

        name = "key" if not self.rows or self.rows[0].order is None else "path"
        frame = pandas.DataFrame(
            {
                name: [row.key for row in self.rows],
                "count": [row.count for row in self.rows],
                "value": [row.value for row in self.rows],
            }
        )
        if name == "path":
            frame["order"] = [row.order for row in self.rows]
        if self.at is not None:
            frame["causal"] = [row.causal for row in self.rows]
            frame["gap"] = [row.gap for row in self.rows]
        for place in range(len(self.tokens)):
            if any(row.sources is not None for row in self.rows):
                frame[f"source {place}"] = [
                    None if row.sources is None else row.sources[place] for row in self.rows
                ]
        return frame

    def save(self, path: str | Path) -> None:
        """Write the result as JSON; :meth:`load` reads it without the model."""
        write(path, asdict(replace(self, grow=None)))

    @staticmethod
    def load(path: str | Path) -> Attribution:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: if the file holds no saved attribution.
        """
        return read(path, "attribution", _attribution)

    def plot(self) -> Figure:
        """The rows as signed bars, with the remainder and the total, as a matplotlib figure.

        Raises:
            InputError: without matplotlib.
        """
        from otimes.view.plots import plot_attribution

        return plot_attribution(self)

    @property
    def question(self) -> str:
        """What is explained, in words."""
        what = f"logit of {self.target!r}"
        if self.minus == "mean" and self.minus_id is None:
            what += " above the mean over the vocabulary"
        elif self.minus is not None:
            what += f" minus that of {self.minus!r}"
        return f"{what} at position {self.position}"

    def __repr__(self) -> str:
        width = max([len("remainder"), *(len(row.key) for row in self.rows)])
        lines = [self.question, "=" * len(self.question)]
        if self.path is not None:
            lines.append(f"paths {self.path}: {self.paths:,}, together {self.selected:.4f}")
        for row in self.rows:
            line = f"{row.key:{width}}  {row.value:10.4f}"
            if row.order is None:
                line += f"  {row.count:,} paths"
            if row.causal is not None:
                line += f"  causal {row.causal:10.4f}  gap {row.gap:10.4f}"
            lines.append(line)
        if self.overlapping:
            lines.append("these overlap: they do not add up")
        else:
            lines.append(f"{'remainder':{width}}  {self.remainder:10.4f}")
        lines.append(f"{'total':{width}}  {self.total:10.4f}")
        if self.explained is not None:
            low, high = self.explained.low, self.explained.high
            spread = "" if self.explained.exact else f" ({low:.1%} to {high:.1%})"
            lines.append(f"energy explained {self.explained.value:.1%}{spread}")
        return "\n".join(lines)


def _attribution(saved: Saved) -> Attribution:
    explained = saved.optional("explained", dict)
    return Attribution(
        model=saved.get("model", str),
        tokens=saved.integers("tokens"),
        pieces=saved.texts("pieces"),
        position=saved.get("position", int),
        target=saved.get("target", str),
        target_id=saved.get("target_id", int),
        minus=saved.optional("minus", str),
        minus_id=saved.optional("minus_id", int),
        by=saved.get("by", str),
        total=saved.number("total"),
        gap=saved.number("gap"),
        path=saved.optional("path", str),
        selected=saved.number("selected"),
        paths=saved.get("paths", int),
        rows=tuple(map(_row, saved.objects("rows"))),
        overlapping=saved.get("overlapping", bool),
        explained=None if explained is None else _interval(Saved(saved.value["explained"])),
        method=saved.get("method", str),
        at=saved.optional("at", str),
        frozen=saved.texts("frozen"),
    )


def _interval(saved: Saved) -> Interval:
    return Interval(*(saved.number(name) for name in ("value", "low", "high")))


def _row(saved: Saved) -> AttributionRow:
    return AttributionRow(
        saved.get("key", str),
        saved.get("count", int),
        saved.number("value"),
        saved.optional("order", int),
        None if saved.value["sources"] is None else saved.numbers("sources"),
        None if saved.value["causal"] is None else saved.number("causal"),
    )
