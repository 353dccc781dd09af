"""Gemma 1, 2 and 3 (text): gains stored as ``w − 1``, embeddings times the root of d_model."""

from __future__ import annotations

import math
from dataclasses import replace

from otimes.bridge.loading.families import llama
from otimes.bridge.loading.families.settings import Settings
from otimes.bridge.loading.families.table import Take, norm

_CAUSAL = "causal attention is what these models have here"


def config(settings: Settings) -> dict[str, object]:
    """Gemma 1: the fields of Llama, and the embeddings' multiplier."""
    settings.only("use_bidirectional_attention", None, False, need=_CAUSAL)
    return {
        **llama.config(settings),
        # "gelu" in the first configs meant the tanh form, and is read so by their module
        "activation": "gelu_tanh"
        if settings.mapping["hidden_act"] == "gelu"
        else settings.activation("hidden_act"),
        "embed_multiplier": math.sqrt(settings.size("hidden_size")),
    }


def config_2(settings: Settings) -> dict[str, object]:
    """Gemma 2: norms on both sides of a branch, soft-caps, a window in every other layer."""
    layers = settings.size("num_hidden_layers")
    default = [("sliding_attention", "full_attention")[layer % 2] for layer in range(layers)]
    return {**_later(settings), "windows": settings.windows(settings.layer_types(layers, default))}


def config_3(settings: Settings) -> dict[str, object]:
    """Gemma 3: besides, norms of queries and keys, and angles of their own for windows."""
    layers, width = settings.size("num_hidden_layers"), settings.size("head_dim")
    pattern = settings.size("sliding_window_pattern")
    default = [
        "sliding_attention" if (layer + 1) % pattern else "full_attention"
        for layer in range(layers)
    ]
    types = settings.layer_types(layers, default)
    rotary = {one: settings.rotary(width, layer_type=one) for one in set(types)}
    return {
        **_later(settings),
        "qk_norm": "head",
        "rotary": [rotary[one] for one in types],
        "windows": settings.windows(types),
    }


def _later(settings: Settings) -> dict[str, object]:
    """What Gemma 2 and 3 have in common."""
    settings.only("use_bidirectional_attention", None, False, need=_CAUSAL)
    return {
        **llama.config(settings),
        "activation": settings.activation("hidden_activation"),
        "embed_multiplier": math.sqrt(settings.size("hidden_size")),
        "norm_placement": "sandwich",
        "attention_scale": settings.positive_number("query_pre_attn_scalar") ** -0.5,
        "attention_softcap": settings.optional_positive("attn_logit_softcapping"),
        "logits_softcap": settings.optional_positive("final_logit_softcapping"),
    }


_LAYER = llama.LAYER
_COMMON = (
    *llama.EMBEDDINGS,
    *llama.ATTENTION,
    *llama.MLP,
    *norm("model.norm", "ln_final", add=1.0),
)
_SANDWICH = (
    *norm(f"{_LAYER}.input_layernorm", "blocks.{l}.ln1", add=1.0),
    *norm(f"{_LAYER}.post_attention_layernorm", "blocks.{l}.ln1_post", add=1.0),
    *norm(f"{_LAYER}.pre_feedforward_layernorm", "blocks.{l}.ln2", add=1.0),
    *norm(f"{_LAYER}.post_feedforward_layernorm", "blocks.{l}.ln2_post", add=1.0),
)
_DEFAULTS: dict[str, object] = {
    **llama.DEFAULTS,
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_LATER_DEFAULTS: dict[str, object] = {
    **_DEFAULTS,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}

GEMMA = replace(
    llama.LLAMA,
    name="Gemma",
    model_types=("gemma",),
    config=config,
    defaults={
        **_DEFAULTS,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "hidden_act": "gelu_pytorch_tanh",
    },
    takes=(
        *_COMMON,
        *norm(f"{_LAYER}.input_layernorm", "blocks.{l}.ln1", add=1.0),
        *norm(f"{_LAYER}.post_attention_layernorm", "blocks.{l}.ln2", add=1.0),
    ),
)
GEMMA2 = replace(
    GEMMA,
    name="Gemma 2",
    model_types=("gemma2",),
    config=config_2,
    defaults={
        **_LATER_DEFAULTS,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    takes=(*_COMMON, *_SANDWICH),
    places=replace(llama.PLACES, middle="pre_feedforward_layernorm"),
)
GEMMA3 = replace(
    GEMMA2,
    name="Gemma 3 (text)",
    model_types=("gemma3_text",),
    config=config_3,
    defaults={
        **_LATER_DEFAULTS,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window_pattern": 6,
    },
    takes=(
        *_COMMON,
        *_SANDWICH,
        Take(f"{_LAYER}.self_attn.q_norm.weight", {"blocks.{l}.attn.q_norm.w": "d_head"}, add=1.0),
        Take(f"{_LAYER}.self_attn.k_norm.weight", {"blocks.{l}.attn.k_norm.w": "d_head"}, add=1.0),
    ),
)
