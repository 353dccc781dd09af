"""All paths of an attention-only model by brute-force recursion, and the logits of one of them.

A path is a source and the heads that it runs through, in later and later layers. Sources:

================= ============= =====================================================
``embed``         always        the token embedding, enters before block 0
``pos``           learned only  the position vectors, enter before block 0
``bias[l.attn]``  b_O           of layer l, written directly, enters after block l
``bias[l.h]``     b_V           added inside head l.h, with which its paths begin: A 1 b_V W_O
``bias[unembed]`` b_U           added to the logits, no head reads it
================= ============= =====================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.oracles.numpy_model import Arrays, Config, kv_head, position_ids

Head = tuple[int, int]


class Path(NamedTuple):
    """A source's name and the (layer, head) pairs, earliest first."""

    source: str
    heads: tuple[Head, ...] = ()

    @property
    def text(self) -> str:
        """As it is written: ``pos > 0.1 > 1.0``; a source alone is its direct path."""
        return " > ".join([self.source, *(f"{layer}.{head}" for layer, head in self.heads)])

    @property
    def words(self) -> str:
        """The heads alone: ``0.1 > 1.0``, or ``direct``."""
        return " > ".join(f"{layer}.{head}" for layer, head in self.heads) or "direct"


def head_words(config: Config, first_layer: int) -> Iterator[tuple[Head, ...]]:
    """Yield every way through the blocks from ``first_layer`` on: skip a block or take one head."""
    if first_layer >= config["n_layers"]:
        yield ()
        return
    for rest in head_words(config, first_layer + 1):
        yield rest
        for head in range(config["n_heads"]):
            yield ((first_layer, head), *rest)


def enumerate_paths(config: Config, weights: Arrays) -> list[Path]:
    """Every (source, heads) pair of the model, each exactly once."""
    paths = [Path("embed", word) for word in head_words(config, 0)]
    if config["positions"] == "learned":
        paths += [Path("pos", word) for word in head_words(config, 0)]
    for layer in range(config["n_layers"]):
        if f"blocks.{layer}.attn.b_O" in weights:
            paths += [Path(f"bias[{layer}.attn]", word) for word in head_words(config, layer + 1)]
        if f"blocks.{layer}.attn.b_V" in weights:
            for head in range(config["n_heads"]):
                paths += [
                    Path(f"bias[{layer}.{head}]", ((layer, head), *word))
                    for word in head_words(config, layer + 1)
                ]
    if "unembed.b_U" in weights:
        paths.append(Path("bias[unembed]"))
    return paths


def bias_in_head(config: Config, weights: Arrays, path: Path) -> np.ndarray | None:
    """The b_V [d_head] that a ``bias[l.h]`` path carries into its first head, else None."""
    if path.source.startswith("bias[") and path.source != "bias[unembed]":
        layer, _, head = path.source[len("bias[") : -1].partition(".")
        if head != "attn":
            assert path.heads[0] == (int(layer), int(head))
            return weights[f"blocks.{layer}.attn.b_V"][kv_head(config, int(head))]
    return None


def bias_written(weights: Arrays, path: Path) -> np.ndarray | None:
    """The b_O [d_model] that a ``bias[l.attn]`` path starts with, else None."""
    if path.source.endswith(".attn]"):
        layer = path.source[len("bias[") : -len(".attn]")]
        return weights[f"blocks.{layer}.attn.b_O"]
    return None


def _real(tokens: np.ndarray, mask: Any) -> np.ndarray:
    return np.ones(tokens.shape, bool) if mask is None else np.asarray(mask, bool)


def path_logits(
    config: Config, weights: Arrays, tokens: Any, patterns: Any, path: Path, mask: Any = None
) -> np.ndarray:
    """The logits [batch, pos, d_vocab] that one path contributes, at the given patterns.

    ``patterns`` holds ``[batch, head, dest, src]`` for each layer.
    """
    tokens = np.asarray(tokens)
    real = _real(tokens, mask)
    result = np.zeros((*tokens.shape, config["d_vocab"]))
    for b in range(len(tokens)):
        a = [layer[b] for layer in patterns]
        result[b] = _one(config, weights, tokens[b], real[b], a, path)
    return result


def _one(
    config: Config, w: Arrays, tokens: np.ndarray, real: np.ndarray, patterns: Any, path: Path
) -> np.ndarray:
    ones = np.ones((len(tokens), 1))
    if path.source == "bias[unembed]":
        return ones * w["unembed.b_U"]
    heads = path.heads
    inside, written = bias_in_head(config, w, path), bias_written(w, path)
    if inside is not None:
        layer, h = heads[0]
        x = patterns[layer][h] @ (ones * inside) @ w[f"blocks.{layer}.attn.W_O"][h]
        heads = heads[1:]
    elif written is not None:
        x = ones * written
    elif path.source == "pos":
        x = w["pos_embed.W_pos"][position_ids(real)]
    else:
        assert path.source == "embed"
        x = w["embed.W_E"][tokens]
    for layer, h in heads:
        at = f"blocks.{layer}.attn."
        x = patterns[layer][h] @ x @ w[at + "W_V"][kv_head(config, h)] @ w[at + "W_O"][h]
    return x @ w["unembed.W_U"]


def kron_path_logits(
    config: Config, weights: Arrays, tokens: Any, patterns: Any, path: Path, mask: Any = None
) -> np.ndarray:
    """The same as one dense matrix on the row-major flattening, for one tiny sequence.

    ``(A (x) W) X = A X W^T`` for ``X [pos, n]`` is the matrix ``kron(A, W)`` on ``X.reshape(-1)``.
    Column convention: ``W_OV = W_O W_V`` with ``W_O = weights["W_O"][h].T [d_model, d_head]``.

    Args:
        tokens: [pos].
        patterns: for each layer [head, dest, src].
        mask: [pos].

    Returns:
        [pos, d_vocab].
    """
    tokens = np.asarray(tokens)
    length = len(tokens)
    here = np.eye(length)
    if path.source == "bias[unembed]":
        return np.kron(np.ones((length, 1)), weights["unembed.b_U"][:, None]).reshape(length, -1)
    heads = path.heads
    inside, written = bias_in_head(config, weights, path), bias_written(weights, path)
    if inside is not None:
        layer, h = heads[0]
        vector = np.kron(np.ones(length), inside)
        w_o = weights[f"blocks.{layer}.attn.W_O"][h].T
        vector = np.kron(patterns[layer][h], w_o) @ vector
        heads = heads[1:]
    elif written is not None:
        vector = np.kron(np.ones(length), written)
    elif path.source == "pos":
        chosen = np.eye(config["n_ctx"])[position_ids(_real(tokens, mask))]
        vector = np.kron(here, weights["pos_embed.W_pos"].T) @ chosen.reshape(-1)
    else:
        assert path.source == "embed"
        one_hot = np.eye(config["d_vocab"])[tokens]
        vector = np.kron(here, weights["embed.W_E"].T) @ one_hot.reshape(-1)
    for layer, h in heads:
        at = f"blocks.{layer}.attn."
        w_ov = weights[at + "W_O"][h].T @ weights[at + "W_V"][kv_head(config, h)].T
        vector = np.kron(patterns[layer][h], w_ov) @ vector
    return (np.kron(here, weights["unembed.W_U"].T) @ vector).reshape(length, -1)
