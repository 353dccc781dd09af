"""The header of a safetensors file, read and checked before anything is mapped.

The file is ``N`` (8 bytes, little endian), ``N`` bytes of JSON and the data. The JSON maps each
name to its dtype, its shape and the range ``[begin, end)`` of its bytes within the data; the ranges
tile the data without gap or overlap. The size of the header and of each tensor is checked against
the size of the file first, so a hostile header costs nothing and points nowhere outside the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from otimes.bridge.loading.files import file_size, json_object, read_bytes, shown, shown_path
from otimes.errors import CheckpointError

MAX_HEADER_BYTES = 16 * 2**20  # a header of a hundred thousand tensors is smaller
MAX_AXES = 16
_PREFIX = 8

#: the dtype names of the format and their sizes in bits
DTYPE_BITS: Mapping[str, int] = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One tensor of the file: its dtype's name, its shape, its range of bytes within the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> Mapping[str, Entry]:
    """Return the tensors of a safetensors file by name, in the order of the header.

    Raises:
        CheckpointError: missing, empty, truncated, corrupt or hostile.
    """
    size = file_size(path, "a native checkpoint keeps its weights in model.safetensors")
    where = shown_path(path)
    if size == 0:
        raise CheckpointError(f"{where} is empty: fetch a fresh copy")
    if size < _PREFIX:
        raise CheckpointError(
            f"{where} is truncated: {size} bytes are too few for a safetensors file: "
            "fetch a fresh copy"
        )
    length = int.from_bytes(read_bytes(path, _PREFIX), "little")
    if length > size - _PREFIX:
        raise CheckpointError(
            f"{where} is truncated or no safetensors file: its first 8 bytes give a header of "
            f"{length:,} bytes, but only {size - _PREFIX:,} bytes follow: fetch a fresh copy"
        )
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{where} has a header of {length:,} bytes, more than the {MAX_HEADER_BYTES:,} that "
            "otimes reads: write the file again with the safetensors library"
        )
    text = read_bytes(path, length, _PREFIX)
    if not text.startswith(b"{"):
        raise CheckpointError(
            f"{where} is no safetensors file: its header does not start with '{{': "
            "fetch a fresh copy"
        )
    return _entries(json_object(text, f"the header of {where}"), size - _PREFIX - length, where)


def _entries(header: Mapping[str, object], data_bytes: int, where: str) -> Mapping[str, Entry]:
    """Check the header's values; ``data_bytes`` is what the file has behind the header."""
    entries = dict[str, Entry]()
    for name, value in header.items():
        if name == "__metadata__":
            _check_metadata(value, where)
        else:
            entries[name] = _entry(value, f"{where}: the header's entry {shown(name)}")
    position, previous = 0, "the start of the data"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            fault = "overlaps" if entry.begin < position else "leaves a gap after"
            raise CheckpointError(
                f"{where}: the data of {shown(name)} starts at byte {entry.begin:,} and {fault} "
                f"{previous}, which ends at {position:,}: the file is corrupt, fetch a fresh copy"
            )
        position, previous = entry.end, shown(name)
    if position > data_bytes:
        raise CheckpointError(
            f"{where} is truncated: its header describes {position:,} bytes of weights, the file "
            f"has {data_bytes:,}: fetch a fresh copy"
        )
    if position < data_bytes:
        raise CheckpointError(
            f"{where} is corrupt: {data_bytes - position:,} bytes follow the last tensor: "
            "fetch a fresh copy"
        )
    return entries


def _check_metadata(value: object, where: str) -> None:
    if not isinstance(value, dict) or not all(
        isinstance(text, str) for text in cast("dict[str, object]", value).values()
    ):
        raise CheckpointError(
            f"{where}: the header's __metadata__ must map names to texts, not {shown(value)}: "
            "write the file again with the safetensors library"
        )


def _entry(value: object, what: str) -> Entry:
    advice = "the file is corrupt, fetch a fresh copy"
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if fields.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"{what} must have dtype, shape and data_offsets, not {shown(value)}: {advice}"
        )
    dtype = fields["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{what} has the unknown dtype {shown(dtype)}: {advice}")
    shape = _sizes(fields["shape"])
    if shape is None or len(shape) > MAX_AXES:
        raise CheckpointError(
            f"{what} has the shape {shown(fields['shape'])}, which is not a list of at most "
            f"{MAX_AXES} sizes: {advice}"
        )
    offsets = _sizes(fields["data_offsets"])
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(
            f"{what} has the data_offsets {shown(fields['data_offsets'])}, which is not a range "
            f"[begin, end]: {advice}"
        )
    bits = DTYPE_BITS[dtype] * math.prod(shape)
    if bits != 8 * (offsets[1] - offsets[0]):
        raise CheckpointError(
            f"{what} has {offsets[1] - offsets[0]:,} bytes of data, but the shape "
            f"{shown(list(shape))} in {dtype} does not fill exactly that: {advice}"
        )
    return Entry(dtype, shape, offsets[0], offsets[1])


def _sizes(value: object) -> tuple[int, ...] | None:
    """Return a list of integers from 0 to 2**63 - 1 as a tuple, None for anything else."""
    if not isinstance(value, list):
        return None
    sizes = list[int]()
    for size in cast("list[object]", value):
        # JSON's true is an int for Python, not for the format
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**63:
            return None
        sizes.append(size)
    return tuple(sizes)
