"""The report of an attribution in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from otimes.results import Attribution, AttributionRow
from otimes.view.terminal import heading, indented, table

_BAR = 20


def show_attribution(console: Console, found: Attribution) -> None:
    """Print the report of ``otimes attribute``: rows with bars, and the sums below them."""
    console.print(heading("Input"))
    shown = Text()
    for place, piece in enumerate(found.pieces):
        style = "reverse" if place % 2 else ""
        shown.append(piece, style=f"bold {style}" if place == found.position else style)
    console.print(indented(shown))

    console.print(heading(f"The {found.question}"))
    if found.path is not None:
        console.print(
            Text(
                f"  paths {found.path}: {found.paths:,}, together {found.selected:+.4f}",
                style="dim",
            )
        )
    console.print(indented(_rows(found)))
    console.print(Text(f"  {found.method}", style="dim"))
    if found.explained is not None:
        low, high = found.explained.low, found.explained.high
        spread = "" if found.explained.exact else f", between {low:.1%} and {high:.1%}"
        console.print(
            Text(f"  the paths shown have {found.explained.value:.1%} of the energy{spread}")
        )
    if abs(found.gap) > 0:
        console.print(Text(f"  the model's own logits − total: {found.gap:.1e}", style="dim"))
    for line in found.frozen:
        console.print(Text(f"  frozen: {line}", style="dim"))
    console.print(Text("  values hold at what is frozen; they are no causal effects", style="dim"))


def _rows(found: Attribution) -> Table:
    single = bool(found.rows) and found.rows[0].order is not None
    numbers = ["value"] if single else ["paths", "value"]
    if found.at is not None:
        numbers += ["causal", "gap"]
    first = "path" if single else (f"through {found.by}" if found.overlapping else found.by)
    body = table(first, *numbers, "", right=numbers)
    largest = max((abs(row.value) for row in found.rows), default=0.0)
    for row in found.rows:
        body.add_row(Text(row.key), *_numbers(row, single, found.at), _bar(row.value, largest),
                     end_section=row is found.rows[-1])  # fmt: skip
    blank = [""] * (len(numbers) - (1 if single else 2))
    sums = [] if found.overlapping else [("not shown", found.remainder)]
    for name, value in (*sums, ("total", found.total)):
        cells = [f"{value:+.4f}"] if single else ["", f"{value:+.4f}"]
        style = "bold" if name == "total" else ""
        body.add_row(Text(name, style=style), *cells, *blank, "")
    return body


def _numbers(row: AttributionRow, single: bool, at: str | None) -> list[str]:
    cells = [f"{row.value:+.4f}"] if single else [f"{row.count:,}", f"{row.value:+.4f}"]
    if at is not None:
        cells += ["-", "-"] if row.causal is None else [f"{row.causal:+.4f}", f"{row.gap:+.4f}"]
    return cells


def _bar(value: float, largest: float) -> Text:
    length = round(_BAR * abs(value) / largest) if largest else 0
    return Text("█" * length, style="green" if value > 0 else "red")
