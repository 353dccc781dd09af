"""A checkpoint runs no code, and points to no file but its own."""

from __future__ import annotations

import contextlib
import json
import pickle

import pytest
import torch
from safetensors.torch import load_file

import otimes as ox
from tests.bridge.loading.test_refused import refused


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a\\b.safetensors", "..",
                                  "sub/model.safetensors", "C:x.safetensors", 3, ""])  # fmt: skip
def test_path_tricks_of_an_index(name, saved):
    (saved / "model.safetensors").rename(saved.parent / "model.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (saved / "model.safetensors.index.json").write_text(json.dumps(index))
    refused("a shard is a file beside its index, named without a folder", saved)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": {"x": "model.txt"}}, "neither .safetensors nor .bin"),
        ({"weight_map": {"x": "one.safetensors"}}, "which is not beside it"),
        (
            {"weight_map": {"x": "two.safetensors"}},
            "'x' is in 'two.safetensors', which does not hold",
        ),
    ],
)
def test_bad_indexes(index, message, saved):
    (saved / "model.safetensors").rename(saved / "two.safetensors")
    (saved / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(message, saved)


class Evil:
    ran = False

    def __reduce__(self):
        return (setattr, (Evil, "ran", True))


def test_pickles_run_no_code(saved):
    (saved / "model.safetensors").unlink()
    with (saved / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Evil(), file)
    refused("cannot be read as plain tensors", saved)
    torch.save({"model.norm.weight": Evil()}, saved / "pytorch_model.bin")
    refused("cannot be read as plain tensors .*: otimes runs no code from a checkpoint", saved)
    assert not Evil.ran


def test_pickles_in_shards_and_files_run_no_code(saved):
    (saved / "model.safetensors").rename(saved / "two.bin")
    with (saved / "one.bin").open("wb") as file:
        pickle.dump(Evil(), file)
    index = {"weight_map": {"model.norm.weight": "one.bin"}}
    (saved / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    refused("one.bin.* cannot be read as plain tensors", saved)
    for name in ("ckpt.pt", "last.pth", "last.ckpt"):
        torch.save({"model": Evil(), "model_args": {}}, saved / name)
        refused("cannot be read as plain tensors", saved / name)
    assert not Evil.ran
    # the pickle does what it is there for
    pickle.loads(pickle.dumps(Evil()))
    assert Evil.ran
    Evil.ran = False


def test_links_as_the_cache_of_the_hub_has_them(saved):
    """Its snapshots are links to files elsewhere, so links are followed."""
    wanted = ox.load(saved).weights
    blobs, snapshot = saved / "blobs", saved / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, name in enumerate(("config.json", "model.safetensors")):
        (saved / name).rename(blobs / str(number))
        (snapshot / name).symlink_to(blobs / str(number))
    assert torch.equal(ox.load(snapshot).weights.W_U, wanted.W_U)


def test_pickles_of_plain_tensors_are_read(saved):
    state = load_file(saved / "model.safetensors")
    wanted = ox.load(saved).weights
    torch.save(state, saved / "pytorch_model.bin")
    (saved / "model.safetensors").unlink()
    assert torch.equal(ox.load(saved).weights.W_U, wanted.W_U)


@pytest.mark.parametrize("kind", ["llama", "mine"])
def test_code_of_a_checkpoint_is_never_run(kind, saved):
    """Whether or not the rest of it can be read; its tokenizer's code neither."""
    ran = saved / "ran"
    code = f"open({str(ran)!r}, 'w').close()\n"
    names = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    for name in names:
        (saved / f"{name.lower()}_code.py").write_text(code + f"class {name}Own: pass\n")
    mapped = {name: f"{name.lower()}_code.{name}Own" for name in names}
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(
        json.dumps({**config, "model_type": kind, "auto_map": mapped})
    )
    tokenizer = {"auto_map": {"AutoTokenizer": [mapped["AutoTokenizer"], None]}}
    (saved / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    if kind == "mine":
        refused("it comes with its own code, which otimes never runs", saved)
    else:
        with contextlib.suppress(ox.OtimesError):
            ox.load(saved)
        (saved / "tokenizer_config.json").unlink()
        model = ox.load(saved)
        assert any(note.startswith("code of its own (auto_map) is never") for note in model.notes)
        ids = torch.tensor([[1, 2, 3]])
        assert torch.allclose(
            model.original.record(ids).logits, model.reference()(ids).logits, rtol=1e-5, atol=1e-5
        )
    assert not ran.exists()


def test_code_of_a_checkpoint_is_never_trusted(saved, monkeypatch):
    import transformers

    seen = []
    original = transformers.AutoModelForCausalLM.from_pretrained

    def watched(*args: object, **kwargs: object) -> object:
        seen.append(kwargs["trust_remote_code"])
        return original(*args, **kwargs)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", watched)
    ox.load(saved).original.module(torch.float32)
    assert seen == [False]
