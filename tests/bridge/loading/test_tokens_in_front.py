"""What stands before a text is what the tokenizer itself puts there, whatever its source."""

from __future__ import annotations

import json

import pytest
import torch

import otimes as ox
from tests.bridge.loading.tiny import tiny


def engine(*, bos: bool, tokens: int = 31):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {"<s>": 0, "<u>": 1, **{f"w{n}": n for n in range(2, tokens)}}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<u>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["<s>"])
    if bos:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return made


@pytest.fixture(scope="module")
def module():
    return tiny("gpt2", torch.float32)


@pytest.mark.parametrize("bos", [True, False])
def test_a_folder(bos, module, tmp_path):
    from transformers import AutoTokenizer

    module.save_pretrained(tmp_path)
    engine(bos=bos).save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    model = ox.load(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)("w5 w7")["input_ids"]

    assert model.prompt("w5 w7").tokens[0].tolist() == theirs == [0] * bos + [5, 7]
    assert model.config.bos_token_id == (0 if bos else None)
    puts = "its tokenizer puts 0 (<s>) in front of a text" if bos else "puts no token in front"
    assert puts in model.notes[0]


def test_a_folder_without_a_tokenizer_json(module, tmp_path):
    from transformers import GPT2Tokenizer

    module.save_pretrained(tmp_path)
    vocabulary = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "<|endoftext|>": 4}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    theirs = GPT2Tokenizer.from_pretrained(tmp_path)("ab b")["input_ids"]

    assert ox.load(tmp_path).prompt("ab b").tokens[0].tolist() == theirs


def test_tokenizers_that_are_handed_over(module, tmp_path):
    from transformers import PreTrainedTokenizerFast

    made = engine(bos=True)
    made.enable_truncation(1)
    made.save(str(tmp_path / "tokenizer.json"))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made)
    for tokenizer in (made, wrapped, tmp_path / "tokenizer.json", str(tmp_path)):
        model = ox.load(module, tokenizer=tokenizer)
        assert model.prompt("w5 w7").tokens.tolist() == [[0, 5, 7]]
        assert model.tokenizer.token_text(7) == "w7"
    assert made.truncation is not None  # what was handed over stays as it was
    with pytest.raises(ox.OtimesError, match="list has no engine of the tokenizers package"):
        ox.load(module, tokenizer=["a"])


def test_a_tokenizer_of_another_model_leaves_the_weights_usable(module):
    model = ox.load(module, tokenizer=engine(bos=True, tokens=40))
    assert model.run(tokens=[1, 2]).logits.shape == (1, 2, 31)
    assert "its tokenizer cannot be used: its tokenizer has the token 'w39'" in model.notes[0]
    with pytest.raises(ox.OtimesError, match="this is the tokenizer of another model"):
        model.prompt("w5")


def test_what_a_tokenizer_puts_behind_a_text_is_no_beginning(module):
    from tokenizers import processors

    made = engine(bos=False)
    made.post_processor = processors.TemplateProcessing(
        single="$A <s>", special_tokens=[("<s>", 0)]
    )
    assert ox.load(module, tokenizer=made).config.bos_token_id is None
