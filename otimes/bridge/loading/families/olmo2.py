"""OLMo-2: norms behind the branches alone, and over all heads' queries and keys together."""

from __future__ import annotations

from dataclasses import replace

from otimes.bridge.loading.families import llama
from otimes.bridge.loading.families.settings import Settings
from otimes.bridge.loading.families.table import Take, norm


def config(settings: Settings) -> dict[str, object]:
    """The fields of Llama, with norms elsewhere."""
    return {**llama.config(settings), "norm_placement": "output", "qk_norm": "all"}


_ATTENTION = f"{llama.LAYER}.self_attn"

OLMO2 = replace(
    llama.LLAMA,
    name="OLMo-2",
    model_types=("olmo2",),
    config=config,
    defaults={**llama.DEFAULTS, "vocab_size": 50304, "rms_norm_eps": 1e-5},
    takes=(
        *llama.EMBEDDINGS,
        *llama.ATTENTION,
        *llama.MLP,
        Take(f"{_ATTENTION}.q_norm.weight", {"blocks.{l}.attn.q_norm.w": "(head d_head)"}),
        Take(f"{_ATTENTION}.k_norm.weight", {"blocks.{l}.attn.k_norm.w": "(kv_head d_head)"}),
        *norm(f"{llama.LAYER}.post_attention_layernorm", "blocks.{l}.ln1_post"),
        *norm(f"{llama.LAYER}.post_feedforward_layernorm", "blocks.{l}.ln2_post"),
        *norm("model.norm", "ln_final"),
    ),
    # nothing stands before the MLP, so that it reads the stream itself
    places=replace(llama.PLACES, middle="mlp"),
)
