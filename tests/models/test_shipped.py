"""What the shipped checkpoints claim, measured again on the files themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import otimes as ox
from otimes.models import folder, shipped
from otimes.models.measure import (
    head_scores,
    repeated_losses,
    repeated_text,
    stimulus,
    validation_loss,
)
from otimes.models.reference import load

NAMES = ("attn-only-1l", "attn-only-2l", "attn-only-2l-natural")
MEGABYTE = 1_000_000


def card(name: str) -> dict[str, Any]:
    return {found["name"]: found for found in shipped()}[name]


def scores(name: str, key: str, layer: int) -> float:
    heads = measured(name)[1]
    return max(head[key] for head in heads if head["head"].startswith(f"{layer}."))


_MEASURED: dict[str, tuple[tuple[float, float], list[dict[str, Any]]]] = {}


def measured(name: str) -> tuple[tuple[float, float], list[dict[str, Any]]]:
    if name not in _MEASURED:
        model = load(folder(name))
        tokenizer = Tokenizer.from_file(str(folder(name) / "tokenizer.json"))
        tokens = stimulus(model.config, tokenizer, sequences=8, seed=7)
        _MEASURED[name] = repeated_losses(model, tokens), head_scores(model, tokens)
    return _MEASURED[name]


def loss_on_held_out_text(name: str) -> float:
    tokenizer = Tokenizer.from_file(str(folder(name) / "tokenizer.json"))
    ids = tokenizer.encode(folder("validation.txt").read_text(encoding="utf-8")).ids
    return validation_loss(load(folder(name), torch.float32), np.array(ids))


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_is_small_and_its_card_complete(name: str) -> None:
    files = {path.name: path.stat().st_size for path in folder(name).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "log.csv"} <= set(
        files
    )
    assert sum(files.values()) <= 5 * MEGABYTE
    found = card(name)
    for key in ("data", "licence", "recipe", "validation_loss", "seeds", "heads", "held_out"):
        assert found[key], key
    assert found["recipe"]["steps"] > 0
    assert len(found["heads"]) == found["recipe"]["n_layers"] * found["recipe"]["n_heads"]
    assert 1000 <= json.loads((folder(name) / "config.json").read_text())["d_vocab"] <= 4000


def test_the_held_out_text_is_there() -> None:
    assert 150_000 <= folder("validation.txt").stat().st_size <= 250_000


def test_no_training_saw_the_held_out_text(shared_path: Path) -> None:
    from otimes.models.train import split

    training, held_out = split(shared_path / "corpora")

    assert held_out == folder("validation.txt").read_text(encoding="utf-8")
    lines = [line for line in held_out.splitlines() if len(line) > 200]
    assert len(lines) > 50
    assert not any(line in training for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_the_losses_of_the_card_are_those_of_the_file(name: str) -> None:
    assert loss_on_held_out_text(name) == pytest.approx(card(name)["validation_loss"], abs=2e-3)


def test_two_layers_are_better_than_one() -> None:
    one = card("attn-only-1l")["validation_loss"]

    assert card("attn-only-2l")["validation_loss"] < one
    assert card("attn-only-2l-natural")["validation_loss"] < one


def test_attn_only_2l_has_an_induction_circuit() -> None:
    first, second = measured("attn-only-2l")[0]

    assert scores("attn-only-2l", "previous_token", 0) >= 0.7
    assert scores("attn-only-2l", "induction", 1) >= 0.6
    assert second <= first - 3


def test_one_layer_has_none() -> None:
    first, second = measured("attn-only-1l")[0]

    assert scores("attn-only-1l", "induction", 0) < 0.3
    assert second > first - 1


@pytest.mark.parametrize("name", NAMES)
def test_the_shipped_models_verify_at_full_context(name: str) -> None:
    model = ox.load(name)
    text = folder("validation.txt").read_text(encoding="utf-8")
    tokens = [0, *model.tokenizer.encode(text[:2000])][: model.config.n_ctx]

    certificate = ox.verify(model.run(tokens=tokens))

    assert len(tokens) == model.config.n_ctx
    assert certificate.holds, certificate.reasons
    assert certificate.bound < 1e-6 * certificate.largest_logit


def test_natural_text_alone_formed_a_weaker_circuit() -> None:
    tokenizer = Tokenizer.from_file(str(folder("attn-only-2l-natural") / "tokenizer.json"))
    text = folder("validation.txt").read_text(encoding="utf-8")
    found = {}
    for name in ("attn-only-1l", "attn-only-2l-natural"):
        model = load(folder(name))
        tokens = repeated_text(model.config, tokenizer, text, sequences=16, seed=3)
        first, second = repeated_losses(model, tokens)
        found[name] = first - second, max(h["induction"] for h in head_scores(model, tokens))

    # uniform attention would put about 0.01 on the stripe
    gain, induction = found["attn-only-2l-natural"]
    assert gain > 0.3
    assert induction > 0.08
    assert found["attn-only-1l"][0] < 0.2
    assert found["attn-only-1l"][1] < 0.03
    assert scores("attn-only-2l-natural", "induction", 1) > 0.03
