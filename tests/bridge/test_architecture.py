"""The symbols of loaded models, and what can be done with those that cannot be frozen yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import otimes as ox
from otimes.algebra import Architecture
from otimes.errors import UnsupportedError
from tests.factory import ALL_BIASES, make_checkpoint
from tests.oracles import transformer

ROTARY = {"positions": "rotary", "rotary": {"theta": 1e4, "pairing": "half"}}
LLAMA = {"norm": "rms", "d_mlp": 7, "gated": True, "n_heads": 4, "n_kv_heads": 2, **ROTARY}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Llama": (LLAMA, {"norm": "rms", "kv_heads": 2, "positions": "rotary", "mlp": "source"}),
    "GPT-2, all biases": (
        {"norm": "layer", "d_mlp": 7, "positions": "learned", "biases": ALL_BIASES, "n_heads": 4},
        {"norm": "layer", "mlp": "source", "positions": "learned", "biases": True},
    ),
    "BERT": (
        {
            "norm": "layer", "norm_placement": "post", "embed_norm": True, "n_token_types": 2,
            "positions": "learned", "d_mlp": 7, "biases": ALL_BIASES, "n_heads": 4,
        },
        {
            "norm": "layer", "norm_placement": "post", "embed_norm": True, "token_types": True,
            "positions": "learned", "mlp": "source", "biases": True,
        },
    ),
    "GPT-J": (
        {"norm": "layer", "d_mlp": 7, "parallel": "shared", "n_heads": 4, "biases": ["b"]},
        {
            "norm": "layer", "mlp": "source", "parallel": "shared", "positions": "shortformer",
            "biases": {"b_ln1", "b_final"},
        },
    ),
    "Gemma": (
        LLAMA | {"norm_placement": "sandwich", "embed_multiplier": 3.0, "logits_softcap": 3.0},
        {
            "norm": "rms", "kv_heads": 2, "positions": "rotary", "mlp": "source",
            "norm_placement": "sandwich", "multipliers": {"embed"}, "softcaps": {"logits"},
        },
    ),
    "OLMo-2": (
        LLAMA | {"norm_placement": "output", "qk_norm": "all"},
        {
            "norm": "rms", "kv_heads": 2, "positions": "rotary", "mlp": "source",
            "norm_placement": "output", "qk_norm": "all",
        },
    ),
    "Gemma-3": (
        LLAMA | {
            "norm_placement": "sandwich", "qk_norm": "head", "attention_scale": 0.25,
            "rotary": [{"theta": 1e4, "pairing": "half"}, None], "attention_softcap": 2.0,
        },
        {
            "norm": "rms", "kv_heads": 2, "positions": "rotary", "mlp": "source",
            "norm_placement": "sandwich", "qk_norm": "head", "attention_scale": 0.25,
            "rotary_layers": [0], "softcaps": {"attention"},
        },
    ),
    "Granite": (
        LLAMA | {"embed_multiplier": 3.0, "residual_multiplier": 0.2, "logits_multiplier": 0.5},
        {
            "norm": "rms", "kv_heads": 2, "positions": "rotary", "mlp": "source",
            "multipliers": {"embed", "residual", "logits"},
        },
    ),
    "ALiBi, no final norm": (
        {"positions": "alibi", "norm": "layer", "final_norm": False, "n_heads": 4},
        {"positions": "alibi", "norm": "layer", "final_norm": False},
    ),
    "some biases": (
        {
            "norm": "layer", "d_mlp": 7, "positions": "none", "n_heads": 4,
            "biases": ["blocks.1.ln2.b", "blocks.0.mlp.b_in", "blocks.1.attn.b_V", "ln_final.b"],
        },
        {
            "norm": "layer", "mlp": "source",
            "biases": {"b_ln2[1]", "b_in[0]", "b_V[1]", "b_final"},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_symbols_are_those_of_the_model(tmp_path: Path, name: str):
    made, expected = MODELS[name]
    assert ox.load(make_checkpoint(tmp_path, **made).path).architecture == Architecture(
        2, 4, **expected
    )


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name][0].get("d_mlp")])
def test_frozen_neurons_are_components(tmp_path: Path, name: str):
    made, expected = MODELS[name]
    model = ox.load(make_checkpoint(tmp_path, **made).path, mlp="frozen")
    assert model.architecture == Architecture(2, 4, **expected | {"mlp": "frozen", "neurons": 7})
    assert str(model.architecture.logits.expand()["embed > 0.1 > mlp1.n6"].pattern).count("S[1.n6]")


def test_a_path_through_norms_prints_the_right_formula(tmp_path: Path):
    model = ox.load(make_checkpoint(tmp_path, n_layers=4, **LLAMA).path)
    term = model.architecture.logits.expand()["embed > 3.2"]
    assert str(term).endswith("A[3.2] D[3.ln1] ⊗ W_U Γ[final] W_OV[3.2] Γ[3.ln1] W_E")


def test_a_loaded_model_prints_its_formulas(tmp_path: Path):
    model = ox.load(make_checkpoint(tmp_path, n_layers=4, **LLAMA).path)
    assert "\nhead 3.3      = A[3.3] D[3.ln1] ⊗ W_OV[3.3] Γ[3.ln1]\n" in str(model.architecture)
    assert "W_Q[3.3]ᵀ R(j−i) W_K[3.kv1]" in str(model.architecture)


def test_without_mlps_the_mode_makes_no_difference(tmp_path: Path):
    folder = make_checkpoint(tmp_path).path
    assert ox.load(folder, mlp="frozen").architecture == ox.load(folder).architecture


def test_an_unknown_mode_is_refused(tmp_path: Path):
    with pytest.raises(UnsupportedError, match="unknown mlp 'linear': use source, where paths sta"):
        ox.load(make_checkpoint(tmp_path).path, mlp="linear")


def test_a_model_with_all_of_it_runs_and_verifies(tmp_path: Path):
    made = make_checkpoint(tmp_path, **MODELS["Gemma"][0])
    run = ox.load(made.path).run(tokens=[[3, 1, 4, 1, 5]])
    expected = transformer.forward(made.config, made.arrays, [[3, 1, 4, 1, 5]])
    np.testing.assert_allclose(run.logits.numpy(), expected["logits"], rtol=0, atol=1e-11)
    np.testing.assert_allclose(run.pattern(1).numpy(), expected["patterns"][1], rtol=0, atol=1e-11)
    certificate = ox.verify(run)
    assert certificate.holds, certificate.reasons


def test_a_tied_attention_only_model_verifies(tmp_path: Path):
    model = ox.load(make_checkpoint(tmp_path, tied=True, positions="learned").path)
    certificate = ox.verify(model.run(tokens=[[1, 2, 3, 4]]))
    assert certificate.holds, certificate.reasons
    assert torch.equal(model.weights.W_U, model.weights.W_E.T)
