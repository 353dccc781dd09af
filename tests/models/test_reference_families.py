"""The judge against plain numpy on every kind of model that the format has."""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from otimes.bridge.loading import load_native
from otimes.models import reference
from otimes.models.reference import Recording
from tests.factory import ALL_BIASES, Checkpoint, make_checkpoint
from tests.oracles import numpy_model, transformer
from tests.strategies import Case, cases, families

TOKENS = [[1, 12, 7, 7, 0, 3, 2], [4, 4, 0, 11, 2, 8, 1]]
MASK = [[False, False, True, True, True, True, True], [True, True, True, True, False, False, False]]

HALF = {"theta": 100.0, "pairing": "half"}
LLAMA3 = {
    "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_n_ctx": 40,
}  # fmt: skip


def turning(**changes: Any) -> dict[str, Any]:
    return {"positions": "rotary", "d_head": 12, "rotary": HALF | changes}


MLP = {"d_mlp": 7}
GATED = {"d_mlp": 7, "gated": True}
FAMILIES: dict[str, dict[str, Any]] = {
    "layer norm": {"norm": "layer"},
    "rms norm": {"norm": "rms"},
    "no final norm": {"norm": "rms", "final_norm": False},
    "embed norm": {"norm": "layer", "embed_norm": True, "positions": "learned"},
    "post-norms": {"norm": "layer", "norm_placement": "post", **MLP},
    "post-norms and a final one": {"norm": "rms", "norm_placement": "post", "final_norm": True},
    "sandwich norms": {"norm": "rms", "norm_placement": "sandwich", **GATED},
    "output norms": {"norm": "rms", "norm_placement": "output", **GATED},
    "no norms, no biases of theirs": {**MLP},
    **{f"plain {act}": MLP | {"activation": act, "norm": "rms"} for act in transformer.ACTIVATIONS},
    **{f"gated {act}": GATED | {"activation": act} for act in transformer.ACTIVATIONS},
    "rotary, half": turning(),
    "rotary, interleaved": turning(pairing="interleaved"),
    "rotary, partial": turning(dim=8),
    "rotary, partial and interleaved": turning(dim=4, pairing="interleaved"),
    "rotary, linear": turning(scaling={"type": "linear", "factor": 3.0}),
    "rotary, ntk": turning(scaling={"type": "ntk", "factor": 3.0}),
    "rotary, llama3": turning(scaling=LLAMA3),
    "rotary, factors": turning(scaling={"type": "factors", "factors": [1, 1.5, 2, 3, 5, 8.0]}),
    "rotary by layer": {"positions": "rotary", "rotary": [HALF, None]},
    "rotary, one key head": turning() | {"n_kv_heads": 1},
    "alibi, power of two": {"positions": "alibi", "n_heads": 4, "n_kv_heads": 2},
    "alibi, six heads": {"positions": "alibi", "n_heads": 6, "n_kv_heads": 2},
    "alibi, both ways": {"positions": "alibi", "causal": False},
    "parallel": {"norm": "layer", "parallel": True, **MLP},
    "parallel, one norm": {"norm": "layer", "parallel": "shared", **MLP},
    "parallel, sandwich": {"norm": "rms", "parallel": True, "norm_placement": "sandwich", **MLP},
    "parallel, one norm, sandwich": {
        "norm": "rms", "parallel": "shared", "norm_placement": "sandwich", **GATED,
    },
    "attention soft-cap": {"attention_softcap": 0.5},
    "logits soft-cap": {"logits_softcap": 2.0},
    "windows": {"windows": [2, None]},
    "windows, both ways": {"windows": [None, 3], "causal": False},
    "q and k norms": {"norm": "rms", "qk_norm": "head", "n_heads": 6, "n_kv_heads": 2},
    "q and k norms, layer": {"norm": "layer", "qk_norm": "head"} | turning(),
    "q and k norms, all heads": {"norm": "rms", "qk_norm": "all", "n_heads": 6, "n_kv_heads": 2},
    "multipliers": {
        "embed_multiplier": 3.0, "residual_multiplier": 0.3, "logits_multiplier": -0.25, **MLP,
    },
    "multipliers and post-norms": {
        "residual_multiplier": 0.3, "norm": "layer", "norm_placement": "post", **MLP,
    },
    "multipliers and sandwich norms": {
        "embed_multiplier": 3.0, "residual_multiplier": 0.3, "norm": "rms",
        "norm_placement": "sandwich", "embed_norm": True, "positions": "learned", **MLP,
    },
    "tied": {"tied": True, "norm": "rms"},
    "token types": {"n_token_types": 3, "norm": "layer", "embed_norm": True, "causal": False},
    "shortformer behind a norm": {"positions": "shortformer", "norm": "layer"},
    "everything": {
        "norm": "rms", "norm_placement": "sandwich", "qk_norm": "head", "n_heads": 4,
        "n_kv_heads": 2, "embed_multiplier": 2.0, "residual_multiplier": 0.5,
        "logits_multiplier": 0.5, "attention_softcap": 1.0, "logits_softcap": 3.0,
        "windows": [2, None, 4], "tied": True, "n_layers": 3, "activation": "gelu_tanh",
        **GATED, **turning(dim=8, scaling=LLAMA3),
    },
}  # fmt: skip


def made(folder: Path, name: str) -> Checkpoint:
    return make_checkpoint(
        folder, seed=3, **{"positions": "none", "biases": ALL_BIASES} | FAMILIES[name]
    )


def close(actual: Any, expected: Any, where: str) -> None:
    """Compare tensors, or tuples or dicts of them, shape by shape."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key, value in expected.items():
            close(actual[key], value, f"{where}[{key}]")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for index, value in enumerate(expected):
            close(actual[index], value, f"{where}[{index}]")
    else:
        assert actual.shape == expected.shape, where
        atol = 1e-11 * max(1.0, np.abs(expected).max(initial=0.0))
        np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=atol, err_msg=where)


def assert_same(recorded: Recording, expected: dict[str, Any]) -> None:
    for field in fields(Recording):
        value = getattr(recorded, field.name)
        if field.name == "gates":
            value = [gate for gate in value if gate is not None]
        close(value, expected[field.name], field.name)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_equals_the_definition(tmp_path: Path, name: str, padded: bool):
    model = made(tmp_path, name)
    types = [[0, 1, 2, 2, 1, 0, 1]] * 2 if "n_token_types" in model.config else None
    mask = MASK if padded else None

    recorded = reference.load(model.path)(
        torch.tensor(TOKENS),
        None if mask is None else torch.tensor(mask),
        None if types is None else torch.tensor(types),
    )

    expected = transformer.forward(model.config, model.arrays, TOKENS, mask, types)
    assert_same(recorded, expected)
    assert set(reference.load(model.path).state_dict()) == set(model.arrays)


@settings(max_examples=60)
@given(cases(of=families))
def test_any_combination_equals_the_definition(case: Case):
    with tempfile.TemporaryDirectory() as folder:
        model = make_checkpoint(Path(folder), **case.architecture)
        load_native(folder)  # the loader knows every model that the judge knows
        mask = None if case.mask is None else torch.tensor(case.mask)
        recorded = reference.load(model.path)(torch.tensor(case.tokens), mask)

    expected = transformer.forward(model.config, model.arrays, case.tokens, case.mask)
    assert_same(recorded, expected)


NO_GATE = {f"blocks.{layer}.mlp.{t}": None for layer in range(2) for t in ("W_gate", "b_gate")}
#: a family, and what another model than the judge's is told: settings, and tensors (None: away)
WRONG: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("layer norm", {"norm": "rms"}, {}),
    ("layer norm", {"eps": 1e-5}, {}),
    ("layer norm", {"final_norm": False}, {}),
    ("layer norm", {"norm_placement": "post", "final_norm": True}, {}),
    ("layer norm", {}, {"blocks.1.ln1.w": lambda w: w - 1}),  # of a gain stored as w - 1
    ("layer norm", {}, {"blocks.1.ln1.b": None}),
    ("layer norm", {}, {"ln_final.b": None}),
    ("rms norm", {"norm": "layer"}, {}),
    ("rms norm", {}, {"ln_final.w": lambda w: w + 1}),  # of a gain that has its 1 already
    ("embed norm", {"embed_norm": False}, {}),
    ("post-norms", {"norm_placement": "pre", "final_norm": False}, {}),
    ("sandwich norms", {"norm_placement": "output"}, {}),
    ("sandwich norms", {"norm_placement": "pre"}, {}),
    ("plain gelu", {"activation": "gelu_tanh"}, {}),
    ("plain gelu", {}, {"blocks.0.mlp.b_in": None}),
    ("plain gelu", {}, {"blocks.1.mlp.b_out": lambda b: 2 * b}),
    ("gated silu", {"activation": "gelu"}, {}),
    ("gated silu", {}, NO_GATE),
    ("gated silu", {}, {"blocks.1.mlp.b_gate": None}),
    ("rotary, half", {"rotary": HALF | {"pairing": "interleaved"}}, {}),
    ("rotary, half", {"rotary": HALF | {"theta": 101.0}}, {}),
    ("rotary, half", {"rotary": HALF | {"dim": 10}}, {}),
    ("rotary, half", {"rotary": None}, {}),
    ("rotary, linear", {"rotary": HALF}, {}),
    ("rotary, ntk", {"rotary": HALF | {"scaling": {"type": "linear", "factor": 3.0}}}, {}),
    ("rotary, llama3", {"rotary": HALF}, {}),
    ("rotary, llama3", {"rotary": HALF | {"scaling": LLAMA3 | {"original_n_ctx": 41}}}, {}),
    ("rotary by layer", {"rotary": [None, HALF]}, {}),
    ("rotary by layer", {"rotary": [HALF, HALF]}, {}),
    ("alibi, six heads", {"positions": "none"}, {}),
    ("alibi, six heads", {}, {"blocks.0.attn.W_K": lambda w: w[::-1]}),
    ("parallel", {"parallel": False}, {}),
    ("parallel", {"parallel": "shared"}, {}),
    ("parallel, one norm", {"norm": "rms"}, {}),
    ("attention soft-cap", {"attention_softcap": None}, {}),
    ("logits soft-cap", {"logits_softcap": None}, {}),
    ("windows", {"windows": [3, None]}, {}),
    ("windows", {"windows": [2, 2]}, {}),
    ("q and k norms", {"qk_norm": None}, {}),
    ("q and k norms", {}, {"blocks.0.attn.k_norm.w": lambda w: w[::-1]}),
    ("q and k norms, all heads", {"norm": "layer"}, {}),
    ("multipliers", {"embed_multiplier": None}, {}),
    ("multipliers", {"residual_multiplier": None}, {}),
    ("multipliers", {"logits_multiplier": None}, {}),
    ("tied", {}, {"embed.W_E": lambda w: 1.01 * w}),
    ("token types", {"n_token_types": None}, {}),
]


@pytest.mark.parametrize(("name", "config", "tensors"), WRONG)
def test_another_model_than_the_judges_is_noticed(
    tmp_path: Path, name: str, config: dict[str, Any], tensors: dict[str, Any]
):
    model = made(tmp_path, name)
    recorded = reference.load(model.path)(torch.tensor(TOKENS))
    arrays = dict(model.arrays)
    for tensor, change in tensors.items():
        arrays |= {} if change is None else {tensor: change(arrays[tensor])}
        arrays = {n: a for n, a in arrays.items() if change is not None or n != tensor}

    expected = transformer.forward(model.config | config, arrays, TOKENS)

    with pytest.raises(AssertionError):
        close(recorded.logits, expected["logits"], "logits")


@pytest.mark.parametrize("field", [field.name for field in fields(Recording)])
def test_each_part_of_a_recording_is_compared(tmp_path: Path, field: str):
    model = made(tmp_path, "everything")
    recorded = reference.load(model.path)(torch.tensor(TOKENS))
    expected = transformer.forward(model.config, model.arrays, TOKENS)
    assert_same(recorded, expected)
    value = getattr(recorded, field)
    if isinstance(value, tuple):
        value = (*value[:-1], value[-1] + 1e-9)
    elif isinstance(value, dict):
        value = value | {"2.q_norm": value["2.q_norm"] + 1e-9}
    else:
        value = value + (1 if field == "positions" else 1e-9)

    with pytest.raises(AssertionError):
        assert_same(replace(recorded, **{field: value}), expected)


def test_the_labels_of_scales_are_those_of_the_norms(tmp_path: Path):
    model = made(tmp_path, "everything")
    scales = reference.load(model.path)(torch.tensor(TOKENS)).scales
    norms = [
        f"{layer}.{n}" for layer in range(3) for n in ("ln1", "ln1_post", "ln2", "ln2_post")
    ]  # fmt: skip
    assert set(scales) == {*norms, "final", *(f"{n}.{s}_norm" for n in range(3) for s in "qk")}
    assert scales["1.ln2"].shape == (2, 7)
    assert scales["1.q_norm"].shape == (2, 4, 7)
    assert scales["1.k_norm"].shape == (2, 2, 7)


def test_without_caps_nothing_is_kept_twice(tmp_path: Path):
    recorded = reference.load(made(tmp_path, "rms norm").path)(torch.tensor(TOKENS))
    assert recorded.uncapped_logits is recorded.logits
    for capped, scores in zip(recorded.capped_scores, recorded.scores, strict=True):
        assert capped is scores


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["everything", "alibi, six heads", "embed norm", "parallel"])
def test_padding_changes_no_real_token(tmp_path: Path, name: str, side: str):
    judge = reference.load(made(tmp_path, name).path)
    tokens, pad, yes, no = [7, 0, 12, 5], [3, 3, 3], [True] * 4, [False] * 3
    left = side == "left"
    real = slice(3, 7) if left else slice(0, 4)

    plain = judge(torch.tensor([tokens]))
    run = judge(
        torch.tensor([pad + tokens if left else tokens + pad]),
        torch.tensor([no + yes if left else yes + no]),
    )

    torch.testing.assert_close(run.logits[:, real], plain.logits, rtol=0, atol=1e-12)
    for padded, pattern in zip(run.patterns, plain.patterns, strict=True):
        torch.testing.assert_close(padded[:, :, real, real], pattern, rtol=0, atol=1e-12)
        assert torch.isfinite(padded).all()
        if left:
            assert padded[:, :, :3].abs().max() == 0  # rows that may attend to nothing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_is_computed_in_the_dtype_that_was_asked_for(tmp_path: Path, dtype: torch.dtype):
    recorded = reference.load(made(tmp_path, "everything").path, dtype)(torch.tensor(TOKENS))
    for field in fields(Recording):
        value = getattr(recorded, field.name)
        for tensor in value.values() if isinstance(value, dict) else value:
            assert field.name == "positions" or tensor.dtype == dtype


@pytest.mark.parametrize("name", ["layer norm", "alibi, six heads", "rotary, half"])
def test_both_oracles_agree_on_what_both_know(tmp_path: Path, name: str):
    model = made(tmp_path, name)
    plain = model.config | {"positions": "none", "norm": None, "rotary": None}
    short = numpy_model.forward(plain, model.arrays, TOKENS, MASK)
    full = transformer.forward(plain, model.arrays, TOKENS, MASK)
    np.testing.assert_allclose(full["logits"], short.logits, rtol=0, atol=1e-12)
    np.testing.assert_allclose(full["scores"], short.scores, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": "sinusoid"}, "no 'sinusoid' positions"),
        ({"norm": "batch", "eps": 0.1}, "no 'batch' norm"),
        ({"norm_placement": "peri"}, "no 'peri' norms"),
        ({"qk_norm": "half", "norm": "rms", "eps": 0.1}, "no 'half' norms of queries and keys"),
    ],
)
def test_what_the_judge_does_not_have_it_refuses(
    tmp_path: Path, change: dict[str, Any], message: str
):
    model = make_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(model.config | change), encoding="utf-8")
    with pytest.raises(NotImplementedError, match=message):
        reference.load(tmp_path)


@pytest.mark.parametrize(
    ("rotary", "message"),
    [
        (HALF | {"pairing": "third"}, "no 'third' pairing"),
        (HALF | {"scaling": {"type": "yarn"}}, "no 'yarn' scaling of rotary angles"),
    ],
)
def test_rotations_that_the_judge_does_not_have_it_refuses(
    tmp_path: Path, rotary: dict[str, Any], message: str
):
    judge = reference.load(make_checkpoint(tmp_path, positions="rotary", rotary=rotary).path)
    with pytest.raises(NotImplementedError, match=message):
        judge(torch.tensor(TOKENS))
