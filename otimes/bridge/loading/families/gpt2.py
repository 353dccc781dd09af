"""GPT-2: pre-LayerNorm, learned positions, and matrices that are stored ``[in, out]``."""

from __future__ import annotations

from otimes.bridge.loading.families.settings import Settings
from otimes.bridge.loading.families.table import Family, Places, Take, embeddings, norm

LAYER = "transformer.h.{l}"


def config(settings: Settings) -> dict[str, object]:
    """The fields of a native config."""
    settings.only("scale_attn_by_inverse_layer_idx", False, need="one scale for all layers")
    settings.only("add_cross_attention", False, need="a decoder without an encoder")
    d_model, d_head = settings.size("n_embd"), settings.per_head("n_embd", "n_head")
    scaled = settings.truth("scale_attn_weights", default=True)
    return {
        "n_layers": settings.size("n_layer"),
        "n_heads": settings.size("n_head"),
        "d_model": d_model,
        "d_head": d_head,
        "d_mlp": settings.size("n_inner") if settings.has("n_inner") else 4 * d_model,
        "n_ctx": settings.size("n_positions"),
        "d_vocab": settings.size("vocab_size"),
        "positions": "learned",
        "norm": "layer",
        "eps": settings.positive_number("layer_norm_epsilon"),
        "activation": settings.activation("activation_function"),
        "attention_scale": d_head**-0.5 if scaled else 1.0,
        "tied": settings.truth("tie_word_embeddings", default=True),
    }


def fused_heads(at: str, *, transposed: bool) -> tuple[Take, ...]:
    """Queries, keys and values one after the other in ``c_attn``, and the output ``c_proj``.

    Args:
        at: the attention module.
        transposed: whether weights are stored ``[out, in]``, as linear layers do.
    """
    weights, biases = dict[str, str](), dict[str, str]()
    for index, letter in enumerate("QKV"):
        columns = f"({index}/3 head d_head)"
        stored = f"{columns} d_model" if transposed else f"d_model {columns}"
        weights[f"blocks.{{l}}.attn.W_{letter}"] = f"{stored} -> head d_model d_head"
        biases[f"blocks.{{l}}.attn.b_{letter}"] = columns
    output = "d_model (head d_head)" if transposed else "(head d_head) d_model"
    return (
        Take(f"{at}.c_attn.weight", weights),
        Take(f"{at}.c_attn.bias", biases),
        Take(
            f"{at}.c_proj.weight",
            {"blocks.{l}.attn.W_O": f"{output} -> head d_head d_model"},
        ),
        Take(f"{at}.c_proj.bias", {"blocks.{l}.attn.b_O": "d_model"}),
    )


NORMS = (
    *norm(f"{LAYER}.ln_1", "blocks.{l}.ln1"),
    *norm(f"{LAYER}.ln_2", "blocks.{l}.ln2"),
    *norm("transformer.ln_f", "ln_final"),
)
EMBEDDINGS = (
    *embeddings("transformer.wte", "lm_head"),
    Take("transformer.wpe.weight", {"pos_embed.W_pos": "n_ctx d_model"}),
)
BUFFERS = (f"{LAYER}.attn.bias", f"{LAYER}.attn.masked_bias")

GPT2 = Family(
    name="GPT-2",
    model_types=("gpt2",),
    config=config,
    takes=(
        *EMBEDDINGS,
        *fused_heads(f"{LAYER}.attn", transposed=False),
        Take(f"{LAYER}.mlp.c_fc.weight", {"blocks.{l}.mlp.W_in": "d_model d_mlp"}),
        Take(f"{LAYER}.mlp.c_fc.bias", {"blocks.{l}.mlp.b_in": "d_mlp"}),
        Take(f"{LAYER}.mlp.c_proj.weight", {"blocks.{l}.mlp.W_out": "d_mlp d_model"}),
        Take(f"{LAYER}.mlp.c_proj.bias", {"blocks.{l}.mlp.b_out": "d_model"}),
        *NORMS,
    ),
    defaults={
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
    buffers=BUFFERS,
    prefix="transformer.",
    places=Places(
        layer=LAYER, attention="attn", mlp="mlp", middle="ln_2", final=("transformer.ln_f",)
    ),
    float32=(),
)
