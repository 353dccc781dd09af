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
#: with those of MLPs and of norms (ln1.b, ln_final.b, …)
ALL_BIASES = (*BIASES, "b_in", "b_gate", "b_out", "b")


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
    d_mlp: int | None = None,
    gated: bool = False,
    norm: str | None = None,
    **later: Any,
) -> Checkpoint:
    """Write a random checkpoint and return what is in it.

    Args:
        biases: names out of ``ALL_BIASES``, which every layer then has, or tensor names such as
            ``blocks.1.attn.b_V``, which that layer alone has.
        dtype: the storage dtype; the returned arrays hold the rounded values.
        scale: the standard deviation of every weight and bias, and of a gain's distance from 1.
        attention_scale: by default 1 / sqrt(d_head).
        d_mlp: the neurons of each MLP; ``activation`` is then gelu where nothing else is said.
        gated: whether the MLPs are gated.
        norm: ``layer`` or ``rms``; ``eps`` is then 0.1, large enough to be seen.
        later: further fields of ``config.json``, as they stand there: ``norm_placement``,
            ``rotary``, ``parallel``, ``qk_norm``, ``windows``, ``tied``, …
    """
    rng = np.random.default_rng(seed)
    kv = n_heads if n_kv_heads is None else n_kv_heads
    config = {
        "format": "otimes", "version": 1, "n_layers": n_layers, "n_heads": n_heads,
        "n_kv_heads": kv, "d_model": d_model, "d_head": d_head, "d_mlp": d_mlp, "n_ctx": n_ctx,
        "d_vocab": d_vocab, "bos_token_id": bos_token_id, "positions": positions, "norm": norm,
        "activation": None if d_mlp is None else "gelu", "causal": causal,
        "attention_scale": 1 / math.sqrt(d_head) if attention_scale is None else attention_scale,
        "eps": None if norm is None else 0.1, "rotary": None, **later,
    }  # fmt: skip
    arrays = {
        name: (name in _gains(config)) + scale * rng.standard_normal(shape)
        for name, shape in tensor_shapes(config, gated=gated).items()
        if not _is_bias(name) or {name, name.rpartition(".")[2]} & set(biases)
    }
    return write_checkpoint(folder, config, arrays, dtype)


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2] in ALL_BIASES


def _gains(config: Mapping[str, Any]) -> set[str]:
    return {name for name in tensor_shapes(config) if name.endswith(".w")}


def tensor_shapes(config: Mapping[str, Any], gated: bool = False) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this config has or may have, by the format's description."""
    heads, kv, d_head = config["n_heads"], config["n_kv_heads"], config["d_head"]
    d_model, d_mlp, d_vocab = config["d_model"], config["d_mlp"], config["d_vocab"]
    norm, placement = config["norm"], config.get("norm_placement", "pre")

    def normed(name: str) -> dict[str, tuple[int, ...]]:
        return {f"{name}.w": (d_model,), f"{name}.b": (d_model,)}

    shapes: dict[str, tuple[int, ...]] = {"embed.W_E": (d_vocab, d_model)}
    if config["positions"] in ("learned", "shortformer"):
        shapes["pos_embed.W_pos"] = (config["n_ctx"], d_model)
    if config.get("n_token_types") is not None:
        shapes["type_embed.W_type"] = (config["n_token_types"], d_model)
    shapes |= normed("ln_embed") if config.get("embed_norm") else {}
    for layer in range(config["n_layers"]):
        at = f"blocks.{layer}.attn."
        shapes |= {
            at + "W_Q": (heads, d_model, d_head),
            at + "W_K": (kv, d_model, d_head),
            at + "W_V": (kv, d_model, d_head),
            at + "W_O": (heads, d_head, d_model),
            at + "b_Q": (heads, d_head),
            at + "b_K": (kv, d_head),
            at + "b_V": (kv, d_head),
            at + "b_O": (d_model,),
        }
        if config.get("qk_norm") is not None:
            every = config["qk_norm"] == "all"
            shapes[at + "q_norm.w"] = (heads, d_head) if every else (d_head,)
            shapes[at + "k_norm.w"] = (kv, d_head) if every else (d_head,)
        if d_mlp is not None:
            at = f"blocks.{layer}.mlp."
            shapes |= {at + "W_in": (d_model, d_mlp), at + "W_out": (d_mlp, d_model)}
            shapes |= {at + "b_in": (d_mlp,), at + "b_out": (d_model,)}
            shapes |= {at + "W_gate": (d_model, d_mlp), at + "b_gate": (d_mlp,)} if gated else {}
        for branch in () if norm is None else ("ln1", "ln2")[: 1 if d_mlp is None else 2]:
            own = branch == "ln1" or config.get("parallel") != "shared"
            shapes |= normed(f"blocks.{layer}.{branch}") if own and placement != "output" else {}
            if placement in ("sandwich", "output"):
                shapes |= normed(f"blocks.{layer}.{branch}_post")
    if config.get("final_norm", norm is not None and placement != "post"):
        shapes |= normed("ln_final")
    if not config.get("tied"):
        shapes["unembed.W_U"] = (d_model, d_vocab)
    return shapes | {"unembed.b_U": (d_vocab,)}


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
