"""Tensors of a safetensors file as views of the mapped file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from otimes.bridge.loading.files import shown_path
from otimes.errors import CheckpointError


def map_tensors(file: Path, names: Sequence[str]) -> dict[str, Tensor]:
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
