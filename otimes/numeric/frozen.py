"""The frozen model as linear operators: integers and tensors, no symbols.

With the patterns of a recorded run held fixed, block ``l`` is the affine map

    F_l(x) = x + Σ_h A[h] (x W_V[g(h)] + b_V[g(h)]) W_O[h] + (what sources write after it: b_O)

on streams ``x [batch, pos, d_model]``, where ``g(h) = h // group`` is the KV head that query head
``h`` reads. A head alone is ``x -> A[h] x W_V W_O``, which is ``(A ⊗ W_OV) x``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Stream = Float[Tensor, "batch pos d_model"]


@dataclass(frozen=True)
class FrozenBlock:
    """The heads of one layer with their recorded patterns ``[batch, head, dest, src]``.

    ``W_V [kv_head, d_model, d_head]``, ``W_O [head, d_head, d_model]``, and ``b_V [kv_head,
    d_head]``, which is None where the model has none. ``b_O`` is not here: it is a source.
    """

    pattern: Float[Tensor, "batch head dest src"]
    W_V: Float[Tensor, "kv_head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    b_V: Float[Tensor, "kv_head d_head"] | None = None

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return self.W_O.shape[0]

    @property
    def group(self) -> int:
        """How many query heads share a KV head."""
        return self.heads // self.W_V.shape[0]

    def head(self, index: int, stream: Stream) -> Stream:
        """What head ``index`` writes when it reads ``stream``, without its value bias."""
        return self._move(index, stream @ self.W_V[index // self.group])

    def value_bias(self, index: int) -> Stream:
        """What the value bias of head ``index`` writes: ``(A 1) ⊗ W_O b_V``."""
        if self.b_V is None:
            raise ValueError("this block has no value bias")
        length = self.pattern.shape[-1]
        value = self.b_V[index // self.group].expand(1, length, -1)
        return self._move(index, value)

    def _move(self, index: int, value: Float[Tensor, "rows src d_head"]) -> Stream:
        # [batch, dest, src] x [batch, src, d_head] x [d_head, d_model]
        return torch.matmul(self.pattern[:, index], value) @ self.W_O[index]


@dataclass(frozen=True)
class FrozenSource:
    """What a source writes, and where.

    ``stream [batch or 1, pos or 1, d_model]`` is what it adds to the input of block ``entry``
    (the number of blocks: to what the unembedding reads). A value bias has its ``head`` (block,
    index) and no stream; the unembedding's bias has neither and adds ``b_U`` to the logits.
    """

    entry: int
    stream: Float[Tensor, "rows places d_model"] | None
    head: tuple[int, int] | None = None


@dataclass(frozen=True)
class FrozenModel:
    """All blocks, all sources and the unembedding ``W_U [d_model, d_vocab]``, ``b_U [d_vocab]``."""

    blocks: tuple[FrozenBlock, ...]
    sources: tuple[FrozenSource, ...]
    W_U: Float[Tensor, "d_model d_vocab"]
    b_U: Float[Tensor, " d_vocab"] | None
    batch: int
    length: int

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all its tensors."""
        return self.W_U.dtype

    def start(self, source: int) -> Stream | None:
        """The stream that ``source`` adds, in full shape; None for the unembedding's bias."""
        found = self.sources[source]
        if found.head is not None:
            layer, index = found.head
            return self.blocks[layer].value_bias(index)
        if found.stream is None:
            return None
        return found.stream.expand(self.batch, self.length, -1)

    def written(self, entry: int) -> Stream:
        """The sum of what is added to the stream before block ``entry`` by no head's product."""
        total = self.W_U.new_zeros(self.batch, self.length, self.W_U.shape[0])
        for number, source in enumerate(self.sources):
            if source.entry == entry and source.head is None:
                stream = self.start(number)
                total = total if stream is None else total + stream
        return total
