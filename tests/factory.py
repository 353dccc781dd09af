"""Random native checkpoints for tests, written by nothing of otimes.

The default sizes are rectangular in every product (heads * d_head != d_model, d_vocab != d_model,
n_ctx different from all), so that a transposed or misplaced factor cannot go unseen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

BIASES = ("b_Q", "b_K", "b_V", "b_O", "b_U")


@dataclass(frozen=True)
class Checkpoint:
    """A folder, its config.json as an object, and its weights as they are stored, in float64."""

    path: Path
    config: dict[str, Any]
    arrays: dict[str, np.ndarray]


def bias_names(n_layers: int) -> list[str]:
    """The tensor names of all biases that a model may have."""
    return [
        *(f"blocks.{layer}.attn.{b}" for layer in range(n_layers) for b in BIASES[:-1]),
        "unembed.b_U",
    ]


def make_checkpoint(
    folder: Path,
    seed: int = 0,
    n_layers: int = 2,
    n_heads: int = 3,
    n_kv_heads: int | None = None,
    d_model: int = 10,
    d_head: int = 4,
    n_ctx: int = 9,
    d_vocab: int = 13,
    positions: str = "shortformer",
    biases: Collection[str] = (),
    causal: bool = True,
    dtype: str = "float64",
    scale: float = 0.5,
    attention_scale: float | None = None,
    bos_token_id: int | None = None,
) -> Checkpoint:
    """Write a random checkpoint and return what is in it.

    Args:
        biases: names out of ``BIASES``, which every layer then has, or tensor names such as
            ``blocks.1.attn.b_V``, which that layer alone has.
        dtype: the storage dtype; the returned arrays hold the rounded values.
        scale: the standard deviation of every weight and bias.
        attention_scale: by default 1 / sqrt(d_head).
    """
    rng = np.random.default_rng(seed)
    kv = n_heads if n_kv_heads is None else n_kv_heads
    config = {
        "format": "otimes", "version": 1, "n_layers": n_layers, "n_heads": n_heads,
        "n_kv_heads": kv, "d_model": d_model, "d_head": d_head, "d_mlp": None, "n_ctx": n_ctx,
        "d_vocab": d_vocab, "bos_token_id": bos_token_id, "positions": positions, "norm": None,
        "activation": None, "causal": causal,
        "attention_scale": 1 / math.sqrt(d_head) if attention_scale is None else attention_scale,
        "eps": None, "rotary": None,
    }  # fmt: skip
    shapes = {"embed.W_E": (d_vocab, d_model)}
    if positions != "none":
        shapes["pos_embed.W_pos"] = (n_ctx, d_model)
    for layer in range(n_layers):
        at = f"blocks.{layer}.attn."
        shapes |= {
            at + "W_Q": (n_heads, d_model, d_head),
            at + "W_K": (kv, d_model, d_head),
            at + "W_V": (kv, d_model, d_head),
            at + "W_O": (n_heads, d_head, d_model),
            at + "b_Q": (n_heads, d_head),
            at + "b_K": (kv, d_head),
            at + "b_V": (kv, d_head),
            at + "b_O": (d_model,),
        }
    shapes |= {"unembed.W_U": (d_model, d_vocab), "unembed.b_U": (d_vocab,)}
    arrays = {
        name: scale * rng.standard_normal(shape)
        for name, shape in shapes.items()
        if name not in bias_names(n_layers) or {name, name.rpartition(".")[2]} & set(biases)
    }
    return write_checkpoint(folder, config, arrays, dtype)


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], arrays: Mapping[str, Any], dtype: str = "float64"
) -> Checkpoint:
    """Write this config and these arrays, numpy ones in ``dtype``, torch tensors as they are."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: value if isinstance(value, torch.Tensor) else _stored(value, dtype)
        for name, value in arrays.items()
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    return Checkpoint(folder, dict(config), {n: t.double().numpy() for n, t in floats.items()})


def _stored(value: np.ndarray, dtype: str) -> torch.Tensor:
    # in C order: safetensors writes the memory as it lies
    return torch.from_numpy(np.array(value, order="C")).to(getattr(torch, dtype))


def in_short(value: object) -> str:
    """Name a parameter of a test by the start of it: some are megabytes long."""
    return ascii(value)[:40]
