"""The forward pass of a native attention-only model by definition, in plain numpy with loops.

``config`` is the object of ``config.json``; ``weights`` are float64 arrays by tensor name, a bias
being there or not. For the stream ``x [pos, d_model]`` of one sequence, head ``h`` and its KV head
``g``::

    q = (x + p) W_Q[h] + b_Q[h],  k = (x + p) W_K[g] + b_K[g],  v = x W_V[g] + b_V[g]
    score[dest, src] = attention_scale * q[dest] . k[src]
    pattern[dest] = softmax of score[dest] over the src it may attend to, 0 if there is none
    x <- x + sum over h of pattern v W_O[h], + b_O

``p`` are the position vectors for shortformer positions and 0 otherwise; learned positions are
added to the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Config = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Forward:
    """What one forward pass did.

    ``logits [batch, pos, d_vocab]``; per layer ``scores``, ``patterns [batch, head, dest, src]``;
    ``streams[l] [batch, pos, d_model]`` before block l, the last one after all blocks;
    ``positions [batch, pos]`` are the position ids.
    """

    logits: np.ndarray
    scores: tuple[np.ndarray, ...]
    patterns: tuple[np.ndarray, ...]
    streams: tuple[np.ndarray, ...]
    positions: np.ndarray


def kv_heads(config: Config) -> int:
    return config.get("n_kv_heads", config["n_heads"])


def kv_head(config: Config, head: int) -> int:
    """The KV head that a query head reads: consecutive query heads share one."""
    return head // (config["n_heads"] // kv_heads(config))


def position_ids(real: np.ndarray) -> np.ndarray:
    """Count the real tokens of one sequence from 0; padding before them gets 0."""
    ids, count = [], 0
    for is_real in real:
        count += int(is_real)
        ids.append(max(count - 1, 0))
    return np.array(ids, dtype=int)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def forward(config: Config, weights: Arrays, tokens: Any, mask: Any = None) -> Forward:
    """Run ``tokens [batch, pos]``; ``mask`` is False at padding, to which nothing attends."""
    tokens = np.asarray(tokens)
    mask = np.ones(tokens.shape, bool) if mask is None else np.asarray(mask, bool)
    each = [_sequence(config, weights, *item) for item in zip(tokens, mask, strict=True)]

    def stacked(name: str) -> tuple[np.ndarray, ...]:
        return tuple(np.stack(layer) for layer in zip(*(s[name] for s in each), strict=True))

    return Forward(
        np.stack([s["logits"] for s in each]),
        stacked("scores"),
        stacked("patterns"),
        stacked("streams"),
        np.stack([s["positions"] for s in each]),
    )


def _sequence(config: Config, w: Arrays, tokens: np.ndarray, real: np.ndarray) -> dict[str, Any]:
    length = len(tokens)
    ids = position_ids(real)
    x = w["embed.W_E"][tokens]
    added = np.zeros_like(x)  # what queries and keys see on top of the stream
    if config["positions"] == "learned":
        x = x + w["pos_embed.W_pos"][ids]
    elif config["positions"] == "shortformer":
        added = w["pos_embed.W_pos"][ids]
    else:
        assert config["positions"] == "none"

    streams, all_scores, all_patterns = [x], [], []
    for layer in range(config["n_layers"]):
        at = f"blocks.{layer}.attn."
        scores = np.zeros((config["n_heads"], length, length))
        patterns = np.zeros((config["n_heads"], length, length))
        written = np.zeros_like(x)
        for h in range(config["n_heads"]):
            g = kv_head(config, h)
            q = (x + added) @ w[at + "W_Q"][h]
            k = (x + added) @ w[at + "W_K"][g]
            v = x @ w[at + "W_V"][g]
            q = q + w[at + "b_Q"][h] if at + "b_Q" in w else q
            k = k + w[at + "b_K"][g] if at + "b_K" in w else k
            v = v + w[at + "b_V"][g] if at + "b_V" in w else v
            for dest in range(length):
                allowed = [
                    src
                    for src in range(length)
                    if real[src] and (src <= dest or not _causal(config))
                ]
                for src in range(length):
                    scores[h, dest, src] = config["attention_scale"] * np.dot(q[dest], k[src])
                if allowed:
                    patterns[h, dest, allowed] = softmax(scores[h, dest, allowed])
            written = written + patterns[h] @ v @ w[at + "W_O"][h]
        x = x + written
        x = x + w[at + "b_O"] if at + "b_O" in w else x
        streams.append(x)
        all_scores.append(scores)
        all_patterns.append(patterns)

    logits = x @ w["unembed.W_U"]
    logits = logits + w["unembed.b_U"] if "unembed.b_U" in w else logits
    return {
        "logits": logits,
        "scores": all_scores,
        "patterns": all_patterns,
        "streams": streams,
        "positions": ids,
    }


def _causal(config: Config) -> bool:
    return config.get("causal", True)
