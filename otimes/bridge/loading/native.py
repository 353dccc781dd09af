"""Native checkpoints: a folder of ``config.json``, ``model.safetensors``, ``tokenizer.json``.

The weights are memory-mapped and stay in their storage dtype; the tokenizer is optional. Everything
is checked before it is used (the config, the header, names, dtypes, shapes, finite values), and a
folder that cannot be used gives one ``CheckpointError``: what is wrong, where, and what to do.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from otimes.bridge.loading.config import Config
from otimes.bridge.loading.files import file_size, json_object, read_bytes, shown_path
from otimes.bridge.loading.header import Entry, read_header
from otimes.bridge.loading.weights import Slot, Weights, from_tensors, slots
from otimes.errors import CheckpointError

MAX_CONFIG_BYTES = 2**20
READABLE_DTYPES = ("F16", "BF16", "F32", "F64")


@dataclass(frozen=True, eq=False)
class NativeCheckpoint:
    """A loaded folder: where it is, what it is, its weights, and its tokenizer's file if any."""

    path: Path
    config: Config
    weights: Weights
    tokenizer_path: Path | None


def load_native(folder: str | Path) -> NativeCheckpoint:
    """Load a native checkpoint; the weights are memory-mapped and checked to be finite.

    Tensors of the file that the model does not have are listed in ``weights.unused``; their values
    are not looked at.

    Args:
        folder: the checkpoint's folder.

    Raises:
        CheckpointError: something is missing, unreadable, corrupt or does not fit.
    """
    path = Path(folder)
    _check_folder(path)
    config = _read_config(path / "config.json")
    file = path / "model.safetensors"
    header = read_header(file)
    used = _match(config, header, file)
    tensors = _map(file, [slot.name for slot in used])
    for slot in used:
        _check_finite(tensors[slot.name], slot, file)
    weights = from_tensors(tensors, config.n_layers)
    weights = replace(weights, unused=tuple(sorted(header.keys() - tensors.keys())))
    return NativeCheckpoint(path, config, weights, _find_tokenizer(path / "tokenizer.json"))


def _check_folder(path: Path) -> None:
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


def _read_config(path: Path) -> Config:
    size = file_size(path, "a native checkpoint has a config.json (see the docs for its keys)")
    data = read_bytes(path, MAX_CONFIG_BYTES + 1)
    # the bytes that were read count: a file may grow after its size was asked
    if len(data) > MAX_CONFIG_BYTES:
        raise CheckpointError(
            f"{shown_path(path)} is {size:,} bytes, more than the {MAX_CONFIG_BYTES:,} that a "
            "config.json may have: this is not a config of a native checkpoint"
        )
    return Config.parse(json_object(data, shown_path(path)), shown_path(path))


def _match(config: Config, header: Mapping[str, Entry], file: Path) -> list[Slot]:
    """Return the slots that the file fills, after checking names, dtypes and shapes."""
    used, missing = list[Slot](), list[Slot]()
    for slot in slots(config):
        if slot.name in header:
            _check_entry(header[slot.name], slot, file)
            used.append(slot)
        elif slot.required:
            missing.append(slot)
    if missing:
        named = ", ".join(f"{slot.name} {slot}" for slot in missing[:4])
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise CheckpointError(
            f"{shown_path(file)} lacks {named}{more}: add the tensors or correct config.json "
            f"(n_layers {config.n_layers}, positions {config.positions!r}, norm {config.norm!r}, "
            f"d_mlp {config.d_mlp}, tied {config.tied})"
        )
    _check_gates({slot.name for slot in used}, file)
    return used


def _check_gates(names: set[str], file: Path) -> None:
    # a gate's bias without its matrix would be ignored, and the MLP taken for a plain one
    for name in sorted(name for name in names if name.endswith("mlp.b_gate")):
        gate = name.replace("b_gate", "W_gate")
        if gate not in names:
            raise CheckpointError(
                f"{shown_path(file)} has {name} and no {gate}: add the gate's matrix or remove "
                "its bias"
            )


def _check_entry(entry: Entry, slot: Slot, file: Path) -> None:
    if entry.shape != slot.shape:
        raise CheckpointError(
            f"{shown_path(file)}: {slot.name} has the shape {list(entry.shape)}, but config.json "
            f"asks for {slot}: correct config.json or write the tensor in that layout"
        )
    if entry.dtype not in READABLE_DTYPES:
        raise CheckpointError(
            f"{shown_path(file)}: {slot.name} is stored as {entry.dtype}, but weights must be "
            f"{', '.join(READABLE_DTYPES)}: convert it"
        )


def _map(file: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """Return views of the mapped file; the mapping is private, nothing is ever written back."""
    try:
        with safe_open(file, framework="pt") as mapped:
            tensors = {name: mapped.get_tensor(name) for name in names}
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError) as error:
        # the header was checked: left are files that change or vanish meanwhile, and no memory
        raise CheckpointError(
            f"{shown_path(file)} cannot be mapped ({error}): fetch a fresh copy"
        ) from error
    # a header of odd length leaves tensors unaligned, which some kernels do not forgive
    return {
        name: tensor.clone() if tensor.data_ptr() % tensor.element_size() else tensor
        for name, tensor in tensors.items()
    }


def _check_finite(tensor: Tensor, slot: Slot, file: Path) -> None:
    # extremes carry NaN and infinities and need no array of the tensor's size
    smallest, largest = torch.aminmax(tensor)
    if bool(torch.isfinite(smallest)) and bool(torch.isfinite(largest)):
        return
    bad = ~torch.isfinite(tensor)
    index = [int(i) for i in bad.nonzero()[0]]
    value = float(tensor[tuple(index)])
    kind = "NaN" if math.isnan(value) else "infinite"
    count = int(bad.sum())
    raise CheckpointError(
        f"{shown_path(file)}: {slot.name} is {kind} at {index} ({', '.join(slot.axes)}), "
        f"{count:,} of its {tensor.numel():,} values are not finite: the weights are damaged or "
        "the training diverged, use another checkpoint"
    )


def _find_tokenizer(path: Path) -> Path | None:
    if not os.path.lexists(path):
        return None
    file_size(path, "tokenizer.json is the file of the tokenizers package; remove it if not")
    return path
