"""Tiny random models of every family, built by transformers itself.

Sizes are rectangular wherever the family allows it; biases are away from 0 and gains away from 1
(and from 0, for those that are stored as ``w − 1``), so that nothing can be left out unseen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

N_CTX = 24
VOCAB = 31
#: as many heads as KV heads would hide which is which; 5 is not 24 / 6
_LLAMA: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": N_CTX,
    "rms_norm_eps": 1e-2,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_positions": N_CTX,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 3,
    "n_inner": 20,
    "layer_norm_epsilon": 1e-2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GEMMA = {**_LLAMA, "head_dim": 6, "query_pre_attn_scalar": 5, "sliding_window": 4}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 16,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}

#: model_type, then what its config is made of; the names tell variants of a family apart
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT),
    "gpt2-untied": ("gpt2", {**_GPT, "tie_word_embeddings": False, "n_layer": 13}),
    "gpt_neox": (
        "gpt_neox",
        {
            "vocab_size": VOCAB,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "intermediate_size": 20,
            "max_position_embeddings": N_CTX,
            "layer_norm_eps": 1e-2,
            "rotary_pct": 0.5,
        },
    ),
    "gptj": ("gptj", {**_GPT, "rotary_dim": 4}),
    "llama": ("llama", {**_LLAMA, "head_dim": 10, "attention_bias": True, "mlp_bias": True}),
    "llama-13-layers": ("llama", {**_LLAMA, "num_hidden_layers": 13, "rope_parameters": _LLAMA3}),
    "llama-linear": (
        "llama",
        {
            **_LLAMA,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5},
        },
    ),
    "llama-dynamic": (
        "llama",
        {
            **_LLAMA,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.5},
        },
    ),
    "llama-yarn": ("llama", {**_LLAMA, "head_dim": 10, "rope_parameters": _YARN}),
    "qwen3-yarn": (
        "qwen3",
        {
            **_LLAMA,
            "head_dim": 12,
            "rope_parameters": {
                **_YARN,
                "mscale": 1.3,
                "mscale_all_dim": 0.4,
                "beta_fast": 2.0,
                "beta_slow": 0.3,
                "truncate": False,
            },
        },
    ),
    "mistral": ("mistral", {**_LLAMA, "head_dim": 10, "sliding_window": 5}),
    "qwen2": (
        "qwen2",
        {**_LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
    ),
    "qwen3": ("qwen3", {**_LLAMA, "head_dim": 10, "attention_bias": True}),
    "gemma": ("gemma", {**_LLAMA, "head_dim": 10}),
    "gemma2": (
        "gemma2",
        {**_GEMMA, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.5},
    ),
    "gemma3": (
        "gemma3_text",
        {
            **_GEMMA,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "olmo2": ("olmo2", {**_LLAMA, "attention_bias": True}),
    "phi3": ("phi3", {**_LLAMA, "sliding_window": 6, "partial_rotary_factor": 0.5}),
    "granite": (
        "granite",
        {
            **_LLAMA,
            "attention_bias": True,
            "mlp_bias": True,
            "embedding_multiplier": 1.7,
            "logits_scaling": 1.3,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.35,
        },
    ),
}
CONFIGS["stablelm"] = (
    "stablelm",
    {
        **{key: value for key, value in _LLAMA.items() if key != "rms_norm_eps"},
        "layer_norm_eps": 1e-2,
        "use_qkv_bias": True,
        # a part of 16 coordinates
        "hidden_size": 96,
        "partial_rotary_factor": 0.5,
    },
)
CONFIGS["stablelm-parallel"] = (
    "stablelm",
    {**CONFIGS["stablelm"][1], "use_parallel_residual": True, "partial_rotary_factor": 0.25},
)
CONFIGS["granite-yarn"] = (
    "granite",
    {**CONFIGS["granite"][1], "rope_parameters": {**_YARN, "attention_factor": 0.7}},
)
CONFIGS["gemma3-yarn"] = (
    "gemma3_text",
    {
        **CONFIGS["gemma3"][1],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            "full_attention": {**_YARN, "attention_factor": 1.0},
        },
    },
)
#: another block structure of a family that has two
CONFIGS["gpt_neox-sequential"] = (
    "gpt_neox",
    {**CONFIGS["gpt_neox"][1], "use_parallel_residual": False},
)


def tiny(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    """A random model in evaluation mode, with attention that returns its patterns."""
    return built(*CONFIGS[name], dtype=dtype, seed=seed)


def built(
    model_type: str,
    settings: dict[str, Any],
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> nn.Module:
    """The same of any config."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **settings)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config)
    randomise(model, seed)
    return model.to(dtype).eval()


def randomise(model: nn.Module, seed: int) -> None:
    """Random parameters, all of them away from what a model starts with."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            spread = 0.35 if parameter.ndim > 1 else 0.3
            # gains around 0.8: neither 1 nor, where they are stored as w − 1, 0
            offset = 0.0 if parameter.ndim > 1 else 0.8
            parameter.copy_(drawn * spread + offset)


def tokens(batch: int = 2, length: int = 11, seed: int = 3) -> torch.Tensor:
    """Random ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (batch, length), generator=generator)
