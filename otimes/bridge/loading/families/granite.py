"""Granite: Llama with multipliers of embeddings, scores, branches and logits."""

from __future__ import annotations

from dataclasses import replace

from otimes.bridge.loading.families import llama
from otimes.bridge.loading.families.settings import Settings


def config(settings: Settings) -> dict[str, object]:
    """The fields of Llama and the multipliers; ``logits_scaling`` divides the logits."""
    return {
        **llama.config(settings),
        "attention_scale": settings.positive_number("attention_multiplier"),
        "embed_multiplier": settings.positive_number("embedding_multiplier"),
        "residual_multiplier": settings.positive_number("residual_multiplier"),
        "logits_multiplier": 1 / settings.positive_number("logits_scaling"),
    }


GRANITE = replace(
    llama.LLAMA,
    name="Granite",
    model_types=("granite",),
    config=config,
    defaults={
        **llama.DEFAULTS,
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
)
