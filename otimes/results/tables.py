"""Tables in files, CSV and Parquet, through pandas: a file is whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from otimes.errors import InputError
from otimes.results.files import whole_file

if TYPE_CHECKING:
    import pandas

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(frame: pandas.DataFrame, path: str | Path) -> None:
    """Write a table as CSV; a text that a spreadsheet would run gets an apostrophe in front.

    Raises:
        InputError: if the file cannot be written.
    """
    with whole_file(Path(path)) as name:
        frame.map(_guarded).to_csv(name, index=False)


def write_parquet(frame: pandas.DataFrame, path: str | Path) -> None:
    """Write a table as Parquet.

    Raises:
        InputError: if the file cannot be written, or without pyarrow.
    """
    with whole_file(Path(path)) as name:
        try:
            frame.to_parquet(name, index=False)
        except ImportError as error:
            raise InputError("writing Parquet needs pyarrow: pip install pyarrow") from error


def _guarded(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
