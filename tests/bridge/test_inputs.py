"""Ids, texts, batches and masks: what is taken, and every refusal with its words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from otimes.bridge import Model, load
from otimes.errors import InputError
from tests.factory import make_checkpoint
from tests.kit import untyped


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A vocabulary of 13, a context of 9, no tokenizer."""
    return load(make_checkpoint(tmp_path_factory.mktemp("model"), n_layers=1).path)


@pytest.mark.parametrize(
    "tokens",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        [[1, 2, 3]],
        np.array([1, 2, 3]),
        np.array([[1, 2, 3]], dtype=np.uint8),
        list(np.array([1, 2, 3])),
        torch.tensor([1, 2, 3]),
        torch.tensor([[1, 2, 3]], dtype=torch.int32),
    ],
    ids=["list", "tuple", "range", "batch", "numpy", "uint8", "numpy ids", "torch", "int32"],
)
def test_ids_of_every_kind(model: Model, tokens: Any) -> None:
    with untyped():
        prompt = model.prompt(tokens=tokens)

    assert prompt.tokens.dtype == torch.int64
    assert prompt.tokens.tolist() == [[1, 2, 3]]
    assert prompt.mask is None


def test_shorter_sequences_are_padded_on_the_right(model: Model) -> None:
    prompt = model.prompt(tokens=[[1, 2, 3], [4], [5, 6]])

    assert prompt.tokens.tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    assert prompt.mask is not None
    assert prompt.mask.tolist() == [[True] * 3, [True, False, False], [True, True, False]]


def test_nothing_is_put_before_ids(tmp_path: Path) -> None:
    model = load(make_checkpoint(tmp_path, bos_token_id=7).path)

    assert model.prompt(tokens=[1, 2]).tokens.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([[True, True, False], [False, True, True]], [[1, 1, 0], [0, 1, 1]]),
        (np.array([[1, 1, 0], [0, 0, 1]]), [[1, 1, 0], [0, 0, 1]]),
        (torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]), [[1, 1, 1], [0, 1, 0]]),
        (torch.ones(2, 3), None),
    ],
    ids=["lists", "numpy", "floats", "all real"],
)
def test_masks(model: Model, mask: Any, expected: list[list[int]] | None) -> None:
    prompt = model.prompt(tokens=[[1, 2, 3], [4, 5, 6]], mask=mask)

    assert (None if prompt.mask is None else prompt.mask.int().tolist()) == expected


def test_inputs_are_neither_changed_nor_kept(model: Model) -> None:
    """Whoever changes his arrays afterwards does not change the run."""
    tokens, mask = np.array([[1, 2, 3]]), np.array([[True, True, False]])

    run = model.run(tokens=tokens, mask=mask)
    logits = run.logits.clone()
    assert tokens.tolist() == [[1, 2, 3]]
    assert mask.tolist() == [[True, True, False]]
    tokens[:], mask[:] = 0, True

    assert run.tokens.tolist() == [[1, 2, 3]]
    assert run.mask is not None
    assert run.mask.tolist() == [[True, True, False]]
    assert torch.equal(run.logits, logits)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "no tokens: give at least one token id"),
        ([[]], "no tokens: give at least one token id"),
        ([[1], []], "no tokens: give at least one token id"),
        (torch.zeros(2, 0, dtype=torch.long), "no tokens: give at least one token id"),
        (
            [1, 13],
            r"token id 13 at position 1 is out of range: this model has token ids 0 to 12",
        ),
        ([0, 1, -1], "token id -1 at position 2 is out of range"),
        ([10**30], f"token id {10**30} at position 0 is out of range"),
        ([1.0], "token ids are integers; position 0 holds 1.0"),
        ([1, True], "token ids are integers; position 1 holds True"),
        ([1, None], "token ids are integers; position 1 holds None"),
        (["a", "b"], "token ids are integers; position 0 holds 'a'"),
        ([[1, [2]]], r"token ids are integers; position 1 holds \[2\]"),
        ([[1], 2], r"token ids are integers; position 0 holds \[1\]"),
        ("1,2", "token ids are a list of integers, not str: '1,2'"),
        (b"12", "token ids are a list of integers, not bytes: b'12'"),
        (7, "token ids are a list of integers, not int: 7"),
        ({1: 2}, "token ids are a list of integers, not dict"),
        (
            torch.ones(1, 1, 1, dtype=torch.long),
            r"ids are \[pos\] or \[batch, pos\], not of 3",
        ),
        (torch.tensor(3), "not of 0 dimensions"),
        (torch.tensor([1.0]), "token ids are integers, not torch.float32"),
        (torch.tensor([True]), "token ids are integers, not torch.bool"),
        (np.array([1.5]), "token ids are integers, not float64"),
        (np.array(["1"]), "token ids are integers, not <U1"),
        (
            list(range(10)),
            "the prompt has 10 tokens, but the model's context has 9: leave out at least 1",
        ),
        ([[1], [1] * 12], "the prompt has 12 tokens, .* leave out at least 3"),
    ],
)
def test_bad_ids(model: Model, tokens: Any, message: str) -> None:
    with untyped(), pytest.raises(InputError, match=message):
        model.prompt(tokens=tokens)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[True, True]], r"the mask has the shape \[1, 2\], the tokens \[2, 3\]"),
        ([True, True, True], r"the mask has the shape \[1, 3\], the tokens \[2, 3\]"),
        (torch.ones(2, 3, 1), r"the mask has the shape \[2, 3, 1\]"),
        (True, r"the mask has the shape \[\]"),
        ([[0, 0, 0], [1, 1, 1]], "a sequence of padding alone: every sequence needs a real token"),
        ([[1, 0, 1], [1, 1, 1]], "padding stands inside a sequence: put it on the left or on the"),
        ([[1, 1], [1]], r"a mask is \[batch, pos\] of True and False: "),
        ("yes", r"a mask is \[batch, pos\] of True and False: "),
        ([[None, 1, 1], [1, 1, 1]], r"a mask is \[batch, pos\] of True and False: "),
        (
            [[0.0, 0.0, -np.inf], [0.0, 0.0, 0.0]],
            r"a mask is True \(or 1\) at real tokens and False \(or 0\) at padding",
        ),
        ([[1, 1, np.nan], [1, 1, 1]], r"a mask is True \(or 1\)"),
        ([[2, 1, 1], [1, 1, 1]], r"a mask is True \(or 1\)"),
    ],
)
def test_bad_masks(model: Model, mask: Any, message: str) -> None:
    with untyped(), pytest.raises(InputError, match=message):
        model.prompt(tokens=[[1, 2, 3], [4, 5, 6]], mask=mask)


def test_masks_of_other_inputs(model: Model) -> None:
    with pytest.raises(InputError, match="a mask goes with sequences of equal length; pad them"):
        model.prompt(tokens=[[1, 2], [3]], mask=[[True, True], [True, False]])
    with pytest.raises(InputError, match="a mask goes with tokens=…; texts are padded by themselv"):
        model.prompt("a", mask=[[True]])


def test_a_text_or_ids(model: Model) -> None:
    for arguments in ({}, {"text": "a", "tokens": [1]}):
        with pytest.raises(InputError, match="give either a text or tokens="):
            model.prompt(**arguments)


def test_a_text_for_a_model_without_tokenizer(model: Model) -> None:
    with pytest.raises(InputError, match=r"this model has no tokenizer .* pass token ids instead"):
        model.run("a text")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (7, "a prompt is a text, not int; pass ids as tokens=…"),
        (b"abc", "a prompt is a text, not bytes"),
        ([1, 2], "a prompt is a text, not int; pass ids as tokens=…"),
        ([], "no prompt: give at least one text"),
    ],
)
def test_bad_texts(model: Model, text: Any, message: str) -> None:
    with untyped(), pytest.raises(InputError, match=message):
        model.run(text)


def text_model(folder: Path, bos: int | None) -> Model:
    """A model whose tokenizer has the words of three letters and BOS, which is 0."""
    make_checkpoint(folder, bos_token_id=bos, d_vocab=4, n_ctx=4)
    words = tokenizers.models.WordLevel({"<s>": 0, "sea": 1, "sun": 2, "?": 3}, unk_token="?")
    engine = tokenizers.Tokenizer(words)
    engine.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    engine.save(str(folder / "tokenizer.json"))
    return load(folder)


def test_texts_begin_with_bos(tmp_path: Path) -> None:
    model = text_model(tmp_path, bos=0)

    assert model.run("sea sun").tokens.tolist() == [[0, 1, 2]]
    with pytest.raises(InputError, match="the prompt is empty"):
        model.run("")
    assert model.run(tokens=[1, 2]).tokens.tolist() == [[1, 2]]
    batch = model.run(["sea", "sun sun sea"])
    assert batch.tokens.tolist() == [[0, 1, 0, 0], [0, 2, 2, 1]]
    assert batch.mask is not None
    assert batch.mask.tolist() == [[True, True, False, False], [True] * 4]
    with pytest.raises(InputError, match="the prompt has 5 tokens, but the model's context has 4"):
        model.run("sea sun sea sun")


def test_texts_of_a_model_without_bos(tmp_path: Path) -> None:
    model = text_model(tmp_path, bos=None)

    assert model.run("sea sun").tokens.tolist() == [[1, 2]]
    for text in ("", " ", ["sea", ""]):
        with pytest.raises(InputError, match="the prompt is empty: give a text of at least one"):
            model.run(text)
