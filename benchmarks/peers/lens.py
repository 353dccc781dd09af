"""TransformerLens: direct logit attribution of all heads, and path patching by forward passes.

Head attribution is ``stack_head_results`` and ``logit_attrs`` on a cache that is filled before. The
stack is cached by the library, so each round drops it first. Path patching is one forward pass per
value edge, on a small model: a head's change of output is added to what one later head's values or
the unembedding read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version

import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

from benchmarks.harness.shapes import GPT2, SMALL, Shape
from benchmarks.harness.targets import (
    HEAD_RESULTS,
    HEAD_RESULTS_LAST,
    PATCHING,
    SMALL_FORWARD,
)
from benchmarks.harness.worker import Item, serve

Hook = tuple[str, Callable[..., torch.Tensor]]


def model_of(shape: Shape, dtype: torch.dtype, *, attn_only: bool) -> HookedTransformer:
    """A transformer of random weights."""
    config = HookedTransformerConfig(
        n_layers=shape.layers,
        n_heads=shape.heads,
        d_model=shape.d_model,
        d_head=shape.d_head,
        d_vocab=shape.d_vocab,
        d_mlp=4 * shape.d_model,
        n_ctx=shape.length,
        act_fn="gelu_new",
        attn_only=attn_only,
        normalization_type="LN",
        dtype=dtype,
        device="cpu",
        seed=0,
    )
    return HookedTransformer(config)


def attribution(dtype: torch.dtype) -> Mapping[str, Item]:
    """What all heads add to the logit of the next token, at every and at the last position."""
    model = model_of(GPT2, dtype, attn_only=False)
    tokens = torch.randint(GPT2.d_vocab, (1, GPT2.length + 1))
    needed = ("hook_z", "hook_resid_post", "ln_final.hook_scale")
    _, cache = model.run_with_cache(
        tokens[:, :-1], names_filter=lambda name: name.endswith(needed), return_type=None
    )

    def every() -> torch.Tensor:
        forget()
        return cache.logit_attrs(cache.stack_head_results(), tokens[:, 1:])

    def last() -> torch.Tensor:
        forget()
        return cache.logit_attrs(
            cache.stack_head_results(pos_slice=-1), tokens[:, -1], pos_slice=-1
        )

    def forget() -> None:
        for name in [name for name in cache.cache_dict if name.endswith("hook_result")]:
            del cache.cache_dict[name]

    found = every()
    assert found.shape == (GPT2.layers * GPT2.heads, 1, GPT2.length)
    assert torch.allclose(found[:, :, -1], last(), rtol=1e-4, atol=1e-5)
    return {HEAD_RESULTS: Item(every), HEAD_RESULTS_LAST: Item(last)}


def patching(dtype: torch.dtype) -> Mapping[str, Item]:
    """A plain forward pass of the small model, and one with a hook for each of its edges."""
    model = model_of(SMALL, dtype, attn_only=True)
    clean, corrupt = torch.randint(SMALL.d_vocab, (2, 1, SMALL.length))
    model.set_use_attn_result(use_attn_result=True)
    _, cache = model.run_with_cache(clean)
    _, other = model.run_with_cache(corrupt)
    model.set_use_attn_result(use_attn_result=False)
    embedded = other["resid_pre", 0] - cache["resid_pre", 0]
    written = [other["result", layer] - cache["result", layer] for layer in range(SMALL.layers)]

    def forward() -> torch.Tensor:
        return model(clean)

    def every_edge() -> list[torch.Tensor]:
        # the inputs of the heads are apart only where one of them is changed
        model.set_use_split_qkv_input(use_split_qkv_input=True)
        logits = [
            model.run_with_hooks(clean, fwd_hooks=[hook])[:, -1].clone()
            for hook in _edges(embedded, written)
        ]
        model.set_use_split_qkv_input(use_split_qkv_input=False)
        return logits

    found, unchanged = every_edge(), forward()[:, -1]
    assert len(found) == SMALL.edges
    assert not any(torch.equal(logits, unchanged) for logits in found)
    return {SMALL_FORWARD: Item(forward), PATCHING: Item(every_edge)}


def _edges(embedded: torch.Tensor, written: list[torch.Tensor]) -> Iterator[Hook]:
    """A hook for each value edge: what its sender writes differs where its receiver reads."""
    senders = [(0, embedded)]
    for layer, results in enumerate(written):
        senders += [(layer + 1, results[:, :, head]) for head in range(SMALL.heads)]
    for first, change in senders:
        for layer in range(first, SMALL.layers):
            for head in range(SMALL.heads):
                yield f"blocks.{layer}.hook_v_input", partial(_add_to_head, change, head)
        yield f"blocks.{SMALL.layers - 1}.hook_resid_post", partial(_add, change)


def _add_to_head(change: torch.Tensor, head: int, value: torch.Tensor, **_: object) -> torch.Tensor:
    value = value.clone()  # [batch, pos, head, d_model]
    value[:, :, head] += change
    return value


def _add(change: torch.Tensor, value: torch.Tensor, **_: object) -> torch.Tensor:
    return value + change


def build(dtype: torch.dtype) -> Mapping[str, Item]:
    """Everything that is measured of TransformerLens."""
    torch.manual_seed(0)
    return {**attribution(dtype), **patching(dtype)}


if __name__ == "__main__":
    serve(build, {"transformer_lens": version("transformer_lens")})
