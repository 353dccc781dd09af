"""What the reference module records of a forward pass, and what it computes again when asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, overload

from torch import Tensor, nn

from otimes.models.reference.attention import Weighed
from otimes.models.reference.layers import Fired
from otimes.models.reference.memory import Plan

T = TypeVar("T")


class Recomputed(Sequence[T], Generic[T]):
    """One value for each layer: those of the first layers are kept, others made at each use."""

    def __init__(self, kept: Sequence[T], count: int, again: Callable[[int], T]) -> None:
        """``again(layer)`` makes the value of a layer that is not ``kept``, of ``count``."""
        self.kept = tuple(kept)
        self._count, self._again = count, again

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(self._count)))
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(f"no layer {index}: there are {self._count}")
        return self.kept[place] if place < len(self.kept) else self._again(place)


def is_kept(values: Sequence[object], layer: int) -> bool:
    """Whether the value of a layer is in memory, or would be computed again."""
    return not isinstance(values, Recomputed) or layer < len(values.kept)


@dataclass(frozen=True)
class Recording:
    """What one forward pass did.

    Scores, patterns and the insides of MLPs of the layers for which there was no room are computed
    again each time that they are asked for: by the same code from the recorded stream, so they have
    the same bits.

    Attributes:
        logits: the module's output ``[batch, pos, d_vocab]``, through the cap where there is one.
        scores: for each layer ``[batch, head, dest, src]``, the attention scale applied and ALiBi
            added, before cap, mask and softmax.
        patterns: for each layer ``[batch, head, dest, src]``.
        streams: ``[batch, pos, d_model]``: ``streams[n]`` is the input of block n, the last one is
            what the final norm reads, or the unembedding where there is none. A layer is two
            blocks, attention and MLP, or one where they are parallel or there is no MLP.
        positions: the position ids ``[batch, pos]``.
        capped_scores: the scores after their cap; the same numbers where there is none.
        uncapped_logits: the logits before their cap; the same tensor where there is none.
        scales: 1/σ of each norm ``[batch, pos]`` by its label: ``0.ln1``, ``0.ln2_post``,
            ``final``, ``embed``; of the norms of queries ``0.q_norm [batch, head, pos]`` and keys
            ``0.k_norm [batch, kv_head, pos]``.
        preactivations: for each MLP ``x W_in + b_in`` ``[batch, pos, d_mlp]``.
        gates: for each MLP ``x W_gate + b_gate``, before the activation; None where it has none.
        neurons: for each MLP what ``W_out`` multiplies ``[batch, pos, d_mlp]``.
        mlp_outputs: for each MLP its output ``[batch, pos, d_model]``, ``b_out`` added, before a
            norm behind it and the residual multiplier.
    """

    logits: Tensor
    scores: Sequence[Tensor]
    patterns: Sequence[Tensor]
    streams: tuple[Tensor, ...]
    positions: Tensor
    capped_scores: Sequence[Tensor]
    uncapped_logits: Tensor
    scales: dict[str, Tensor]
    preactivations: Sequence[Tensor]
    gates: Sequence[Tensor | None]
    neurons: Sequence[Tensor]
    mlp_outputs: tuple[Tensor, ...]


@dataclass
class Tape:
    """A recording while it is made; ``plan`` says what is kept, None: everything.

    ``inputs`` are the streams that attention and MLP of each layer read.
    """

    plan: Plan | None = None
    scores: list[Tensor] = field(default_factory=list[Tensor])
    capped: list[Tensor] = field(default_factory=list[Tensor])
    patterns: list[Tensor] = field(default_factory=list[Tensor])
    streams: list[Tensor] = field(default_factory=list[Tensor])
    inputs: list[list[Tensor]] = field(default_factory=list[list[Tensor]])
    scales: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    fired: list[Fired] = field(default_factory=list[Fired])
    outputs: list[Tensor] = field(default_factory=list[Tensor])

    def normed(self, norm: nn.Module | None, label: str, x: Tensor) -> Tensor:
        """``x`` through a norm, whose scales are recorded; ``x`` itself without one."""
        if norm is None:
            return x
        y, self.scales[label] = norm(x)
        return y

    def attended(self, layer: int, stream: Tensor, weighed: Weighed) -> None:
        """Record what the heads of a layer did with a stream."""
        self.inputs.append([stream])
        for name, scale in weighed.scales.items():
            self.scales[f"{layer}.{name}"] = scale
        if self.plan is None or layer < self.plan.patterns:
            self.patterns.append(weighed.pattern)
        if self.plan is None or layer < self.plan.scores:
            self.scores.append(weighed.scores)
            self.capped.append(weighed.capped)

    def fire(self, layer: int, stream: Tensor, fired: Fired) -> None:
        """Record what the MLP of a layer did with a stream."""
        self.inputs[-1].append(stream)
        self.outputs.append(fired.output)
        if self.plan is None or layer < self.plan.neurons:
            self.fired.append(fired)

    def recording(
        self,
        logits: Tensor,
        capped: Tensor,
        positions: Tensor,
        weigh: Callable[[int], Weighed],
        fire: Callable[[int], Fired],
    ) -> Recording:
        """What was recorded; ``weigh`` and ``fire`` do a layer's attention and MLP again."""

        def layers(kept: list[T], count: int, again: Callable[[int], T]) -> Sequence[T]:
            return tuple(kept) if len(kept) == count else Recomputed(kept, count, again)

        count, mlps = len(self.inputs), len(self.outputs)
        return Recording(
            logits=capped,
            scores=layers(self.scores, count, lambda layer: weigh(layer).scores),
            patterns=layers(self.patterns, count, lambda layer: weigh(layer).pattern),
            streams=tuple(self.streams),
            positions=positions,
            capped_scores=layers(self.capped, count, lambda layer: weigh(layer).capped),
            uncapped_logits=logits,
            scales=self.scales,
            preactivations=layers(
                [fired.preactivation for fired in self.fired],
                mlps,
                lambda layer: fire(layer).preactivation,
            ),
            gates=layers(
                [fired.gate for fired in self.fired], mlps, lambda layer: fire(layer).gate
            ),
            neurons=layers(
                [fired.neurons for fired in self.fired], mlps, lambda layer: fire(layer).neurons
            ),
            mlp_outputs=tuple(self.outputs),
        )
