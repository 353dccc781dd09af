"""StableLM: Llama with LayerNorms and rotary positions on a part of each head."""

from __future__ import annotations

from dataclasses import replace

from otimes.bridge.loading.families import llama
from otimes.bridge.loading.families.settings import Settings


def config(settings: Settings) -> dict[str, object]:
    """The fields of Llama, its norms and, in some models, both branches at once."""
    settings.only("qk_layernorm", False, need="norms of queries and keys with gains of each head")
    parallel = settings.truth("use_parallel_residual", default=False)
    return {
        **llama.config(settings),
        "rotary": settings.rotary(llama.d_head(settings), share=0.25),
        "norm": "layer",
        "eps": settings.positive_number("layer_norm_eps"),
        "parallel": "shared" if parallel else False,
    }


STABLELM = replace(
    llama.LLAMA,
    name="StableLM",
    model_types=("stablelm",),
    config=config,
    defaults={
        **llama.DEFAULTS,
        "vocab_size": 50304,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "layer_norm_eps": 1e-5,
    },
    # its norms are torch's own, in the module's dtype
    float32=("angles", "softmax"),
)
