"""Qwen2, which has biases on queries, keys and values, and Qwen3, which norms queries and keys."""

from __future__ import annotations

from dataclasses import replace

from otimes.bridge.loading.families import llama
from otimes.bridge.loading.families.settings import Settings
from otimes.bridge.loading.families.table import Take


def config(settings: Settings) -> dict[str, object]:
    """The fields of Llama and, where they are used, the windows of the later layers."""
    layers = settings.size("num_hidden_layers")
    slides = settings.truth("use_sliding_window", default=False)
    first = settings.integer("max_window_layers", 0, 2**40)
    default = [
        "sliding_attention" if slides and layer >= first else "full_attention"
        for layer in range(layers)
    ]
    windows = settings.windows(settings.layer_types(layers, default)) if slides else None
    return {**llama.config(settings), "windows": windows}


def config_3(settings: Settings) -> dict[str, object]:
    """The same with norms over each head's queries and keys."""
    return {**config(settings), "qk_norm": "head"}


QWEN2 = replace(
    llama.LLAMA,
    name="Qwen2",
    model_types=("qwen2",),
    config=config,
    defaults={
        **llama.DEFAULTS,
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
)
QWEN3 = replace(
    QWEN2,
    name="Qwen3",
    model_types=("qwen3",),
    config=config_3,
    defaults={**QWEN2.defaults, "head_dim": 128},
    takes=(
        *llama.TAKES,
        Take(f"{llama.LAYER}.self_attn.q_norm.weight", {"blocks.{l}.attn.q_norm.w": "d_head"}),
        Take(f"{llama.LAYER}.self_attn.k_norm.weight", {"blocks.{l}.attn.k_norm.w": "d_head"}),
    ),
)
