"""Files, mappings and modules of other projects: what they become, against plain computations."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

import otimes as ox
from otimes.bridge.loading import Original
from tests.bridge.loading.tiny import randomise, tiny, tokens
from tests.factory import make_checkpoint

NANO = {"n_layer": 2, "n_head": 3, "n_embd": 12, "block_size": 10, "vocab_size": 31}


class NanoBlock(nn.Module):
    """A block of nanoGPT, as its ``model.py`` has it, without dropout."""

    def __init__(self, width: int, heads: int, activation: nn.Module, *, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.attn = nn.Module()
        self.attn.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.attn.c_proj = nn.Linear(width, width, bias=bias)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.mlp = nn.Module()
        self.mlp.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.mlp.c_proj = nn.Linear(4 * width, width, bias=bias)
        self.act = activation

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.attn.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (
            side.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for side in (q, k, v)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn.c_proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp.c_proj(self.act(self.mlp.c_fc(self.ln_2(x))))


class Nano(nn.Module):
    """nanoGPT (tied, GELU) or minGPT (untied, the tanh form)."""

    def __init__(self, *, tied: bool, tanh: bool, bias: bool = True) -> None:
        super().__init__()
        width = NANO["n_embd"]
        act = nn.GELU(approximate="tanh" if tanh else "none")
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(NANO["vocab_size"], width),
                "wpe": nn.Embedding(NANO["block_size"], width),
                "h": nn.ModuleList(NanoBlock(width, 3, act, bias=bias) for _ in range(2)),
                "ln_f": nn.LayerNorm(width, bias=bias),
            }
        )
        self.lm_head = nn.Linear(width, NANO["vocab_size"], bias=False)
        if tied:
            self.lm_head.weight = self.transformer.wte.weight
        randomise(self, 0)
        self.double()

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(ids.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def agrees(model, logits):
    found = model.reference()(IDS).logits
    assert torch.allclose(found, logits, rtol=1e-10, atol=1e-10)


IDS = tokens(length=9)


@pytest.mark.parametrize(
    ("kind", "module"),
    [
        ("nanogpt", Nano(tied=True, tanh=False, bias=False)),
        ("nanogpt", Nano(tied=True, tanh=False)),
        ("mingpt", Nano(tied=False, tanh=True)),
    ],
)
def test_nanogpt_and_mingpt_state_dicts(kind, module):
    with torch.no_grad():
        wanted = module(IDS)
    model = ox.load(module.state_dict(), config={"model_type": kind, **NANO})

    agrees(model, wanted)
    assert model.weights.tied == (kind == "nanogpt")
    # the module itself is there as the judge if it is given
    judged = ox.load(module, config={"model_type": kind, **NANO})
    assert torch.equal(judged.original.record(IDS).logits, wanted)


def test_a_training_checkpoint_of_nanogpt(tmp_path):
    module = Nano(tied=True, tanh=False)
    state = {f"_orig_mod.{name}": tensor for name, tensor in module.state_dict().items()}
    torch.save({"model": state, "model_args": {**NANO, "bias": True}}, tmp_path / "ckpt.pt")
    with torch.no_grad():
        agrees(ox.load(tmp_path / "ckpt.pt"), module(IDS))


class Custom(nn.Module):
    """A model of nobody's family: one attention-only layer, heads in a tensor of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(31, 6))
        self.qkv = nn.Parameter(torch.zeros(3, 2, 6, 4))
        self.out = nn.Parameter(torch.zeros(2, 4, 6))
        randomise(self, 1)
        self.double()

    def forward(self, ids):
        x = self.table[ids]
        q, k, v = torch.einsum("bpm,thmd->tbhpd", x, self.qkv)
        scores = q @ k.mT / 2
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        pattern = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        x = x + torch.einsum("bhid,hdm->bim", pattern @ v, self.out)
        return (x @ self.table.T,)


def test_a_custom_model_by_its_tensors():
    module = Custom()
    model = ox.load(
        {
            "embed.W_E": module.table,
            **{f"blocks.0.attn.W_{x}": module.qkv[n] for n, x in enumerate("QKV")},
            "blocks.0.attn.W_O": module.out,
        },
        config={"n_layers": 1, "n_heads": 2, "d_model": 6, "d_head": 4, "n_ctx": 9,
                "d_vocab": 31, "positions": "none", "attention_scale": 0.5, "tied": True},
        original=module,
    )  # fmt: skip
    with torch.no_grad():
        agrees(model, module(IDS)[0])
    assert isinstance(model.original, Original)
    assert torch.equal(model.original.record(IDS).logits, module(IDS)[0].detach())
    assert model.original.record(IDS).streams == ()
    assert model.name == "Custom"
    assert model.path is None
    assert ox.verify(model.run(tokens=[1, 2, 3])).holds
    assert module.table.requires_grad


def llama2c_file(path, module, *, version):
    """Write a file as llama2.c's export.py does, from a Llama whose rotary pairing is its own."""
    c, state = module.config, module.state_dict()
    head = [c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.num_attention_heads,
            c.num_key_value_heads, c.vocab_size, c.max_position_embeddings]  # fmt: skip
    layers = range(c.num_hidden_layers)

    def of(name: str) -> list[np.ndarray]:
        return [state[f"model.layers.{layer}.{name}.weight"].numpy().ravel() for layer in layers]

    attention = [of(f"self_attn.{n}_proj") for n in "qkvo"]
    mlp = [of(f"mlp.{n}_proj") for n in ("gate", "down", "up")]
    norms = [of("input_layernorm"), of("post_attention_layernorm")]
    final = [[state["model.norm.weight"].numpy()]]
    embed = [[state["model.embed_tokens.weight"].numpy().ravel()]]
    if version == 1:
        tied = c.tie_word_embeddings
        data = struct.pack("<Ii7iB", 0x616B3432, 1, *head, tied).ljust(256, b"\0")
        order = [*norms, *final, *embed, *attention, *mlp]
    else:
        tied = True
        data = struct.pack("<7i", *head)
        angles = [[np.zeros(c.max_position_embeddings * c.head_dim, np.float32)]]
        order = [*embed, norms[0], *attention, norms[1], *mlp, *final, *angles]
    if not tied:
        order.append([state["lm_head.weight"].numpy().ravel()])
    data += b"".join(array.astype(np.float32).tobytes() for group in order for array in group)
    path.write_bytes(data)


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of queries or keys from neighbouring pairs to halves, as Hugging Face stores them."""
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


@pytest.mark.parametrize("version", [0, 1])
def test_llama2c_files(version, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=31, hidden_size=24, intermediate_size=20, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=16,
        rms_norm_eps=1e-5, tie_word_embeddings=version == 0,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval()
    randomise(module, 2)
    file = tmp_path / "model.bin"
    llama2c_file(file, module, version=version)
    model = ox.load(file)
    for layer in module.model.layers:
        for name, heads in (("q_proj", 6), ("k_proj", 2)):
            weight = getattr(layer.self_attn, name).weight
            weight.data = permuted(weight.data, heads)
    with torch.no_grad():
        wanted = module(IDS).logits
    found = model.reference(torch.float32)(IDS).logits

    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert model.config.rotary.pairing == "interleaved"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"short", "too short for a llama2.c file"),
        (struct.pack("<7i", 24, 20, 2, 6, 2, 31, 16) + bytes(400), "describes .* bytes, it has 428"),
        (struct.pack("<7i", 24, 20, -2, 6, 2, 31, 16) + bytes(400), "no llama2.c file: its header"),
        (struct.pack("<Ii", 0x616B3432, 2) + bytes(400), "version 2, whose linear layers"),
    ],
)  # fmt: skip
def test_files_that_are_no_llama2c(data, message, tmp_path):
    (tmp_path / "model.bin").write_bytes(data)
    with pytest.raises(ox.OtimesError, match=message):
        ox.load(tmp_path / "model.bin")


LENS = {"model_type": "transformer_lens", "n_layers": 2, "n_heads": 3, "d_model": 10, "d_head": 4,
        "n_ctx": 9, "d_vocab": 13, "eps": 0.1, "normalization_type": None}  # fmt: skip


@pytest.mark.parametrize(
    ("native", "lens"),
    [
        ({"positions": "shortformer"}, {"positional_embedding_type": "shortformer"}),
        ({"positions": "learned"}, {"attn_scale": 2.0}),
        (
            {"positions": "rotary", "rotary": {"theta": 50.0, "dim": 2, "pairing": "half"},
             "d_mlp": 7, "gated": True, "norm": "rms", "n_kv_heads": 1, "activation": "silu"},
            {"positional_embedding_type": "rotary", "rotary_dim": 2, "rotary_base": 50, "d_mlp": 7,
             "gated_mlp": True, "normalization_type": "RMS", "n_key_value_heads": 1,
             "act_fn": "silu"},
        ),
        (
            {"positions": "learned", "norm": "layer", "d_mlp": 7, "parallel": True,
             "windows": [None, 3], "attention_softcap": 1.5, "logits_softcap": 2.5},
            {"normalization_type": "LN", "d_mlp": 7, "parallel_attn_mlp": True, "act_fn": "gelu",
             "use_local_attn": True, "attn_types": ["global", "local"], "window_size": 3,
             "attn_scores_soft_cap": 1.5, "output_logits_soft_cap": 2.5},
        ),
    ],
)  # fmt: skip
def test_parameter_names_of_transformer_lens(native, lens, tmp_path):
    made = make_checkpoint(tmp_path / "native", biases=("b_Q", "b_V", "b_O", "b_U", "b"), **native)
    state = {
        name.replace("W_K", "_W_K").replace("W_V", "_W_V").replace("b_V", "_b_V")
        if "n_kv_heads" in native
        else name: torch.tensor(array)
        for name, array in made.arrays.items()
    }
    state["blocks.0.attn.mask"] = torch.ones(9, 9).tril().bool()
    state["blocks.0.attn.IGNORE"] = torch.tensor(-torch.inf)
    attention_only = {"attn_only": "d_mlp" not in native}
    save_file(state, tmp_path / "model.safetensors")
    model = ox.load(tmp_path / "model.safetensors", config={**LENS, **attention_only, **lens})
    ids = IDS % 13

    wanted = ox.load(made.path).reference()(ids).logits
    assert torch.equal(model.reference()(ids).logits, wanted)
    assert model.weights.unused == ("blocks.0.attn.IGNORE", "blocks.0.attn.mask")


def test_norms_that_transformer_lens_has_folded_have_gains_of_1(tmp_path):
    made = make_checkpoint(tmp_path, norm="layer", positions="learned")
    state = {n: torch.tensor(a) for n, a in made.arrays.items() if "ln" not in n}
    config = {**LENS, "attn_only": True, "normalization_type": "LNPre"}
    norms = ox.load(state, config=config).weights.norms

    assert set(norms) == {"0.ln1", "1.ln1", "final"}
    assert all((norm.w == 1).all() and norm.b is None for norm in norms.values())


def test_the_odd_bias_of_gated_mlps_in_transformer_lens(tmp_path):
    made = make_checkpoint(tmp_path, d_mlp=7, gated=True, positions="alibi")
    state = {n: torch.tensor(a) for n, a in made.arrays.items()}
    state["pos_embed.W_pos"] = torch.ones(9, 10)
    config = {**LENS, "gated_mlp": True, "d_mlp": 7, "positional_embedding_type": "alibi"}
    for layer in range(2):
        state[f"blocks.{layer}.mlp.b_in"] = torch.zeros(7)
    unused = ox.load(state, config=config).weights.unused
    assert unused == ("blocks.0.mlp.b_in", "blocks.1.mlp.b_in", "pos_embed.W_pos")
    state["blocks.1.mlp.b_in"][3] = 1.0

    with pytest.raises(ox.OtimesError, match=r"blocks\.1\.mlp\.b_in is not 0 in a gated MLP"):
        ox.load(state, config=config)


class HookedTransformer(nn.Module):
    """What otimes looks at in a model of TransformerLens: its config, names and hook points."""

    def __init__(self, native: ox.Model) -> None:
        super().__init__()
        self.inner = [native.reference()]
        self.embed = native.reference().embed
        self.pos_embed = native.reference().pos_embed
        self.blocks, self.unembed = native.reference().blocks, native.reference().unembed
        self.cfg = SimpleNamespace(
            to_dict=lambda: {
                **LENS, "attn_only": True, "model_name": "toy", "default_prepend_bos": True
            }
        )  # fmt: skip
        self.tokenizer = None

    def forward(self, ids):
        return self.inner[0](ids).logits


def test_a_hooked_transformer(tmp_path):
    native = ox.load(make_checkpoint(tmp_path, positions="learned").path)
    model = ox.load(HookedTransformer(native))

    assert model.name == "toy"
    assert model.config.attention_scale == 0.5
    assert torch.equal(model.weights.layers[1].W_O, native.weights.layers[1].W_O)


def test_shipped_weights_of_shared_folder(shared_path):
    """Both models do what their README says, by the lines of docs/models.md."""
    from tests.bridge.loading import shared_models

    model = shared_models.induction(shared_path)
    assert shared_models.induction_accuracy(model) == pytest.approx(0.91, abs=0.01)
    assert ox.verify(model.run(tokens=[3, 7, 20, 11, 5, 3])).holds
    assert shared_models.sorted_inputs(shared_models.nano_sort(shared_path)) == 729


def test_a_path_is_shown_where_there_is_one(tmp_path):
    module = tiny("gpt2", torch.float32)
    module.save_pretrained(tmp_path / "folder")
    model = ox.load(tmp_path / "folder")
    assert (model.name, model.path) == ("folder", tmp_path / "folder")
    assert "<Model folder: 3 layers" in repr(model)
    assert "<Model GPT2LMHeadModel: 3 layers" in repr(ox.load(module))
