"""Evaluating and verifying a whole expansion, beside the forward pass and the machine's own limit.

Run it with ``make bench`` or ``python benchmarks/bench_evaluate.py``. All figures come from one
process with one thread, medians of five runs; ratios matter, seconds depend on the machine.

- *forward*: the reference module's own forward pass;
- *terms*: every term of the expansion at every logit, prefixes shared (`run.terms`);
- *each alone*: the same terms, each from its source, nothing shared: what a loop over paths costs;
- *verify*: the whole certificate;
- *GEMM limit*: the time that the multiplications of *terms* take as large square products.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import otimes as ox
from otimes.bridge.binding import numbered
from otimes.models import folder
from otimes.numeric.paths import path_logits

REPEATS = 5


def seconds(work: Callable[[], object]) -> float:
    """The median time of a piece of work, after one run to warm up."""
    work()
    times = list[float]()
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def gemm_rate() -> float:
    """Multiplications and additions per second of a large float64 product."""
    size = 1024
    left, right = (torch.randn(size, size, dtype=torch.float64) for _ in range(2))
    return 2 * size**3 / seconds(lambda: left @ right)


def main() -> None:
    """Print the table and write it to benchmarks/results/evaluate.md."""
    torch.set_num_threads(1)
    model = ox.load("attn-only-2l")
    text = folder("validation.txt").read_text(encoding="utf-8")
    ids = [0, *model.tokenizer.encode(text[:3000])][: model.config.n_ctx]
    run = model.run(tokens=ids)
    frozen, paths = run.frozen().model, list(model.architecture.logits.expand().depth_first())
    reference, tokens = model.reference(), torch.tensor([ids])

    def alone() -> None:
        for term in paths:
            for _ in path_logits(frozen, [numbered(term)]):
                pass

    def shared() -> None:
        for _ in run.terms():
            pass

    c, length = model.config, len(ids)
    head = length * (2 * c.d_model * c.d_head + length * c.d_head)
    operations = 2 * (len(paths) * length * c.d_model * c.d_vocab + (len(paths) - 1) * head)
    rows = {
        "forward": seconds(lambda: reference(tokens)),
        "GEMM limit of the terms": operations / gemm_rate(),
        "terms": seconds(shared),
        "each alone": seconds(alone),
        "verify": seconds(lambda: ox.verify(run)),
    }
    lines = [
        "# Evaluation and verification",
        "",
        f"`attn-only-2l`, {length} tokens, {len(paths)} paths, every logit, float64, one thread.",
        "",
        "| what | seconds | × forward | × GEMM limit |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {name} | {value:.3f} | {value / rows['forward']:.1f} | "
            f"{value / rows['GEMM limit of the terms']:.2f} |"
            for name, value in rows.items()
        ),
        "",
    ]
    out = Path(__file__).parent / "results" / "evaluate.md"
    out.parent.mkdir(exist_ok=True)
    out.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
