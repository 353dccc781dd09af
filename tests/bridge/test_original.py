"""The original module as a judge: every family verifies, and what is wrong is named by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import otimes as ox
from otimes.bridge import Run, original_checks
from otimes.bridge.loading import huggingface
from otimes.bridge.loading.families import BY_MODEL_TYPE
from otimes.bridge.loading.weights import Weights
from otimes.bridge.original_checks import other_definition
from otimes.errors import UnsupportedError
from tests.bridge.loading.test_broken_tables import (
    FAULTS,
    Change,
    config_with,
    families_name,
    into_with,
)
from tests.bridge.loading.tiny import CONFIGS, tiny, tokens
from tests.bridge.test_families import CASES, made

MASK = torch.tensor([[False] * 3 + [True] * 8, [True] * 11])


def run_of(name: str, mlp: str = "source", mask: torch.Tensor | None = None) -> Run:
    return ox.load(tiny(name), mlp=mlp).run(tokens=tokens(), mask=mask)


@pytest.mark.parametrize("mlp", ["source", "frozen"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_verifies(name: str, mlp: str) -> None:
    """Blocks, terms, scores, logits, identity and audit, and the original's own blocks."""
    run = run_of(name, mlp)
    layers = run.model.config.n_layers

    certificate = ox.verify(run, primes=1)

    assert certificate.holds, certificate
    parallel = run.model.config.parallel is not False
    assert len(certificate.source_blocks) == 2 + (3 if parallel else 4) * layers
    assert all(check.bound > 0 for check in certificate.source_blocks)
    assert certificate.source_error is not None
    # a few float32 roundings, and none where the module computes in float64 throughout
    limit = 1e-14 if name.startswith("gpt2") else 1e-5
    assert certificate.source_error.max_abs_error < limit * certificate.largest_logit
    assert [e.dtype for e in certificate.source_errors] == ["float64", "float32", "bfloat16"]
    # no bound allows for more than a part of what a block writes
    outputs = {c.block: c.bound for c in certificate.source_blocks if c.block.endswith("output")}
    recorded = run.model.original.record(run.tokens)  # type: ignore[union-attr]
    for layer, written in enumerate(recorded.attention_outputs):
        assert outputs[f"{layer}.attn output"] < 0.1 * float(written.abs().max())
    for layer, written in enumerate(recorded.mlp_outputs):
        assert outputs[f"{layer}.mlp output"] < 0.1 * float(written.abs().max())


@pytest.mark.parametrize("name", ["gpt2", "gptj", "gemma3", "olmo2"])
def test_in_float32_and_with_padding(name: str) -> None:
    run = run_of(name, mask=MASK)

    for dtype in ("float64", "float32"):
        certificate = ox.verify(run, dtype=dtype, primes=0)
        assert certificate.holds, certificate
        assert certificate.source_errors[0].dtype == dtype


def test_weights_in_bfloat16_are_compared_in_bfloat16_too() -> None:
    module = tiny("llama")
    for parameter in module.parameters():  # the frequencies, which are no parameters, stay
        parameter.data = parameter.data.to(torch.bfloat16)

    certificate = ox.verify(ox.load(module).run(tokens=tokens()), primes=0)

    assert certificate.holds, certificate
    errors = {error.dtype: error for error in certificate.source_errors}
    assert list(errors) == ["float64", "float32", "bfloat16"]
    coarse = errors["bfloat16"].max_abs_error
    assert 1e-3 < coarse / certificate.largest_logit < 0.3
    assert errors["float32"].max_abs_error < 1e-3 * coarse


@pytest.mark.parametrize(
    ("name", "what", "change", "stream"), FAULTS, ids=[f"{f[0]}: {f[1]}" for f in FAULTS]
)
def test_faults_of_a_table_are_located(
    name: str, what: str, change: Change, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By layer and branch: in what the branch wrote, or in how that joins the stream."""
    family = BY_MODEL_TYPE[families_name(name)]
    if what.startswith("the norms stand before"):
        change = _then(change, into_with("_post.", "."))
    broken = {**BY_MODEL_TYPE, families_name(name): change(family)}
    monkeypatch.setattr(huggingface, "BY_MODEL_TYPE", broken)
    run = run_of(name)

    certificate = ox.verify(run, primes=0, enumeration_limit=0)

    assert not certificate.holds
    parallel = run.model.config.parallel is not False
    place = "embed" if not stream else "0" if parallel else ("0.attn", "0.mlp")[stream - 1]
    first = certificate.reasons[0]
    assert first.startswith(f"original {place}"), certificate.reasons
    # the engine and the reference module agree: it is the table that is wrong
    assert all("original" in r or r.startswith("logits of") for r in certificate.reasons)


def _then(one: Change, other: Change) -> Change:
    return lambda family: other(one(family))


def with_layer(run: Run, **changed: Callable[[Any, Any], torch.Tensor]) -> Run:
    """The run of a model in whose canonical weights layer 0's heads are changed."""
    weights: Weights = run.model.weights
    own = weights.layers[0]
    new = replace(own, **{name: change(own, weights) for name, change in changed.items()})
    run.model.weights = replace(weights, layers=(new, *weights.layers[1:]))
    return run.model.run(tokens=run.tokens)


def kv_tiled(field: str) -> Callable[[Any, Any], torch.Tensor]:
    """Query heads 0 1 2 3 4 5 that read KV heads 0 1 0 1 0 1 and not 0 0 0 1 1 1."""
    order = torch.arange(6).view(3, 2).T.flatten()
    return lambda own, _: getattr(own, field)[order]


def values_in_output(own: Any, _: Any) -> torch.Tensor:
    """b_V in b_O too, by the shortcut that rows sum to 1."""
    shared = own.b_V.repeat_interleave(3, 0)
    return own.b_O + torch.einsum("hd,hdm->m", shared, own.W_O)


WEIGHTS: dict[str, tuple[str, dict[str, Callable[[Any, Any], torch.Tensor]]]] = {
    "KV heads tiled": ("qwen3", {"W_Q": kv_tiled("W_Q"), "W_O": kv_tiled("W_O")}),
    "b_V counted twice": ("llama", {"b_O": values_in_output}),
    "b_V doubled": ("llama", {"b_V": lambda own, _: 2 * own.b_V}),
    "a bias left out": ("qwen2", {"b_K": lambda own, _: 0 * own.b_K}),
    "gains of keys without the 1": ("gemma3", {"k_norm": lambda own, _: own.k_norm - 1}),
}  # fmt: skip


@pytest.mark.parametrize("what", WEIGHTS)
def test_wrong_heads_are_located(what: str) -> None:
    name, changed = WEIGHTS[what]
    run = with_layer(run_of(name), **changed)

    certificate = ox.verify(run, primes=0)

    assert not certificate.holds
    assert certificate.reasons[0].startswith("original 0.attn output: what its branch wrote is not")
    wrong = [check.block for check in certificate.source_blocks if not check.holds]
    assert wrong == ["0.attn output"]


@pytest.mark.parametrize(
    ("name", "label", "place"),
    [
        ("gemma2", "0.ln1_post", "0.attn"),
        ("gemma3", "1.ln2_post", "1.mlp"),
        ("olmo2", "2.ln2_post", "2.mlp"),
        ("gemma", "1.ln1", "1.attn output"),
        ("gemma", "2.ln2", "2.mlp output"),
        ("gemma", "final", "unembed"),
    ],
)
def test_a_gain_that_is_off_by_one_is_located(name: str, label: str, place: str) -> None:
    """A norm behind a branch shows in how it joins, one before it in what it writes."""
    run = run_of(name)
    norms = dict(run.model.weights.norms)
    norms[label] = replace(norms[label], w=norms[label].w - 1)
    run.model.weights = replace(run.model.weights, norms=norms)

    certificate = ox.verify(run.model.run(tokens=run.tokens), primes=0)

    wrong = [check.block for check in certificate.source_blocks if not check.holds]
    assert wrong == [place]
    assert certificate.reasons[0].startswith(f"original {place}: ")


def test_frequencies_that_a_cast_has_rounded_show_in_the_logits() -> None:
    """Cast back, nothing tells them from a module's own: it is not the model of its config."""
    module = tiny("llama", torch.bfloat16).float()
    certificate = ox.verify(ox.load(module).run(tokens=tokens()), primes=0)

    assert not certificate.holds
    assert certificate.reasons[-1].startswith("logits of LlamaForCausalLM: its own, in float64")


@pytest.mark.parametrize(
    ("name", "field"), [("gemma2", "logits_softcap"), ("granite", "logits_multiplier")]
)
def test_faults_of_the_unembedding(name: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = BY_MODEL_TYPE[name]
    monkeypatch.setattr(huggingface, "BY_MODEL_TYPE", {name: config_with(**{field: None})(family)})

    certificate = ox.verify(run_of(name), primes=0)

    assert [c.block for c in certificate.source_blocks if not c.holds] == ["unembed"]
    assert certificate.reasons[0] == next(
        r for r in certificate.reasons if r.startswith("original unembed: its logits are not")
    )
    assert certificate.reasons[1].startswith("logits of ")


class Single(torch.nn.Module):
    """A module that makes float32 tensors of its own, so that it runs in float32 alone."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.eye(run.model.config.d_vocab))
        self.run = run

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.run.model.reference(torch.float32)(ids).logits
        return logits @ self.table


def test_a_module_that_runs_in_float32_alone(tmp_path: Path) -> None:
    """It is compared in that, or refused in one line where it does not run at all."""
    run, _ = made(tmp_path, "layer norm", "source")
    config = {k: v for k, v in run.model.config.to_json().items() if k not in ("format", "version")}
    single = Single(run)
    model = ox.load(run.model.weights.tensors(), config=config, original=single)

    certificate = ox.verify(model.run(tokens=[[1, 2, 3]]), primes=0)

    assert certificate.holds, certificate
    assert [error.dtype for error in certificate.source_errors] == ["float32"]
    assert certificate.source_error is not None
    assert 0 < certificate.source_error.max_abs_error < certificate.source_error.tolerance
    single.table.data = torch.eye(3)
    with pytest.raises(
        UnsupportedError, match=r"the original module, Single, does not run in float64 \(Runtime"
    ):
        ox.verify(model.run(tokens=[[1, 2, 3]]), primes=0)


def test_bounds_above_all_that_was_written_are_counted() -> None:
    """Large weights in float32: worst cases that say nothing are not passed off as checks."""
    module = tiny("llama", torch.float32)
    with torch.no_grad():
        for layer in module.model.layers:
            layer.self_attn.q_proj.weight.mul_(60)
            layer.self_attn.k_proj.weight.mul_(60)
    run = ox.load(module).run(tokens=tokens())

    wide = ox.verify(run, dtype="float32", primes=0, enumeration_limit=0)
    plain = ox.verify(run_of("llama"), primes=0, enumeration_limit=0)

    (line,) = (line for line in wide.checked if line.startswith("original"))
    assert "14 places (3 of them within bounds above all that was written there)" in line
    assert "within bounds" not in " ".join(plain.checked)


def test_a_parameter_that_nothing_was_made_of() -> None:
    """The audit is of the module's own parameters: one more, or one that is gone."""
    module = tiny("llama")
    model = ox.load(module)
    module.register_parameter("extra", torch.nn.Parameter(torch.zeros(2)))

    certificate = ox.verify(model.run(tokens=tokens()), primes=0, enumeration_limit=0)

    start = "parameters of LlamaForCausalLM not used exactly once in the canonical weights: "
    assert certificate.reasons == (f"{start}extra",)
    weights = model.weights
    model.weights = replace(weights, sources=(*weights.sources, "model.gone.weight", "extra"))
    again = ox.verify(model.run(tokens=tokens()), primes=0, enumeration_limit=0)
    assert again.reasons == (f"{start}model.gone.weight",)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_family_verifies_from_a_folder(tmp_path: Path, name: str) -> None:
    """Files may name parameters otherwise than the module that is loaded from them."""
    module: Any = tiny(name, torch.float32)
    module.save_pretrained(tmp_path, max_shard_size="10KB")

    certificate = ox.verify(
        ox.load(tmp_path).run(tokens=tokens(1, 5)), primes=0, enumeration_limit=0
    )

    assert certificate.holds, certificate
    assert certificate.source_blocks


def test_an_unembedding_that_files_name_otherwise_is_audited_too(tmp_path: Path) -> None:
    """By its other name it is the same parameter; without it it is left over."""
    module: Any = tiny("gpt_neox", torch.float32)
    module.save_pretrained(tmp_path)
    model = ox.load(tmp_path)
    assert "embed_out.weight" in model.weights.sources
    others = tuple(name for name in model.weights.sources if name != "embed_out.weight")
    model.weights = replace(model.weights, sources=others)

    certificate = ox.verify(model.run(tokens=tokens(1, 5)), primes=0, enumeration_limit=0)

    assert len(certificate.reasons) == 1
    assert certificate.reasons[0].endswith("in the canonical weights: lm_head.weight")


@pytest.mark.parametrize("name", ["llama-13-layers", "gptj", "gemma2", "gemma3", "gpt_neox"])
def test_tables_that_a_cast_rounded_are_computed_again(name: str) -> None:
    """``module.to`` rounds frequencies and scales, which ``from_pretrained`` keeps."""
    module = tiny(name, torch.bfloat16)
    buffers = {key: value.clone() for key, value in module.named_buffers()}
    model = ox.load(module)

    certificate = ox.verify(model.run(tokens=tokens()), primes=0, enumeration_limit=0)

    assert certificate.holds, certificate
    assert any("rounded" in note for note in model.notes)
    for key, value in module.named_buffers():  # the module itself stays as it is
        assert value.dtype == buffers[key].dtype
        assert torch.equal(value, buffers[key])


def test_other_tables_in_a_module_are_not_made_good() -> None:
    """What is in float32 is the module's own: it is judged with it."""
    module: Any = tiny("llama", torch.float32)
    module.model.rotary_emb.inv_freq *= 1.01

    certificate = ox.verify(ox.load(module).run(tokens=tokens()), primes=0, enumeration_limit=0)

    assert certificate.reasons[0].startswith("original 0.attn output: ")
    assert "rounded" not in " ".join(ox.load(module).notes)


def test_a_fault_within_every_bound_is_located_by_its_share() -> None:
    """Too small for the bound of its block, but not for the logits."""
    module = tiny("gemma2")
    model = ox.load(module)
    layers = list(model.weights.layers)
    values = layers[1].W_V.clone()
    values[0] *= 1.0003
    layers[1] = replace(layers[1], W_V=values)
    model.weights = replace(model.weights, layers=tuple(layers))

    certificate = ox.verify(model.run(tokens=tokens()), primes=0, enumeration_limit=0)

    assert all(check.holds for check in certificate.source_blocks)
    assert len(certificate.reasons) == 1
    assert "look first at 1.attn output" in certificate.reasons[0]


def test_what_amplifies_rounding_may_be_further_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights make steep patterns: the reference module's own logits in float32 say so."""
    module: Any = tiny("llama-13-layers")
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    model = ox.load(module)
    run = model.run(tokens=tokens(1, 24))
    assert model.original is not None
    recorded = model.original.record(run.tokens)

    found = original_checks.logits_error(run, recorded, torch.float64)

    assert found.holds
    assert found.tolerance > 1.5e-4 * float(run.logits.abs().max())
    monkeypatch.setattr(original_checks, "AMPLIFIED", 0)
    assert not original_checks.logits_error(run, recorded, torch.float64).holds
    # a fault is not excused by it
    monkeypatch.undo()
    wrong = replace(recorded, logits=recorded.logits * 1.02)
    assert not original_checks.logits_error(run, wrong, torch.float64).holds


def test_a_module_of_ones_own_is_judged_by_its_logits(tmp_path: Path) -> None:
    """Without names of its modules only these are known; a wrong one does not hold."""
    run, _ = made(tmp_path, "layer norm", "source")
    tensors = run.model.weights.tensors()
    config = {k: v for k, v in run.model.config.to_json().items() if k not in ("format", "version")}

    class Mine(torch.nn.Module):
        factor = 1.0

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.factor * run.model.reference()(ids).logits

    mine = Mine()
    model = ox.load(tensors, config=config, original=mine)
    found = ox.verify(model.run(tokens=[[1, 2, 3]]))
    assert found.holds, found
    assert found.source == "Mine"
    assert found.source_blocks == ()
    assert found.source_error is not None
    assert found.source_error.max_abs_error == 0

    mine.factor = 1.01
    wrong = ox.verify(ox.load(tensors, config=config, original=mine).run(tokens=[[1, 2, 3]]))
    assert not wrong.holds
    (reason,) = wrong.reasons
    assert reason.startswith("logits of Mine: its own, in float64, are ")


@pytest.mark.parametrize(("name", "mlp"), CASES)
def test_the_definition_is_the_reference_modules(tmp_path: Path, name: str, mlp: str) -> None:
    """Every option, with padding: what originals are held to is what is verified."""
    run, _ = made(tmp_path, name, mlp)

    for dtype in (torch.float64, torch.float32):
        assert other_definition(run, run.recording(dtype), dtype) == []


@pytest.mark.parametrize(
    ("name", "change", "wrong"),
    [
        ("layer norm", {"eps": 1e-3}, "0.attn"),
        ("rotary, half", {"attention_scale": 0.3}, "0.attn"),
        ("sandwich norms", {"activation": "relu"}, "0.mlp"),
        ("multipliers", {"residual_multiplier": 1.0}, "0.attn"),
        ("windows", {"windows": None}, "0.attn"),
    ],
)
def test_another_definition_is_noticed(
    tmp_path: Path, name: str, change: dict[str, Any], wrong: str
) -> None:
    run, _ = made(tmp_path, name, "source")
    recording = run.recording()
    run.model.config = replace(run.model.config, **change)

    found = other_definition(run, recording, torch.float64)

    assert found[0].startswith(f"reference {wrong}")
