"""Native checkpoints: a folder of ``config.json``, ``model.safetensors``, ``tokenizer.json``.

The weights are memory-mapped and stay in their storage dtype; the tokenizer is optional. Everything
is checked before it is used (the config, the header, names, dtypes, shapes, finite values), and a
folder that cannot be used gives one ``CheckpointError``: what is wrong, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from otimes.bridge.loading.checkpoint import Checkpoint
from otimes.bridge.loading.checks import check_finite, check_gates
from otimes.bridge.loading.config import Config
from otimes.bridge.loading.files import check_folder, read_config, shown_path
from otimes.bridge.loading.header import Entry, read_header
from otimes.bridge.loading.mapped import map_tensors
from otimes.bridge.loading.tokenizer import Tokenizer, find_tokenizer
from otimes.bridge.loading.weights import Slot, from_tensors, slots
from otimes.errors import CheckpointError

READABLE_DTYPES = ("F16", "BF16", "F32", "F64")


def load_native(folder: str | Path) -> Checkpoint:
    """Load a native checkpoint; the weights are memory-mapped and checked to be finite.

    Tensors of the file that the model does not have are listed in ``weights.unused``; their values
    are not looked at.

    Args:
        folder: the checkpoint's folder.

    Raises:
        CheckpointError: something is missing, unreadable, corrupt or does not fit.
    """
    path = Path(folder)
    check_folder(path)
    file = path / "config.json"
    config = Config.parse(read_config(file), shown_path(file))
    file = path / "model.safetensors"
    header = read_header(file)
    used = _match(config, header, file)
    tensors = map_tensors(file, [slot.name for slot in used])
    for slot in used:
        check_finite(tensors[slot.name], slot, shown_path(file))
    weights = from_tensors(tensors, config.n_layers)
    weights = replace(weights, unused=tuple(sorted(header.keys() - tensors.keys())))
    tokenizer = Tokenizer(find_tokenizer(path), config.d_vocab)
    return Checkpoint(path.name, config, weights, tokenizer, path=path, native=True)


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
    check_gates({slot.name for slot in used}, shown_path(file))
    return used


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
