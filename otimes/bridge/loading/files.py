"""Reading untrusted files: a failure is one ``CheckpointError``: what, where, what to do.

Nothing here waits (no pipes or devices are opened), nothing is read beyond a stated limit, and what
comes out of a file is escaped and shortened before it enters a message, so that a message is one
printable line whatever the file holds.
"""

from __future__ import annotations

import json
import os
import reprlib
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, cast

from otimes.errors import CheckpointError

MAX_CONFIG_BYTES = 2**20

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60
_short.maxlevel = 2


def shown(value: object) -> str:
    r"""Return a short printable form of a value that came out of a file.

    >>> print(shown("a\nb"))
    'a\nb'
    """
    try:
        return _short.repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "a number of thousands of digits"


def is_failure(error: BaseException) -> bool:
    """Whether a library failed, and not the user or the interpreter stopped it.

    A panic of Rust code is no ``Exception``, and its class cannot be imported.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def shown_path(path: Path) -> str:
    """Return a path as it stands in a message: in full, with unprintable characters escaped."""
    return repr(str(path))


def file_size(path: Path, remedy: str) -> int:
    """Return the size in bytes of a regular file.

    Args:
        path: the file.
        remedy: what to do if there is none; ends the message.

    Raises:
        CheckpointError: missing, a folder, a pipe or device, or not accessible.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{shown_path(path)} does not exist: {remedy}") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if stat.S_ISDIR(status.st_mode):
        raise CheckpointError(f"{shown_path(path)} is a folder, not a file: {remedy}")
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{shown_path(path)} is not a regular file: {remedy}")
    return status.st_size


def read_bytes(path: Path, count: int, start: int = 0) -> bytes:
    """Return ``count`` bytes from ``start``, fewer where the file ends."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(count)
    except OSError as error:
        raise _unreadable(path, error) from error


def json_object(data: bytes, where: str) -> Mapping[str, object]:
    """Parse UTF-8 JSON that must be an object, strictly: no repeated keys, no NaN or Infinity.

    Args:
        data: the text; the caller bounds its size.
        where: what is being read, for the message.

    Raises:
        CheckpointError: not UTF-8, not JSON, not an object, nested too deeply.
    """
    advice = "write it again or fetch a fresh copy"
    try:
        value: object = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{where} is not UTF-8 text (byte {error.start}): {advice}"
        ) from error
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{where} is not JSON: {error.msg} (line {error.lineno}, column {error.colno}): "
            f"{advice}"
        ) from error
    except RecursionError:
        # no chained cause: a traceback of a thousand frames helps nobody
        raise CheckpointError(f"{where} nests too deeply to be read: {advice}") from None
    except ValueError as error:  # a repeated key, a constant, an integer of thousands of digits
        raise CheckpointError(f"{where} is not usable JSON: {error}: {advice}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} must be a JSON object, not {shown(value)}: {advice}")
    return cast("dict[str, object]", value)  # JSON has no other keys than strings


def check_folder(path: Path) -> None:
    """Refuse what is no readable folder."""
    try:
        entries = os.scandir(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"the folder {shown_path(path)} does not exist: give the folder of a native checkpoint "
            "(config.json and model.safetensors)"
        ) from None
    except NotADirectoryError:
        raise CheckpointError(
            f"{shown_path(path)} is a file, not a folder: give the folder of a native checkpoint "
            "(config.json and model.safetensors)"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"the folder {shown_path(path)} cannot be read ({error}): check the path and its "
            "permissions"
        ) from error
    entries.close()


def read_config(path: Path) -> Mapping[str, object]:
    """Return the object of a ``config.json``.

    Raises:
        CheckpointError: missing, unreadable, too large for a config, or no JSON object.
    """
    size = file_size(path, "a checkpoint has a config.json (see the docs for its keys)")
    data = read_bytes(path, MAX_CONFIG_BYTES + 1)
    # the bytes that were read count: a file may grow after its size was asked
    if len(data) > MAX_CONFIG_BYTES:
        raise CheckpointError(
            f"{shown_path(path)} is {size:,} bytes, more than the {MAX_CONFIG_BYTES:,} that a "
            "config.json may have: this is not the config of a checkpoint"
        )
    return json_object(data, shown_path(path))


def _unreadable(path: Path, error: OSError | ValueError) -> CheckpointError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return CheckpointError(
        f"{shown_path(path)} cannot be read ({reason}): check the path and its permissions"
    )


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {shown(key)} is there twice")
            seen.add(key)
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
