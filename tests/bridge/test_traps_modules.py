"""What is made of modules and of tensors, and what is left as it was.

Traps 15, 18, 21 and 25: gains that are folded twice, modules that return no patterns, weights in 16
bits, inputs that are changed.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import otimes as ox
from otimes.bridge import Run
from tests.bridge.loading.tiny import CONFIGS, tiny, tokens
from tests.bridge.module_side import seen
from tests.bridge.test_original import with_layer
from tests.factory import write_checkpoint
from tests.kit import close

PADDED = torch.tensor([[False] * 3 + [True] * 8, [True] * 11])


def stored(model: ox.Model) -> dict[str, Tensor]:
    """The tensors of a native file of a model, a tied unembedding left out."""
    tied = {"unembed.W_U"} if model.weights.tied else set[str]()
    return {name: t for name, t in model.weights.tensors().items() if name not in tied}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor, other[name]), name


# 15: what was folded already


@pytest.mark.parametrize("name", [name for name in CONFIGS if "-" not in name])
def test_loading_again_changes_nothing(tmp_path: Path, name: str) -> None:
    """A module twice; the canonical weights as tensors, and as a file; that once more."""
    module = tiny(name, torch.float32)
    model = ox.load(module)
    same(stored(model), stored(ox.load(module)))
    config = model.config.to_json()

    write_checkpoint(
        tmp_path / "one", config, {n: t.contiguous() for n, t in stored(model).items()}
    )
    native = ox.load(tmp_path / "one")
    write_checkpoint(tmp_path / "two", native.config.to_json(), stored(native))

    for again in (ox.load(stored(model), config=config), native, ox.load(tmp_path / "two")):
        assert again.config == model.config
        same(stored(again), stored(model))
    run = native.run(tokens=tokens())
    close(run.logits, seen(tiny(name), tokens()).logits, 1e-4)
    whole = model.weights.tensors()
    same(stored(ox.load(whole, config=config)), stored(model))
    if model.weights.tied:  # another unembedding than the embedding's is none of this model
        other = {**whole, "unembed.W_U": 2 * whole["unembed.W_U"]}
        with pytest.raises(
            ox.OtimesError, match=r"has the tensor 'unembed\.W_U', which a model of"
        ):
            ox.load(other, config=config)


@pytest.mark.parametrize("name", ["llama", "gemma", "granite"])
def test_a_gain_that_is_folded_and_kept_is_located(name: str) -> None:
    """In the matrices that read through the norm, and in the norm: it is applied twice."""
    run = ox.load(tiny(name)).run(tokens=tokens())

    def folded(matrix: str) -> Callable[[Any, Any], Tensor]:
        return lambda own, all_: all_.norms["0.ln1"].w[:, None] * getattr(own, matrix)

    twice = with_layer(run, **{matrix: folded(matrix) for matrix in ("W_Q", "W_K", "W_V")})

    certificate = ox.verify(twice, primes=0, enumeration_limit=0)
    wrong = [check.block for check in certificate.source_blocks if not check.holds]
    assert wrong == ["0.attn output"]
    # folded into the matrices and taken out of the norm, it is the same model
    norms = {**twice.model.weights.norms}
    norms["0.ln1"] = replace(norms["0.ln1"], w=torch.ones_like(norms["0.ln1"].w))
    twice.model.weights = replace(twice.model.weights, norms=norms)
    assert ox.verify(twice.model.run(tokens=tokens()), primes=0, enumeration_limit=0).holds


# 18: modules that return no patterns


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "gpt_neox",
        "gptj",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma3",
        "olmo2",
        "phi3",
        "stablelm",
    ],
)
def test_patterns_of_a_module_that_returns_none(name: str) -> None:
    """They are those that it returns with eager attention, and are checked by what they write."""
    module: Any = tiny(name)
    patterns = seen(module, tokens()).patterns
    module.set_attn_implementation("sdpa")
    with torch.no_grad():
        returned = module(tokens(), output_attentions=False).attentions
    assert returned is None
    run = ox.load(module).run(tokens=tokens())

    for layer, pattern in enumerate(patterns):
        close(run.pattern(layer), pattern, 1e-5)
    assert ox.verify(run, primes=0, enumeration_limit=0).holds
    assert module.config._attn_implementation == "sdpa"


def test_other_patterns_than_the_modules_are_located() -> None:
    """It attends without a window, and returns no pattern that would say so."""
    module: Any = tiny("mistral")
    module.set_attn_implementation("sdpa")
    run = ox.load(module).run(tokens=tokens())
    module.config.sliding_window = None

    certificate = ox.verify(run, primes=0, enumeration_limit=0)

    wrong = [check.block for check in certificate.source_blocks if not check.holds]
    assert wrong == [f"{layer}.attn output" for layer in range(3)]
    assert certificate.reasons[0].startswith("original 0.attn output: what its branch wrote is not")


# 21: weights in 16 bits


def cast_parameters(module: Any, dtype: torch.dtype) -> Any:
    """Its parameters alone: rotary frequencies, which are none, stay as they are."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    return module


class ByHand:
    """Paths from the embedding through heads, from the module's own parameters.

    Patterns and the scales of norms are the run's; everything is computed in ``dtype``.
    """

    def __init__(self, run: Run, module: Any, dtype: torch.dtype) -> None:
        self.run, self.dtype = run, dtype
        self.state = {name: t.detach() for name, t in module.state_dict().items()}
        self.one = 1 if "gemma" in module.config.model_type else 0
        self.embedding = module.config.hidden_size**0.5 if self.one else 1.0
        self.group = module.config.num_attention_heads // module.config.num_key_value_heads
        self.size = module.config.head_dim

    def tensor(self, name: str) -> Tensor:
        return self.state[f"{name}.weight"].to(self.dtype)

    def normed(self, x: Tensor, name: str, label: str) -> Tensor:
        gain = (self.one + self.state[f"{name}.weight"].float()).to(self.dtype)
        scale = self.run.recording().scales[label][0].to(self.dtype)
        return x * scale[:, None] * gain

    def value(self, components: Iterable[Any], token: int) -> float:
        """At the last position."""
        x = self.tensor("model.embed_tokens")[self.run.tokens[0]] * self.embedding
        for layer, head in components:
            at, kv = f"model.layers.{layer}.self_attn", head // self.group
            own, shared = (slice(h * self.size, (h + 1) * self.size) for h in (head, kv))
            v = self.normed(x, f"model.layers.{layer}.input_layernorm", f"{layer}.ln1")
            v = v @ self.tensor(f"{at}.v_proj")[shared].T
            x = self.run.pattern(layer)[0, head].to(self.dtype) @ v
            x = x @ self.tensor(f"{at}.o_proj")[:, own].T
        logits = self.normed(x, "model.norm", "final") @ self.tensor("lm_head").T
        return float(logits[-1, token])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["mistral", "gemma"])
def test_the_smallest_terms_of_a_module_in_16_bits(name: str, dtype: torch.dtype) -> None:
    module = cast_parameters(tiny(name), dtype)
    run = ox.load(module).run(tokens=tokens(1, 7))
    terms = [
        (term.components, float(value[0, 0, 0])) for term, value in run.terms("embed > ..", -1, 5)
    ]
    exact, coarse = ByHand(run, module, torch.float64), ByHand(run, module, dtype)
    assert len(terms) == 7**3
    smallest = sorted(terms, key=lambda term: abs(term[1]))[:100]

    wrong = []
    for components, value in smallest:
        expected = exact.value(components, 5)
        assert value == pytest.approx(expected, rel=1e-9), components
        wrong.append(abs(coarse.value(components, 5) / expected - 1))
    # sums in the module's own precision give other terms
    assert np.median(wrong) > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_reports_say_that_weights_were_upcast(dtype: torch.dtype) -> None:
    run = ox.load(cast_parameters(tiny("llama"), dtype)).run(tokens=tokens())
    name = str(dtype).removeprefix("torch.")
    line = f"weights at the values stored in {name}, upcast before any sum"
    found = [
        ox.verify(run, primes=0, enumeration_limit=0),
        ox.attribute(run, 3, by="order"),
        ox.scores(run, "1.1", 5, 2, enumeration_limit=0),
    ]

    for result in found:
        assert (line in result.frozen) == (dtype != torch.float32)
        assert (line in result.to_json()["frozen"]) == (dtype != torch.float32)
    assert (line in repr(found[0])) == (dtype != torch.float32)
    assert f"weights in {name}>" in repr(run.model)
    assert run.evaluate("..").dtype == run.pattern(0).dtype == torch.float64


# 25: what is left as it was


def unhooked(module: Any) -> bool:
    return not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def everything(run: Run) -> None:
    """All that is asked of a run."""
    run.evaluate("0.1 > .. > 2.1", positions=[1, -1], tokens=[2, 3])
    run.evaluate(run.model.architecture.logits.expression)
    run.by_order()
    run.partition({"one": "0.1 > ..", "rest": ...})
    ox.verify(run, primes=0, enumeration_limit=0)
    path = "embed > 0.1 > .. > 2.1"
    ox.attribute(run, 3, "mean", 10, top=3, path=path, sources=True, causal="input", batch=1)
    ox.attribute(run, by="last-edge")
    ox.scores(run, "1.1", 10, 8, 7, batch=1)
    ox.logit_shares(run)


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_a_module_and_an_input_stay_as_they_were(name: str) -> None:
    module: Any = tiny(name, torch.float32).train()
    module.lm_head.weight.requires_grad_(False)
    state = {n: t.clone() for n, t in module.state_dict().items()}
    config, flags = module.config.to_dict(), [p.requires_grad for p in module.parameters()]
    where = [p.data_ptr() for p in module.parameters()]
    ids, mask = tokens(), PADDED.clone()
    rows, masks = ids.tolist(), mask.tolist()

    with torch.enable_grad():
        model = ox.load(module)
        for given, real in ((ids, mask), (rows, masks), (ids.numpy(), mask.numpy())):
            run = model.run(tokens=given, mask=real)
            assert torch.equal(run.tokens, tokens())
            assert run.mask is not None
            assert torch.equal(run.mask, PADDED)
        everything(run)
        assert torch.is_grad_enabled()

    assert torch.equal(ids, tokens())
    assert torch.equal(mask, PADDED)
    assert (rows, masks) == (tokens().tolist(), PADDED.tolist())
    same(module.state_dict(), state)
    assert module.config.to_dict() == config
    assert [p.requires_grad for p in module.parameters()] == flags
    assert [p.data_ptr() for p in module.parameters()] == where
    assert all(p.grad is None for p in module.parameters())
    assert all(part.training for part in module.modules())
    assert unhooked(module)
    # and the other way: a run is what it was, whatever is done to its input
    before = run.evaluate("..")
    ids.zero_()
    mask.fill_(value=True)
    assert torch.equal(run.tokens, tokens())
    assert run.mask is not None
    assert torch.equal(run.mask, PADDED)
    assert torch.equal(run.evaluate(".."), before)


def test_tensors_and_a_config_stay_as_they_were() -> None:
    module: Any = tiny("qwen3", torch.float32)
    model = ox.load(module)
    for tensors, config in (
        (stored(model), model.config.to_json()),
        (module.state_dict(), module.config.to_dict()),
    ):
        own = {name: t.clone().requires_grad_() for name, t in tensors.items()}
        kept, settings = dict(own), copy.deepcopy(config)

        again = ox.load(own, config=config)
        everything(again.run(tokens=tokens()))

        assert config == settings
        assert own.keys() == kept.keys() == tensors.keys()
        for name, tensor in own.items():
            assert tensor is kept[name]
            assert tensor.requires_grad
            assert tensor.grad is None
            assert torch.equal(tensor, tensors[name])


@pytest.mark.parametrize("name", ["gpt2", "olmo2"])
def test_a_module_that_fails_is_left_as_it_was(name: str) -> None:
    """Half-way through a verification: no hook stays, and the next one holds."""
    module: Any = tiny(name).train()
    run = ox.load(module).run(tokens=tokens())
    original = run.model.original
    assert original is not None
    clone = original.module(torch.float64)
    last = list(clone.modules())[-1]
    assert last not in list(module.modules())

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    handle = last.register_forward_pre_hook(fail)
    with pytest.raises(ox.OtimesError, match=r"does not run in float64 \(RuntimeError: out of mem"):
        original.record(run.tokens)
    certificate = ox.verify(run, primes=0, enumeration_limit=0)
    handle.remove()

    # it is compared in the next dtype, and the certificate says so
    assert [error.dtype for error in certificate.source_errors] == ["float32", "bfloat16"]
    assert "not in float64, in which it does not run" in certificate.checked[-1]
    assert unhooked(module)
    assert unhooked(clone)
    assert module.training
    assert ox.verify(run, primes=0, enumeration_limit=0).holds
    assert torch.is_grad_enabled()


def test_no_gradient_lives_in_what_a_run_returns() -> None:
    module: Any = tiny("gemma2", torch.float32)
    with torch.enable_grad():
        run = ox.load(module, mlp="frozen").run(tokens=tokens())
        recording = run.recording()
        assert run.model.original is not None
        theirs = run.model.original.record(run.tokens, PADDED, torch.float32)
        found = [
            *(run.logits, run.pattern(1), run.scores(1), run.stream(2), run.evaluate("..")),
            *(run.by_order(), *run.partition({"all": ...}).values()),
            *recording.streams, *recording.neurons, *recording.scales.values(),
            *(theirs.logits, *theirs.streams, *theirs.attention_outputs, *theirs.mlp_outputs),
            *(value for _, value in run.terms("embed > 0.1 > *.1", -1, 3)),
        ]  # fmt: skip
    for tensor in found:
        assert tensor.grad_fn is None
        assert not tensor.requires_grad


def test_batches_are_their_sequences_with_every_keyword() -> None:
    """``mask``, ``positions``, ``tokens``, ``batch`` and ``minus`` say the same of a list."""
    model = ox.load(tiny("gemma3"))
    rows = [tokens()[0, 3:].tolist(), tokens()[1].tolist()]
    together = model.run(tokens=rows)  # padded on the right
    masked = model.run(tokens=tokens(), mask=PADDED)  # padded on the left

    for batch, row in enumerate(rows):
        alone = model.run(tokens=row)
        end = len(row) - 1
        for run, last in ((together, end), (masked, 10)):
            chosen = {"tokens": [4, 2], "positions": [last]}
            one = alone.evaluate("0.1 > ..", positions=[end], tokens=[4, 2])[0]
            close(run.evaluate("0.1 > ..", **chosen)[batch], one, 1e-10)
            whole = alone.by_order(positions=end, tokens=4)[:, 0]
            close(run.by_order(positions=last, tokens=4)[:, batch], whole, 1e-10)
            ours, theirs = (
                ox.attribute(r, 4, 2, p, batch=b, top=5, path="..", order=1)
                for r, p, b in ((run, last, batch), (alone, end, 0))
            )
            assert [r.key for r in ours.rows] == [r.key for r in theirs.rows]
            close([r.value for r in ours.rows], [r.value for r in theirs.rows], 1e-9)
            ours, theirs = (
                ox.scores(r, "1.1", p, p - 1, p - 2, batch=b, top=0, enumeration_limit=0).score
                for r, p, b in ((run, last, batch), (alone, end, 0))
            )
            assert ours == pytest.approx(theirs, rel=1e-9)


def test_nothing_of_a_module_is_kept_after_a_verification() -> None:
    """Copies of the module in other dtypes are let go of, and memory does not grow over calls."""
    model = ox.load(tiny("llama", torch.float32))
    run = model.run(tokens=tokens(1, 4))

    def modules() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.nn.Module) for thing in gc.get_objects())

    ox.verify(run, primes=0, enumeration_limit=0)
    before = modules()
    assert model.original is not None
    kept = model.original.module(torch.float64)
    assert modules() > before  # one that is kept is counted
    del kept
    for _ in range(2):
        ox.verify(run, primes=0, enumeration_limit=0)
    assert modules() <= before
