"""safetensors headers, broken by hand and by hypothesis: only ``CheckpointError`` comes out."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otimes.bridge.loading import Weights, load_native
from otimes.bridge.loading.header import MAX_HEADER_BYTES, Entry, read_header
from otimes.errors import CheckpointError
from tests.factory import in_short, make_checkpoint

F32 = {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}


def packed(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def refused(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_header(file)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500 + len(str(file))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_a_good_header(file: Path):
    header = {
        "__metadata__": {"by": "hand"},
        "b": {"dtype": "BF16", "shape": [], "data_offsets": [8, 10]},
        "a": F32,
        "empty": {"dtype": "I64", "shape": [0, 5], "data_offsets": [8, 8]},
    }
    file.write_bytes(packed(header, bytes(10)))
    assert read_header(file) == {
        "b": Entry("BF16", (), 8, 10),
        "a": Entry("F32", (2, 1), 0, 8),
        "empty": Entry("I64", (0, 5), 8, 8),
    }


def test_a_missing_file(file: Path):
    with pytest.raises(
        CheckpointError,
        match=r"model\.safetensors' does not exist: a native checkpoint keeps its weights in model",
    ):
        read_header(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"model\.safetensors' is empty: fetch a fresh copy"),
        (b"\x08\0\0", r"is truncated: 3 bytes are too few for a safetensors file"),
        (
            packed(b"{}", length=3),
            r"truncated or no safetensors file: its first 8 bytes give a header of 3 bytes, but",
        ),
        (
            packed(b"{}", length=2**64 - 1),
            r"give a header of 18,446,744,073,709,551,615 bytes, but",
        ),
        (b"PK\x03\x04" + b"x" * 50, r"truncated or no safetensors file"),
        (
            packed(b" " * (MAX_HEADER_BYTES + 1)),
            r"has a header of 16,777,217 bytes, more than the 16,",
        ),
        (packed(b""), r"is no safetensors file: its header does not start with '\{': fetch"),
        (packed([]), r"its header does not start with '\{'"),
        (packed(b" {}"), r"its header does not start with '\{'"),
        (
            packed(b'{"a"'),
            r"the header of '.*' is not JSON: Expecting ':' delimiter \(line 1, column 5",
        ),
        (packed(b'{"\xff"}'), r"the header of '.*' is not UTF-8 text \(byte 2\)"),
        (packed(b'{"a":' * 50_000), r"the header of '.*' nests too deeply to be read"),
        (packed(b'{"a": {"shape": [NaN]}}'), r"is not usable JSON: NaN is not a JSON number"),
        (
            packed(b'{"a": {"shape": [1' + b"0" * 5000 + b"]}}"),
            r"is not usable JSON: Exceeds the limit",
        ),
        (packed(b'{"a": 1, "a": 2}'), r"is not usable JSON: the key 'a' is there twice"),
        (packed(b'{"a": {"dtype": "F32", "dtype": "F16"}}'), r"the key 'dtype' is there twice"),
        (
            packed({"__metadata__": {"a": 1}}),
            r"__metadata__ must map names to texts, not \{'a': 1\}",
        ),
        (packed({"__metadata__": "x"}), r"__metadata__ must map names to texts, not 'x'"),
        (
            packed({"a": 1}),
            r"entry 'a' must have dtype, shape and data_offsets, not 1: the file is cor",
        ),
        (
            packed({"a": {"dtype": "F32"}}),
            r"entry 'a' must have dtype, shape and data_offsets, not \{",
        ),
        (packed({"a": F32 | {"x": 1}}, bytes(8)), r"must have dtype, shape and data_offsets, not"),
        (
            packed({"a": F32 | {"dtype": "Q4_K"}}),
            r"entry 'a' has the unknown dtype 'Q4_K': the file",
        ),
        (packed({"a": F32 | {"dtype": 32}}), r"has the unknown dtype 32"),
        (packed({"a": F32 | {"dtype": ["F32"]}}), r"has the unknown dtype \['F32'\]"),
        (
            packed({"a": F32 | {"shape": 2}}),
            r"has the shape 2, which is not a list of at most 16 sizes",
        ),
        (
            packed({"a": F32 | {"shape": [-2, -1]}}),
            r"has the shape \[-2, -1\], which is not a list",
        ),
        (
            packed({"a": F32 | {"shape": [2.0, 1]}}),
            r"has the shape \[2\.0, 1\], which is not a list",
        ),
        (
            packed({"a": F32 | {"shape": [2, True]}}),
            r"has the shape \[2, True\], which is not a list",
        ),
        (
            packed({"a": F32 | {"shape": [2**64, 1]}}),
            r"has the shape \[1844.*, 1\], which is not a list",
        ),
        (packed({"a": F32 | {"shape": [1] * 17}}), r"which is not a list of at most 16 sizes"),
        # the product is 0 modulo 2**64 and would pass a check that overflows
        (
            packed({"a": F32 | {"shape": [2**32, 2**32], "data_offsets": [0, 0]}}),
            r"has 0 bytes of data, but the shape \[4294967296, 4294967296\] in F32 does not fill",
        ),
        (
            packed({"a": F32 | {"shape": [3, 1]}}, bytes(8)),
            r"has 8 bytes of data, but the shape \[3, 1\]",
        ),
        (
            packed({"a": F32 | {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"\0"),
            r"has 1 bytes of data, but the shape \[3\] in F4 does not fill exactly that",
        ),
        (packed({"a": F32 | {"data_offsets": 8}}), r"has the data_offsets 8, which is not a range"),
        (
            packed({"a": F32 | {"data_offsets": [0, 4, 8]}}),
            r"data_offsets \[0, 4, 8\], which is not",
        ),
        (
            packed({"a": F32 | {"data_offsets": [8, 0]}}),
            r"data_offsets \[8, 0\], which is not a range",
        ),
        (
            packed({"a": F32 | {"data_offsets": [-8, 0]}}),
            r"data_offsets \[-8, 0\], which is not a range",
        ),
        (
            packed({"a": F32}, bytes(7)),
            r"is truncated: its header describes 8 bytes of weights, the file has 7: fetch",
        ),
        (packed({"a": F32}, bytes(9)), r"is corrupt: 1 bytes follow the last tensor"),
        (packed({}, bytes(1)), r"is corrupt: 1 bytes follow the last tensor"),
        (
            packed({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, bytes(12)),
            r"the data of 'b' starts at byte 4 and overlaps 'a', which ends at 8: the file is",
        ),
        (packed({"a": F32, "b": F32}, bytes(8)), r"starts at byte 0 and overlaps"),
        (
            packed({"a": F32, "b": F32 | {"data_offsets": [9, 17]}}, bytes(17)),
            r"the data of 'b' starts at byte 9 and leaves a gap after 'a', which ends at 8",
        ),
        (
            packed({"a": F32 | {"data_offsets": [8, 16]}}, bytes(16)),
            r"starts at byte 8 and leaves a gap after the start of the data, which ends at 0",
        ),
        (
            packed({"a": F32 | {"data_offsets": [2**62, 2**62 + 8]}}, bytes(8)),
            r"leaves a gap after",
        ),
        (packed({"a\n\u202e" + "x" * 500: 1}), r"entry 'a\\n\\u202ex+\.\.\.x+' must have dtype"),
        (packed(b'{"\\ud800": 1}'), r"entry '\\ud800' must have dtype"),
    ],
    ids=in_short,
)
def test_a_bad_header(file: Path, content: bytes, message: str):
    refused(file, content, message)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path):
    file = make_checkpoint(tmp_path, n_layers=1, n_heads=1).path / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    interesting = {*range(12), *range(0, len(content), 61), length + 7, length + 8, length + 9}
    for size in sorted(interesting | {len(content) - 1}):
        file.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"model\.safetensors'.*: fetch a fresh copy"):
            load_native(tmp_path)


# one small checkpoint whose bytes hypothesis damages
with tempfile.TemporaryDirectory() as _folder:
    make_checkpoint(Path(_folder), n_layers=1, n_heads=1, d_model=3, d_head=2, n_ctx=2, d_vocab=2)
    CONFIG = (Path(_folder) / "config.json").read_bytes()
    CONTENT = (Path(_folder) / "model.safetensors").read_bytes()
LENGTH = int.from_bytes(CONTENT[:8], "little")


def weights_or_message(content: bytes) -> Weights | str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_bytes(CONFIG)
        (folder / "model.safetensors").write_bytes(content)
        try:
            return load_native(folder).weights
        except CheckpointError as error:
            return str(error)


def only_our_error_escapes(content: bytes) -> None:
    outcome = weights_or_message(content)
    if isinstance(outcome, str):
        assert outcome.isprintable()
    else:
        # what loads is complete: shapes as the config says, values finite
        assert outcome.W_E.shape == (2, 3)
        assert all(tensor.isfinite().all() for tensor in outcome.tensors().values())


def test_the_undamaged_bytes_load():
    assert isinstance(weights_or_message(CONTENT), Weights)
    assert len(CONTENT) > LENGTH + 8


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, LENGTH + 15), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_any_bytes_of_the_header_may_be_damaged(changes: list[tuple[int, int]]):
    content = bytearray(CONTENT)
    for index, byte in changes:
        content[index] = byte
    only_our_error_escapes(bytes(content))


@settings(max_examples=50)
@given(st.integers(0, len(CONTENT)), st.binary(max_size=30))
def test_any_end_may_be_cut_off_and_replaced(size: int, tail: bytes):
    only_our_error_escapes(CONTENT[:size] + tail)


WORDS = st.sampled_from(
    [
        "F32",
        "F64",
        "F16",
        "I64",
        "BOOL",
        "Q4",
        "",
        None,
        -1,
        0,
        1,
        2,
        8,
        48,
        2**31,
        2**63,
        2**64,
        0.5,
        True,
    ]
)
LISTS = st.lists(WORDS, max_size=3)
ENTRIES = st.fixed_dictionaries(
    {}, optional={"dtype": WORDS, "shape": LISTS | WORDS, "data_offsets": LISTS | WORDS}
)
NAMES = st.sampled_from(sorted(json.loads(CONTENT[8 : 8 + LENGTH]))) | st.text(max_size=3)


@settings(max_examples=150)
@given(st.dictionaries(NAMES, ENTRIES | WORDS | LISTS, max_size=3), st.booleans())
def test_any_entries_of_the_header_may_be_replaced(changes: dict[str, object], merge: bool):
    header = json.loads(CONTENT[8 : 8 + LENGTH])
    for name, change in changes.items():
        old = header.get(name)
        both = merge and isinstance(old, dict) and isinstance(change, dict)
        header[name] = {**old, **change} if both else change
    only_our_error_escapes(packed(header, CONTENT[8 + LENGTH :]))


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_any_bytes_may_stand_for_a_file(content: bytes):
    only_our_error_escapes(content)
