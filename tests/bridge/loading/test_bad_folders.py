"""Folders and config files that cannot be used: one error each, its words checked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from otimes.bridge.loading import files, load_native
from otimes.errors import CheckpointError
from tests.factory import in_short, make_checkpoint, write_checkpoint


def refused(folder: Path | str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load_native(folder)
    assert str(caught.value).isprintable()
    assert type(caught.value) is CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model").path


def test_no_folder(tmp_path: Path):
    refused(tmp_path / "none", r"the folder '.*none' does not exist: give the folder of a native")


def test_a_file_for_a_folder(folder: Path):
    refused(folder / "config.json", r"config\.json' is a file, not a folder: give the folder of")


def test_a_path_below_a_file(folder: Path):
    refused(folder / "config.json" / "x", r"is a file, not a folder: give the folder")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000], ids=in_short)
def test_a_name_that_no_folder_can_have(tmp_path: Path, name: str):
    refused(tmp_path / name, r"the folder '.*' cannot be read \(.*\): check the path")


def test_a_name_with_line_breaks_stays_one_line(tmp_path: Path):
    refused(tmp_path / "a\nb\u202e", r"the folder '.*a\\nb\\u202e' does not exist")


def test_no_config(folder: Path):
    (folder / "config.json").unlink()
    refused(folder, r"config\.json' does not exist: a checkpoint has a config\.json")


def test_an_empty_folder(tmp_path: Path):
    refused(tmp_path, r"config\.json' does not exist")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_in_place_of_a_file(folder: Path, name: str):
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    refused(folder, rf"{name}' is a folder, not a file: ")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder: Path, name: str):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refused(folder, rf"{name}' is not a regular file: ")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_to_nowhere(folder: Path, name: str):
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(folder / "nowhere")
    refused(folder, rf"{name}' does not exist: ")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_to_itself(folder: Path, name: str):
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(folder / name)
    refused(
        folder, rf"{name}' cannot be read \(Too many levels of symbolic links\): check the path"
    )


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_may_not_be_read(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    # permissions do not bind an administrator, so the refusal is imitated
    opened = Path.open

    def deny(path: Path, *args: str):
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args)

    monkeypatch.setattr(Path, "open", deny)
    refused(folder, rf"{name}' cannot be read \(Permission denied\): check the path and its perm")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"config\.json' is not JSON: Expecting value \(line 1, column 1\): write it again"),
        (b"{", r"is not JSON: Expecting property name"),
        (b'{"format": "otimes",}', r"is not JSON: .* \(line 1, column 2\d\)"),
        (b"\xef\xbb\xbf{}", r"is not JSON: Unexpected UTF-8 BOM"),
        (b'{"a": "\xff"}', r"config\.json' is not UTF-8 text \(byte 7\): write it again"),
        ("{}".encode("utf-16"), r"is not UTF-8 text \(byte 0\)"),
        (b"\0" * 100, r"is not JSON"),
        (b"[]", r"config\.json' must be a JSON object, not \[\]: write it again"),
        (b"null", r"must be a JSON object, not None"),
        (b'"otimes"', r"must be a JSON object, not 'otimes'"),
        (b"[" * 100_000, r"config\.json' nests too deeply to be read: write it again"),
        (b'{"a":' * 100_000, r"nests too deeply to be read"),
        (
            b'{"format": "otimes", "format": "x"}',
            r"is not usable JSON: the key 'format' is there tw",
        ),
        (b'{"a": NaN}', r"is not usable JSON: NaN is not a JSON number"),
        (b'{"a": -Infinity}', r"is not usable JSON: -Infinity is not a JSON number"),
        (b'{"a": ' + b"1" * 5000 + b"}", r"is not usable JSON: Exceeds the limit"),
        (
            b"{}" + b" " * 2**20,
            r"is 1,048,578 bytes, more than the 1,048,576 that a config\.json may",
        ),
        (b"{}", r"config\.json' has no format"),
    ],
    ids=in_short,
)
def test_a_config_that_is_no_config(folder: Path, data: bytes, message: str):
    (folder / "config.json").write_bytes(data)
    refused(folder, message)


def test_a_scale_beyond_the_floats(folder: Path):
    text = (folder / "config.json").read_text(encoding="utf-8")
    (folder / "config.json").write_text(
        text.replace('"attention_scale": 0.5', '"attention_scale": 1e999'), encoding="utf-8"
    )
    refused(folder, r"config\.json': attention_scale must be a finite number, not inf")


def test_an_unprintable_value_stays_one_line(folder: Path):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["positions"] = "a\nb\u202e\ud800" + "x" * 1000
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    refused(folder, r"positions must be one of .*, not 'a\\nb\\u202e\\ud800x+\.\.\.x+': correct it")


def test_an_unknown_version(folder: Path):
    model = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {"version": 7}
    (folder / "config.json").write_text(json.dumps(model), encoding="utf-8")
    refused(folder, r"config\.json' has version 7; this otimes knows version 1: install a newer")


def test_missing_tensors_are_named_with_their_shapes(tmp_path: Path):
    model = make_checkpoint(tmp_path, n_heads=6, n_kv_heads=2)
    del model.arrays["blocks.1.attn.W_K"], model.arrays["unembed.W_U"]
    write_checkpoint(tmp_path, model.config, model.arrays)
    refused(
        tmp_path,
        r"model\.safetensors' lacks blocks\.1\.attn\.W_K \[kv_head=2, d_model=10, d_head=4\], "
        r"unembed\.W_U \[d_model=10, d_vocab=13\]: add the tensors or correct config\.json "
        r"\(n_layers 2, positions 'shortformer', norm None, d_mlp None, tied False\)",
    )


def test_many_missing_tensors_are_counted(tmp_path: Path):
    model = make_checkpoint(tmp_path)
    write_checkpoint(tmp_path, model.config | {"n_layers": 10_000}, model.arrays)
    refused(tmp_path, r"lacks blocks\.2\.attn\.W_Q .* and 39988 more: add the tensors")


@pytest.mark.parametrize("positions", ["learned", "shortformer"])
def test_positions_need_their_vectors(tmp_path: Path, positions: str):
    model = make_checkpoint(tmp_path, positions="none")
    write_checkpoint(tmp_path, model.config | {"positions": positions}, model.arrays)
    refused(tmp_path, r"lacks pos_embed\.W_pos \[n_ctx=9, d_model=10\]: .* positions '\w+'")


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "embed.W_E",
            (10, 13),
            r"\[10, 13\], but config\.json asks for \[d_vocab=13, d_model=10\]: correct config",
        ),
        (
            "blocks.0.attn.W_O",
            (6, 10, 4),
            r"0\.attn\.W_O has the shape \[6, 10, 4\], but .* \[head=6, d_head=4, d_model=10\]",
        ),
        ("blocks.1.attn.W_V", (6, 10, 4), r"\[kv_head=2, d_model=10, d_head=4\]"),
        ("blocks.1.attn.b_Q", (24,), r"b_Q has the shape \[24\], but .* \[head=6, d_head=4\]"),
        ("blocks.1.attn.b_O", (1, 10), r"b_O has the shape \[1, 10\], but .* \[d_model=10\]"),
        ("pos_embed.W_pos", (8, 10), r"has the shape \[8, 10\], but .* \[n_ctx=9, d_model=10\]"),
        ("unembed.b_U", (), r"has the shape \[\], but .* \[d_vocab=13\]"),
        ("unembed.W_U", (10, 0), r"has the shape \[10, 0\], but .* \[d_model=10, d_vocab=13\]"),
    ],
)
def test_a_wrong_shape(tmp_path: Path, name: str, shape: tuple[int, ...], message: str):
    model = make_checkpoint(tmp_path, n_heads=6, n_kv_heads=2)
    write_checkpoint(tmp_path, model.config, {**model.arrays, name: np.ones(shape)})
    refused(tmp_path, message)


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("int64", "I64"), ("int8", "I8"), ("uint8", "U8"), ("bool", "BOOL"),
        ("complex64", "C64"), ("float8_e4m3fn", "F8_E4M3"),
    ],
)  # fmt: skip
def test_a_dtype_that_is_no_weight(tmp_path: Path, dtype: str, stored: str):
    model = make_checkpoint(tmp_path)
    bad = torch.ones(3, 10, 4).to(getattr(torch, dtype))
    write_checkpoint(tmp_path, model.config, {**model.arrays, "blocks.1.attn.W_Q": bad})
    refused(
        tmp_path, rf"blocks\.1\.attn\.W_Q is stored as {stored}, but weights must be F16, BF16,"
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("value", "kind"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")]
)
def test_weights_that_are_not_finite(tmp_path: Path, dtype: str, value: float, kind: str):
    model = make_checkpoint(tmp_path)
    model.arrays["blocks.1.attn.W_O"][1, 2, 7:9] = value
    write_checkpoint(tmp_path, model.config, model.arrays, dtype)
    refused(
        tmp_path,
        rf"blocks\.1\.attn\.W_O is {kind} at \[1, 2, 7\] \(head, d_head, d_model\), 2 of its 120 "
        r"values are not finite: the weights are damaged",
    )


def test_a_bias_that_is_not_finite(tmp_path: Path):
    model = make_checkpoint(tmp_path, biases=["b_U"])
    model.arrays["unembed.b_U"][12] = np.nan
    write_checkpoint(tmp_path, model.config, model.arrays)
    refused(tmp_path, r"unembed\.b_U is NaN at \[12\] \(d_vocab\), 1 of its 13 values")


def test_a_file_that_vanishes_while_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch):
    read = files.read_bytes

    def read_then_remove(path: Path, count: int, start: int = 0) -> bytes:
        data = read(path, count, start)
        if start:
            path.unlink()
        return data

    monkeypatch.setattr("otimes.bridge.loading.header.read_bytes", read_then_remove)
    refused(folder, r"model\.safetensors' cannot be mapped \(.*\): fetch a fresh copy")
