"""Files that are whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from otimes.errors import InputError


@contextmanager
def whole_file(target: Path) -> Generator[str]:
    """A new file beside the target, which takes its place when all is written.

    Raises:
        InputError: if it cannot be written; what stood there before is left.
    """
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
