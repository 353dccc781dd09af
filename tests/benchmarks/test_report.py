"""Targets and the page: what is met, missed and not there yet."""

from __future__ import annotations

from itertools import product

import pytest

from benchmarks.harness.processes import Samples
from benchmarks.harness.report import Results, Setting, page
from benchmarks.harness.shapes import GPT2, Shape
from benchmarks.harness.targets import (
    FORWARD,
    FROZEN_PASS,
    GEMM,
    GEMM_STREAM,
    PATCHING,
    SMALL_FORWARD,
    Target,
)


def samples(*wall: float, cpu: tuple[float, ...] | None = None) -> Samples:
    return Samples(wall, wall if cpu is None else cpu, 2.0**30, 2.0**29, operations=1e9)


@pytest.mark.parametrize(
    ("wall", "cpu", "met"),
    [((2, 2), (2, 2), True), ((4, 4), (2, 2), False), ((2, 2), (4, 4), False)],
)
def test_a_target_is_met_when_both_clocks_say_so(wall, cpu, met):
    found = {"own": samples(*wall, cpu=cpu), "peer": samples(1, 1)}

    assert Target("own", "peer", 3).met(found) is met


def test_a_ratio_pairs_the_times_of_a_round():
    found = {"own": samples(1, 10, 100), "peer": samples(1, 5, 100)}

    assert Target("own", "peer", 3).ratios(found) == (1, 1)


def test_the_page_says_what_is_met_missed_and_missing():
    measured = {
        FORWARD: samples(1.0),
        FROZEN_PASS: samples(0.1),
        GEMM: samples(0.05),
        GEMM_STREAM: samples(0.1),
        PATCHING: samples(7.3),
        SMALL_FORWARD: samples(0.05),
        "stream at all orders": samples(0.9),
        "scalar at all orders": samples(0.3),
    }
    setting = Setting(
        "float32", 2, measured, profiles={"stream at all orders": [("aten::bmm", 7, 0.5)]}
    )

    text = page(Results(7, 0.5, "a processor", {"torch": "2.13.0"}, [setting]))
    (missed,) = (line for line in text.splitlines() if line.endswith("MISSED |"))
    (met,) = (line for line in text.splitlines() if line.endswith(" met |"))

    assert missed.startswith("| stream at all orders | float32, 2 threads | 900.0 ms |")
    assert "| frozen pass | 9.00 | 9.00 | ≤ 6.5 |" in missed
    assert met.startswith("| scalar at all orders |")
    assert sum(line.endswith("not there yet |") for line in text.splitlines()) == 6
    assert "20.0 GFLOP/s (1024 × 1024 × 1024)" in text
    assert "| `aten::bmm` | 7 | 50% |" in text
    # 7.3 s for 73 edges are 0.1 s each, 2 forward passes of the small model
    assert "2.00 plain forward passes" in text
    assert f"{GPT2.edges:,} value edges of the large shape, without that factor, is 9,793 s" in text


def test_edges_are_those_that_one_counts():
    shape = Shape(layers=4, heads=3, d_model=8, d_head=2, d_vocab=5, length=6)
    heads = list(product(range(4), range(3)))
    between = [(one, other) for one, other in product(heads, heads) if one[0] < other[0]]

    assert shape.edges == len(between) + 2 * len(heads) + 1
    assert GPT2.edges == 9793


def test_operations_of_a_forward_pass_are_those_of_its_matrices():
    # 12 layers hold 85 million weights and the unembedding 38.6 million; each meets 128 tokens
    weights = 12 * 12 * 768**2 + 768 * 50_257
    attention = 12 * 12 * 2 * (2 * 128**2 * 64)

    assert GPT2.forward_pass == 2 * 128 * weights + attention
