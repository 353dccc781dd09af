"""Every pair of a query path and a key path of a native model's score, by brute force.

The paths to a head are all paths of the model that ends before its layer; what they write to the
stream is what they give to logits that an identity matrix reads. On top come the sources of one
side alone: shortformer positions, b_Q, b_K. Rotary positions turn each of them, ALiBi is a term.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracles.numpy_model import Arrays, Config, kv_head, position_ids
from tests.oracles.paths import enumerate_paths, path_logits
from tests.oracles.transformer import alibi_slopes, rotated


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
        row = weights["pos_embed.W_pos"][_position(tokens, mask, place)]
        found["pos"] = (row @ matrix, ())
    if f"blocks.{layer}.attn.b_{letter}" in weights:
        name = f"bias[{layer}.{index}.{letter.lower()}]"
        found[name] = (weights[f"blocks.{layer}.attn.b_{letter}"][own], ())
    rotary = config.get("rotary")
    rotary = rotary[layer] if isinstance(rotary, list) else rotary
    if rotary is not None:
        position = _position(tokens, mask, place)
        found = {
            text: (rotated(vector, position, rotary), heads)
            for text, (vector, heads) in found.items()
        }
    return found


def _position(tokens: Any, mask: Any, place: tuple[int, int]) -> int:
    """The position id of a place (sequence, position)."""
    real = np.ones(np.shape(tokens), bool) if mask is None else np.asarray(mask, bool)
    return int(position_ids(real[place[0]])[place[1]])


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
    found = {
        (a, b): (config["attention_scale"] * float(np.dot(q, k)), kind(on_q, on_k))
        for a, (q, on_q) in queries.items()
        for b, (k, on_k) in keys.items()
    }
    if config["positions"] == "alibi":
        slope = alibi_slopes(config["n_heads"])[head[1]]
        ids = [_position(tokens, mask, (batch, place)) for place in (query, key)]
        found["position", "position"] = (-slope * abs(ids[0] - ids[1]), "position")
    return found


def last(path: str) -> str:
    """The group of a path: its source where it has no head, else ``.. > `` its last head."""
    source, *heads = path.split(" > ")
    return f".. > {heads[-1]}" if heads else source
