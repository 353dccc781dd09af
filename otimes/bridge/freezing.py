"""The frozen model of a run: weights, and what the run recorded, as linear operators.

What a forward pass did is held fixed: attention patterns, the scales of norms, the slopes of frozen
neurons (or the outputs of MLPs that are sources). The blocks and the sources are those of the
model's symbols, in their order; see :mod:`otimes.algebra.layout` and :mod:`otimes.algebra.sources`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from otimes.algebra.layout import ATTENTION, MLP, reading_norm, writing_norm
from otimes.algebra.options import ATTENTION_BIASES
from otimes.algebra.sources import Source
from otimes.bridge.loading.weights import norm_file_name
from otimes.bridge.model import Model
from otimes.bridge.positions import alibi_shift, rotation
from otimes.errors import UnknownComponentError
from otimes.models.reference import Recomputed, Recording, is_kept
from otimes.numeric.edges import IDENTITY, FrozenEdge
from otimes.numeric.frozen import (
    FrozenBlock,
    FrozenHeads,
    FrozenModel,
    FrozenNeurons,
    FrozenPart,
    FrozenSource,
)
from otimes.numeric.head_spaces import HeadNorm
from otimes.numeric.remade import Remade, RemadeHeads, RemadeNeurons
from otimes.numeric.scores import FrozenReader

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}
"""The functions that ``activation`` in a config names."""
# the derivative at 0, the limit of φ(z)/z; relu's output there is 0 with any
_SLOPE_AT_ZERO = {"relu": 0.0, "gelu": 0.5, "gelu_tanh": 0.5, "silu": 0.5}


FROZEN_BUDGET = 2**30
"""Bytes that a frozen model may keep beside what the checkpoint and the recording hold.

These are weights in another dtype than their storage and slopes of neurons, of the first layers
that fit. Those of other layers are made again at each use, as are patterns that the recording
computes again.
"""


@dataclass(frozen=True)
class Frozen:
    """The frozen model, how each layer's scores read the stream, and what was used for both.

    ``attention`` numbers the block that each layer's heads are in; ``mlps`` are the number of the
    block and the reading edge of each MLP that is a source. ``used`` counts how often each tensor
    of the file was taken: the parameter audit.
    """

    model: FrozenModel
    readers: Sequence[FrozenReader]
    used: Counter[str]
    attention: tuple[int, ...]
    mlps: tuple[tuple[int, FrozenEdge], ...] = ()


def freeze(
    model: Model,
    tokens: Tensor,
    position_ids: Tensor,
    recording: Recording,
    dtype: torch.dtype,
    types: Tensor | None = None,
) -> Frozen:
    """Build the frozen model in ``dtype`` from the weights and what a recording holds fixed.

    ``types [batch, pos]`` are those of the tokens, of a model that has any.
    """
    return _Freezer(model, tokens, position_ids, recording, dtype, types).frozen()


def slopes(recording: Recording, layer: int, activation: str) -> Float[Tensor, "batch pos neuron"]:
    """``φ(z)/z`` of each recorded pre-activation, or ``φ(gate)`` of a gated MLP.

    Where z is 0 it is the limit, φ'(0).
    """
    gate, act = recording.gates[layer], ACTIVATIONS[activation]
    if gate is not None:
        return act(gate)
    z = recording.preactivations[layer]
    secant = act(z) / torch.where(z == 0, torch.ones_like(z), z)
    return secant.masked_fill(z == 0, _SLOPE_AT_ZERO[activation])


def frozen_mlp(
    model: Model, recording: Recording, layer: int, reads: FrozenEdge, writes: FrozenEdge = IDENTITY
) -> FrozenNeurons:
    """The neurons of one MLP at their recorded slopes, in the recording's dtype."""
    mlp, dtype = model.weights.mlps[layer], recording.logits.dtype
    return FrozenNeurons(
        slopes(recording, layer, _activation(model)),
        mlp.W_in.to(dtype),
        mlp.W_out.to(dtype),
        None if mlp.b_in is None else mlp.b_in.to(dtype),
        reads,
        writes,
    )


def _activation(model: Model) -> str:
    activation = model.config.activation
    assert activation is not None  # a config with an MLP has one
    return activation


def _tensor_of(bias: str) -> str:
    """The name in a native file of a bias of the symbols, such as ``b_V[1]`` or ``b_ln2[0]``."""
    name, _, layer = bias.partition("[")
    at = f"blocks.{layer[:-1]}"
    if name == "b_U":
        return "unembed.b_U"
    if name in ATTENTION_BIASES:
        return f"{at}.attn.{name}"
    if name in ("b_in", "b_out"):
        return f"{at}.mlp.{name}"
    norm = name.removeprefix("b_")
    return f"{at}.{norm}.b" if layer else f"ln_{norm}.b"


class _Freezer:
    """One frozen model while it is built; it counts what it takes."""

    def __init__(
        self,
        model: Model,
        tokens: Int[Tensor, "batch pos"],
        position_ids: Int[Tensor, "batch pos"],
        recording: Recording,
        dtype: torch.dtype,
        types: Int[Tensor, "batch pos"] | None,
    ) -> None:
        self.model, self.config, self.architecture = model, model.config, model.architecture
        self.weights = model.weights
        self.tensors = model.weights.tensors()
        self.tokens, self.position_ids, self.types = tokens, position_ids, types
        self.recording, self.dtype = recording, dtype
        self.used, self.left = Counter[str](), FROZEN_BUDGET
        for bias in sorted(self.architecture.biases):
            self._present(_tensor_of(bias))
        self.norms = {label: self._norm(label) for label in model.weights.norms}
        self.positions: Tensor | None = None
        if self.config.positions in ("learned", "shortformer"):
            self.positions = self._rows("pos_embed.W_pos", position_ids)

    def frozen(self) -> Frozen:
        """Everything, each tensor of the file taken once."""
        W_U, b_U = self._take("unembed.W_U"), self._maybe("unembed.b_U")
        self._fits(self._converted("unembed.W_U"))  # it is kept in any case
        written, mlps = self._inputs(), list[tuple[int, FrozenEdge]]()
        blocks, attention = list[FrozenBlock](), list[int]()
        for number, block in enumerate(self.architecture.blocks):
            heads = neurons = None
            if ATTENTION in block.branches:
                attention.append(number)
                heads = self._heads(block.layer)
                written |= self._written(block.layer, ATTENTION)
            if MLP in block.branches:
                neurons = self._neurons(block.layer)
                written |= self._written(block.layer, MLP)
                if self.architecture.mlp == "source":
                    mlps.append((number, self._reads(block.layer, MLP)))
            skip = IDENTITY
            if self.config.norm is not None and self.config.norm_placement == "post":
                # behind the addition: what passes the branch goes through the same norm
                skip = self._plain(writing_norm(self.architecture, block.layer, block.branches[0]))
            blocks.append(FrozenBlock(heads, neurons, skip))
        final = self.norms.get("final", IDENTITY)
        if final.bias is not None:
            written["bias[final]"] = (FrozenPart(final.bias[None, None]),)
        (batch, length), multiplier = self.tokens.shape, self.config.logits_multiplier
        frozen = FrozenModel(
            tuple(blocks),
            tuple(self._source(source, written) for source in self.architecture.sources),
            W_U,
            b_U,
            batch,
            length,
            replace(final, bias=None),
            1.0 if multiplier is None else multiplier,
        )
        return Frozen(frozen, self._readers(), self.used, tuple(attention), tuple(mlps))

    # tensors

    def _take(self, name: str) -> Tensor:
        self._count(name)
        return self.tensors[name].to(self.dtype)

    def _maybe(self, name: str) -> Tensor | None:
        return self._take(name) if name in self.tensors else None

    def _rows(self, name: str, ids: Tensor) -> Tensor:
        """Rows of an embedding; the whole of it is not converted."""
        self._count(name)
        return self.tensors[name][ids].to(self.dtype)

    def _present(self, name: str) -> None:
        if name not in self.tensors:
            raise UnknownComponentError(f"the checkpoint has no tensor {name!r}", name)

    def _count(self, name: str) -> None:
        self._present(name)
        self.used[name] += 1

    def _maybe_count(self, name: str) -> None:
        if name in self.tensors:
            self._count(name)

    def _converted(self, *names: str) -> int:
        """The bytes of tensors that are not stored in the dtype of the model."""
        found = (self.tensors[name] for name in names)
        return sum(t.numel() * self.dtype.itemsize for t in found if t.dtype != self.dtype)

    def _fits(self, size: int) -> bool:
        """Whether there is room for so many bytes more, which are then taken."""
        fits = size <= self.left
        self.left -= size if fits else 0
        return fits

    def _remade(self, name: str) -> Remade | Tensor:
        """A tensor of the file, converted at each use."""
        self._count(name)
        stored, dtype = self.tensors[name], self.dtype
        if stored.dtype == dtype:
            return stored
        return Remade(lambda: stored.to(dtype), stored.shape, dtype)

    # norms

    def _norm(self, label: str) -> FrozenEdge:
        name = norm_file_name(label)
        return FrozenEdge(
            self.recording.scales[label].to(self.dtype),
            self._take(f"{name}.w"),
            centred=self.config.norm == "layer",
            bias=self._maybe(f"{name}.b"),
        )

    def _plain(self, label: str | None, multiplier: float | None = None) -> FrozenEdge:
        """A norm's linear part and a multiplier; its bias is a source of its own."""
        edge = IDENTITY if label is None else self.norms[label]
        return replace(edge, bias=None, multiplier=1.0 if multiplier is None else multiplier)

    def _reads(self, layer: int, branch: str) -> FrozenEdge:
        """What a branch reads through; the bias of the norm is added inside its components."""
        label = reading_norm(self.architecture, layer, branch)
        return IDENTITY if label is None else self.norms[label]

    def _writes(self, layer: int, branch: str) -> FrozenEdge:
        label = writing_norm(self.architecture, layer, branch)
        return self._plain(label, self.config.residual_multiplier)

    # blocks

    def _heads(self, layer: int) -> FrozenHeads:
        at, (batch, length) = f"blocks.{layer}.attn.", self.tokens.shape
        b_V = self._maybe(at + "b_V")
        edges = self._reads(layer, ATTENTION), self._writes(layer, ATTENTION)
        patterns, dtype = self.recording.patterns, self.dtype
        kept, names = is_kept(patterns, layer), (at + "W_V", at + "W_O")
        values = self.tensors[names[0]].numel() * dtype.itemsize  # for all heads side by side
        fits = self._fits(self._converted(*names) + values)
        if fits and kept:
            W_V, W_O = map(self._take, names)
            return FrozenHeads(patterns[layer].to(dtype), W_V, W_O, b_V, *edges)
        shape = torch.Size((batch, self.config.n_heads, length, length))
        again = Remade(lambda: patterns[layer].to(dtype), shape, dtype)
        pattern = patterns[layer].to(dtype) if kept else again
        W_V, W_O = map(self._take if fits else self._remade, names)
        return RemadeHeads(pattern, W_V, W_O, b_V, *edges)

    def _neurons(self, layer: int) -> FrozenNeurons | None:
        """The neurons of an MLP that is frozen; one that is a source has none."""
        at = f"blocks.{layer}.mlp."
        names = [at + name for name in ("W_gate", "b_gate", "W_in", "b_in", "W_out")]
        if self.architecture.mlp != "frozen":
            # they are in the recorded output, which is what a verification compares them with
            for name in (*names, at + "b_out"):
                self._maybe_count(name)
            return None
        edges = self._reads(layer, MLP), self._writes(layer, MLP)
        W_in, b_in, W_out = at + "W_in", at + "b_in", at + "W_out"
        shape = torch.Size((*self.tokens.shape, self.tensors[W_in].shape[1]))
        if self._fits(self._converted(W_in, W_out) + shape.numel() * self.dtype.itemsize):
            for name in names:
                self._maybe_count(name)
            return frozen_mlp(self.model, self.recording, layer, *edges)
        for name in names[:2]:
            self._maybe_count(name)
        recording, activation = self.recording, _activation(self.model)
        slope = Remade(lambda: slopes(recording, layer, activation), shape, self.dtype)
        return RemadeNeurons(
            slope, self._remade(W_in), self._remade(W_out), self._maybe(b_in), *edges
        )

    # scores

    def _readers(self) -> Sequence[FrozenReader]:
        """How each layer's scores read the stream; made again at each use where they do not fit."""
        layers, kept = self.config.n_layers, list[FrozenReader]()
        for layer in range(layers):
            reader = self.reader(layer)  # also where it is not kept: each tensor is taken once
            names = [f"blocks.{layer}.attn.{name}" for name in ("W_Q", "W_K")]
            # beside the matrices their magnitudes in float64, once scores are bounded
            size = self._converted(*names) + 8 * (reader.W_Q.numel() + reader.W_K.numel())
            size += 0 if reader.shift is None else reader.shift.nbytes
            if len(kept) == layer and self._fits(size):
                kept.append(reader)
        if len(kept) == layers:
            return tuple(kept)
        again = copy(self)
        again.used = Counter()  # what is taken again does not count
        return Recomputed(kept, layers, again.reader)

    def reader(self, layer: int) -> FrozenReader:
        """How a layer's scores read the stream."""
        at, config = f"blocks.{layer}.attn.", self.config
        rotary = config.rotary_of(layer)
        shift = None
        if config.positions == "alibi":
            shift = alibi_shift(config, self.position_ids).to(self.dtype)
        return FrozenReader(
            self._take(at + "W_Q"),
            self._take(at + "W_K"),
            self._maybe(at + "b_Q"),
            self._maybe(at + "b_K"),
            self.positions if config.positions == "shortformer" else None,
            config.attention_scale,
            self._reads(layer, ATTENTION),
            shift,
            self._head_norm(layer, "q_norm"),
            self._head_norm(layer, "k_norm"),
            None if rotary is None else rotation(rotary, self.position_ids, self.dtype),
        )

    def _head_norm(self, layer: int, name: str) -> HeadNorm | None:
        gain = self._maybe(f"blocks.{layer}.attn.{name}.w")
        if gain is None:
            return None
        return HeadNorm(
            self.recording.scales[f"{layer}.{name}"].to(self.dtype),
            gain[None] if gain.ndim == 1 else gain,
            "all" if self.config.qk_norm == "all" else "head",
            self.config.norm == "layer",
        )

    # sources

    def _inputs(self) -> dict[str, tuple[FrozenPart, ...]]:
        """What stands before the first block."""
        norm = "embed" if "embed" in self.norms else None
        through, bias = self._plain(norm), self.norms.get("embed", IDENTITY).bias
        embed = self._plain(norm, self.config.embed_multiplier)
        found = {"embed": (FrozenPart(self._rows("embed.W_E", self.tokens), embed),)}
        if self.positions is not None:
            found["pos"] = (FrozenPart(self.positions, through),)
        if self.types is not None:
            found["type"] = (FrozenPart(self._rows("type_embed.W_type", self.types), through),)
        if bias is not None:
            found["bias[embed]"] = (FrozenPart(bias[None, None]),)
        return found

    def _written(self, layer: int, branch: str) -> dict[str, tuple[FrozenPart, ...]]:
        """What a branch writes beside its components, by the names of the sources."""
        found, parts = dict[str, tuple[FrozenPart, ...]](), list[FrozenPart]()
        edge = self._writes(layer, branch)
        if branch == MLP and self.architecture.mlp == "source":
            output = self.recording.mlp_outputs[layer].to(self.dtype)
            found[f"mlp{layer}"] = (FrozenPart(output, edge),)
        else:
            name = "attn.b_O" if branch == ATTENTION else "mlp.b_out"
            bias = self._maybe(f"blocks.{layer}.{name}")
            if bias is not None:
                parts.append(FrozenPart(bias[None, None], edge))
        label = writing_norm(self.architecture, layer, branch)
        beta = None if label is None else self.norms[label].bias
        if beta is not None:
            # a post-norm stands behind the branch, whose multiplier does not reach its bias
            post = self.config.norm_placement == "post"
            scale = self._plain(None, None if post else self.config.residual_multiplier)
            parts.append(FrozenPart(beta[None, None], scale))
        if parts:
            found[f"bias[{layer}.{branch}]"] = tuple(parts)
        return found

    def _source(self, source: Source, written: dict[str, tuple[FrozenPart, ...]]) -> FrozenSource:
        """A source of the symbols with what it writes."""
        if source.component is not None:
            located = self.architecture.language.grid.locate(source.component)
            return FrozenSource(source.entry, component=located)
        if source.joins == "logits":
            return FrozenSource(source.entry, joins="logits")
        return FrozenSource(source.entry, written[source.name], None, source.joins)
