"""State dicts out of files: safetensors, whole or in shards, and pickles without code.

Safetensors files are memory-mapped. A pickle is read with ``weights_only=True`` alone, so that
nothing in it is ever run.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import cast

import torch
from torch import Tensor

from otimes.bridge.loading.files import file_size, json_object, read_bytes, shown, shown_path
from otimes.bridge.loading.header import read_header
from otimes.bridge.loading.mapped import map_tensors
from otimes.errors import CheckpointError

MAX_INDEX_BYTES = 64 * 2**20  # the largest in use take a twentieth of this
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_PICKLE_ADVICE = "otimes runs no code from a checkpoint: save the plain tensors, as safetensors"


def folder_state(folder: Path) -> dict[str, Tensor]:
    """The state dict of a folder: safetensors first, then a pickle; whole, then in shards.

    Raises:
        CheckpointError: there is none, or it cannot be used.
    """
    for name in _WHOLE:
        if (folder / name).exists():
            return file_state(folder / name)
        index = folder / f"{name}.index.json"
        if index.exists():
            return _shards(index)
    raise CheckpointError(
        f"{shown_path(folder)} holds no weights: it needs one of "
        + ", ".join([*_WHOLE, *(f"{name}.index.json" for name in _WHOLE)])
    )


def file_state(file: Path) -> dict[str, Tensor]:
    """The state dict of one file, by the end of its name.

    Raises:
        CheckpointError: it cannot be used.
    """
    if file.suffix == ".safetensors":
        return map_tensors(file, list(read_header(file)))
    return only_tensors(unpickled(file), shown_path(file))


def unpickled(file: Path) -> Mapping[str, object]:
    """What a pickle of torch holds: a mapping of tensors and plain values.

    Raises:
        CheckpointError: it holds anything else, or cannot be read.
    """
    file_size(file, "give the file of a state dict")
    try:
        value: object = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())[:160]
        raise CheckpointError(
            f"{shown_path(file)} cannot be read as plain tensors ({reason}): {_PICKLE_ADVICE}"
        ) from error
    if not isinstance(value, Mapping):
        raise CheckpointError(
            f"{shown_path(file)} holds a {type(value).__name__}, not a state dict: {_PICKLE_ADVICE}"
        )
    return cast("Mapping[str, object]", value)


def only_tensors(found: Mapping[str, object], where: str) -> dict[str, Tensor]:
    """A mapping whose values are all tensors.

    Raises:
        CheckpointError: one of them is something else.
    """
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(
                f"{where}: {shown(name)} is a {type(value).__name__}, not a tensor: give a state "
                "dict alone"
            )
    return cast("dict[str, Tensor]", dict(found))


def _shards(index: Path) -> dict[str, Tensor]:
    """The tensors of the files that an index names, all of them beside the index."""
    where = shown_path(index)
    data = read_bytes(index, MAX_INDEX_BYTES + 1)
    if len(data) > MAX_INDEX_BYTES:
        raise CheckpointError(f"{where} is larger than {MAX_INDEX_BYTES:,} bytes: fetch a copy")
    files = json_object(data, where).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise CheckpointError(f"{where} has no weight_map: fetch a fresh copy")
    named = cast("dict[str, object]", files)
    shards = {name: _beside(index, name, file) for name, file in named.items()}
    found = dict[str, Tensor]()
    for shard in sorted(set(shards.values())):
        if not shard.exists():
            raise CheckpointError(
                f"{where} names the shard {shard.name!r}, which is not beside it: fetch it as well"
            )
        tensors = file_state(shard)
        wanted = {name for name, file in shards.items() if file == shard}
        if missing := sorted(wanted - tensors.keys()):
            raise CheckpointError(
                f"{where} says that {shown(missing[0])} is in {shard.name!r}, which does not hold "
                "it: fetch a fresh copy"
            )
        found |= tensors
    return found


def _beside(index: Path, name: str, file: object) -> Path:
    # a path with a folder in it, on any system, could point anywhere
    plain = file not in ("", ".", "..") and "\0" not in str(file)
    names = {PurePosixPath(str(file)).name, PureWindowsPath(str(file)).name}
    if not plain or not isinstance(file, str) or names != {file}:
        raise CheckpointError(
            f"{shown_path(index)} puts {shown(name)} into {shown(file)}: a shard is a file beside "
            "its index, named without a folder; fetch a fresh copy"
        )
    if Path(file).suffix not in (".safetensors", ".bin"):
        raise CheckpointError(
            f"{shown_path(index)} puts {shown(name)} into {shown(file)}, which is neither "
            ".safetensors nor .bin: fetch a fresh copy"
        )
    return index.parent / file
