"""A native checkpoint of GPT-2's attention shape with random weights, for what takes a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.harness.shapes import Shape


def write_checkpoint(folder: Path, shape: Shape, *, seed: int = 0) -> Path:
    """Write float32 weights, 0.02 normal as GPT-2's own initialisation, and return the folder."""
    config = {
        "format": "otimes",
        "version": 1,
        "n_layers": shape.layers,
        "n_heads": shape.heads,
        "n_kv_heads": shape.heads,
        "d_model": shape.d_model,
        "d_head": shape.d_head,
        "d_mlp": None,
        "n_ctx": shape.length,
        "d_vocab": shape.d_vocab,
        "bos_token_id": None,
        "positions": "learned",
        "norm": None,
        "activation": None,
        "causal": True,
        "attention_scale": 1 / math.sqrt(shape.d_head),
        "eps": None,
        "rotary": None,
    }
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes: int) -> torch.Tensor:
        return 0.02 * torch.randn(*sizes, generator=generator)

    tensors = {
        "embed.W_E": draw(shape.d_vocab, shape.d_model),
        "pos_embed.W_pos": draw(shape.length, shape.d_model),
        "unembed.W_U": draw(shape.d_model, shape.d_vocab),
    }
    for layer in range(shape.layers):
        for name in ("W_Q", "W_K", "W_V"):
            tensors[f"blocks.{layer}.attn.{name}"] = draw(shape.heads, shape.d_model, shape.d_head)
        tensors[f"blocks.{layer}.attn.W_O"] = draw(shape.heads, shape.d_head, shape.d_model)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
