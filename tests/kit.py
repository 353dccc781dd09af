"""Runs of random checkpoints for tests, and runs in which one thing is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import torch
from torch import Tensor

from otimes.bridge import Run, load
from otimes.bridge.freezing import Frozen
from otimes.numeric.frozen import FrozenBlock, FrozenHeads, FrozenModel, FrozenPart
from tests.factory import Checkpoint, make_checkpoint

# sources of all kinds, 4 query heads on 2 KV heads
ALL_KINDS: dict[str, Any] = {
    "n_heads": 4, "n_kv_heads": 2, "d_model": 5, "d_head": 3, "d_vocab": 7, "n_ctx": 4,
    "positions": "learned", "biases": ("b_Q", "b_K", "b_V", "b_O", "b_U"),
}  # fmt: skip


def run_of(
    folder: Path, tokens: Any = None, mask: Any = None, **options: Any
) -> tuple[Run, Checkpoint]:
    """Write a random checkpoint and run it, by default on as many different ids as fit."""
    checkpoint = make_checkpoint(folder, **options)
    config = checkpoint.config
    if tokens is None:
        tokens = [(3 * place + 1) % config["d_vocab"] for place in range(config["n_ctx"])]
    return load(folder).run(tokens=tokens, mask=mask), checkpoint


def with_frozen(run: Run, change: Callable[[Frozen], Frozen]) -> Run:
    """The same recording, but the engine's frozen model is changed."""
    broken = Run(run.model, run.model.prompt(tokens=run.tokens, mask=run.mask))
    broken._recordings = run._recordings
    original = broken.frozen
    broken.frozen = lambda dtype=torch.float64: change(original(dtype))  # type: ignore[method-assign]
    return broken


def with_model(run: Run, change: Callable[[FrozenModel], FrozenModel]) -> Run:
    return with_frozen(run, lambda frozen: replace(frozen, model=change(frozen.model)))


def with_block(run: Run, layer: int, change: Callable[[FrozenBlock], FrozenBlock]) -> Run:
    def changed(model: FrozenModel) -> FrozenModel:
        blocks = list(model.blocks)
        blocks[layer] = change(blocks[layer])
        return replace(model, blocks=tuple(blocks))

    return with_model(run, changed)


def with_heads(run: Run, layer: int, change: Callable[[FrozenHeads], FrozenHeads]) -> Run:
    def changed(block: FrozenBlock) -> FrozenBlock:
        assert block.attention is not None
        return replace(block, attention=change(block.attention))

    return with_block(run, layer, changed)


def heads_of(model: FrozenModel, layer: int) -> FrozenHeads:
    """The heads of a block that has some."""
    heads = model.blocks[layer].attention
    assert heads is not None
    return heads


def with_source(run: Run, name: str, change: Callable[[Tensor], Tensor]) -> Run:
    """Change what one source writes."""
    number = [source.name for source in run.model.architecture.sources].index(name)

    def changed(model: FrozenModel) -> FrozenModel:
        sources = list(model.sources)
        (part,) = sources[number].parts
        parts = (FrozenPart(change(part.stream), part.edge),)
        sources[number] = replace(sources[number], parts=parts)
        return replace(model, sources=tuple(sources))

    return with_model(run, changed)


@contextmanager
def untyped() -> Iterator[None]:
    """Switch the checks of annotations off: what a caller without a type checker may pass."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def patterns_of(run: Run) -> list[np.ndarray]:
    """The recorded patterns ``[batch, head, dest, src]`` of each layer."""
    return [pattern.numpy() for pattern in run.recording().patterns]


def close(actual: Any, expected: Any, relative: float = 1e-12) -> None:
    """Raise unless two arrays agree relative to the largest expected value."""
    expected = np.asarray(expected)
    tolerance = relative * max(float(np.abs(expected).max(initial=0)), 1e-300)
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=tolerance)


def fractions(value: Tensor) -> np.ndarray:
    """The exact values of a tensor, as an array of fractions; products of these have no error."""
    numbers = [Fraction(number) for number in value.double().flatten().tolist()]
    found = np.empty(len(numbers), dtype=object)
    found[:] = numbers
    return found.reshape(tuple(value.shape))


def reasons(run: Run, terms: Sequence[Any] | None = None, **options: Any) -> str:
    """The reasons of a certificate that must not hold, as one text."""
    from otimes.bridge import verify

    certificate = verify(run, terms=terms, **options)
    assert not certificate.holds, certificate
    assert "DOES NOT HOLD" in repr(certificate)
    return "\n".join(certificate.reasons)
