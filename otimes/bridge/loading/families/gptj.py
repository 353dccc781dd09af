"""GPT-J: attention and MLP read one norm, and neighbouring coordinates turn together."""

from __future__ import annotations

from otimes.bridge.loading.families.settings import Settings
from otimes.bridge.loading.families.table import (
    Family,
    Places,
    embeddings,
    heads,
    norm,
    plain_mlp,
)

LAYER = "transformer.h.{l}"


def config(settings: Settings) -> dict[str, object]:
    """The fields of a native config."""
    d_model, n_heads = settings.size("n_embd"), settings.size("n_head")
    d_head = settings.per_head("n_embd", "n_head")
    return {
        "n_layers": settings.size("n_layer"),
        "n_heads": n_heads,
        "d_model": d_model,
        "d_head": d_head,
        "d_mlp": settings.size("n_inner") if settings.has("n_inner") else 4 * d_model,
        "n_ctx": settings.size("n_positions"),
        "d_vocab": settings.size("vocab_size"),
        "positions": "rotary",
        "rotary": {
            "theta": 10000.0,
            "dim": settings.size("rotary_dim") if settings.has("rotary_dim") else d_head,
            "pairing": "interleaved",
        },
        "norm": "layer",
        "eps": settings.positive_number("layer_norm_epsilon"),
        "activation": settings.activation("activation_function"),
        "attention_scale": d_head**-0.5,
        "parallel": "shared",
        "tied": settings.truth("tie_word_embeddings", default=False),
    }


GPTJ = Family(
    name="GPT-J",
    model_types=("gptj",),
    config=config,
    takes=(
        *embeddings("transformer.wte", "lm_head"),
        *heads(f"{LAYER}.attn", ("q_proj", "k_proj", "v_proj", "out_proj")),
        *plain_mlp(f"{LAYER}.mlp", ("fc_in", "fc_out")),
        *norm(f"{LAYER}.ln_1", "blocks.{l}.ln1"),
        *norm("transformer.ln_f", "ln_final"),
    ),
    defaults={
        "vocab_size": 50400,
        "n_positions": 2048,
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "rotary_dim": 64,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
    buffers=(
        f"{LAYER}.attn.bias",
        f"{LAYER}.attn.masked_bias",
        f"{LAYER}.attn.embed_positions",
    ),
    prefix="transformer.",
    places=Places(
        layer=LAYER, attention="attn", mlp="mlp", middle=None, final=("transformer.ln_f",)
    ),
    float32=("angles", "scores", "softmax"),
)
