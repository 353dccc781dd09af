"""A forward pass of Hugging Face's GPT-2 small with random weights and eager attention."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import transformers

from benchmarks.harness.shapes import GPT2
from benchmarks.harness.targets import FORWARD
from benchmarks.harness.worker import Item, serve


def build(dtype: torch.dtype) -> Mapping[str, Item]:
    """The model as its configuration makes it, in evaluation mode, without a cache of keys."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=GPT2.layers,
        n_head=GPT2.heads,
        n_embd=GPT2.d_model,
        vocab_size=GPT2.d_vocab,
        attn_implementation="eager",
    )
    model = transformers.GPT2LMHeadModel(config).to(dtype).eval()
    tokens = torch.randint(GPT2.d_vocab, (1, GPT2.length))

    def forward() -> torch.Tensor:
        return model(tokens, use_cache=False).logits

    assert model.config._attn_implementation == "eager"
    assert forward().shape == (1, GPT2.length, GPT2.d_vocab)
    assert forward().dtype == dtype
    return {FORWARD: Item(forward, GPT2.forward_pass)}


if __name__ == "__main__":
    serve(build, {"transformers": transformers.__version__})
