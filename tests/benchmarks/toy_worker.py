"""A process to measure: one item that takes memory, one that takes none, one that fails."""

from __future__ import annotations

import torch

from benchmarks.harness.worker import Item, serve


def build(dtype: torch.dtype) -> dict[str, Item]:
    print("a library that prints while it is loaded")

    def large() -> torch.Tensor:
        print("and while it works")
        return torch.ones(8 * 2**20, dtype=dtype)

    return {
        "large": Item(large, 8.0 * 2**20, judge=lambda result: f"has {result.dtype}"),
        "nothing": Item(lambda: None),
        "broken": Item(lambda: 1 / 0),
    }


if __name__ == "__main__":
    serve(build, {"toy": "1"})
