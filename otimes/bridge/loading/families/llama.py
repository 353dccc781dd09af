"""Llama and its kin: pre-RMSNorm, half-split rotary positions, gated MLPs, grouped heads."""

from __future__ import annotations

from otimes.bridge.loading.families.settings import Settings
from otimes.bridge.loading.families.table import (
    Family,
    Places,
    Take,
    embeddings,
    gated_mlp,
    heads,
    norm,
)

LAYER = "model.layers.{l}"
ATTENTION = heads(f"{LAYER}.self_attn", ("q_proj", "k_proj", "v_proj", "o_proj"))
MLP = gated_mlp(f"{LAYER}.mlp", ("gate_proj", "up_proj", "down_proj"))
EMBEDDINGS = embeddings("model.embed_tokens", "lm_head")
PRE_NORMS = (
    *norm(f"{LAYER}.input_layernorm", "blocks.{l}.ln1"),
    *norm(f"{LAYER}.post_attention_layernorm", "blocks.{l}.ln2"),
    *norm("model.norm", "ln_final"),
)
TAKES: tuple[Take, ...] = (*EMBEDDINGS, *ATTENTION, *MLP, *PRE_NORMS)
BUFFERS = (f"{LAYER}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")
PLACES = Places(
    layer=LAYER,
    attention="self_attn",
    mlp="mlp",
    middle="post_attention_layernorm",
    final=("model.norm",),
)
DEFAULTS: dict[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def d_head(settings: Settings) -> int:
    """``head_dim`` or, where it is not given, ``hidden_size / num_attention_heads``."""
    if settings.has("head_dim"):
        return settings.size("head_dim")
    return settings.per_head("hidden_size", "num_attention_heads")


def config(settings: Settings) -> dict[str, object]:
    """What the configs of all these families have in common."""
    width = d_head(settings)
    return {
        "n_layers": settings.size("num_hidden_layers"),
        "n_heads": settings.size("num_attention_heads"),
        "n_kv_heads": settings.size("num_key_value_heads", "num_attention_heads"),
        "d_model": settings.size("hidden_size"),
        "d_head": width,
        "d_mlp": settings.size("intermediate_size"),
        "n_ctx": settings.size("max_position_embeddings"),
        "d_vocab": settings.size("vocab_size"),
        "positions": "rotary",
        "rotary": settings.rotary(width),
        "norm": "rms",
        "eps": settings.positive_number("rms_norm_eps"),
        "activation": settings.activation("hidden_act"),
        "attention_scale": width**-0.5,
        "tied": settings.truth("tie_word_embeddings", default=False),
    }


LLAMA = Family(
    name="Llama",
    model_types=("llama",),
    defaults=DEFAULTS,
    config=config,
    takes=TAKES,
    buffers=BUFFERS,
    prefix="model.",
    places=PLACES,
)
