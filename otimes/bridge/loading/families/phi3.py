"""Phi-3: Llama with queries, keys and values, and gates and inputs, fused into one matrix each."""

from __future__ import annotations

from dataclasses import replace

from otimes.bridge.loading.families import llama
from otimes.bridge.loading.families.settings import Settings
from otimes.bridge.loading.families.table import Take


def config(settings: Settings) -> dict[str, object]:
    """The fields of Llama and the window."""
    layers = settings.size("num_hidden_layers")
    return {**llama.config(settings), "windows": settings.windows(["sliding_attention"] * layers)}


_FUSED = Take(
    f"{llama.LAYER}.self_attn.qkv_proj.weight",
    {
        "blocks.{l}.attn.W_Q": "([head]+kv_head+kv_head d_head) d_model -> head d_model d_head",
        "blocks.{l}.attn.W_K": "(head+[kv_head]+kv_head d_head) d_model -> kv_head d_model d_head",
        "blocks.{l}.attn.W_V": "(head+kv_head+[kv_head] d_head) d_model -> kv_head d_model d_head",
    },
)
_GATE_AND_UP = Take(
    f"{llama.LAYER}.mlp.gate_up_proj.weight",
    {
        "blocks.{l}.mlp.W_gate": "(0/2 d_mlp) d_model -> d_model d_mlp",
        "blocks.{l}.mlp.W_in": "(1/2 d_mlp) d_model -> d_model d_mlp",
    },
)

PHI3 = replace(
    llama.LLAMA,
    name="Phi-3",
    model_types=("phi3",),
    config=config,
    defaults={
        **llama.DEFAULTS,
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
    # the outputs of attention and MLP are Llama's
    takes=(_FUSED, _GATE_AND_UP, *llama.TAKES),
)
