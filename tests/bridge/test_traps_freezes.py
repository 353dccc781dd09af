"""Trap 23: what is held fixed on a real module is not what the module did, and that is caught.

Each freeze is broken twice: in the recording that both sides share, and in the engine alone. That
the runs hold as they are is in ``test_original.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import otimes as ox
from otimes.bridge import Run
from otimes.models.reference import Recording
from otimes.numeric.frozen import FrozenModel
from tests.bridge.loading.tiny import tiny, tokens
from tests.bridge.test_broken_families import (
    edges,
    scaled,
    with_neurons,
    with_readers,
    with_recording,
)
from tests.kit import reasons, with_heads, with_model, with_source

FEW: dict[str, Any] = {"primes": 0, "enumeration_limit": 0}


def run_of(name: str, mlp: str) -> Run:
    return ox.load(tiny(name), mlp=mlp).run(tokens=tokens())


def layers(name: str, layer: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A change of one layer's part of a recording."""

    def changed(recording: Recording) -> Recording:
        parts = list(getattr(recording, name))
        parts[layer] = change(parts[layer])
        return replace(recording, **{name: tuple(parts)})

    return changed


def nearly(value: torch.Tensor) -> torch.Tensor:
    """Off by a hundredth."""
    return 1.01 * value


def other_heads(value: torch.Tensor) -> torch.Tensor:
    return value.flip(1)


#: what is broken in the recording, and the reason that names it
RECORDED: dict[str, tuple[str, str, Callable[[Recording], Recording], str]] = {
    "patterns": ("gptj", "source", layers("patterns", 1, other_heads), "patterns of 1.0, 1.2"),
    "patterns, grouped": ("mistral", "frozen", layers("patterns", 0, other_heads), "patterns of 0"),
    "capped scores": ("gemma2", "source", layers("capped_scores", 1, nearly), "patterns of 1.0"),
    "a norm before": ("llama", "source", scaled("2.ln1"), "block 2.attn: the model's"),
    "a norm behind": ("gemma2", "frozen", scaled("1.ln2_post"), "block 1.mlp: the model's"),
    "an output norm": ("olmo2", "source", scaled("0.ln1_post"), "block 0.attn: the model's"),
    "the final norm": ("gpt2", "frozen", scaled("final"), "block unembed: the model's"),
    "queries": ("qwen3", "source", scaled("1.q_norm"), "scores of 1.0"),
    "keys": ("gemma3", "source", scaled("3.k_norm"), "scores of 3.0"),
    "keys, all heads": ("olmo2", "frozen", scaled("2.k_norm"), "scores of 2.0"),
    "outputs of MLPs": ("phi3", "source", layers("mlp_outputs", 1, nearly), "block 1.mlp: the"),
    "slopes": ("gpt_neox", "frozen", layers("preactivations", 1, nearly), "block 1: the model's"),
    "gates": ("llama", "frozen", layers("gates", 2, nearly), "block 2.mlp: the model's"),
}  # fmt: skip


@pytest.mark.parametrize("what", RECORDED)
def test_a_recording_that_is_not_what_the_module_did(what: str) -> None:
    name, mlp, change, where = RECORDED[what]
    run = run_of(name, mlp)

    assert where in reasons(with_recording(run, change), **FEW)


def final(model: FrozenModel) -> FrozenModel:
    assert model.final.scale is not None
    return replace(model, final=replace(model.final, scale=1.01 * model.final.scale))


def slopes(run: Run, block: int) -> Run:
    neurons = run.frozen().model.blocks[block].mlp
    assert neurons is not None
    return with_neurons(run, block, slope=1.01 * neurons.slope)


def unscaled(run: Run, block: int, which: str) -> Run:
    edge = getattr(run.frozen().model.blocks[block].attention, which)
    return edges(run, block, which, scale=1.01 * edge.scale)


def side(which: str) -> Callable[[Any], Any]:
    def changed(reader: Any) -> Any:
        norm = getattr(reader, which)
        return replace(reader, **{which: replace(norm, scale=1.01 * norm.scale)})

    return changed


#: what is broken in the engine, and the reason
ENGINE: dict[str, tuple[str, str, Callable[[Run], Run], str]] = {
    "patterns": (
        "mistral", "source",
        lambda r: with_heads(r, 2, lambda h: replace(h, pattern=h.pattern.flip(1))),
        "block 1.attn: the model's",
    ),
    "a norm before": ("llama", "source", lambda r: unscaled(r, 4, "reads"), "block 2.attn: the"),
    "a norm behind": ("gemma3", "source", lambda r: unscaled(r, 2, "writes"), "block 1.attn: the"),
    "the final norm": ("gpt2", "frozen", lambda r: with_model(r, final), "block unembed: the"),
    "queries": ("qwen3", "source", lambda r: with_readers(r, side("q_norm")), "scores of 0.0"),
    "keys": ("olmo2", "source", lambda r: with_readers(r, side("k_norm")), "scores of 0.0"),
    "outputs of MLPs": (
        "phi3", "source", lambda r: with_source(r, "mlp1", nearly), "block 1.mlp: the model's",
    ),
    "slopes": ("gpt2", "frozen", lambda r: slopes(r, 3), "block 1.mlp: the model's"),
    "gates": ("llama", "frozen", lambda r: slopes(r, 5), "block 2.mlp: the model's"),
}  # fmt: skip


@pytest.mark.parametrize("what", ENGINE)
def test_an_engine_that_holds_something_else(what: str) -> None:
    name, mlp, change, where = ENGINE[what]
    run = run_of(name, mlp)

    assert where in reasons(change(run), **FEW)
