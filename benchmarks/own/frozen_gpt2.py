"""A frozen model of GPT-2's shape with random weights and patterns, and the plain frozen pass.

Nothing is trained: what kernels cost does not depend on the values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.harness.shapes import Shape
from otimes.numeric.frozen import FrozenBlock, FrozenHeads, FrozenModel, FrozenSource


def frozen_model(
    shape: Shape, dtype: torch.dtype, *, biases: bool = False, seed: int = 0
) -> FrozenModel:
    """One source ``embed`` and causal softmax patterns; with biases a source for each of them."""
    draw = _Draw(seed, dtype)
    heads, d_model, d_head = shape.heads, shape.d_model, shape.d_head
    causal = torch.full((shape.length, shape.length), -torch.inf, dtype=dtype).triu(1)
    blocks, sources = list[FrozenBlock](), [FrozenSource.of(0, draw(1, shape.length, d_model))]
    for layer in range(shape.layers):
        scores = draw(1, heads, shape.length, shape.length)
        heads_of_block = FrozenHeads(
            pattern=(scores + causal).softmax(-1),
            W_V=draw(heads, d_model, d_head, scale=d_model**-0.5),
            W_O=draw(heads, d_head, d_model, scale=(heads * d_head) ** -0.5),
            b_V=draw(heads, d_head) if biases else None,
        )
        blocks.append(FrozenBlock(heads_of_block))
        if biases:
            sources += [FrozenSource(layer + 1, component=(layer, head)) for head in range(heads)]
            sources.append(FrozenSource.of(layer + 1, draw(1, 1, d_model)))
    return FrozenModel(
        blocks=tuple(blocks),
        sources=tuple(sources),
        W_U=draw(d_model, shape.d_vocab, scale=d_model**-0.5),
        b_U=None,
        batch=1,
        length=shape.length,
    )


class FrozenPass:
    """One stream through all attention blocks: plain matrix products, all heads of a layer at once.

    The reference time of what is compared with *frozen passes*. It has no unembedding and no
    biases.
    """

    def __init__(self, model: FrozenModel) -> None:
        self.stream = model.written(0)
        # all heads side by side: [d_model, head * d_head] and [head * d_head, d_model]
        self.layers = [
            (
                heads.pattern,
                heads.W_V.transpose(0, 1).flatten(1).contiguous(),
                heads.W_O.flatten(0, 1).contiguous(),
            )
            for heads in (block.attention for block in model.blocks)
            if heads is not None
        ]

    def __call__(self) -> Tensor:
        """Return the stream ``[batch, pos, d_model]`` that the unembedding would read."""
        stream = self.stream
        for pattern, W_V, W_O in self.layers:
            heads = pattern.shape[1]
            # [batch, pos, head * d_head] -> [batch, head, pos, d_head]
            value = (stream @ W_V).unflatten(-1, (heads, -1)).transpose(1, 2)
            moved = (pattern @ value).transpose(1, 2).flatten(-2)
            stream = stream + moved @ W_O
        return stream


class _Draw:
    """Normal random tensors of one seed and dtype."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator, self.dtype = torch.Generator().manual_seed(seed), dtype

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=self.generator, dtype=self.dtype)
