"""Tensors of norms, MLPs, q and k norms, token types and tied unembeddings, in their places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from otimes.bridge.loading import MLPWeights, NormWeights, load_native
from otimes.bridge.loading.weights import norm_labels
from otimes.errors import CheckpointError
from tests.factory import ALL_BIASES, make_checkpoint, tensor_shapes, write_checkpoint

GATED = {"d_mlp": 7, "gated": True}
MODELS: dict[str, dict[str, Any]] = {
    "pre": {"norm": "layer", "d_mlp": 7},
    "attention alone": {"norm": "rms"},
    "post": {"norm": "layer", "norm_placement": "post", **GATED},
    "sandwich": {"norm": "rms", "norm_placement": "sandwich", **GATED},
    "output": {"norm": "rms", "norm_placement": "output", **GATED},
    "parallel": {"norm": "layer", "parallel": True, "d_mlp": 7},
    "one norm": {"norm": "layer", "parallel": "shared", "d_mlp": 7},
    "one norm, sandwich": {
        "norm": "rms", "parallel": "shared", "norm_placement": "sandwich", **GATED,
    },
    "no final norm": {"norm": "rms", "final_norm": False},
    "embed": {"norm": "layer", "embed_norm": True, "n_token_types": 3, "positions": "learned"},
    "q and k": {"norm": "rms", "qk_norm": "head", "n_heads": 8, "n_kv_heads": 2, "d_mlp": 7},
    "q and k, all heads": {"norm": "rms", "qk_norm": "all", "n_heads": 8, "n_kv_heads": 2},
    "tied": {"norm": "rms", "tied": True, **GATED},
    "MLPs without norms": {"d_mlp": 7},
    "rotary": {"positions": "rotary", "rotary": {"theta": 1e4, "pairing": "half"}},
    "alibi": {"positions": "alibi"},
}  # fmt: skip


@pytest.mark.parametrize("biases", [(), ALL_BIASES], ids=["plain", "biased"])
@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_of_the_file_is_in_its_place(
    tmp_path: Path, name: str, biases: tuple[str, ...]
):
    model = make_checkpoint(
        tmp_path, n_layers=13, biases=biases, **{"positions": "none"} | MODELS[name]
    )

    weights = load_native(tmp_path).weights

    tied = {"unembed.W_U": model.arrays["embed.W_E"].T} if "tied" in MODELS[name] else {}
    expected = model.arrays | tied
    tensors = weights.tensors()
    assert tensors.keys() == expected.keys()
    for tensor, value in tensors.items():
        np.testing.assert_array_equal(value.numpy(), expected[tensor], strict=True)
    assert weights.unused == ()


def test_the_parts_are_found_by_layer_and_label(tmp_path: Path):
    model = make_checkpoint(tmp_path, biases=ALL_BIASES, n_layers=12, **MODELS["sandwich"])
    weights = load_native(tmp_path).weights

    def same(tensor: torch.Tensor | None, name: str) -> None:
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), model.arrays[name], strict=True)

    for field in ("W_in", "W_gate", "W_out", "b_in", "b_gate", "b_out"):
        same(getattr(weights.mlps[11], field), f"blocks.11.mlp.{field}")
    for label, name in (("11.ln2_post", "blocks.11.ln2_post"), ("final", "ln_final")):
        same(weights.norms[label].w, f"{name}.w")
        same(weights.norms[label].b, f"{name}.b")


def test_without_them_there_are_none(tmp_path: Path):
    weights = load_native(make_checkpoint(tmp_path, tied=False).path).weights
    assert (weights.mlps, dict(weights.norms), weights.W_type) == ((), {}, None)
    assert weights.layers[0].q_norm is None
    assert weights.tied is False


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("pre", "0.ln1 0.ln2 1.ln1 1.ln2 final"),
        ("attention alone", "0.ln1 1.ln1 final"),
        ("post", "0.ln1 0.ln2 1.ln1 1.ln2"),
        ("output", "0.ln1_post 0.ln2_post 1.ln1_post 1.ln2_post final"),
        ("one norm", "0.ln1 1.ln1 final"),
        ("one norm, sandwich", "0.ln1 0.ln1_post 0.ln2_post 1.ln1 1.ln1_post 1.ln2_post final"),
        ("no final norm", "0.ln1 1.ln1"),
        ("embed", "embed 0.ln1 1.ln1 final"),
        ("MLPs without norms", ""),
    ],
)
def test_which_norms_a_model_has(tmp_path: Path, name: str, labels: str):
    model = load_native(make_checkpoint(tmp_path, **MODELS[name]).path)
    assert norm_labels(model.config) == list(model.weights.norms) == labels.split()


def test_a_tied_unembedding_shares_the_embeddings_memory(tmp_path: Path):
    weights = load_native(
        make_checkpoint(tmp_path, dtype="bfloat16", **MODELS["tied"]).path
    ).weights

    for one in (weights, weights.to(torch.float64), weights.to(torch.float64).to(torch.float32)):
        assert one.tied
        assert one.W_U.data_ptr() == one.W_E.data_ptr()
        assert one.W_U.shape == (10, 13)
        assert one.W_U.dtype == one.W_E.dtype
        assert one.names().count("unembed.W_U") == 1


def test_a_tied_models_own_unembedding_is_named_as_unused(tmp_path: Path):
    model = make_checkpoint(tmp_path, **MODELS["tied"])
    write_checkpoint(tmp_path, model.config, model.arrays | {"unembed.W_U": np.ones((10, 13))})
    weights = load_native(tmp_path).weights
    assert weights.unused == ("unembed.W_U",)
    assert weights.W_U.data_ptr() == weights.W_E.data_ptr()


@pytest.mark.parametrize("name", MODELS)
def test_conversion_keeps_every_tensor(tmp_path: Path, name: str):
    made = make_checkpoint(tmp_path, biases=ALL_BIASES, dtype="float16", **MODELS[name])
    weights = load_native(made.path).weights

    wide = weights.to(torch.float64)

    assert wide.names() == weights.names()
    assert (wide.dtypes, weights.dtypes) == (("float64",), ("float16",))
    assert wide.norms.keys() == weights.norms.keys()
    for tensor, value in weights.tensors().items():
        assert torch.equal(wide.tensors()[tensor], value.double())


@pytest.mark.parametrize("name", MODELS)
def test_each_missing_tensor_is_named(tmp_path: Path, name: str):
    model = make_checkpoint(tmp_path / "model", **{"positions": "none"} | MODELS[name])
    for tensor in model.arrays.keys() - {"blocks.0.mlp.W_gate", "blocks.1.mlp.W_gate"}:
        rest = {n: value for n, value in model.arrays.items() if n != tensor}
        write_checkpoint(tmp_path / "less", model.config, rest)
        with pytest.raises(CheckpointError, match=rf"lacks {tensor} \[.*: add the tensors or corr"):
            load_native(tmp_path / "less")


@pytest.mark.parametrize("name", ["pre", "sandwich", "embed", "q and k", "q and k, all heads"])
def test_each_wrong_shape_is_named_with_the_tensor(tmp_path: Path, name: str):
    model = make_checkpoint(tmp_path / "model", biases=ALL_BIASES, **MODELS[name])
    gated = bool(MODELS[name].get("gated"))
    for tensor, shape in tensor_shapes(model.config, gated=gated).items():
        wrong = {tensor: np.ones((*shape[:-1], shape[-1] + 1))}
        write_checkpoint(tmp_path / "bad", model.config, model.arrays | wrong)
        with pytest.raises(CheckpointError, match=rf"{tensor} has the shape \[.* asks for \["):
            load_native(tmp_path / "bad")


def test_gains_of_all_heads_are_not_taken_for_gains_of_one(tmp_path: Path):
    model = make_checkpoint(tmp_path, **MODELS["q and k, all heads"])
    write_checkpoint(tmp_path, model.config | {"qk_norm": "head"}, model.arrays)
    with pytest.raises(CheckpointError, match=r"k_norm\.w has the shape \[2, 4\]|q_norm\.w has"):
        load_native(tmp_path)


def test_a_gates_bias_without_its_gate_is_refused(tmp_path: Path):
    model = make_checkpoint(tmp_path, biases=ALL_BIASES, **GATED)
    del model.arrays["blocks.1.mlp.W_gate"]
    write_checkpoint(tmp_path, model.config, model.arrays)
    with pytest.raises(
        CheckpointError,
        match=r"has blocks\.1\.mlp\.b_gate and no blocks\.1\.mlp\.W_gate: add the gate's matrix",
    ):
        load_native(tmp_path)


def test_values_that_are_not_finite_are_found_everywhere(tmp_path: Path):
    model = make_checkpoint(tmp_path, biases=ALL_BIASES, **MODELS["sandwich"])
    for tensor in ("blocks.1.ln2_post.w", "blocks.0.mlp.b_gate", "ln_final.b"):
        bad = model.arrays[tensor].copy()
        bad[3] = np.nan
        write_checkpoint(tmp_path, model.config, model.arrays | {tensor: bad})
        with pytest.raises(CheckpointError, match=rf"{tensor} is NaN at \[3\] \(d_"):
            load_native(tmp_path)


def test_tensors_of_what_the_config_leaves_out_are_unused(tmp_path: Path):
    model = make_checkpoint(tmp_path, **MODELS["pre"])
    plain = model.config | {"norm": None, "d_mlp": None, "activation": None, "eps": None}
    write_checkpoint(tmp_path, plain, model.arrays)
    weights = load_native(tmp_path).weights
    assert set(weights.unused) == {n for n in model.arrays if ".mlp." in n or "ln" in n}


@pytest.mark.parametrize(
    ("part", "change"),
    [
        (MLPWeights(W_in=torch.zeros(5, 3), W_out=torch.zeros(3, 5)), {"W_out": torch.zeros(5, 3)}),
        (
            MLPWeights(W_in=torch.zeros(5, 3), W_out=torch.zeros(3, 5)),
            {"W_gate": torch.zeros(3, 5)},
        ),
        (NormWeights(w=torch.zeros(5)), {"b": torch.zeros(1, 5)}),
        (NormWeights(w=torch.zeros(5)), {"b": torch.zeros(5, dtype=torch.int64)}),
    ],
)
def test_shapes_are_enforced_while_tests_run(part: Any, change: dict[str, torch.Tensor]):
    with pytest.raises(TypeCheckError, match=next(iter(change))):
        replace(part, **change)
