"""Sums over paths against what a module of transformers does by itself, seen by plain hooks.

Traps 14, 16, 17 and 19: constants that are counted once, outputs of modules that are not what the
stream gains, query heads and their KV heads, soft-caps and the norms of queries and keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import otimes as ox
from otimes.bridge import Run
from tests.bridge.loading.tiny import CONFIGS, built, tiny, tokens
from tests.bridge.module_side import contrast, head_logits, seen
from tests.kit import close, with_heads

#: many modules norm, or turn, in float32 whatever their dtype
ROUNDED = 1e-5


def tolerance(name: str) -> float:
    return 1e-13 if name.startswith("gpt2") else ROUNDED


def summed(run: Run, **asked: Any) -> float:
    return sum(row.value for row in ox.attribute(run, 3, 5, **asked).rows)


@pytest.mark.parametrize("mlp", ["source", "frozen"])
@pytest.mark.parametrize("name", CONFIGS)
def test_sums_are_the_modules_logits(name: str, mlp: str) -> None:
    """All paths, all orders, a partition, all groupings: every constant is in each of them once."""
    module = tiny(name)
    expected, limit = seen(module, tokens()).uncapped, tolerance(name)
    run = ox.load(module, mlp=mlp).run(tokens=tokens())

    close(run.evaluate(".."), expected, limit)
    close(run.by_order().sum(0), expected, limit)
    parts = run.partition({"through 0.1": "0.1 > ..", "others": ...})
    close(sum(parts.values()), expected, limit)
    logits = expected[0, -1]
    target, size = float(logits[3] - logits[5]), limit * float(logits.abs().max())
    for by in ("order", "source", "source-position", "last-head"):
        assert summed(run, by=by) == pytest.approx(target, abs=2 * size), by


@pytest.mark.parametrize(
    "name", ["gpt2", "gpt_neox", "gptj", "llama", "qwen2", "olmo2", "granite", "stablelm"]
)
def test_each_bias_would_be_missed(name: str) -> None:
    """With any one of them counted twice, or left out, the sums are far from the module's."""
    module = tiny(name)
    own = ox.load(module).run(tokens=tokens()).evaluate("..")
    biases = [(n, p) for n, p in module.named_parameters() if n.endswith("bias")]
    assert biases

    for bias, parameter in biases:
        value = parameter.data.clone()
        for times in (0.0, 2.0):
            parameter.data.copy_(times * value)
            other = seen(module, tokens()).uncapped
            assert float((other - own).abs().max()) > 1e-3 * float(own.abs().max()), bias
        parameter.data.copy_(value)
    close(own, seen(module, tokens()).uncapped, tolerance(name))


def test_outputs_that_include_the_residual() -> None:
    """Blocks as in BLOOM: what the module of an MLP returns is not what the stream gains."""
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Block

    class Block(GPT2Block):
        def forward(self, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            written = self.attn(self.ln_1(hidden_states), *args, **kwargs)[0]
            self.mlp.residual = hidden_states + written
            return self.mlp(self.ln_2(hidden_states + written))

    class MLP(GPT2MLP):
        residual: Any

        def forward(self, hidden_states: Any) -> Any:
            return self.residual + super().forward(hidden_states)

    module: Any = tiny("gpt2")
    logits = seen(module, tokens()).logits
    block = module.transformer.h[1]
    block.__class__, block.mlp.__class__ = Block, MLP
    assert torch.equal(seen(module, tokens()).logits, logits)

    certificate = ox.verify(ox.load(module).run(tokens=tokens()), primes=0, enumeration_limit=0)

    assert [c.block for c in certificate.source_blocks if not c.holds] == ["1.mlp output", "1.mlp"]
    assert certificate.reasons[0].startswith("original 1.mlp")


#: 8 query heads on 2 KV heads, of which each is wider than d_model / 8
GROUPED = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 4}


def grouped(name: str) -> Any:
    model_type, settings = CONFIGS[name]
    return built(model_type, settings | GROUPED)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma"])
def test_each_query_head_has_its_own_kv_head(name: str) -> None:
    """By the slices of what the module's own projection of the heads reads, and its patterns."""
    module = grouped(name)
    found, run = seen(module, tokens()), ox.load(module).run(tokens=tokens())
    assert (run.model.config.n_heads, run.model.config.n_kv_heads) == (8, 2)

    heads = {(layer, h): head_logits(module, found, layer, h) for layer in (0, 2) for h in range(8)}
    for (layer, head), expected in heads.items():
        close(run.evaluate(f".. > {layer}.{head}"), expected, ROUNDED)
    for layer, pattern in enumerate(found.patterns):
        close(run.pattern(layer), pattern, ROUNDED)
    rows = {row.key: row.value for row in ox.attribute(run, 3, 5, by="last-head").rows}
    for head in range(8):
        logits = heads[2, head][0, -1]
        size = ROUNDED * float(logits.abs().max())
        assert rows[f"2.{head}"] == pytest.approx(float(logits[3] - logits[5]), abs=2 * size)

    # paired as tiling pairs them, 0 1 0 1 …, a head's values are another KV head's
    wrong = with_heads(run, 0, lambda h: replace(h, W_V=h.W_V.tile(4, 1, 1), b_V=None))
    for head, other in enumerate((False, True, False, True, True, False, True, False)):
        if other:
            with pytest.raises(AssertionError, match="Not equal to tolerance"):
                close(wrong.evaluate(f"embed > 0.{head}"), run.evaluate(f"embed > 0.{head}"), 1e-2)
        else:
            close(wrong.evaluate(f"embed > 0.{head}"), run.evaluate(f"embed > 0.{head}"))


def test_the_circuits_of_a_head_are_those_of_its_kv_head() -> None:
    """``W_OV`` and ``W_QK`` as symbols, from the module's own linear layers."""
    module = grouped("llama")
    binding, own = ox.load(module).run(tokens=tokens()).binding, module.model.layers[1].self_attn

    def rows(part: Any, head: int) -> Tensor:
        return part.weight[4 * head : 4 * head + 4].detach()

    for head in range(8):
        written = own.o_proj.weight[:, 4 * head : 4 * head + 4].detach()
        for name, front, part in (
            ("W_OV", written, own.v_proj),
            ("W_QK", rows(own.q_proj, head).T, own.k_proj),
        ):
            found = binding.matrix(ox.weight(name, "d_model", "d_model", label=f"1.{head}"))
            close(found, front @ rows(part, head // 4), 1e-12)
            other = front @ rows(part, 1 - head // 4)
            assert float((found - other).abs().max()) > 1e-2


#: all that have another form of score: soft-cap, norms of queries and keys, windows, rotation
@pytest.mark.parametrize("name", CONFIGS)
def test_scores_are_the_log_odds_of_the_modules_attention(name: str) -> None:
    module: Any = tiny(name)
    found, run = seen(module, tokens()), ox.load(module).run(tokens=tokens())
    cap = run.model.config.attention_softcap
    assert (cap is not None) == (name == "gemma2")

    last = run.model.config.n_layers - 1, run.model.config.n_heads - 1
    for layer, head in ((0, 1), (1, 0), last):
        odds = contrast(found.patterns[layer][1, head], 10, 9, 7)
        one, other = (
            ox.scores(run, (layer, head), 10, key, batch=1, top=0, enumeration_limit=0).score
            for key in (9, 7)
        )
        if cap is not None:
            one, other = (cap * float(torch.tensor(s / cap).tanh()) for s in (one, other))
        assert one - other == pytest.approx(odds, abs=1e-4), (layer, head)


def test_terms_add_up_before_the_soft_cap_of_the_logits() -> None:
    module = tiny("gemma2")
    found, run = seen(module, tokens()), ox.load(module).run(tokens=tokens())
    cap = run.model.config.logits_softcap
    assert cap is not None
    assert cap == 2.5
    total = run.evaluate("..")

    close(total, found.uncapped, ROUNDED)
    close(cap * torch.tanh(total / cap), run.logits, 1e-12)
    close(run.logits, found.logits, ROUNDED)
    assert float((total - run.logits).abs().max()) > 1
    attribution = ox.attribute(run, 3, 5, by="source")
    capped = found.logits[0, -1]
    assert attribution.capped == pytest.approx(float(capped[3] - capped[5]), abs=1e-4)
    assert abs(attribution.gap) < 1e-12


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "olmo2"])
def test_norms_of_queries_and_keys_stand_at_the_modules_scales(name: str) -> None:
    module: Any = tiny(name)
    run, layer = ox.load(module).run(tokens=tokens()), module.model.layers[1].self_attn
    inputs = dict[str, Tensor]()
    handles = [
        getattr(layer, f"{side}_norm").register_forward_pre_hook(
            lambda _, args, side=side: inputs.update({side: args[0]})
        )
        for side in "qk"
    ]
    seen(module, tokens())
    for handle in handles:
        handle.remove()

    for side, read in inputs.items():
        inverse = (read.pow(2).mean(-1) + 1e-2).rsqrt()
        scale = run.recording().scales[f"1.{side}_norm"]  # [batch, head, pos]
        # [batch, pos] over all heads; a norm of each head reads them turned already, or not yet
        expected = inverse[:, None].expand_as(scale) if inverse.ndim == 2 else inverse
        close(scale, expected if expected.shape == scale.shape else expected.mT, ROUNDED)
