"""SmolLM2-135M from its GGUF: what it takes to verify it, to explain a logit and a score.

Run it with `make smollm`. Each step prints its time and the peak of memory so far.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

import torch

import otimes as ox

PROMPT = "The capital of France is"
TARGET = " Paris"
INDUCTION = "18.6"


@contextmanager
def step(what: str) -> Generator[None]:
    """Print how long the body takes, and the peak of memory behind it."""
    start = time.perf_counter()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"[{what}: {time.perf_counter() - start:.1f} s, peak memory {peak:.2f} GiB]\n")


def main() -> int:
    """Load, verify, explain; 1 where something does not hold."""
    with step("load"):
        model = ox.load("smollm2-135m")
        print(repr(model))
        for note in model.notes:
            print(f"  {note}")
    with step("run"):
        run = model.run(PROMPT)
        p, best = run.logits[0, -1].softmax(-1).max(-1)
        print(f"{PROMPT!r} -> {model.tokenizer.token_text(int(best))!r}, p = {float(p):.3f}")
    with step("verify"):
        certificate = ox.verify(run)
        print(f"holds: {certificate.holds}; {certificate.paths:,} paths")
        print(f"logits {certificate.max_abs_error:.1e} ≤ {certificate.bound:.1e}")
        for error in certificate.source_errors:
            print(f"{certificate.source}'s own logits in {error.dtype}: {error.max_abs_error:.1e}")
    with step("attribute"):
        print(ox.attribute(run, target=TARGET, top=10))
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(100, 40_000, (12,), generator=generator).tolist()
    with step("scores"):
        print(ox.scores(model.run(tokens=random * 2), head=INDUCTION, query=18, key=7, top=10))
    return 0 if certificate.holds and model.tokenizer.token_text(int(best)) == TARGET else 1


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    sys.exit(main())
