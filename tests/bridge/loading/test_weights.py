"""Canonical weights: dtypes, names, and that nothing is changed behind anyone's back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

from otimes.bridge.loading import AttentionWeights, Weights, load_native
from otimes.errors import UnsupportedError
from tests.factory import BIASES, make_checkpoint


def random_weights(dtype: torch.dtype = torch.float32, *, grad: bool = False) -> Weights:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(grad)

    layer = AttentionWeights(
        W_Q=draw(4, 10, 3), W_K=draw(2, 10, 3), W_V=draw(2, 10, 3), W_O=draw(4, 3, 10),
        b_V=draw(2, 3),
    )  # fmt: skip
    return Weights(W_E=draw(13, 10), W_pos=None, layers=(layer,), W_U=draw(10, 13), unused=("x",))


def test_names_are_the_files_names_of_what_exists():
    assert random_weights().names() == (
        "embed.W_E",
        *(f"blocks.0.attn.{name}" for name in ("W_Q", "W_K", "W_V", "W_O", "b_V")),
        "unembed.W_U",
    )


def test_tensors_pair_each_name_with_its_tensor():
    weights = random_weights()
    tensors = weights.tensors()
    assert tuple(tensors) == weights.names()
    assert tensors["blocks.0.attn.b_V"] is weights.layers[0].b_V
    assert tensors["unembed.W_U"] is weights.W_U


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_upcasting_is_exact_and_leaves_the_storage_alone(stored: torch.dtype):
    weights = random_weights(stored)
    before = {name: (tensor, tensor.clone()) for name, tensor in weights.tensors().items()}

    wide = weights.to(torch.float64)

    assert wide is not weights
    assert wide.unused == ("x",)
    assert wide.names() == weights.names()
    for name, tensor in wide.tensors().items():
        original, copy = before[name]
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor, copy.double())
        assert weights.tensors()[name] is original
        assert original.dtype == stored
        assert torch.equal(original, copy)


def test_no_gradients_come_along():
    weights = random_weights(grad=True)
    for dtype in (torch.float32, torch.float64):
        assert not any(t.requires_grad for t in weights.to(dtype).tensors().values())
    assert weights.W_E.requires_grad


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex128])
def test_a_dtype_without_fractions_is_refused(dtype: torch.dtype):
    with pytest.raises(
        UnsupportedError, match=r"cannot be converted to torch\..*: use torch\.float64"
    ):
        random_weights().to(dtype)


def test_dtypes_name_each_storage_dtype_once():
    assert random_weights(torch.bfloat16).dtypes == ("bfloat16",)


def test_frozen():
    with pytest.raises(AttributeError, match="cannot assign"):
        random_weights().unused = ()  # type: ignore[misc]


@pytest.mark.parametrize("positions", ["none", "learned", "shortformer"])
def test_every_slot_of_a_full_model_is_named_once(tmp_path: Path, positions: str):
    model = make_checkpoint(tmp_path, n_layers=13, positions=positions, biases=BIASES)

    weights = load_native(tmp_path).weights

    names = weights.names()
    assert len(names) == len(set(names))
    assert set(names) == set(model.arrays)
    # by hand: 8 tensors a layer, embed, unembed and its bias, maybe positions
    assert len(names) == 13 * 8 + 3 + (positions != "none")


@pytest.mark.parametrize(
    "change",
    [
        {"W_K": torch.zeros(2, 3, 10)},  # transposed
        {"W_V": torch.zeros(4, 10, 3)},  # another number of KV heads than W_K
        {"b_O": torch.zeros(1, 10)},
        {"W_O": torch.zeros(4, 3, 10, dtype=torch.int64)},
    ],
)
def test_shapes_are_enforced_while_tests_run(change: dict[str, torch.Tensor]):
    layer = random_weights().layers[0]
    with pytest.raises(TypeCheckError, match=next(iter(change))):
        replace(layer, **change)
