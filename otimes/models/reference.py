"""A native checkpoint as a plain torch module: the outside judge of everything otimes computes.

Written by the definition, head by head as in "A Mathematical Framework for Transformer Circuits"
(Elhage et al. 2021), and importing nothing else of otimes: the logits, patterns and scores that a
run is judged against come from here, and this module also trained the checkpoints that ship.

For a stream ``x [batch, pos, d_model]`` and head ``h`` that reads the KV head ``g(h)``::

    q = (x + p) W_Q[h] + b_Q[h]        p: the positions, for shortformer positions only, else 0
    k = (x + p) W_K[g] + b_K[g]
    v = x W_V[g] + b_V[g]
    scores[dest, src] = attention_scale * q[dest] . k[src]
    pattern = softmax over the allowed src          (a row with no allowed src is 0)
    x <- x + sum_h pattern[h] v W_O[h] + b_O
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn


@dataclass(frozen=True)
class Recording:
    """What one forward pass did.

    Shapes: ``logits [batch, pos, d_vocab]``; for each layer ``scores`` and ``patterns``
    ``[batch, head, dest, src]`` (scores before the mask and the softmax, attention scale applied);
    ``streams[l] [batch, pos, d_model]`` is the input of block ``l`` and the last one is what the
    unembedding reads; ``positions [batch, pos]`` are the position ids.
    """

    logits: Tensor
    scores: tuple[Tensor, ...]
    patterns: tuple[Tensor, ...]
    streams: tuple[Tensor, ...]
    positions: Tensor


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape))


class Embed(nn.Module):
    """``W_E [d_vocab, d_model]``."""

    def __init__(self, d_vocab: int, d_model: int) -> None:
        super().__init__()
        self.W_E = _empty(d_vocab, d_model)


class PositionEmbed(nn.Module):
    """``W_pos [n_ctx, d_model]``."""

    def __init__(self, n_ctx: int, d_model: int) -> None:
        super().__init__()
        self.W_pos = _empty(n_ctx, d_model)


class Unembed(nn.Module):
    """``W_U [d_model, d_vocab]`` and, where it exists, ``b_U [d_vocab]``."""

    def __init__(self, d_model: int, d_vocab: int, bias: bool) -> None:
        super().__init__()
        self.W_U = _empty(d_model, d_vocab)
        self.b_U = _empty(d_vocab) if bias else None


class Attention(nn.Module):
    """The heads of one layer; ``biases`` names the bias tensors that exist."""

    def __init__(self, config: dict[str, Any], biases: frozenset[str]) -> None:
        super().__init__()
        heads, kv_heads = config["n_heads"], config.get("n_kv_heads", config["n_heads"])
        d_model, d_head = config["d_model"], config["d_head"]
        self.W_Q = _empty(heads, d_model, d_head)
        self.W_K = _empty(kv_heads, d_model, d_head)
        self.W_V = _empty(kv_heads, d_model, d_head)
        self.W_O = _empty(heads, d_head, d_model)
        self.b_Q = _empty(heads, d_head) if "b_Q" in biases else None
        self.b_K = _empty(kv_heads, d_head) if "b_K" in biases else None
        self.b_V = _empty(kv_heads, d_head) if "b_V" in biases else None
        self.b_O = _empty(d_model) if "b_O" in biases else None
        self.scale = float(config["attention_scale"])
        self.group = heads // kv_heads

    def forward(
        self, x: Tensor, position_vectors: Tensor | None, allowed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the layer adds to the stream, its scores and its patterns."""
        reads = x if position_vectors is None else x + position_vectors
        q = torch.einsum("bpm,hmd->bhpd", reads, self.W_Q)
        k = torch.einsum("bpm,gmd->bgpd", reads, self.W_K)
        v = torch.einsum("bpm,gmd->bgpd", x, self.W_V)
        q = q if self.b_Q is None else q + self.b_Q[None, :, None, :]
        k = k if self.b_K is None else k + self.b_K[None, :, None, :]
        v = v if self.b_V is None else v + self.b_V[None, :, None, :]
        k = k.repeat_interleave(self.group, dim=1)  # query head h reads KV head h // group
        v = v.repeat_interleave(self.group, dim=1)
        scores = self.scale * torch.einsum("bhid,bhjd->bhij", q, k)
        pattern = torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1)
        attends = allowed.any(-1, keepdim=True)
        if not attends.all():
            pattern = pattern.masked_fill(~attends, 0.0)
        mixed = torch.einsum("bhij,bhjd->bhid", pattern, v)
        written = torch.einsum("bhid,hdm->bim", mixed, self.W_O)
        return written if self.b_O is None else written + self.b_O, scores, pattern


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: dict[str, Any], biases: frozenset[str]) -> None:
        super().__init__()
        self.attn = Attention(config, biases)


class Reference(nn.Module):
    """The transformer that a native checkpoint's ``config.json`` describes.

    The names in its ``state_dict`` are the tensor names of the format. ``tensors`` are the names
    of the optional tensors (biases) that exist, for example ``{"blocks.0.attn.b_V"}``.
    """

    def __init__(self, config: dict[str, Any], tensors: frozenset[str] = frozenset()) -> None:
        super().__init__()
        if config.get("norm") is not None or config.get("d_mlp") is not None:
            raise NotImplementedError("this reference is for attention-only models without norms")
        if config["positions"] not in ("none", "learned", "shortformer"):
            raise NotImplementedError(f"this reference has no {config['positions']!r} positions")
        self.config = dict(config)
        self.embed = Embed(config["d_vocab"], config["d_model"])
        if config["positions"] != "none":
            self.pos_embed = PositionEmbed(config["n_ctx"], config["d_model"])
        self.blocks = nn.ModuleList(
            Block(
                config,
                frozenset(
                    bias
                    for bias in ("b_Q", "b_K", "b_V", "b_O")
                    if f"blocks.{layer}.attn.{bias}" in tensors
                ),
            )
            for layer in range(config["n_layers"])
        )
        self.unembed = Unembed(config["d_model"], config["d_vocab"], "unembed.b_U" in tensors)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Recording:
        """Run the model.

        Args:
            tokens: ids ``[batch, pos]``.
            mask: bool ``[batch, pos]``, False at padding (left or right); None is all True.
                Position ids count the real tokens alone, and padding is never attended to.
        """
        real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
        positions = (real.cumsum(-1) - 1).clamp(min=0)
        length = tokens.shape[1]
        allowed = real[:, None, None, :].expand(-1, 1, length, -1)  # [batch, 1, dest, src]
        if self.config.get("causal", True):
            allowed = allowed & torch.ones(length, length, dtype=torch.bool).tril()
        x = self.embed.W_E[tokens]
        shortformer = None
        if self.config["positions"] == "learned":
            x = x + self.pos_embed.W_pos[positions]
        elif self.config["positions"] == "shortformer":
            shortformer = self.pos_embed.W_pos[positions]
        streams, all_scores, all_patterns = [x], list[Tensor](), list[Tensor]()
        for block in self.blocks:
            assert isinstance(block, Block)
            written, scores, pattern = block.attn(x, shortformer, allowed)
            x = x + written
            streams.append(x)
            all_scores.append(scores)
            all_patterns.append(pattern)
        logits = x @ self.unembed.W_U
        logits = logits if self.unembed.b_U is None else logits + self.unembed.b_U
        return Recording(logits, tuple(all_scores), tuple(all_patterns), tuple(streams), positions)


def load(folder: str | Path, dtype: torch.dtype = torch.float64) -> Reference:
    """Read a native checkpoint: ``config.json`` and ``model.safetensors``, as ``dtype``."""
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    state = load_file(folder / "model.safetensors")
    # in dtype before the weights come in: parameters start as float32, which rounds float64 weights
    model = Reference(config, frozenset(state)).to(dtype)
    known = model.state_dict().keys()  # a file may hold tensors that the model does not have
    model.load_state_dict({name: tensor for name, tensor in state.items() if name in known})
    return model.requires_grad_(False).eval()
