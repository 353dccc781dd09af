"""Figures of results, with matplotlib. Nothing is shown on a screen: a figure is returned."""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

from otimes.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from otimes.results import Attribution

_POSITIVE, _NEGATIVE, _SUM = "#2f7d5b", "#b5473c", "#5a5f6b"
_LONGEST = 48
_MOST = 60


def plot_attribution(found: Attribution) -> Figure:
    """An attribution as signed bars, the remainder and the total below them.

    Of more than 60 rows the largest are drawn, in their order; the others are not shown.

    Returns:
        A figure; ``figure.savefig("name.svg")`` writes it, a notebook shows it.

    Raises:
        InputError: without matplotlib.
    """
    try:
        from matplotlib.figure import Figure as NewFigure
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install 'otimes[plot]'") from error
    largest = sorted(found.rows, key=lambda row: -abs(row.value))[:_MOST]
    least = abs(largest[-1].value) if largest else 0.0
    rows = [row for row in found.rows if abs(row.value) >= least][:_MOST]
    bars = [(row.key, row.value, _POSITIVE if row.value >= 0 else _NEGATIVE) for row in rows]
    if not found.overlapping:
        bars.append(("not shown", found.total - fsum(row.value for row in rows), _SUM))
    bars.append(("total", found.total, _SUM))
    figure = NewFigure(figsize=(7.5, 1.1 + 0.27 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(bars))
    values = [value for _, value, _ in bars]
    axes.barh(places, values, color=[color for *_, color in bars], height=0.72)
    # text of tokens is text: matplotlib would read what stands between $ as mathematics
    axes.set_yticks(places, [_plain(name) for name, *_ in bars], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="#333333", linewidth=0.8)
    reach = max((abs(value) for value in values), default=0.0) or 1.0
    for place, value in zip(places, values, strict=True):
        side = 1 if value >= 0 else -1
        axes.text(
            value + side * 0.012 * reach, place, f"{value:+.3f}", va="center",
            ha="left" if side > 0 else "right", fontsize=7,
        )  # fmt: skip
    axes.margins(x=0.14)
    axes.set_xlabel("logits")
    axes.set_title(_plain(f"The {found.question}", 100), fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _plain(text: str, longest: int = _LONGEST) -> str:
    shown = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return shown.replace("$", r"\$")
