"""Mistral: Llama with a sliding window in every layer."""

from __future__ import annotations

from dataclasses import replace

from otimes.bridge.loading.families import llama
from otimes.bridge.loading.families.settings import Settings


def config(settings: Settings) -> dict[str, object]:
    """The fields of Llama and the window."""
    settings.only("layer_types", None, need="layers of several types are another family's")
    layers = settings.size("num_hidden_layers")
    return {**llama.config(settings), "windows": settings.windows(["sliding_attention"] * layers)}


MISTRAL = replace(
    llama.LLAMA,
    name="Mistral",
    model_types=("mistral",),
    config=config,
    defaults={
        **llama.DEFAULTS,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
)
