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
from otimes.numeric.functionals import Target
from otimes.numeric.halves import order_sums
from otimes.numeric.marginals import edge_marginals
from otimes.numeric.partitions import last_component_position_sums
from otimes.numeric.paths import order_streams
from otimes.numeric.words import Words, all_words, walk_of


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
    """Sums over paths on a frozen model, of streams and of one scalar target: a logit."""
    frozen_pass = FrozenPass(model)
    at = [Target.logit(model, place, token) for place, token in enumerate(_tokens(model))]
    target = at[-1]

    def orders() -> torch.Tensor:
        *_, streams = order_streams(model)
        return streams

    def words(order: int) -> Words:
        return all_words(walk_of(model, target, order=order))

    def attribution(targets: list[Target]) -> list[torch.Tensor]:
        streams = model.forward()
        return [last_component_position_sums(model, one, streams) for one in targets]

    _check(orders(), frozen_pass(), words(2), order_sums(model, target), model)
    # block l of n is passed by l + 1 streams
    mean_streams = (GPT2.layers + 1) / 2
    return {
        FROZEN_PASS: Item(frozen_pass, GPT2.frozen_pass),
        "head words of order ≤ 2": Item(lambda: words(2)),
        "head words of order ≤ 3": Item(lambda: words(3)),
        "stream at all orders": Item(orders, mean_streams * GPT2.frozen_pass),
        "scalar at all orders": Item(lambda: order_sums(model, target)),
        "marginals through heads and edges": Item(lambda: edge_marginals(model, target)),
        "head attribution by source token, every position": Item(lambda: attribution(at)),
        "head attribution by source token, last position": Item(lambda: attribution([target])),
    }


def _tokens(model: FrozenModel) -> list[torch.Tensor]:
    """For each position the weights of a logit: those of one token."""
    chosen = torch.randint(GPT2.d_vocab, (GPT2.length,))
    return list(torch.nn.functional.one_hot(chosen, GPT2.d_vocab).to(model.dtype))


def _check(
    streams: torch.Tensor,
    whole: torch.Tensor,
    words: Words,
    sums: torch.Tensor,
    model: FrozenModel,
) -> None:
    """What is measured is right: orders add up to the stream, and words to their orders."""
    few = 100 * torch.finfo(model.dtype).eps
    assert len(streams) == GPT2.layers + 1
    assert (streams.sum(0) - whole).abs().max() < few * whole.abs().max(), "orders of streams"
    assert len(words.values) == 1 + 144 + 9504
    for order in range(3):
        found = words.values[words.lengths == order]
        error = abs(float(found.sum()) - float(sums[order]))
        assert error < few * max(float(abs(found).sum()), 1e-30), f"words of order {order}"


def verification(dtype: torch.dtype) -> Mapping[str, Item]:
    """The certificate of a recorded run, its paths grouped by order; recording is not included."""
    with tempfile.TemporaryDirectory() as folder:
        model = ox.load(write_checkpoint(Path(folder), GPT2))
        run = model.run(tokens=torch.randint(GPT2.d_vocab, (GPT2.length,)).tolist())
        run.recording(dtype)

    def verify() -> ox.Certificate:
        return ox.verify(run, dtype=dtype, primes=1)

    def judge(certificate: ox.Certificate) -> str | None:
        assert certificate.method == "by order"
        return None if certificate.holds else f"does not hold: {'; '.join(certificate.reasons)}"

    return {"verify by order, identity at one prime": Item(verify, judge=judge)}


def build(dtype: torch.dtype) -> Mapping[str, Item]:
    """Everything that is measured of otimes."""
    torch.manual_seed(0)
    return {**machine(dtype), **kernels(frozen_model(GPT2, dtype)), **verification(dtype)}


if __name__ == "__main__":
    serve(build, {"otimes": ox.__version__})
