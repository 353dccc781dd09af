"""The shape that is measured, and how many operations a piece of work on it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer; one multiplication and addition are two operations."""

    layers: int
    heads: int
    d_model: int
    d_head: int
    d_vocab: int
    length: int

    @property
    def edges(self) -> int:
        """Value edges: from the source or a head to a later layer's head or the output."""
        heads, layers = self.heads, self.layers
        return heads**2 * layers * (layers - 1) // 2 + 2 * heads * layers + 1

    @property
    def frozen_pass(self) -> float:
        """Operations of one stream through all attention blocks with recorded patterns."""
        values_and_outputs = 2 * 2 * self.length * self.d_model * self.heads * self.d_head
        moves = 2 * self.heads * self.length**2 * self.d_head
        return float(self.layers * (values_and_outputs + moves))

    @property
    def forward_pass(self) -> float:
        """Operations of a forward pass with MLPs of four times the width, all logits included."""
        queries_and_keys = 2 * 2 * self.length * self.d_model * self.heads * self.d_head
        scores = 2 * self.heads * self.length**2 * self.d_head
        mlp = 2 * 2 * self.length * self.d_model * 4 * self.d_model
        unembed = 2 * self.length * self.d_model * self.d_vocab
        return self.frozen_pass + self.layers * (queries_and_keys + scores + mlp) + unembed


GPT2 = Shape(layers=12, heads=12, d_model=768, d_head=64, d_vocab=50_257, length=128)
SMALL = Shape(layers=3, heads=4, d_model=256, d_head=64, d_vocab=1_000, length=128)
"""The model on which path patching is measured."""
