"""The frozen model in rational arithmetic: every float is a fraction, so sums have no rounding.

The network is *defined by* the recorded patterns: the forward recursion and the sum over paths are
two ways to compute the same polynomial in the weights, and agree exactly. For one tiny sequence.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from tests.oracles.numpy_model import Arrays, Config, kv_head, position_ids
from tests.oracles.paths import Path, bias_in_head, bias_written, enumerate_paths

Matrix = list[list[Fraction]]


def exact(array: Any) -> Matrix:
    """A matrix, or a vector as one row, of floats as fractions."""
    rows = np.atleast_2d(np.asarray(array, dtype=np.float64))
    return [[Fraction(float(value)) for value in row] for row in rows]


def times(a: Matrix, b: Matrix) -> Matrix:
    assert len(a[0]) == len(b)
    columns = list(zip(*b, strict=True))
    return [
        [sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in columns]
        for row in a
    ]


def plus(a: Matrix, b: Matrix) -> Matrix:
    return [[x + y for x, y in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)]


def everywhere(vector: Any, length: int) -> Matrix:
    """The same vector at each of ``length`` positions."""
    return exact(vector) * length


def forward_logits(
    config: Config, w: Arrays, tokens: Any, patterns: Any, mask: Any = None
) -> Matrix:
    """The logits [pos][d_vocab] by the forward recursion at patterns [layer][head, dest, src]."""
    tokens = np.asarray(tokens)
    length = len(tokens)
    x = exact(w["embed.W_E"][tokens])
    if config["positions"] == "learned":
        x = plus(x, exact(w["pos_embed.W_pos"][_ids(tokens, mask)]))
    for layer in range(config["n_layers"]):
        at = f"blocks.{layer}.attn."
        after = x
        for h in range(config["n_heads"]):
            g = kv_head(config, h)
            v = times(x, exact(w[at + "W_V"][g]))
            if at + "b_V" in w:
                v = plus(v, everywhere(w[at + "b_V"][g], length))
            z = times(exact(patterns[layer][h]), v)
            after = plus(after, times(z, exact(w[at + "W_O"][h])))
        if at + "b_O" in w:
            after = plus(after, everywhere(w[at + "b_O"], length))
        x = after
    logits = times(x, exact(w["unembed.W_U"]))
    if "unembed.b_U" in w:
        logits = plus(logits, everywhere(w["unembed.b_U"], length))
    return logits


def path_logits(
    config: Config, w: Arrays, tokens: Any, patterns: Any, path: Path, mask: Any = None
) -> Matrix:
    """The logits [pos][d_vocab] of one path."""
    tokens = np.asarray(tokens)
    length = len(tokens)
    if path.source == "bias[unembed]":
        return everywhere(w["unembed.b_U"], length)
    heads = path.heads
    inside, written = bias_in_head(config, w, path), bias_written(w, path)
    if inside is not None:
        layer, h = heads[0]
        mixed = times(exact(patterns[layer][h]), everywhere(inside, length))
        x = times(mixed, exact(w[f"blocks.{layer}.attn.W_O"][h]))
        heads = heads[1:]
    elif written is not None:
        x = everywhere(written, length)
    elif path.source == "pos":
        x = exact(w["pos_embed.W_pos"][_ids(tokens, mask)])
    else:
        x = exact(w["embed.W_E"][tokens])
    for layer, h in heads:
        at = f"blocks.{layer}.attn."
        x = times(exact(patterns[layer][h]), x)
        x = times(times(x, exact(w[at + "W_V"][kv_head(config, h)])), exact(w[at + "W_O"][h]))
    return times(x, exact(w["unembed.W_U"]))


def sum_of_paths(config: Config, w: Arrays, tokens: Any, patterns: Any, mask: Any = None) -> Matrix:
    """The logits [pos][d_vocab] as the sum over all enumerated paths."""
    total = [[Fraction(0)] * config["d_vocab"] for _ in tokens]
    for path in enumerate_paths(config, w):
        total = plus(total, path_logits(config, w, tokens, patterns, path, mask))
    return total


def _ids(tokens: np.ndarray, mask: Any) -> np.ndarray:
    return position_ids(np.ones(len(tokens), bool) if mask is None else np.asarray(mask, bool))
