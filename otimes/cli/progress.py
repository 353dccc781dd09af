"""Progress of long work, on stderr and only where a person looks at it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otimes.numeric.search import Search


@contextmanager
def search_progress() -> Generator[Callable[[Search], None]]:
    """A bar for a search: how many of its splits are done, and how many paths it has.

    The bar is gone when the search ends; where stderr is no terminal there is none.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as shown:
        task = shown.add_task("searching paths", total=None, visible=False)

        def update(search: Search) -> None:
            shown.update(task, completed=search.expansions, total=search.limit, visible=True)

        yield update
