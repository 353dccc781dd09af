"""What a recording takes: sizes before the work, and what of them is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Plan:
    """Of how many layers, the first ones, patterns, scores and neurons are kept."""

    patterns: int
    scores: int
    neurons: int


@dataclass(frozen=True)
class Sizes:
    """What a recording takes, in bytes.

    Attributes:
        always: streams, outputs of MLPs and logits, which are always kept.
        working: what is needed for a moment beside it: one layer, or the unembedding.
        patterns: the patterns of one layer.
        scores: the scores of one layer, and the capped ones where they have a cap.
        neurons: what is recorded of the neurons of one MLP.
        layers: the number of layers.
        mlps: the number of MLPs.
    """

    always: int
    working: int
    patterns: int
    scores: int
    neurons: int
    layers: int
    mlps: int

    @staticmethod
    def of(config: dict[str, Any], batch: int, length: int, width: int) -> Sizes:
        """The sizes for tokens ``[batch, length]``, in numbers of ``width`` bytes.

        Args:
            config: the object of ``config.json``.
            batch: the number of sequences.
            length: the number of positions.
            width: 8 for float64, 4 for float32.
        """
        place = batch * length * width
        layers, heads, d_model = config["n_layers"], config["n_heads"], config["d_model"]
        d_vocab, d_mlp = config["d_vocab"], config.get("d_mlp") or 0
        mlps = layers if d_mlp else 0
        capped = config.get("attention_softcap") is not None
        blocks = layers if config.get("parallel", False) else layers + mlps
        vectors = place * d_model
        logits = place * d_vocab
        logits_cap = config.get("logits_softcap") is not None
        patterns = place * length * heads
        # the scores, what is masked, the pattern, and what scaling, ALiBi and a cap make of them
        attention = patterns * (4 + int(capped) + 2 * int(config["positions"] == "alibi"))
        attention += 4 * place * heads * config["d_head"]
        # the pre-activation, the gate, its activation and their product
        neurons = 4 * place * d_mlp + 2 * width * d_model * d_mlp
        multiplied = config.get("logits_multiplier") is not None
        unembedding = width * d_model * d_vocab + logits * (int(multiplied) + int(logits_cap))
        return Sizes(
            always=vectors * (1 + blocks + mlps) + logits * (1 + int(logits_cap)),
            working=max(attention, neurons, unembedding) + 2 * vectors,
            patterns=patterns,
            scores=patterns * (1 + int(capped)),
            neurons=3 * place * d_mlp,
            layers=layers,
            mlps=mlps,
        )

    @property
    def least(self) -> int:
        """What a recording takes at least."""
        return self.always + self.working

    def plan(self, budget: int) -> Plan:
        """What to keep within a budget: patterns before neurons before scores."""
        left, found = max(0, budget - self.least), list[int]()
        for size, count in (
            (self.patterns, self.layers),
            (self.neurons, self.mlps),
            (self.scores, self.layers),
        ):
            found.append(min(count, left // max(1, size)))
            left -= found[-1] * size
        return Plan(patterns=found[0], scores=found[2], neurons=found[1])
