"""GPT-NeoX and Pythia: parallel branches with norms of their own, a part of each head turns.

The fused matrix holds head after head, and for each its query, key and value.
"""

from __future__ import annotations

from otimes.bridge.loading.families.settings import Settings
from otimes.bridge.loading.families.table import (
    Family,
    Places,
    Take,
    embeddings,
    norm,
    plain_mlp,
)

LAYER = "gpt_neox.layers.{l}"


def config(settings: Settings) -> dict[str, object]:
    """The fields of a native config."""
    d_model, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    d_head = settings.per_head("hidden_size", "num_attention_heads")
    # what older configs call them
    older = {"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"}
    named = {new: settings.mapping[old] for new, old in older.items() if settings.has(old)}
    read = Settings({"rope_theta": 10000.0, **named, **settings.mapping}, {}, settings.where)
    rotary = read.rotary(d_head, share=0.25)
    return {
        "n_layers": settings.size("num_hidden_layers"),
        "n_heads": heads,
        "d_model": d_model,
        "d_head": d_head,
        "d_mlp": settings.size("intermediate_size"),
        "n_ctx": settings.size("max_position_embeddings"),
        "d_vocab": settings.size("vocab_size"),
        "positions": "rotary",
        "rotary": rotary,
        "norm": "layer",
        "eps": settings.positive_number("layer_norm_eps"),
        "activation": settings.activation("hidden_act"),
        "attention_scale": d_head**-0.5,
        "parallel": settings.truth("use_parallel_residual", default=True),
        "tied": settings.truth("tie_word_embeddings", default=False),
    }


def _fused() -> tuple[Take, Take]:
    rows = {letter: f"(head {n}/3 d_head)" for n, letter in enumerate("QKV")}
    weights = {
        f"blocks.{{l}}.attn.W_{letter}": f"{axis} d_model -> head d_model d_head"
        for letter, axis in rows.items()
    }
    biases = {f"blocks.{{l}}.attn.b_{letter}": axis for letter, axis in rows.items()}
    at = f"{LAYER}.attention.query_key_value"
    return Take(f"{at}.weight", weights), Take(f"{at}.bias", biases)


_OUTPUT = f"{LAYER}.attention.dense"

GPT_NEOX = Family(
    name="GPT-NeoX, Pythia",
    model_types=("gpt_neox",),
    config=config,
    takes=(
        *embeddings("gpt_neox.embed_in", "embed_out"),
        # what later versions of transformers call the unembedding
        *embeddings("gpt_neox.embed_in", "lm_head")[1:],
        *_fused(),
        Take(
            f"{_OUTPUT}.weight",
            {"blocks.{l}.attn.W_O": "d_model (head d_head) -> head d_head d_model"},
        ),
        Take(f"{_OUTPUT}.bias", {"blocks.{l}.attn.b_O": "d_model"}),
        *plain_mlp(f"{LAYER}.mlp", ("dense_h_to_4h", "dense_4h_to_h")),
        *norm(f"{LAYER}.input_layernorm", "blocks.{l}.ln1"),
        *norm(f"{LAYER}.post_attention_layernorm", "blocks.{l}.ln2"),
        *norm("gpt_neox.final_layer_norm", "ln_final"),
    ),
    defaults={
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
    },
    buffers=(
        f"{LAYER}.attention.bias",
        f"{LAYER}.attention.masked_bias",
        f"{LAYER}.attention.rotary_emb.inv_freq",
        "gpt_neox.rotary_emb.inv_freq",
    ),
    prefix="gpt_neox.",
    places=Places(
        layer=LAYER,
        attention="attention",
        mlp="mlp",
        middle="post_attention_layernorm",
        final=("gpt_neox.final_layer_norm",),
    ),
    float32=("angles", "softmax"),
    # transformers 5 still saves it by its old name
    renamed={"embed_out.weight": "lm_head.weight"},
)
