"""A frozen network as dense matrices on the flattened stream, and brute force over its paths.

Plain numpy. A stream ``[pos, d_model]`` is flattened row by row, so ``(A ⊗ W) x`` is
``kron(A, W) @ x`` with ``W`` in the column convention. Every path is one product of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np


@dataclass(frozen=True)
class Edge:
    scale: np.ndarray | None
    gain: np.ndarray | None
    centred: bool
    multiplier: float


@dataclass(frozen=True)
class Block:
    """Dense components, whether each is a head (1) or a neuron (0), and the dense skip edge."""

    components: list[np.ndarray]
    orders: list[int]
    skip: np.ndarray


@dataclass(frozen=True)
class Source:
    entry: int
    vector: np.ndarray
    component: tuple[int, int] | None
    joins: str


@dataclass(frozen=True)
class Path:
    """A source and (block, component) pairs, as numbers."""

    source: int
    components: tuple[tuple[int, int], ...]
    order: int


@dataclass(frozen=True)
class Dense:
    blocks: list[Block]
    sources: list[Source]
    final: np.ndarray
    multiplier: float
    W_U: np.ndarray
    b_U: np.ndarray | None
    length: int

    def paths(self) -> Iterator[Path]:
        """Every path, brute force."""
        for number, source in enumerate(self.sources):
            if source.joins != "stream":
                yield Path(number, (), 0)
                continue
            first = () if source.component is None else (source.component,)
            choices = [[None, *range(len(block.components))]
                       for block in self.blocks[source.entry :]]  # fmt: skip
            for chosen in product(*choices):
                passed = tuple((source.entry + i, c) for i, c in enumerate(chosen) if c is not None)
                components = (*first, *passed)
                order = sum(self.blocks[b].orders[c] for b, c in components)
                yield Path(number, components, order)

    def stream(self, path: Path) -> np.ndarray:
        """What a path writes to the last stream, flattened."""
        source = self.sources[path.source]
        inside = dict(path.components[0 if source.component is None else 1 :])
        x = source.vector
        for number in range(source.entry, len(self.blocks)):
            block = self.blocks[number]
            x = (block.components[inside[number]] if number in inside else block.skip) @ x
        return x

    def logits(self, path: Path) -> np.ndarray:
        """The logits ``[pos, d_vocab]`` of one path."""
        source = self.sources[path.source]
        if source.joins == "logits":
            assert self.b_U is not None
            return np.tile(self.b_U, (self.length, 1))
        last = source.vector if source.joins == "unembed" else self.final @ self.stream(path)
        return self.multiplier * last.reshape(self.length, -1) @ self.W_U

    def forward(self) -> np.ndarray:
        """The logits of the forward recursion, which knows nothing of paths."""
        x = self._entering(0)
        for number, block in enumerate(self.blocks):
            x = block.skip @ x + sum(c @ x for c in block.components) + self._entering(number + 1)
        last = self.final @ x
        for source in self.sources:
            if source.joins == "unembed":
                last = last + source.vector
        logits = self.multiplier * last.reshape(self.length, -1) @ self.W_U
        return logits if self.b_U is None else logits + self.b_U

    def _entering(self, entry: int) -> np.ndarray:
        nothing = np.zeros(self.length * len(self.W_U))
        return sum((s.vector for s in self.sources if s.entry == entry and s.joins == "stream"),
                   nothing)  # fmt: skip


def edge(found: Edge, length: int, d_model: int) -> np.ndarray:
    """``μ · D ⊗ Γ`` as a dense matrix."""
    centre = np.eye(d_model) - (np.ones((d_model, d_model)) / d_model if found.centred else 0)
    gain = np.eye(d_model) if found.gain is None else np.diag(found.gain)
    scale = np.eye(length) if found.scale is None else np.diag(found.scale)
    return found.multiplier * np.kron(scale, gain @ centre)


def component(pattern: np.ndarray, inside: np.ndarray, out: np.ndarray) -> np.ndarray:
    """``A ⊗ W_O W_V`` from ``inside [d_model, width]`` and ``out [width, d_model]``."""
    return np.kron(pattern, out.T @ inside.T)
