"""Random frozen models of every shape: what a loader would fill in, made of random tensors.

Patterns are causal and their rows have any sum, gains are away from 1, every constant is there. The
same tensors go to `tests.oracles.frozen`, which knows nothing of otimes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from otimes.numeric.edges import IDENTITY, FrozenEdge
from otimes.numeric.frozen import (
    FrozenBlock,
    FrozenHeads,
    FrozenModel,
    FrozenNeurons,
    FrozenPart,
    FrozenSource,
)
from tests.oracles import frozen as oracle


@dataclass(frozen=True)
class Shape:
    """What a synthetic model has; ``placement`` is None (no norms), pre, post or sandwich."""

    layers: int = 2
    heads: int = 2
    kv_heads: int = 1
    neurons: int = 0
    parallel: bool = False
    placement: str | None = None
    centred: bool = False
    biases: bool = True
    mlp_sources: bool = False
    batch: int = 1
    length: int = 3
    d_model: int = 5
    d_head: int = 2
    d_vocab: int = 7
    multiplier: float = 1.0
    seed: int = 0


SHAPES = {
    "attention": Shape(),
    "batch": Shape(batch=2, heads=4, kv_heads=2),
    "pre": Shape(placement="pre", centred=True, neurons=3),
    "post": Shape(placement="post", neurons=2),
    "post, centred": Shape(placement="post", centred=True, batch=2),
    "sandwich": Shape(placement="sandwich", neurons=2, kv_heads=2),
    "parallel": Shape(placement="pre", parallel=True, neurons=2, centred=True),
    "source MLPs": Shape(placement="pre", mlp_sources=True, layers=3),
    "multipliers": Shape(placement="pre", multiplier=0.25, neurons=2),
    "no biases": Shape(biases=False, layers=3),
}


class _Maker:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.generator = np.random.default_rng(shape.seed)

    def random(self, *size: int, scale: float = 1.0) -> torch.Tensor:
        return torch.from_numpy(scale * self.generator.standard_normal(size))

    def edge(self, *, present: bool, multiplier: float = 1.0, bias: bool = True) -> FrozenEdge:
        s = self.shape
        if not present:
            return FrozenEdge(multiplier=multiplier)
        return FrozenEdge(
            scale=self.random(s.batch, s.length).exp(),
            gain=1 + 0.5 * self.random(s.d_model),
            centred=s.centred,
            multiplier=multiplier,
            bias=self.random(s.d_model) if bias and s.biases else None,
        )

    def heads(self, reads: FrozenEdge, writes: FrozenEdge) -> FrozenHeads:
        s = self.shape
        pattern = self.random(s.batch, s.heads, s.length, s.length).abs().tril()
        return FrozenHeads(
            pattern,
            self.random(s.kv_heads, s.d_model, s.d_head),
            self.random(s.heads, s.d_head, s.d_model, scale=0.5),
            self.random(s.kv_heads, s.d_head) if s.biases else None,
            reads,
            writes,
        )

    def neurons(self, reads: FrozenEdge, writes: FrozenEdge) -> FrozenNeurons:
        s = self.shape
        return FrozenNeurons(
            self.random(s.batch, s.length, s.neurons),
            self.random(s.d_model, s.neurons),
            self.random(s.neurons, s.d_model, scale=0.5),
            self.random(s.neurons) if s.biases else None,
            reads,
            writes,
        )


class _Builder(_Maker):
    """Adds blocks one by one, and what they write by themselves to the sources."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.blocks = list[FrozenBlock]()
        size = (shape.length, shape.d_model)
        self.sources = [FrozenSource.of(0, self.random(shape.batch, *size))]
        if shape.biases:
            self.sources.append(FrozenSource.of(0, self.random(1, *size)))

    def edges(self) -> tuple[FrozenEdge, FrozenEdge, FrozenEdge]:
        """A branch's reading and writing edges, and its skip edge."""
        s = self.shape
        reads = self.edge(present=s.placement in ("pre", "sandwich"))
        writes = self.edge(present=s.placement in ("post", "sandwich"), multiplier=s.multiplier)
        if s.placement != "post":
            return reads, writes, IDENTITY
        # a norm behind the addition is the skip edge too, without the branch's multiplier
        return reads, writes, FrozenEdge(writes.scale, writes.gain, writes.centred)

    def add(self, block: FrozenBlock) -> None:
        """Add a block, the constants inside its components, and its output biases."""
        self.blocks.append(block)
        entry = len(self.blocks)
        for branch in block.branches:
            offset = 0 if branch is block.attention else block.heads
            if branch.constant() is not None:
                self.sources.extend(
                    FrozenSource(entry, component=(entry - 1, offset + index))
                    for index in range(branch.size)
                )
            if self.shape.biases:
                parts = [FrozenPart(self.random(1, 1, self.shape.d_model), branch.writes)]
                if branch.writes.bias is not None:
                    parts.append(FrozenPart(branch.writes.bias[None, None]))
                self.sources.append(FrozenSource(entry, tuple(parts)))

    def layer(self) -> None:
        s = self.shape
        reads, writes, skip = self.edges()
        attention = self.heads(reads, writes)
        if s.neurons and s.parallel:
            self.add(FrozenBlock(attention, self.neurons(*self.edges()[:2]), skip))
            return
        self.add(FrozenBlock(attention, None, skip))
        if not (s.neurons or s.mlp_sources):
            return
        reads, writes, skip = self.edges()
        self.add(FrozenBlock(None, self.neurons(reads, writes) if s.neurons else None, skip))
        if s.mlp_sources:
            part = FrozenPart(self.random(s.batch, s.length, s.d_model), writes)
            self.sources.append(FrozenSource(len(self.blocks), (part,)))


def make_frozen(shape: Shape) -> FrozenModel:
    """A random frozen model, in float64."""
    s, builder = shape, _Builder(shape)
    for _ in range(s.layers):
        builder.layer()
    final, depth = builder.edge(present=s.placement in ("pre", "sandwich")), len(builder.blocks)
    if final.bias is not None:
        builder.sources.append(FrozenSource.of(depth, final.bias[None, None], "unembed"))
    b_U = builder.random(s.d_vocab) if s.biases else None
    if b_U is not None:
        builder.sources.append(FrozenSource(depth, joins="logits"))
    return FrozenModel(
        tuple(builder.blocks), tuple(builder.sources), builder.random(s.d_model, s.d_vocab), b_U,
        s.batch, s.length, final, s.multiplier,
    )  # fmt: skip


def dense(model: FrozenModel, row: int = 0) -> oracle.Dense:
    """One sequence of a frozen model as dense matrices on the flattened stream, by plain numpy."""

    def array(value: torch.Tensor | None) -> np.ndarray | None:
        return None if value is None else value.double().numpy()

    def edge(found: FrozenEdge) -> oracle.Edge:
        scale = array(found.scale)
        return oracle.Edge(
            None if scale is None else scale[row], array(found.gain), found.centred,
            found.multiplier,
        )  # fmt: skip

    n = model.length
    blocks, constants = list[oracle.Block](), dict[tuple[int, int], np.ndarray]()
    for number, block in enumerate(model.blocks):
        parts, orders = list[np.ndarray](), list[int]()
        for branch in block.branches:
            reads, writes = (oracle.edge(edge(e), n, model.W_U.shape[0])
                             for e in (branch.reads, branch.writes))  # fmt: skip
            beta = array(branch.reads.bias)
            for index in range(branch.size):
                if isinstance(branch, FrozenHeads):
                    kv = index // (len(branch.W_O) // len(branch.W_V))
                    inside = branch.W_V[kv].numpy()
                    bias = None if branch.b_V is None else branch.b_V[kv].numpy()
                    out, pattern = branch.W_O[index].numpy(), branch.pattern[row, index].numpy()
                else:
                    assert isinstance(branch, FrozenNeurons)
                    inside = branch.W_in[:, [index]].numpy()
                    bias = None if branch.b_in is None else branch.b_in[[index]].numpy()
                    out = branch.W_out[[index]].numpy()
                    pattern = np.diag(branch.slope[row, :, index].numpy())
                core = oracle.component(pattern, inside, out)
                value = np.zeros(inside.shape[1])
                value = value + (0 if bias is None else bias)
                value = value + (0 if beta is None else beta @ inside)
                constant = writes @ (pattern @ np.tile(value, (n, 1)) @ out).reshape(-1)
                constants[number, len(parts)] = constant
                parts.append(writes @ core @ reads)
                orders.append(int(isinstance(branch, FrozenHeads)))
        skip = oracle.edge(edge(block.skip), n, model.W_U.shape[0])
        blocks.append(oracle.Block(parts, orders, skip))
    sources = list[oracle.Source]()
    for source in model.sources:
        vector = np.zeros(n * model.W_U.shape[0])
        for part in source.parts:
            stream = part.stream.numpy()
            wide = np.broadcast_to(stream[row if len(stream) > 1 else 0], (n, stream.shape[-1]))
            vector = vector + oracle.edge(edge(part.edge), *wide.shape) @ wide.reshape(-1)
        if source.component is not None:
            vector = constants[source.component]
        sources.append(oracle.Source(source.entry, vector, source.component, source.joins))
    final = oracle.edge(edge(model.final), n, model.W_U.shape[0])
    return oracle.Dense(
        blocks, sources, final, model.multiplier, model.W_U.numpy(), array(model.b_U), n
    )
