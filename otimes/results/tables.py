"""Tables in files: CSV and Parquet, through pandas."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from otimes.errors import InputError

if TYPE_CHECKING:
    import pandas

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_table(frame: pandas.DataFrame, path: str | Path) -> None:
    """Write a table as ``.csv`` or ``.parquet``, as the name ends; a file is whole or not there.

    In CSV a text that a spreadsheet would take for a formula gets an apostrophe in front.

    Raises:
        InputError: for another ending, a folder that is not there, or Parquet without pyarrow.
    """
    target = Path(path)
    if target.suffix not in (".csv", ".parquet"):
        raise InputError(
            f"cannot write {target.name}: the name of a table ends in .csv or .parquet"
        )
    if not target.parent.is_dir():
        raise InputError(f"cannot write {target}: there is no folder {target.parent}")
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=target.suffix)
    os.close(handle)
    try:
        if target.suffix == ".csv":
            _safe(frame).to_csv(name, index=False)
        else:
            frame.to_parquet(name, index=False)
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except ImportError as error:
        raise InputError(
            "writing Parquet needs pyarrow: pip install 'otimes[parquet]', or write .csv"
        ) from error
    finally:
        Path(name).unlink(missing_ok=True)


def _safe(frame: pandas.DataFrame) -> pandas.DataFrame:
    def guarded(value: object) -> object:
        return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value

    return frame.map(guarded)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
