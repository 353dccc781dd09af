"""Tables in files, CSV and Parquet, through pandas: a file is whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from otimes.errors import InputError

if TYPE_CHECKING:
    import pandas

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(frame: pandas.DataFrame, path: str | Path) -> None:
    """Write a table as CSV; a text that a spreadsheet would run gets an apostrophe in front.

    Raises:
        InputError: if the file cannot be written.
    """
    with _whole(Path(path)) as name:
        frame.map(_guarded).to_csv(name, index=False)


def write_parquet(frame: pandas.DataFrame, path: str | Path) -> None:
    """Write a table as Parquet.

    Raises:
        InputError: if the file cannot be written, or without pyarrow.
    """
    with _whole(Path(path)) as name:
        try:
            frame.to_parquet(name, index=False)
        except ImportError as error:
            raise InputError("writing Parquet needs pyarrow: pip install pyarrow") from error


@contextmanager
def _whole(target: Path) -> Generator[str]:
    """A new file beside the target, which takes its place when all is written."""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, suffix=target.suffix)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from error
    os.close(handle)
    try:
        yield name
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _guarded(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
