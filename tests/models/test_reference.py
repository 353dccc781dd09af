"""The judge against plain numpy, and the ways in which a judge could be wrong."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from otimes.models import reference
from tests.factory import BIASES, Checkpoint, make_checkpoint, write_checkpoint
from tests.oracles import numpy_model
from tests.strategies import Case, cases


def run_both(
    model: Checkpoint, tokens: list[list[int]], mask: list[list[bool]] | None = None
) -> tuple[reference.Recording, numpy_model.Forward]:
    judge = reference.load(model.path)
    recorded = judge(torch.tensor(tokens), None if mask is None else torch.tensor(mask))
    return recorded, numpy_model.forward(model.config, model.arrays, tokens, mask)


def close(actual: torch.Tensor, expected: np.ndarray) -> None:
    assert actual.dtype == torch.float64
    assert actual.shape == expected.shape
    atol = 1e-10 * max(np.abs(expected).max(initial=0.0), 1e-6)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=atol)


def assert_same(recorded: reference.Recording, expected: numpy_model.Forward) -> None:
    close(recorded.logits, expected.logits)
    for name in ("scores", "patterns", "streams"):
        for actual, oracle in zip(getattr(recorded, name), getattr(expected, name), strict=True):
            close(actual, oracle)
    assert recorded.positions.tolist() == expected.positions.tolist()


@settings(max_examples=150)
@given(cases())
def test_equals_the_definition(case: Case):
    with tempfile.TemporaryDirectory() as folder:
        model = make_checkpoint(Path(folder), **case.architecture)
        recorded, expected = run_both(model, case.tokens, case.mask)

    assert_same(recorded, expected)


@pytest.mark.parametrize("positions", ["none", "learned", "shortformer"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_equals_the_definition_with_every_bias(
    tmp_path: Path, positions: str, causal: bool, kv_heads: int
):
    model = make_checkpoint(
        tmp_path, seed=5, n_layers=3, n_heads=6, n_kv_heads=kv_heads, positions=positions,
        biases=BIASES, causal=causal, attention_scale=0.7,
    )  # fmt: skip

    recorded, expected = run_both(
        model, [[1, 12, 7, 7, 0, 3, 2, 9, 5], [4, 4, 0, 11, 2, 8, 1, 6, 10]]
    )

    assert_same(recorded, expected)


@pytest.mark.parametrize("name", ["scores", "patterns", "streams", "logits"])
def test_the_comparison_can_fail(tmp_path: Path, name: str):
    recorded, expected = run_both(make_checkpoint(tmp_path), [[1, 2, 3]])
    value = getattr(recorded, name)
    changed = value + 1e-8 if name == "logits" else (value[0] + 1e-8, *value[1:])
    assert_same(recorded, expected)
    with pytest.raises(AssertionError):
        assert_same(replace(recorded, **{name: changed}), expected)


@pytest.mark.parametrize(
    ("tensor", "change"),
    [
        ("config", {"attention_scale": 1.0}),
        ("config", {"causal": False}),
        ("config", {"positions": "learned"}),
        ("blocks.1.attn.W_K", lambda w: w[::-1]),  # the KV heads exchanged
        *((f"blocks.0.attn.{bias}", lambda w: 0 * w) for bias in BIASES[:-1]),
        ("unembed.b_U", lambda w: 0 * w),
    ],
)
def test_a_changed_model_differs_from_the_definition(tmp_path: Path, tensor: str, change):
    model = make_checkpoint(tmp_path, n_heads=4, n_kv_heads=2, biases=BIASES)
    if tensor == "config":
        wrong = replace(model, config=model.config | change)
    else:
        wrong = replace(model, arrays=model.arrays | {tensor: change(model.arrays[tensor])})

    recorded, expected = run_both(wrong, [[1, 2, 3, 4]])

    # the file is the unchanged model, the oracle computes the changed one
    with pytest.raises(AssertionError):
        assert_same(recorded, expected)


@pytest.mark.parametrize("positions", ["none", "learned", "shortformer"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_real_token(tmp_path: Path, positions: str, side: str):
    model = make_checkpoint(tmp_path, n_heads=4, n_kv_heads=2, positions=positions, biases=BIASES)
    tokens, pad = [7, 0, 12, 5], [3, 3, 3]
    left = side == "left"
    padded = pad + tokens if left else tokens + pad
    mask = [[False] * 3 + [True] * 4] if left else [[True] * 4 + [False] * 3]
    real = slice(3, 7) if left else slice(0, 4)
    judge = reference.load(model.path)

    plain = judge(torch.tensor([tokens]))
    run = judge(torch.tensor([padded]), torch.tensor(mask))

    def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)

    same(run.logits[:, real], plain.logits)
    for layer in range(2):
        same(run.patterns[layer][:, :, real, real], plain.patterns[layer])
        same(run.scores[layer][:, :, real, real], plain.scores[layer])
        same(run.streams[layer][:, real], plain.streams[layer])
    assert run.positions[:, real].tolist() == [[0, 1, 2, 3]]


def test_a_row_without_a_source_is_zero_and_nothing_is_nan(tmp_path: Path):
    model = make_checkpoint(tmp_path, biases=BIASES)
    mask = [[False, False, True, True], [False, False, False, False]]

    recorded, expected = run_both(model, [[1, 2, 3, 4], [5, 6, 7, 8]], mask)

    for pattern in recorded.patterns:
        assert pattern[0, :, :2].abs().max() == 0
        assert pattern[1].abs().max() == 0
        torch.testing.assert_close(pattern[0, :, 2:].sum(-1), torch.ones(3, 2).double())
    assert torch.isfinite(recorded.logits).all()
    assert_same(recorded, expected)


def test_padding_is_never_attended_to(tmp_path: Path):
    model = make_checkpoint(tmp_path, causal=False)
    mask = [[False, True, True, False]]

    recorded, _ = run_both(model, [[1, 2, 3, 4]], mask)

    for pattern in recorded.patterns:
        assert pattern[..., [0, 3]].abs().max() == 0


def test_float64_weights_are_not_rounded(tmp_path: Path):
    model = make_checkpoint(tmp_path)
    judge = reference.load(model.path)
    assert judge.embed.W_E.numpy().tolist() == model.arrays["embed.W_E"].tolist()
    assert (model.arrays["embed.W_E"].astype(np.float32) != model.arrays["embed.W_E"]).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_weights_are_computed_in_float64(tmp_path: Path, dtype: str):
    recorded, expected = run_both(make_checkpoint(tmp_path, dtype=dtype), [[1, 2, 3]])
    assert_same(recorded, expected)


def test_tensors_that_the_model_does_not_have_are_ignored(tmp_path: Path):
    model = make_checkpoint(tmp_path / "plain", positions="none")
    extra = {
        "pos_embed.W_pos": np.ones((9, 10)),
        "blocks.7.attn.W_Q": np.ones((3, 10, 4)),
        "blocks.0.attn.mask": torch.ones(2, 2, dtype=torch.bool),
        "blocks.0.attn.b_X": np.ones(3),
        "blocks.0.attn.b_.b_Q": np.ones(3),
    }
    more = write_checkpoint(tmp_path / "more", model.config, {**model.arrays, **extra})

    recorded, _ = run_both(more, [[1, 2, 3]])

    assert_same(recorded, run_both(model, [[1, 2, 3]])[1])


def test_optional_keys_have_the_defaults_of_the_format(tmp_path: Path):
    model = make_checkpoint(tmp_path)
    short = {k: v for k, v in model.config.items() if k not in ("n_kv_heads", "causal")}
    (tmp_path / "config.json").write_text(json.dumps(short), encoding="utf-8")

    recorded, expected = run_both(model, [[1, 2, 3]])

    assert_same(recorded, expected)


def test_no_gradients(tmp_path: Path):
    judge = reference.load(make_checkpoint(tmp_path, biases=BIASES).path)
    assert not any(parameter.requires_grad for parameter in judge.parameters())
    assert not judge(torch.tensor([[1, 2]])).logits.requires_grad
