"""What is compared with what, and the ratio that is aimed at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.harness.processes import Samples

FORWARD = "GPT-2 forward pass"
FROZEN_PASS = "frozen pass"
HEAD_RESULTS = "TransformerLens head attribution, every position"
HEAD_RESULTS_LAST = "TransformerLens head attribution, last position"
PATCHING = "path patching, small model"
SMALL_FORWARD = "forward pass, small model"
GEMM = "GEMM, 1024 × 1024 × 1024"
GEMM_STREAM = "GEMM, 128 × 768 × 768"


@dataclass(frozen=True)
class Target:
    """The time of an item of otimes should be at most ``limit`` times that of another item."""

    own: str
    against: str
    limit: float

    def ratios(self, samples: Mapping[str, Samples]) -> tuple[float, float]:
        """Own over other, wall clock and processor: medians over rounds of the same round's.

        Of an item that was measured once, that round alone.
        """
        own, other = samples[self.own], samples[self.against]
        wall, cpu = (
            median(mine / theirs for mine, theirs in zip(mines, others, strict=False))
            for mines, others in ((own.wall, other.wall), (own.cpu, other.cpu))
        )
        return wall, cpu

    def met(self, samples: Mapping[str, Samples]) -> bool:
        """Whether both ratios are within the limit."""
        return max(self.ratios(samples)) <= self.limit


TARGETS = (
    Target("head words of order ≤ 2", FORWARD, 0.2),
    Target("head words of order ≤ 3", FORWARD, 3),
    Target("stream at all orders", FROZEN_PASS, 6.5),
    Target("scalar at all orders", FROZEN_PASS, 4),
    Target("marginals through heads and edges", FORWARD, 3),
    Target("head attribution by source token, every position", HEAD_RESULTS, 1),
    Target("head attribution by source token, last position", HEAD_RESULTS_LAST, 1),
    Target("verify by order, identity at one prime", FORWARD, 5),
)
