"""What is measured of otimes: each kernel under the name that its target has.

A target whose kernel has no entry here is reported as not there yet.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

import otimes as ox
from benchmarks.harness.shapes import GPT2
from benchmarks.harness.targets import FROZEN_PASS, GEMM, GEMM_STREAM
from benchmarks.harness.worker import Item, serve
from benchmarks.own.frozen_gpt2 import FrozenPass, frozen_model
from benchmarks.own.random_checkpoint import write_checkpoint
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.paths import order_streams


def machine(dtype: torch.dtype) -> Mapping[str, Item]:
    """The rates of matrix products: a large one, and the product that a stream meets in a block."""

    def product(rows: int, inner: int, columns: int) -> Item:
        left, right = (
            torch.randn(rows, inner, dtype=dtype),
            torch.randn(inner, columns, dtype=dtype),
        )
        return Item(lambda: torch.mm(left, right), 2.0 * rows * inner * columns)

    return {
        GEMM: product(1024, 1024, 1024),
        GEMM_STREAM: product(GPT2.length, GPT2.d_model, GPT2.d_model),
    }


def kernels(model: FrozenModel) -> Mapping[str, Item]:
    """Sums over paths on a frozen model."""
    frozen_pass = FrozenPass(model)

    def orders() -> list[torch.Tensor]:
        *_, streams = order_streams(model)
        return streams

    streams, whole = orders(), frozen_pass()
    assert len(streams) == GPT2.layers + 1
    error = (torch.stack(streams).sum(0) - whole).abs().max() / whole.abs().max()
    assert error < 100 * torch.finfo(model.dtype).eps, "the orders do not add up"
    # block l of n is passed by l + 1 streams
    mean_streams = (GPT2.layers + 1) / 2
    return {
        FROZEN_PASS: Item(frozen_pass, GPT2.frozen_pass),
        "stream at all orders": Item(orders, mean_streams * GPT2.frozen_pass),
    }


def verification(dtype: torch.dtype) -> Mapping[str, Item]:
    """The certificate of a recorded run, its paths grouped by order; recording is not included."""
    with tempfile.TemporaryDirectory() as folder:
        model = ox.load(write_checkpoint(Path(folder), GPT2))
        run = model.run(tokens=torch.randint(GPT2.d_vocab, (GPT2.length,)).tolist())
        run.recording(dtype)

    def verify() -> ox.Certificate:
        return ox.verify(run, dtype=dtype)

    def judge(certificate: ox.Certificate) -> str | None:
        assert certificate.method == "by order"
        return None if certificate.holds else f"does not hold: {'; '.join(certificate.reasons)}"

    return {"verify by order": Item(verify, judge=judge)}


def build(dtype: torch.dtype) -> Mapping[str, Item]:
    """Everything that is measured of otimes."""
    torch.manual_seed(0)
    return {**machine(dtype), **kernels(frozen_model(GPT2, dtype)), **verification(dtype)}


if __name__ == "__main__":
    serve(build, {"otimes": ox.__version__})
