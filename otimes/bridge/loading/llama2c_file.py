"""llama2.c files (``.bin``): a header and float32 numbers, as its ``export.py`` writes them.

Version 0 has a header of seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size,
seq_len), with a negative vocab_size where the unembedding is not tied, and the tensors of a kind
for all layers together. Version 1 begins with ``ak42``, the version, the same seven and a byte that
is 1 for tied, padded to 256 bytes. Version 2 is quantised.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from otimes.bridge.loading.files import file_size, read_bytes, shown_path
from otimes.errors import CheckpointError, UnsupportedError

_MAGIC = 0x616B3432
_NAMES = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
_V1_HEADER = 256


def read_llama2c(file: Path) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Return the config, of ``model_type`` llama2c, and the tensors, memory-mapped.

    Raises:
        CheckpointError: the file is none of this kind, or of another length than it says.
        UnsupportedError: it is quantised.
    """
    where = shown_path(file)
    size = file_size(file, "give the .bin file of a llama2.c model")
    head = read_bytes(file, _V1_HEADER)
    if len(head) < 4 * len(_NAMES):
        raise CheckpointError(f"{where} is too short for a llama2.c file: fetch a fresh copy")
    newer = struct.unpack_from("<I", head)[0] == _MAGIC
    if newer:
        version = struct.unpack_from("<i", head, 4)[0]
        if version != 1:
            raise UnsupportedError(
                f"{where} is a llama2.c file of version {version}, whose linear layers are "
                "quantised: export the model as version 0 or 1"
            )
    found: dict[str, int] = dict(
        zip(_NAMES, struct.unpack_from("<7i", head, 8 if newer else 0), strict=True)
    )
    tied = head[8 + 4 * len(_NAMES)] == 1 if newer else found["vocab_size"] > 0
    found["vocab_size"] = abs(found["vocab_size"])
    if any(not 0 < value < 2**24 for value in found.values()) or found["dim"] % found["n_heads"]:
        raise CheckpointError(
            f"{where} is no llama2.c file: its header would say "
            f"{', '.join(f'{name} {value}' for name, value in found.items())}"
        )
    shapes = _shapes(found, newer=newer, tied=tied)
    start = _V1_HEADER if newer else 4 * len(_NAMES)
    count = sum(math.prod(shape) for _, shape in shapes)
    if size != start + 4 * count:
        raise CheckpointError(
            f"{where} is truncated or no llama2.c file: its header describes {start + 4 * count:,} "
            f"bytes, it has {size:,}: fetch a fresh copy"
        )
    numbers = torch.from_file(str(file), shared=False, size=size // 4, dtype=torch.float32)
    config: dict[str, object] = {
        "model_type": "llama2c",
        "hidden_size": found["dim"],
        "intermediate_size": found["hidden_dim"],
        "num_hidden_layers": found["n_layers"],
        "num_attention_heads": found["n_heads"],
        "num_key_value_heads": found["n_kv_heads"],
        "vocab_size": found["vocab_size"],
        "max_position_embeddings": found["seq_len"],
        "tie_word_embeddings": tied,
    }
    return config, _tensors(numbers[start // 4 :], shapes, found["n_layers"])


def _shapes(found: dict[str, int], *, newer: bool, tied: bool) -> list[tuple[str, tuple[int, ...]]]:
    """The tensors in the order of the file; ``{l}`` are those of all layers."""
    dim, hidden, layers = found["dim"], found["hidden_dim"], found["n_layers"]
    kv = found["n_kv_heads"] * (dim // found["n_heads"])
    at = "model.layers.{l}."
    norms = [
        (f"{at}input_layernorm.weight", (layers, dim)),
        (f"{at}post_attention_layernorm.weight", (layers, dim)),
        ("model.norm.weight", (dim,)),
    ]
    embed = ("model.embed_tokens.weight", (found["vocab_size"], dim))
    attention = [
        (f"{at}self_attn.{name}_proj.weight", (layers, out, dim))
        for name, out in (("q", dim), ("k", kv), ("v", kv), ("o", dim))
    ]
    mlp = [
        (f"{at}mlp.gate_proj.weight", (layers, hidden, dim)),
        (f"{at}mlp.down_proj.weight", (layers, dim, hidden)),
        (f"{at}mlp.up_proj.weight", (layers, hidden, dim)),
    ]
    unembed = [] if tied else [("lm_head.weight", (found["vocab_size"], dim))]
    if newer:
        return [*norms, embed, *attention, *mlp, *unembed]
    # the cosines and sines of the positions, which are computed anew
    angles = ("freqs", (found["seq_len"] * (dim // found["n_heads"]),))
    return [embed, norms[0], *attention, norms[1], *mlp, norms[2], angles, *unembed]


def _tensors(
    numbers: Tensor, shapes: list[tuple[str, tuple[int, ...]]], layers: int
) -> dict[str, Tensor]:
    state, start = dict[str, Tensor](), 0
    for name, shape in shapes:
        tensor = numbers[start : start + math.prod(shape)].view(shape)
        start += tensor.numel()
        if "{l}" in name:
            state |= {name.replace("{l}", str(layer)): tensor[layer] for layer in range(layers)}
        elif name != "freqs":
            state[name] = tensor
    return state
