"""GGUF files: a tiny Llama written here, with weights in full and in quantised blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import otimes as ox
from otimes.bridge.loading import transformers_package
from otimes.errors import CheckpointError, UnsupportedError
from tests.bridge.loading.tiny import randomise, tokens

WIDTH, HEADS, KV_HEADS, HIDDEN, LAYERS, N_CTX = 64, 4, 2, 96, 2, 16
# transformers adds <|endoftext|> where a file does not have it
PIECES = [
    "<|endoftext|>",
    "<s>",
    "</s>",
    "a",
    "b",
    "Ġ",
    "ab",
    "Ġab",
    *(chr(99 + n) for n in range(23)),
]


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(PIECES), hidden_size=WIDTH, intermediate_size=HIDDEN, head_dim=16,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        max_position_embeddings=N_CTX, rms_norm_eps=1e-2, tie_word_embeddings=True,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval()
    randomise(module, 0)
    with torch.no_grad():
        for parameter in module.parameters():
            # patterns that are not saturated
            parameter.mul_(0.3 if parameter.ndim == 2 else 1.0)
    return module


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys as GGUF stores them: halves become neighbouring pairs."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def write(path, module, *, without=(), merges=("a b", "Ġ ab"), more=()) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_rope_dimension_count(16)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-2)
    writer.add_vocab_size(len(PIECES))
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(PIECES)
    writer.add_token_types([3] * 3 + [1] * (len(PIECES) - 3))
    writer.add_token_merges(list(merges))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", state["model.norm.weight"])
    kind = GGMLQuantizationType.Q8_0
    for layer in range(LAYERS):
        for theirs, ours in {
            "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
            "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
            "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        }.items():  # fmt: skip
            array = state[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                array = interleaved(array, HEADS if theirs == "attn_q" else KV_HEADS)
            name = f"blk.{layer}.{theirs}.weight"
            if name in without:
                continue
            if array.ndim == 2:
                writer.add_tensor(name, quants.quantize(array, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, array)
    for name in more:
        writer.add_tensor(name, np.ones(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    module = llama()
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write(file, module)
    return module, ox.load(file)


def test_weights_are_dequantised(loaded):
    module, model = loaded
    assert model.weights.dtypes == ("float32",)
    assert model.weights.tied
    assert torch.equal(model.weights.W_E, module.model.embed_tokens.weight)
    for layer, own in zip(module.model.layers, model.weights.layers, strict=True):
        for ours, theirs, heads in (
            (own.W_Q, layer.self_attn.q_proj, HEADS), (own.W_K, layer.self_attn.k_proj, KV_HEADS),
        ):  # fmt: skip
            weight = theirs.weight.detach().view(heads, 16, WIDTH).mT
            # eight bits of each block of 32 numbers
            assert float((ours - weight).abs().max()) < float(weight.abs().max()) / 127
    assert "the weights of the GGUF file were dequantised to float32" in model.notes


def test_the_reference_computes_what_the_original_does(loaded):
    _, model = loaded
    ids = tokens() % len(PIECES)
    judged, recorded = model.reference()(ids), model.original.record(ids)
    for ours, theirs in zip(judged.streams, recorded.streams, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_its_tokenizer(loaded):
    _, model = loaded
    assert model.tokenizer.encode("ab") == [6]
    assert model.tokenizer.token_text(6) == "ab"
    assert model.prompt("ab").tokens[0, -1] == 6
    assert model.config.bos_token_id is None
    assert "its tokenizer puts no token in front of a text" in model.notes


def test_a_file_is_read_once_and_quietly(tmp_path, monkeypatch, capfd):
    import gguf

    file = tmp_path / "tiny.gguf"
    write(file, llama())
    reads, tables = [], []
    build, names = gguf.GGUFReader.__init__, gguf.TensorNameMap.__init__

    def read(self, path, *args, **options):
        reads.append(path)
        build(self, path, *args, **options)

    def table(self, *args, **options):
        tables.append(args)
        names(self, *args, **options)

    monkeypatch.setattr(gguf.GGUFReader, "__init__", read)
    monkeypatch.setattr(gguf.TensorNameMap, "__init__", table)
    ox.load(file)

    assert [str(path) for path in reads] == [str(file)]
    assert len(tables) == 1
    assert capfd.readouterr() == ("", "")


def test_without_that_it_is_read_more_often(tmp_path, monkeypatch):
    """The count of the test above can tell."""
    import gguf

    file = tmp_path / "tiny.gguf"
    write(file, llama())
    reads = []
    build = gguf.GGUFReader.__init__

    def read(self, path, *args, **options):
        reads.append(path)
        build(self, path, *args, **options)

    monkeypatch.setattr(gguf.GGUFReader, "__init__", read)
    transformers_package.causal_model(tmp_path, torch.float32, gguf_file=file.name)
    assert len(reads) > 1


@pytest.mark.parametrize("kept", [None, 20, 200, 900, -64, -5000])
def test_the_packages_are_as_they_were(tmp_path, kept):
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    def state():
        return (
            gguf.GGUFReader,
            gguf.get_tensor_name_map,
            reading.load_gguf_checkpoint,
            reading.tqdm,
        )

    before = state()
    file = tmp_path / "tiny.gguf"
    write(file, llama())
    if kept is not None:
        file.write_bytes(file.read_bytes()[:kept])
        with pytest.raises(CheckpointError, match=r"transformers cannot load .*tiny\.gguf"):
            ox.load(file)
    else:
        ox.load(file)
    assert state() == before


def test_two_files_of_one_name_do_not_mix(tmp_path):
    """What was read of a file is dropped when the load ends."""
    module = llama()
    with torch.no_grad():
        module.model.embed_tokens.weight.add_(1)
    file = tmp_path / "tiny.gguf"
    write(file, llama())
    ox.load(file)
    write(file, module)
    again = ox.load(file)
    assert torch.equal(again.weights.W_E, module.model.embed_tokens.weight)


def test_the_weights_share_the_modules_storage(loaded):
    _, model = loaded
    own = model.original.module(torch.float32).parameters()
    kept = {parameter.untyped_storage().data_ptr() for parameter in own}
    assert {t.untyped_storage().data_ptr() for t in model.weights.tensors().values()} == kept


def test_a_tensor_that_is_not_there_is_not_made_up(tmp_path, capfd):
    """transformers would fill it with random numbers."""
    file = tmp_path / "tiny.gguf"
    write(file, llama(), without=("blk.1.ffn_up.weight",))

    with pytest.raises(CheckpointError, match=r"tiny\.gguf' lacks model\.layers\.1\.mlp\.up_proj"):
        ox.load(file)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.7.attn_q.weight"])
def test_a_tensor_that_transformers_leaves_out(tmp_path, name):
    """Factors of rotary angles, for example, without which the model is another."""
    file = tmp_path / "tiny.gguf"
    write(file, llama(), more=(name,))

    with pytest.raises(UnsupportedError, match=f"has the tensor '{name}', which transformers leav"):
        ox.load(file)


def test_a_tokenizer_that_panics(tmp_path):
    """As its Rust code does for a merge whose result begins before its first part ends."""
    file = tmp_path / "tiny.gguf"
    write(file, llama(), merges=("a b", "b "))

    with pytest.raises(CheckpointError, match=r"transformers cannot load .*tiny\.gguf"):
        ox.load(file)
