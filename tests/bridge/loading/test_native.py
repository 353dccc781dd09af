"""Native checkpoints that load: the right values in the right places, mapped, audited."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from safetensors.torch import save_file

from otimes.bridge.loading import load_native
from otimes.bridge.loading.header import read_header
from tests.factory import BIASES, make_checkpoint, write_checkpoint
from tests.strategies import architectures


@settings(max_examples=50)
@given(architectures())
def test_what_was_written_is_read(architecture: dict):
    with tempfile.TemporaryDirectory() as folder:
        model = make_checkpoint(Path(folder), **architecture)

        loaded = load_native(folder)

        assert loaded.path == Path(folder)
        assert loaded.config.to_json() == model.config
        assert loaded.tokenizer.path is None
        assert len(loaded.weights.layers) == model.config["n_layers"]
        tensors = loaded.weights.tensors()
        assert tensors.keys() == model.arrays.keys()
        for name, tensor in tensors.items():
            assert tensor.dtype == getattr(torch, architecture["dtype"])
            assert not tensor.requires_grad
            assert tensor.double().numpy().tolist() == model.arrays[name].tolist()


def test_each_tensor_is_in_its_place(tmp_path: Path):
    model = make_checkpoint(tmp_path, n_heads=4, n_kv_heads=2, positions="learned", biases=BIASES)
    weights = load_native(str(tmp_path)).weights

    def same(tensor: torch.Tensor | None, name: str) -> None:
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), model.arrays[name], strict=True)

    same(weights.W_E, "embed.W_E")
    same(weights.W_pos, "pos_embed.W_pos")
    same(weights.W_U, "unembed.W_U")
    same(weights.b_U, "unembed.b_U")
    for index, layer in enumerate(weights.layers):
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"):
            same(getattr(layer, name), f"blocks.{index}.attn.{name}")


def test_a_bias_may_be_in_one_layer_alone_and_zero(tmp_path: Path):
    model = make_checkpoint(tmp_path, biases=["blocks.1.attn.b_V", "blocks.0.attn.b_O"])
    model.arrays["blocks.1.attn.b_V"] *= 0
    write_checkpoint(tmp_path, model.config, model.arrays)

    first, second = load_native(tmp_path).weights.layers

    assert (first.b_V, second.b_O, first.b_Q, second.b_K) == (None, None, None, None)
    assert first.b_O is not None
    assert second.b_V is not None
    assert not second.b_V.any()


def test_more_than_ten_layers_stay_in_order(tmp_path: Path):
    model = make_checkpoint(tmp_path, n_layers=13, n_heads=1)
    for index, layer in enumerate(load_native(tmp_path).weights.layers):
        assert layer.W_O.numpy().tolist() == model.arrays[f"blocks.{index}.attn.W_O"].tolist()


def test_no_layers(tmp_path: Path):
    make_checkpoint(tmp_path, n_layers=0, positions="none")
    assert load_native(tmp_path).weights.names() == ("embed.W_E", "unembed.W_U")


def test_dtypes_may_be_mixed(tmp_path: Path):
    model = make_checkpoint(tmp_path, n_layers=1)
    model.arrays["embed.W_E"] = torch.ones(13, 10, dtype=torch.bfloat16)  # type: ignore[assignment]
    write_checkpoint(tmp_path, model.config, model.arrays, "float32")

    weights = load_native(tmp_path).weights

    assert weights.dtypes == ("bfloat16", "float32")
    assert weights.to(torch.float64).dtypes == ("float64",)


def test_the_extremes_of_a_dtype_are_finite(tmp_path: Path):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        model = make_checkpoint(tmp_path, n_layers=0)
        extreme = torch.full((10, 13), torch.finfo(dtype).max, dtype=dtype)
        extreme[0, 0] = -extreme[0, 0]
        model.arrays["unembed.W_U"] = extreme  # type: ignore[assignment]
        write_checkpoint(tmp_path, model.config, model.arrays)
        assert torch.equal(load_native(tmp_path).weights.W_U, extreme)


def test_weights_are_views_of_one_mapping_of_the_file(tmp_path: Path):
    make_checkpoint(tmp_path, biases=BIASES)
    tensors = load_native(tmp_path).weights.tensors()
    header = read_header(tmp_path / "model.safetensors")

    # equal distances in memory and in the file: nothing was copied out
    starts = {tensor.data_ptr() - header[name].begin for name, tensor in tensors.items()}

    assert len(starts) == 1


def test_a_changed_tensor_does_not_reach_the_file(tmp_path: Path):
    make_checkpoint(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    load_native(tmp_path).weights.W_E.add_(1.0)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_loading_twice_gives_the_same_and_writes_nothing(tmp_path: Path):
    make_checkpoint(tmp_path, biases=BIASES)
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()}
    first, second = (load_native(tmp_path).weights.tensors() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()} == before


def test_tensors_that_the_model_does_not_have_are_named(tmp_path: Path):
    model = make_checkpoint(tmp_path, positions="none", biases=["b_V"])
    extra = {
        "pos_embed.W_pos": np.ones((9, 10)),
        "blocks.7.attn.W_Q": np.ones((3, 10, 4)),
        "blocks.2.attn.b_V": np.ones((3, 4)),
        "blocks.0.ln1.w": np.ones(10),
        "blocks.00.attn.b_O": np.ones(10),
        # values of unused tensors are not looked at: a mask holds infinities and booleans
        "blocks.0.attn.mask": torch.ones(2, 2, dtype=torch.bool),
        "blocks.0.attn.bias": np.full((2, 2), -np.inf),
        "empty": np.ones((0, 3)),
    }
    write_checkpoint(tmp_path, model.config, {**model.arrays, **extra})

    weights = load_native(tmp_path).weights

    assert weights.unused == tuple(sorted(extra))
    assert set(weights.names()) == set(model.arrays)
    assert set(weights.names()).isdisjoint(weights.unused)
    assert weights.to(torch.float32).unused == weights.unused


def test_metadata_of_the_file_is_no_tensor(tmp_path: Path):
    model = make_checkpoint(tmp_path)
    tensors = {name: torch.from_numpy(array) for name, array in model.arrays.items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt", "note": "ünï"})
    assert load_native(tmp_path).weights.unused == ()


def test_the_tokenizer_is_found_but_not_read(tmp_path: Path):
    make_checkpoint(tmp_path)
    (tmp_path / "tokenizer.json").write_text("not looked at", encoding="utf-8")
    assert load_native(tmp_path).tokenizer.path == tmp_path / "tokenizer.json"


def test_an_odd_header_length_gives_aligned_tensors(tmp_path: Path):
    model = make_checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    file.write_bytes(
        (length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" " + data[8 + length :]
    )

    tensors = load_native(tmp_path).weights.tensors()

    for name, tensor in tensors.items():
        assert tensor.data_ptr() % tensor.element_size() == 0
        assert tensor.numpy().tolist() == model.arrays[name].tolist()
