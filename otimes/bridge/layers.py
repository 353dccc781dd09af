"""What each block of a model writes, by the definition, and how far a module may be off.

The formulas are those of the canonical config (:mod:`otimes.bridge.loading.config`), computed in
float64 from the canonical weights and what a block of some module read, with a bound on what that
module, in its own precision, may have got for the same formulas (:mod:`otimes.numeric.nearby`).
Neither the engine nor the reference module has a part in it: both are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from otimes.algebra.layout import ATTENTION
from otimes.bridge.freezing import ACTIVATIONS
from otimes.bridge.loading.weights import NormWeights
from otimes.bridge.positions import alibi_shift, angle_error, frequencies
from otimes.bridge.run import Run
from otimes.numeric import nearby
from otimes.numeric.nearby import Nearby

_ROWS_AT_ONCE = 2**24


@dataclass(frozen=True)
class Units:
    """The unit roundoffs of a module's operations, each with that of float64 added.

    Attributes:
        linear: products with matrices, and all that is not named here.
        norms: norms, and multipliers of embeddings.
        angles: the angles of rotary positions.
        scores: products of queries and keys.
        softmax: the softmax, soft-caps in front of it too.
    """

    linear: float
    norms: float
    angles: float
    scores: float
    softmax: float


class Layers:
    """The blocks of a run's model.

    Args:
        run: its tokens, positions and what may be attended to.
        units: how the module rounds that is compared.
    """

    def __init__(self, run: Run, units: Units) -> None:
        self.run, self.units = run, units
        self.config, self.weights = run.model.config, run.model.weights
        self.position_ids: Int[Tensor, "batch pos"] = run.positions

    def embedded(self) -> Nearby:
        """The stream before the first block ``[batch, pos, d_model]``."""
        weights, units, tokens = self.weights, self.units, self.run.tokens
        multiplier = self.config.embed_multiplier
        # the module may hold its weights rounded
        x = nearby.scale(Nearby.exact(weights.W_E[tokens]), 1.0, units.linear)
        x = nearby.scale(x, multiplier, units.norms)
        if self.config.positions == "learned":
            assert weights.W_pos is not None
            x = nearby.add(x, Nearby.exact(weights.W_pos[self.position_ids]), unit=units.linear)
        if weights.W_type is not None:
            ids = torch.zeros_like(tokens) if self.run.types is None else self.run.types
            x = nearby.add(x, Nearby.exact(weights.W_type[ids]), unit=units.linear)
        return self._normed(x, "embed")

    def output(self, layer: int, branch: str, stream: Float[Tensor, "batch pos d_model"]) -> Nearby:
        """What a branch writes of a stream, before a norm behind it and a multiplier."""
        name = "ln1" if branch == ATTENTION or self.config.parallel == "shared" else "ln2"
        x = Nearby.exact(stream)
        if self.config.norm_placement in ("pre", "sandwich"):
            x = self._normed(x, f"{layer}.{name}")
        return self._attended(layer, x) if branch == ATTENTION else self._fired(layer, x)

    def joined(
        self,
        layer: int,
        stream: Float[Tensor, "batch pos d_model"],
        outputs: dict[str, Nearby],
    ) -> Nearby:
        """The stream behind a block, of the stream before it and the outputs of its branches."""
        units, config, parts = self.units, self.config, [Nearby.exact(stream)]
        names = ["ln1" if branch == ATTENTION else "ln2" for branch in outputs]
        for name, output in zip(names, outputs.values(), strict=True):
            behind = config.norm_placement in ("sandwich", "output")
            written = self._normed(output, f"{layer}.{name}_post") if behind else output
            parts.append(nearby.scale(written, config.residual_multiplier, units.linear))
        total = nearby.add(*parts, unit=units.linear)
        if config.norm_placement != "post":
            return total
        # a block of two branches has no norm behind the addition
        return self._normed(total, f"{layer}.{names[0]}")

    def logits(
        self, stream: Float[Tensor, "batch pos d_model"]
    ) -> Iterator[tuple[tuple[slice, slice], Nearby]]:
        """The logits of the last stream, through their cap, some rows at a time.

        Yields the batch and the positions with their logits ``[batch, some, d_vocab]``.
        """
        units, config, weights = self.units, self.config, self.weights
        x = self._normed(Nearby.exact(stream), "final")
        d_vocab, (batch, length) = weights.W_U.shape[1], stream.shape[:2]
        at_once = max(1, _ROWS_AT_ONCE // (batch * d_vocab))
        for start in range(0, length, at_once):
            some = slice(None), slice(start, start + at_once)
            # the multiplier and the bias of the unembedding come behind its matrix
            value = nearby.linear(x.rows(some), weights.W_U, None, units.linear)
            value = nearby.scale(value, config.logits_multiplier, units.linear)
            if weights.b_U is not None:
                bias = Nearby.exact(weights.b_U.expand_as(value.value))
                value = nearby.add(value, bias, unit=units.linear)
            yield some, nearby.cap(value, config.logits_softcap, units.linear)

    def _normed(self, x: Nearby, label: str) -> Nearby:
        found = self.weights.norms.get(label)
        return x if found is None else self._norm(x, found)

    def _norm(self, x: Nearby, weights: NormWeights) -> Nearby:
        assert self.config.norm is not None
        assert self.config.eps is not None
        return nearby.norm(
            x, self.config.norm, self.config.eps, weights.w, weights.b, self.units.norms
        )

    def _fired(self, layer: int, x: Nearby) -> Nearby:
        mlp, unit = self.weights.mlps[layer], self.units.linear
        assert self.config.activation is not None
        activation = ACTIVATIONS[self.config.activation]
        neurons = nearby.linear(x, mlp.W_in, mlp.b_in, unit)
        if mlp.W_gate is None:
            neurons = nearby.activate(neurons, activation, unit)
        else:
            gate = nearby.linear(x, mlp.W_gate, mlp.b_gate, unit)
            neurons = nearby.times(nearby.activate(gate, activation, unit), neurons, unit)
        return nearby.linear(neurons, mlp.W_out, mlp.b_out, unit)

    def _attended(self, layer: int, x: Nearby) -> Nearby:
        units, config, own = self.units, self.config, self.weights.layers[layer]
        values = self._of_heads(x, own.W_V, own.b_V)
        if config.positions == "shortformer":
            assert self.weights.W_pos is not None
            positions = Nearby.exact(self.weights.W_pos[self.position_ids])
            x = nearby.add(x, positions, unit=units.linear)
        queries = self._turned(
            layer, self._head_norm(self._of_heads(x, own.W_Q, own.b_Q), own.q_norm)
        )
        keys = self._turned(layer, self._head_norm(self._of_heads(x, own.W_K, own.b_K), own.k_norm))
        shift = None
        if config.positions == "alibi":
            shift = Nearby.exact(alibi_shift(config, self.position_ids))
        allowed, mixed = self.run.attended(layer), list[Nearby]()
        for head in range(config.n_heads):
            shared = head // (config.n_heads // config.n_kv_heads)
            key = _head(keys, shared).each(lambda part: part.transpose(-1, -2))
            scores = nearby.product(_head(queries, head), key, units.scores)
            scores = nearby.scale(scores, config.attention_scale, units.scores)
            if shift is not None:
                # a slope is a rounded power, times a distance
                slope = nearby.scale(_head(shift, head), 1.0, 4 * units.linear)
                scores = nearby.add(scores, slope, unit=units.linear)
            scores = nearby.cap(scores, config.attention_softcap, units.softmax)
            pattern = nearby.softmax(scores, allowed, units.softmax)
            mixed.append(nearby.product(pattern, _head(values, shared), units.linear))
        together = Nearby(
            torch.cat([part.value for part in mixed], -1),
            torch.cat([part.error for part in mixed], -1),
        )
        return nearby.linear(together, own.W_O.flatten(0, 1), own.b_O, units.linear)

    def _of_heads(self, x: Nearby, weight: Tensor, bias: Tensor | None) -> Nearby:
        """``[batch, head, pos, d_head]`` of matrices ``[head, d_model, d_head]``."""
        number, d_model, d_head = weight.shape
        flat = weight.transpose(0, 1).reshape(d_model, number * d_head)
        found = nearby.linear(x, flat, None if bias is None else bias.flatten(), self.units.linear)
        return found.each(lambda part: part.unflatten(-1, (number, d_head)).transpose(1, 2))

    def _head_norm(self, x: Nearby, gain: Tensor | None) -> Nearby:
        if gain is None:
            return x
        assert self.config.norm is not None
        assert self.config.eps is not None
        axes = (1, 3) if self.config.qk_norm == "all" else (3,)
        gain = gain if gain.ndim == 1 else gain[:, None, :]
        return nearby.norm(x, self.config.norm, self.config.eps, gain, None, self.units.norms, axes)

    def _turned(self, layer: int, x: Nearby) -> Nearby:
        rotary = self.config.rotary_of(layer)
        if rotary is None:
            return x
        angle = (self.position_ids.double()[..., None] * frequencies(rotary))[:, None]
        away = angle * angle_error(rotary, self.units.angles)
        return nearby.turn(x, angle, rotary.pairing, away, self.units.angles)


def _head(x: Nearby, head: int) -> Nearby:
    return x.each(lambda part: part[:, head])
