"""Token types: what is taken, and runs of models that have them against plain numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import otimes as ox
from otimes.bridge import Model, Run, load
from otimes.errors import InputError
from tests.factory import ALL_BIASES, Checkpoint, make_checkpoint
from tests.kit import close, reasons, untyped, with_source
from tests.oracles import transformer

TOKENS = [[1, 5, 2, 7], [3, 3, 0, 12]]
TYPES = [[0, 2, 1, 1], [2, 0, 0, 1]]
MASK = [[False, True, True, True], [True] * 4]
FAMILIES: dict[str, dict[str, Any]] = {
    "attention only": {"positions": "none"},
    "post-norms": {
        "norm": "layer", "norm_placement": "post", "embed_norm": True, "causal": False,
        "positions": "learned", "d_mlp": 5, "activation": "gelu", "final_norm": False,
    },
    "pre-norms": {"norm": "rms", "positions": "none", "d_mlp": 5, "activation": "silu"},
}  # fmt: skip


def made(folder: Path, name: str, **changes: Any) -> tuple[Model, Checkpoint]:
    options: dict[str, Any] = (
        {"n_token_types": 3, "biases": ALL_BIASES, "seed": 5} | FAMILIES[name] | changes
    )
    checkpoint = make_checkpoint(folder, **options)
    return load(checkpoint.path), checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return made(tmp_path, "attention only")[0]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_is_that_of_the_definition(tmp_path: Path, name: str, padded: bool) -> None:
    model, checkpoint = made(tmp_path, name)
    mask = MASK if padded else None

    run = model.run(tokens=TOKENS, types=TYPES, mask=mask)

    expected = transformer.forward(checkpoint.config, checkpoint.arrays, TOKENS, mask, TYPES)
    assert run.types is not None
    assert run.types.tolist() == TYPES
    close(run.logits, expected["logits"], 1e-11)
    close(run.stream(0), expected["streams"][0], 1e-11)
    close(run.evaluate(".."), expected["logits"], 1e-11)
    close(run.by_order().sum(0), expected["logits"], 1e-11)
    # types make a difference to it
    plain = transformer.forward(checkpoint.config, checkpoint.arrays, TOKENS, mask)
    assert np.abs(plain["logits"] - expected["logits"]).max() > 1e-3


def test_the_source_type_is_the_rows_of_these_types(tmp_path: Path) -> None:
    model, checkpoint = made(tmp_path, "attention only")
    w = checkpoint.arrays

    run = model.run(tokens=TOKENS, types=TYPES)

    rows = w["type_embed.W_type"][np.array(TYPES)]
    close(run.evaluate("type"), rows @ w["unembed.W_U"])
    # and as the algebra has it: one-hot types through W_type and W_U
    close(run.evaluate(next(iter(run.paths("type"))).expression), rows @ w["unembed.W_U"])


@pytest.mark.parametrize("mlp", ["source", "frozen"])
@pytest.mark.parametrize("name", ["post-norms", "pre-norms"])
def test_verified_with_its_types(tmp_path: Path, name: str, mlp: str) -> None:
    _, checkpoint = made(tmp_path, name)
    run = load(checkpoint.path, mlp=mlp).run(tokens=TOKENS, types=TYPES)

    assert ox.verify(run).holds
    # with the rows of other types in the source, it fails and says where
    other = torch.tensor(checkpoint.arrays["type_embed.W_type"])[torch.zeros_like(run.tokens)]
    assert "block embed: the" in reasons(with_source(run, "type", lambda _: other))


def test_causal_effects_keep_the_types(tmp_path: Path) -> None:
    """Without layers a model is linear, so an effect is the path's value."""
    model, _ = made(tmp_path, "attention only", n_layers=0)
    run = model.run(tokens=TOKENS, types=TYPES)

    found = ox.causal_effects(run, ["type", "embed"], 4, batch=1)

    close(found.causal, found.frozen, 1e-12)
    close(found.frozen[0], run.evaluate("type")[1, -1, 4])


def test_scores_decompose_with_their_types(tmp_path: Path) -> None:
    model, checkpoint = made(tmp_path, "pre-norms")
    run = model.run(tokens=TOKENS, types=TYPES)

    found = ox.scores(run, "1.1", 3, 1, batch=1)

    expected = transformer.forward(checkpoint.config, checkpoint.arrays, TOKENS, None, TYPES)
    assert found.score == pytest.approx(expected["scores"][1][1, 1, 3, 1], rel=1e-10)
    assert found.shown_sum + found.remainder == pytest.approx(found.score, rel=1e-10)


@pytest.mark.parametrize(
    "types",
    [
        [0, 2, 1], (0, 2, 1), [[0, 2, 1]], np.array([0, 2, 1], dtype=np.uint8),
        torch.tensor([[0, 2, 1]], dtype=torch.int32),
    ],
    ids=["list", "tuple", "batch", "uint8", "int32"],
)  # fmt: skip
def test_types_of_every_kind(model: Model, types: Any) -> None:
    with untyped():
        prompt = model.prompt(tokens=[1, 2, 3], types=types)

    assert prompt.types is not None
    assert prompt.types.tolist() == [[0, 2, 1]]
    assert prompt.types.dtype == torch.int64


def test_they_are_padded_as_the_tokens_are(model: Model) -> None:
    prompt = model.prompt(tokens=[[1, 2, 3], [4]], types=[[1, 2, 0], [2]])

    assert prompt.types is not None
    assert prompt.types.tolist() == [[1, 2, 0], [2, 0, 0]]


def test_left_out_they_are_zero(tmp_path: Path) -> None:
    model, checkpoint = made(tmp_path, "attention only")

    run = model.run(tokens=TOKENS)

    assert run.types is not None
    assert not run.types.any()
    expected = transformer.forward(checkpoint.config, checkpoint.arrays, TOKENS)
    close(run.logits, expected["logits"], 1e-11)


def test_a_model_without_types(tmp_path: Path) -> None:
    model = load(make_checkpoint(tmp_path).path)

    assert model.run(tokens=[1, 2]).types is None
    with pytest.raises(InputError, match=r"this model has no token types: leave out types=…"):
        model.run(tokens=[1, 2], types=[0, 0])


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ([0, 1], "types are one for each token: sequences of 3 tokens have 2 types"),
        ([[0, 1, 0]] * 2, "sequences of 3 tokens have 3, 3 types"),
        (
            [0, 1, 3],
            "token type 3 at position 2 is out of range: this model has token types 0 to 2",
        ),
        ([0, -1, 0], "token type -1 at position 1 is out of range"),
        ([0, 0.0, 1], "token types are integers; position 1 holds 0.0"),
        ([False] * 3, "token types are integers; position 0 holds False"),
        (torch.zeros(3), "token types are integers, not torch.float32"),
        (torch.zeros(1, 1, 3, dtype=torch.long), r"token types are \[pos\] or \[batch, pos\]"),
        ("010", "token types are a list of integers, not str: '010'"),
        ([], "sequences of 3 tokens have 0 types"),
    ],
)
def test_bad_types(model: Model, types: Any, message: str) -> None:
    with untyped(), pytest.raises(InputError, match=message):
        model.prompt(tokens=[1, 2, 3], types=types)


def test_types_go_with_tokens(model: Model) -> None:
    with pytest.raises(InputError, match="types go with tokens=…; those of a text are 0"):
        model.run("a text", types=[0])


def test_types_are_neither_changed_nor_kept(model: Model) -> None:
    types = np.array([[0, 1, 2]])

    run: Run = model.run(tokens=[1, 2, 3], types=types)
    types[:] = 0

    assert run.types is not None
    assert run.types.tolist() == [[0, 1, 2]]
