"""Every pair of a query path and a key path of a native model's score, by brute force.

The paths to a head are all paths of the model that ends before its layer; what they write to the
stream is what they give to logits that an identity matrix reads. On top come the sources of one
side alone: shortformer positions, b_Q, b_K.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracles.numpy_model import Arrays, Config, kv_head, position_ids
from tests.oracles.paths import enumerate_paths, path_logits


def streams(
    config: Config, weights: Arrays, tokens: Any, patterns: Any, layer: int, mask: Any = None
) -> dict[str, tuple[np.ndarray, tuple[Any, ...]]]:
    """What each path writes to the stream before a layer: ``[batch, pos, d_model]``, its heads."""
    before = {**config, "n_layers": layer, "d_vocab": config["d_model"]}
    reading = {name: array for name, array in weights.items() if not name.startswith("unembed.")}
    reading["unembed.W_U"] = np.eye(config["d_model"])
    return {
        path.text: (path_logits(before, reading, tokens, patterns, path, mask), path.heads)
        for path in enumerate_paths(before, reading)
    }


def side(
    config: Config, weights: Arrays, tokens: Any, patterns: Any, head: tuple[int, int],
    place: tuple[int, int], *, query: bool, mask: Any = None,
) -> dict[str, tuple[np.ndarray, tuple[Any, ...]]]:  # fmt: skip
    """The vector ``[d_head]`` of each path of one side at (sequence, position), and its heads."""
    layer, index = head
    own = index if query else kv_head(config, index)
    letter = "Q" if query else "K"
    matrix = weights[f"blocks.{layer}.attn.W_{letter}"][own]
    found = {
        text: (stream[place] @ matrix, heads)
        for text, (stream, heads) in streams(config, weights, tokens, patterns, layer, mask).items()
    }
    if config["positions"] == "shortformer":
        real = np.ones(np.shape(tokens), bool) if mask is None else np.asarray(mask, bool)
        ids = position_ids(real[place[0]])
        found["pos"] = (weights["pos_embed.W_pos"][ids[place[1]]] @ matrix, ())
    if f"blocks.{layer}.attn.b_{letter}" in weights:
        name = f"bias[{layer}.{index}.{letter.lower()}]"
        found[name] = (weights[f"blocks.{layer}.attn.b_{letter}"][own], ())
    return found


def kind(query_heads: Any, key_heads: Any) -> str:
    return {(0, 0): "direct", (1, 0): "q", (0, 1): "k", (1, 1): "qk"}[
        min(len(query_heads), 1), min(len(key_heads), 1)
    ]


def pairs(
    config: Config, weights: Arrays, tokens: Any, patterns: Any, head: tuple[int, int],
    query: int, key: int, batch: int = 0, mask: Any = None,
) -> dict[tuple[str, str], tuple[float, str]]:  # fmt: skip
    """The value and the kind of every pair of paths."""
    at = (config, weights, tokens, patterns, head)
    queries = side(*at, (batch, query), query=True, mask=mask)
    keys = side(*at, (batch, key), query=False, mask=mask)
    return {
        (a, b): (config["attention_scale"] * float(np.dot(q, k)), kind(on_q, on_k))
        for a, (q, on_q) in queries.items()
        for b, (k, on_k) in keys.items()
    }


def last(path: str) -> str:
    """The group of a path: its source where it has no head, else ``.. > `` its last head."""
    source, *heads = path.split(" > ")
    return f".. > {heads[-1]}" if heads else source
