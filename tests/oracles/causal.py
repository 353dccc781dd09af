"""Interventions on the forward pass of a native model, in plain numpy.

A forward pass that goes on from a given stream before some layer is the forward pass of a smaller
model: the later layers, with an embedding matrix that holds the stream, position by position.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracles.numpy_model import Arrays, Config, forward, kv_head, position_ids, softmax


def continued(
    config: Config, weights: Arrays, stream: np.ndarray, layer: int, real: np.ndarray
) -> np.ndarray:
    """The logits ``[pos, d_vocab]`` of a model that goes on before ``layer`` with this stream."""
    rest = {
        **config,
        "n_layers": config["n_layers"] - layer,
        "positions": "shortformer" if config["positions"] == "shortformer" else "none",
    }
    later = {name: array for name, array in weights.items() if not name.startswith("blocks.")}
    for name, array in weights.items():
        if name.startswith("blocks."):
            _, number, part = name.split(".", 2)
            later[f"blocks.{int(number) - layer}.{part}"] = array
    later["embed.W_E"] = stream
    return forward(rest, later, [np.arange(len(stream))], [real]).logits[0]


def head(
    config: Config, w: Arrays, stream: np.ndarray, layer: int, index: int, real: np.ndarray
) -> np.ndarray:
    """What one head writes when it reads ``stream [pos, d_model]``, by definition."""
    at, g = f"blocks.{layer}.attn.", kv_head(config, index)
    added = np.zeros_like(stream)
    if config["positions"] == "shortformer":
        added = w["pos_embed.W_pos"][position_ids(real)]
    q = (stream + added) @ w[at + "W_Q"][index] + (w[at + "b_Q"][index] if at + "b_Q" in w else 0)
    k = (stream + added) @ w[at + "W_K"][g] + (w[at + "b_K"][g] if at + "b_K" in w else 0)
    v = stream @ w[at + "W_V"][g] + (w[at + "b_V"][g] if at + "b_V" in w else 0)
    out = np.zeros_like(stream)
    for dest in range(len(stream)):
        allowed = [
            src for src in range(len(stream))
            if real[src] and (src <= dest or not config.get("causal", True))
        ]  # fmt: skip
        if allowed:
            scores = np.array([config["attention_scale"] * q[dest] @ k[src] for src in allowed])
            out[dest] = softmax(scores) @ v[allowed] @ w[at + "W_O"][index]
    return out


def effect(
    config: Config, weights: Arrays, streams: Any, real: np.ndarray, layer: int,
    taken: np.ndarray, position: int, target: np.ndarray,
) -> float:  # fmt: skip
    """How much a target falls when ``taken`` is subtracted from the stream before ``layer``.

    ``streams[l] [pos, d_model]`` are those of the run, ``target [d_vocab]`` weights of logits.
    """
    whole = continued(config, weights, streams[layer], layer, real)
    less = continued(config, weights, streams[layer] - taken, layer, real)
    return float((whole - less)[position] @ target)


def arriving_effect(
    config: Config, weights: Arrays, streams: Any, real: np.ndarray, reader: tuple[int, int],
    prefix: np.ndarray, position: int, target: np.ndarray,
) -> float:  # fmt: skip
    """The same when ``prefix`` is subtracted from what one head reads: its output alone changes."""
    layer, index = reader
    old, new = (
        head(config, weights, x, layer, index, real)
        for x in (streams[layer], streams[layer] - prefix)
    )
    at = (position, target)
    return effect(config, weights, streams, real, layer + 1, old - new, *at)
