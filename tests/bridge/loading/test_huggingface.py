"""Every family: what its table makes of a module computes what the module computes."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch

import otimes as ox
from otimes.bridge.loading.axes import parse, rearrange
from otimes.bridge.loading.families import BY_MODEL_TYPE, FAMILIES, TRANSFORMER_LENS
from otimes.bridge.loading.families.llama2c import LLAMA2C
from otimes.bridge.loading.families.nano import MINGPT, NANOGPT
from otimes.bridge.loading.state import family_config
from tests.bridge.loading.tiny import CONFIGS, tiny, tokens

#: modules that norm in float32 whatever their dtype, or turn by float32 angles
ROUNDED = 1e-5
#: GPT-2 does neither
EXACT = 1e-13


def tolerance(name: str) -> float:
    return EXACT if name.startswith("gpt2") else ROUNDED


def deviation(found: torch.Tensor, wanted: torch.Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_compute_what_the_module_computes(name):
    module = tiny(name)
    model = ox.load(module)
    assert model.original is not None
    for ids, mask in (
        (tokens(), None),
        # left padding: positions count the real tokens
        (tokens(), torch.tensor([[False] * 4 + [True] * 7, [True] * 11])),
    ):
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        judged = model.reference()(ids, mask)
        recorded = model.original.record(ids, mask)
        if mask is None:
            with torch.no_grad():
                assert torch.equal(recorded.logits, module(ids, use_cache=False).logits)
        else:
            assert not recorded.logits[~mask].any()
            alone = model.original.record(ids[:1, 4:])
            assert torch.allclose(recorded.streams[-1][:1, 4:], alone.streams[-1], rtol=1e-12)
        assert deviation(judged.logits[real], recorded.logits[real]) < tolerance(name)
        # block by block: what each block reads, and what the last one leaves
        assert len(recorded.streams) == len(judged.streams)
        for ours, theirs in zip(judged.streams, recorded.streams, strict=True):
            assert deviation(ours[real], theirs[real]) < tolerance(name)
        assert len(recorded.attention_outputs) == model.config.n_layers
        for ours, theirs in zip(judged.mlp_outputs, recorded.mlp_outputs, strict=True):
            assert deviation(ours[real], theirs[real]) < tolerance(name)


@pytest.mark.parametrize("name", CONFIGS)
def test_each_number_of_a_module_is_used_once(name):
    module = tiny(name)
    model = ox.load(module)
    stored = sum(parameter.numel() for parameter in module.parameters())
    tensors = model.weights.tensors()
    if model.weights.tied:
        tensors.pop("unembed.W_U")

    assert sum(tensor.numel() for tensor in tensors.values()) == stored
    assert model.weights.unused == ()


@pytest.mark.parametrize("name", CONFIGS)
def test_folders_are_read_as_their_modules_are(name, tmp_path):
    module = tiny(name, torch.float32)
    module.save_pretrained(tmp_path)
    from_folder, from_module = ox.load(tmp_path), ox.load(module)

    assert from_folder.config == from_module.config
    theirs = from_module.weights.tensors()
    for tensor_name, tensor in from_folder.weights.tensors().items():
        assert torch.equal(tensor, theirs[tensor_name]), tensor_name
    assert from_folder.original is not None


def test_the_original_of_a_folder_is_the_module_that_transformers_loads(tmp_path):
    module = tiny("llama", torch.float32)
    module.save_pretrained(tmp_path)
    model = ox.load(tmp_path)
    recorded = model.original.record(tokens(), dtype=torch.float32)

    with torch.no_grad():
        assert torch.equal(recorded.logits, module(tokens()).logits)
    assert not any(p.requires_grad for p in model.original.module(torch.float32).parameters())


def test_shards_and_older_configs(tmp_path):
    module = tiny("llama-13-layers", torch.float32)
    module.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    whole = ox.load(module)
    config = json.loads((tmp_path / "config.json").read_text())
    # what configs looked like before rope_parameters
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    parameters["type"] = parameters.pop("rope_type")
    config["rope_scaling"] = parameters
    (tmp_path / "config.json").write_text(json.dumps(config))
    sharded = ox.load(tmp_path)

    assert sharded.config == whole.config
    assert torch.equal(sharded.weights.layers[12].W_O, whole.weights.layers[12].W_O)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ox.OtimesError, match=rf"names the shard '{shard.name}', which is not besi"):
        ox.load(tmp_path)


def test_names_without_the_prefix_of_the_whole_model():
    # as the weights of GPT-2 are published: without "transformer.", with its masks
    module = tiny("gpt2", torch.float32)
    state = {
        name.removeprefix("transformer."): tensor
        for name, tensor in module.state_dict().items()
        if name != "lm_head.weight"
    }
    state["h.0.attn.bias"] = torch.ones(1, 1, 24, 24)
    model = ox.load(state, config=module.config.to_dict())

    assert torch.equal(model.weights.W_E, module.transformer.wte.weight)
    assert model.weights.unused == ("transformer.h.0.attn.bias",)


def test_weights_stay_in_their_dtype_and_share_storage():
    module = tiny("gemma", torch.bfloat16)
    weights = ox.load(module).weights
    assert weights.dtypes == ("bfloat16", "float32")  # the gains are 1 + w
    assert weights.W_E.data_ptr() == module.model.embed_tokens.weight.data_ptr()
    assert weights.W_U.data_ptr() == weights.W_E.data_ptr()
    attention, own = weights.layers[2], module.model.layers[2].self_attn
    assert attention.W_Q.data_ptr() == own.q_proj.weight.data_ptr()
    assert attention.W_O.data_ptr() == own.o_proj.weight.data_ptr()
    gain = module.model.layers[1].input_layernorm.weight
    assert torch.equal(weights.norms["1.ln1"].w, 1 + gain.float())


def test_gains_that_bfloat16_could_not_hold():
    module = tiny("gemma", torch.bfloat16)
    with torch.no_grad():
        module.model.norm.weight.fill_(2**-9)
    assert (ox.load(module).weights.norms["final"].w == 1 + 2**-9).all()


def test_loading_and_judging_leave_a_module_as_it_was():
    module = tiny("qwen3", torch.float32).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    model = ox.load(module)
    model.original.record(tokens(), dtype=torch.float64)
    model.original.record(tokens(), dtype=torch.float32)

    assert module.training
    assert all(p.requires_grad and p.dtype == torch.float32 for p in module.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    shared = model.original.module(torch.float32)
    assert shared.lm_head.weight.data_ptr() == module.lm_head.weight.data_ptr()


def test_modules_that_return_no_patterns_are_judged_too():
    module = tiny("llama")
    module.set_attn_implementation("sdpa")
    model = ox.load(module)
    recorded, judged = model.original.record(tokens()), model.reference()(tokens())
    assert deviation(judged.logits, recorded.logits) < ROUNDED
    # what the patterns that are recomputed here write is what its attention wrote
    for layer, written in enumerate(recorded.attention_outputs):
        ours = judged.streams[2 * layer + 1] - judged.streams[2 * layer]
        assert deviation(ours, written) < ROUNDED


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("gpt2", lambda attention, mlp: (attention, mlp)),
        ("granite", lambda attention, mlp: (0.6 * attention, 0.6 * mlp)),
        ("gptj", lambda attention, mlp: (attention + mlp,)),
        ("gpt_neox", lambda attention, mlp: (attention + mlp,)),
    ],
)
def test_the_outputs_of_branches_are_what_the_streams_gain(name, added):
    recorded = ox.load(tiny(name)).original.record(tokens())
    branches = zip(recorded.attention_outputs, recorded.mlp_outputs, strict=True)
    gains = [gain for attention, mlp in branches for gain in added(attention, mlp)]
    for before, gain, after in zip(recorded.streams[:-1], gains, recorded.streams[1:], strict=True):
        assert torch.allclose(before + gain, after, rtol=1e-12, atol=1e-12)


#: whose configs are not of transformers
OTHERS = (NANOGPT, MINGPT, LLAMA2C, TRANSFORMER_LENS)
OF_TRANSFORMERS = [family for family in FAMILIES if family not in OTHERS]


@pytest.mark.parametrize("family", OF_TRANSFORMERS, ids=lambda family: family.name)
def test_defaults_are_those_of_transformers(family):
    from transformers import AutoConfig

    for model_type in family.model_types:
        theirs = AutoConfig.for_model(model_type).to_dict()
        assert family_config(family, {}, "config") == family_config(family, theirs, "config")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_tables_use_every_number_of_a_tensor_once(family):
    sizes = {"head": 6, "kv_head": 2, "d_model": 7, "d_head": 4, "d_mlp": 5, "n_ctx": 3,
             "d_vocab": 8}  # fmt: skip
    for take in family.takes:
        shapes = {parse(axes).shape(sizes) for axes in take.into.values()}
        assert len(shapes) == 1 or "head 0/3" in str(take.into), take.source
        for_fused = {**sizes, "kv_head": 6} if len(shapes) > 1 else sizes
        (shape,) = {parse(axes).shape(for_fused) for axes in take.into.values()}
        numbers = torch.arange(math.prod(shape)).reshape(shape)
        taken = [rearrange(numbers, axes, for_fused).flatten() for axes in take.into.values()]
        assert torch.equal(torch.cat(taken).sort().values, numbers.flatten()), take.source


def test_no_two_families_share_a_model_type():
    names = list(itertools.chain.from_iterable(family.model_types for family in FAMILIES))
    assert len(names) == len(set(names)) == len(BY_MODEL_TYPE)
