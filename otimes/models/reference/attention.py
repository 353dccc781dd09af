"""The attention heads of one layer of the reference module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from otimes.models.reference.layers import Norm, empty, like, plus
from otimes.models.reference.positions import alibi_slopes, rotate


@dataclass(frozen=True)
class Weighed:
    """How the heads of a layer weigh the positions.

    ``scores``, ``capped`` and ``pattern`` ``[batch, head, dest, src]``: scores before and after
    their cap; ``scales``: 1/σ of the norms ``q_norm [batch, head, pos]`` and ``k_norm [batch,
    kv_head, pos]`` where there are any.
    """

    scores: Tensor
    capped: Tensor
    pattern: Tensor
    scales: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True)
class Attended:
    """What the heads of a layer did: ``written [batch, pos, d_model]``, its bias added."""

    written: Tensor
    weighed: Weighed


class Attention(nn.Module):
    """The heads of one layer; ``biases`` names the bias tensors that exist."""

    def __init__(self, config: dict[str, Any], layer: int, biases: frozenset[str]) -> None:
        super().__init__()
        heads, kv_heads = config["n_heads"], config.get("n_kv_heads", config["n_heads"])
        d_model, d_head = config["d_model"], config["d_head"]
        self.W_Q = empty(heads, d_model, d_head)
        self.W_K = empty(kv_heads, d_model, d_head)
        self.W_V = empty(kv_heads, d_model, d_head)
        self.W_O = empty(heads, d_head, d_model)
        self.b_Q = empty(heads, d_head) if "b_Q" in biases else None
        self.b_K = empty(kv_heads, d_head) if "b_K" in biases else None
        self.b_V = empty(kv_heads, d_head) if "b_V" in biases else None
        self.b_O = empty(d_model) if "b_O" in biases else None
        self.q_norm = self._norm(config, heads)
        self.k_norm = self._norm(config, kv_heads)
        self.scale = float(config["attention_scale"])
        self.cap = config.get("attention_softcap")
        self.group = heads // kv_heads
        rotary, windows = config.get("rotary"), config.get("windows")
        self.rotary = rotary[layer] if isinstance(rotary, list) else rotary
        self.window = None if windows is None else windows[layer]
        self.slopes = alibi_slopes(heads) if config["positions"] == "alibi" else None

    @staticmethod
    def _norm(config: dict[str, Any], heads: int) -> Norm | None:
        kind, d_head = config.get("qk_norm"), config["d_head"]
        if kind is None:
            return None
        if kind == "head":
            return Norm(config["norm"], config["eps"], (d_head,))
        if kind == "all":
            # one mean over the heads of a token: axes of [batch, head, pos, d_head]
            return Norm(config["norm"], config["eps"], (heads, d_head), axes=(1, 3))
        raise NotImplementedError(f"this reference has no {kind!r} norms of queries and keys")

    def weigh(
        self, x: Tensor, position_vectors: Tensor | None, positions: Tensor, allowed: Tensor
    ) -> Weighed:
        """Compute the scores and the patterns alone.

        Args:
            x: what they read ``[batch, pos, d_model]``.
            position_vectors: added to what queries and keys read.
            positions: position ids ``[batch, pos]``.
            allowed: bool ``[batch, 1, dest, src]``, what may be attended to.
        """
        reads = x if position_vectors is None else x + position_vectors
        q = _each(reads, self.W_Q, self.b_Q)
        k = _each(reads, self.W_K, self.b_K)
        scales = dict[str, Tensor]()
        if self.q_norm is not None and self.k_norm is not None:
            q, scales["q_norm"] = _normed(self.q_norm, q)
            k, scales["k_norm"] = _normed(self.k_norm, k)
        if self.rotary is not None:
            q, k = (rotate(side, positions, self.rotary) for side in (q, k))
        k = k.repeat_interleave(self.group, dim=1)  # query head h reads KV head h // group
        scores = self.scale * torch.einsum("bhid,bhjd->bhij", q, k)
        if self.slopes is not None:
            distance = (positions[:, :, None] - positions[:, None, :]).abs()  # [batch, dest, src]
            slopes = self.slopes.to(scores.dtype)
            scores = scores - slopes[None, :, None, None] * distance[:, None]
        capped = scores if self.cap is None else self.cap * torch.tanh(scores / self.cap)
        if self.window is not None:
            allowed = allowed & within(scores.shape[-1], self.window)
        pattern = torch.softmax(capped.masked_fill(~allowed, -torch.inf), dim=-1)
        attends = allowed.any(-1, keepdim=True)
        if not attends.all():
            pattern = pattern.masked_fill(~attends, 0.0)
        return Weighed(scores, capped, pattern, scales)

    def forward(
        self, x: Tensor, position_vectors: Tensor | None, positions: Tensor, allowed: Tensor
    ) -> Attended:
        """Run the heads; the arguments are those of :meth:`weigh`."""
        weighed = self.weigh(x, position_vectors, positions, allowed)
        v = _each(x, self.W_V, self.b_V).repeat_interleave(self.group, dim=1)
        mixed = torch.einsum("bhij,bhjd->bhid", weighed.pattern, v)
        written = torch.einsum("bhid,hdm->bim", mixed, like(self.W_O, x))
        return Attended(plus(written, self.b_O), weighed)


def within(length: int, window: int) -> Tensor:
    """Which sources lie in the window of a destination: bool ``[dest, src]``."""
    slot = torch.arange(length)
    return (slot[:, None] - slot[None, :]).abs() < window


def _each(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x [batch, pos, d_model]`` through each head's matrix: ``[batch, head, pos, d_head]``."""
    found = torch.einsum("bpm,hmd->bhpd", x, like(weight, x))
    return plus(found, None if bias is None else bias[None, :, None, :])


def _normed(norm: Norm, x: Tensor) -> tuple[Tensor, Tensor]:
    """Queries or keys ``[batch, head, pos, d_head]`` normed, and 1/σ ``[batch, head, pos]``."""
    normed, scale = norm.scaled(x)
    gain = like(norm.w, x)
    gain = gain if gain.ndim == 1 else gain[None, :, None, :]
    return normed * gain, scale.squeeze(-1).expand(x.shape[:-1])
