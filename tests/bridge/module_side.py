"""What a module of transformers does by itself, seen by plain hooks: nothing of otimes is used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

#: where families have a layer, its attention's last projection, the final norm
_LAYERS = ("transformer.h", "gpt_neox.layers", "model.layers")
_PROJECTIONS = ("attn.c_proj", "attn.out_proj", "attention.dense", "self_attn.o_proj")
_FINAL = ("transformer.ln_f", "gpt_neox.final_layer_norm", "model.norm")


@dataclass
class Seen:
    """What one pass of a module did.

    Attributes:
        logits: its output ``[batch, pos, d_vocab]``.
        uncapped: the same before a soft-cap.
        patterns: of each layer ``[batch, head, dest, src]``, as the module returns them.
        mixed: of each layer what its last projection reads, the heads' mixed values side by side
            ``[batch, pos, head * d_head]``.
        stream: what the final norm reads.
    """

    logits: Tensor
    uncapped: Tensor
    patterns: tuple[Tensor, ...]
    mixed: list[Tensor] = field(default_factory=list[Tensor])
    stream: Tensor = field(default_factory=lambda: torch.empty(0))


def named(module: nn.Module, names: tuple[str, ...]) -> Any:
    """The one of these parts that a module has."""
    parts = dict(module.named_modules())
    (found,) = (parts[name] for name in names if name in parts)
    return found


def projection(module: nn.Module, layer: int) -> Any:
    """The module through which the heads of a layer write."""
    return named(named(module, _LAYERS)[layer], _PROJECTIONS)


def seen(module: Any, ids: Tensor) -> Seen:
    """Run a module whose attention is eager."""
    found = Seen(torch.empty(0), torch.empty(0), ())
    layers = named(module, _LAYERS)
    handles = [
        projection(module, layer).register_forward_pre_hook(
            lambda _, args: found.mixed.append(args[0])
        )
        for layer in range(len(layers))
    ]
    handles.append(
        named(module, _FINAL).register_forward_pre_hook(
            lambda _, args: setattr(found, "stream", args[0])
        )
    )
    unembedding = module.get_output_embeddings()
    handles.append(
        unembedding.register_forward_hook(lambda _, __, out: setattr(found, "uncapped", out))
    )
    try:
        with torch.no_grad():
            output = module(input_ids=ids, use_cache=False, output_attentions=True)
    finally:
        for handle in handles:
            handle.remove()
    found.logits, found.patterns = output.logits, output.attentions
    # Granite divides behind its unembedding
    found.uncapped = found.uncapped / getattr(module.config, "logits_scaling", 1.0)
    return found


def head_logits(module: Any, found: Seen, layer: int, head: int) -> Tensor:
    """What one head's output adds to the logits directly, the final norm at its own scale.

    For blocks whose outputs join the stream as they are: ``z_h W_O`` through the final norm's
    gain, centred where it centres, and the unembedding.
    """
    o = projection(module, layer)
    # Conv1D stores [in, out], a linear layer [out, in]
    W_O = o.weight if type(o).__name__ == "Conv1D" else o.weight.T
    heads = module.config.num_attention_heads
    size = len(W_O) // heads
    rows = slice(head * size, (head + 1) * size)
    written = found.mixed[layer][..., rows] @ W_O[rows]
    norm = named(module, _FINAL)
    stream = found.stream
    if isinstance(norm, nn.LayerNorm):
        written = written - written.mean(-1, keepdim=True)
        stream = stream - stream.mean(-1, keepdim=True)
    eps = next(
        value for name in ("eps", "variance_epsilon") if (value := getattr(norm, name, None))
    )
    scale = (stream.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    gain = norm.weight + 1 if "Gemma" in type(norm).__name__ else norm.weight
    unembedding = module.get_output_embeddings().weight
    return (written / scale * gain @ unembedding.T).detach()


def contrast(pattern: Tensor, query: int, key: int, other: int) -> float:
    """``log A[query, key] − log A[query, other]``."""
    return math.log(float(pattern[query, key])) - math.log(float(pattern[query, other]))
