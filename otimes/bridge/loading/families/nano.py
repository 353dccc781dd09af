"""nanoGPT and minGPT: GPT-2 with linear layers, which store their weights ``[out, in]``."""

from __future__ import annotations

from dataclasses import replace

from otimes.bridge.loading.families import gpt2
from otimes.bridge.loading.families.settings import Settings
from otimes.bridge.loading.families.table import plain_mlp


def config(settings: Settings) -> dict[str, object]:
    """The fields of GPT-2, under the names of these projects' configs."""
    names = {"n_positions": "block_size"}
    named = {new: settings.mapping[old] for new, old in names.items() if settings.has(old)}
    return gpt2.config(Settings({**settings.mapping, **named}, {}, settings.where))


NANOGPT = replace(
    gpt2.GPT2,
    name="nanoGPT",
    model_types=("nanogpt",),
    config=config,
    takes=(
        *gpt2.EMBEDDINGS,
        *gpt2.fused_heads(f"{gpt2.LAYER}.attn", transposed=True),
        *plain_mlp(f"{gpt2.LAYER}.mlp", ("c_fc", "c_proj")),
        *gpt2.NORMS,
    ),
    defaults={
        **gpt2.GPT2.defaults,
        "vocab_size": 50304,
        "activation_function": "gelu",
        "tie_word_embeddings": True,
    },
)
MINGPT = replace(
    NANOGPT,
    name="minGPT",
    model_types=("mingpt",),
    defaults={
        **gpt2.GPT2.defaults,
        "activation_function": "gelu_new",
        "tie_word_embeddings": False,
    },
)
