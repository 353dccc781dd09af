"""Results as files of a table: CSV and Parquet."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from otimes.cli.options import CommandT
from otimes.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    import pandas

_FORMATS = (("--csv", "pandas"), ("--parquet", "pandas"), ("--parquet", "pyarrow"))
_OPTIONS = (
    click.option("--csv", type=click.Path(dir_okay=False), help="Write the terms to a CSV file."),
    click.option(
        "--parquet", type=click.Path(dir_okay=False), help="Write the terms to a Parquet file."
    ),
)


class Tabular(Protocol):
    """A result with a table."""

    def to_pandas(self) -> pandas.DataFrame:
        """The table."""
        ...


def table_options(command: CommandT) -> CommandT:
    """The files that a result's table is written to, as options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_tables(csv: str | None, parquet: str | None, *others: Path | None) -> None:
    """Refuse, before any work, a file that cannot be written for want of a package or a folder.

    Args:
        csv: the table's file as CSV.
        parquet: as Parquet.
        others: further files that will be written.

    Raises:
        UnsupportedError: it names the package and how to get it.
        InputError: it names the file.
    """
    for file in (csv, parquet, *others):
        if file is not None and not Path(file).parent.is_dir():
            raise InputError(f"cannot write {file}: there is no folder {Path(file).parent}")
    asked = {"--csv": csv, "--parquet": parquet}
    for option, package in _FORMATS:
        if asked[option] is not None and find_spec(package) is None:
            get = "'otimes[pandas]'" if package == "pandas" else package
            raise UnsupportedError(f"{option} needs {package}: pip install {get}, or use --json")


def write_tables(result: Tabular, csv: str | None, parquet: str | None) -> None:
    """Write a result's table to the files that were asked for, and say so on stderr."""
    from otimes.results.tables import write_csv, write_parquet

    for path, write in ((csv, write_csv), (parquet, write_parquet)):
        if path is not None:
            write(result.to_pandas(), path)
            click.echo(f"wrote {path}", err=True)
