"""The tokenizer: text and ids, one printable text per id, files that are none."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from otimes.bridge.loading import Tokenizer
from otimes.bridge.loading.tokenizer import _BYTES
from otimes.errors import CheckpointError, InputError
from tests.factory import in_short

BOS = "<|bos|>"
TEXT = "The sea was calm. The sea was wide — “calm”, said the captain,\n\tand naïve."


def byte_level() -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer whose id 0 is BOS, with every byte in its vocabulary."""
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.train_from_iterator(
        [TEXT] * 3,
        trainers.BpeTrainer(
            vocab_size=290,
            special_tokens=[BOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return engine


def metaspace() -> tokenizers.Tokenizer:
    """A word tokenizer that spells spaces with U+2581, as Llama's do."""
    words = ["<unk>", "▁the", "▁sea", "s", "<0xE2>"]
    model = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    engine = tokenizers.Tokenizer(model)
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return engine


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    return Tokenizer(tmp_path / "tokenizer.json", d_vocab=300)


def test_text_goes_to_ids_and_back(tokenizer: Tokenizer):
    ids = tokenizer.encode(TEXT)
    assert ids == byte_level().encode(TEXT).ids
    assert all(type(i) is int for i in ids)
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.available


def test_empty_text(tokenizer: Tokenizer):
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


def test_no_special_token_is_added_by_itself(tmp_path: Path):
    engine = byte_level()
    engine.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, 0)]
    )
    engine.save(str(tmp_path / "tokenizer.json"))
    assert engine.encode("sea").ids[0] == 0
    assert 0 not in Tokenizer(tmp_path / "tokenizer.json", 300).encode("sea")


def test_settings_for_training_batches_neither_cut_nor_pad(tmp_path: Path):
    engine = byte_level()
    expected = engine.encode(TEXT).ids
    for length in (3, 500):
        engine.enable_truncation(max_length=length)
        engine.enable_padding(length=length)
        engine.save(str(tmp_path / "tokenizer.json"))
        assert len(engine.encode(TEXT).ids) == length
        assert Tokenizer(tmp_path / "tokenizer.json", 300).encode(TEXT) == expected


def test_special_tokens_are_decoded(tokenizer: Tokenizer):
    assert tokenizer.decode([0, *tokenizer.encode("sea")]) == f"{BOS}sea"


def test_texts_of_tokens(tokenizer: Tokenizer):
    engine = byte_level()

    def text_of(spelled: str) -> str:
        token_id = engine.token_to_id(spelled)
        assert token_id is not None
        return tokenizer.token_text(token_id)

    assert text_of(BOS) == BOS
    assert text_of("Ġthe") == " the"
    assert text_of("Ġ") == " "
    assert text_of("Ċ") == r"\n"
    assert text_of("ĉ") == r"\t"
    assert text_of("\\") == r"\\"
    assert text_of("Ā") == r"\u0000"
    # the first byte of a dash is no character by itself
    assert text_of("â") == r"\xe2"


def test_parts_of_a_character_survive(tokenizer: Tokenizer):
    ids = tokenizer.encode("🌊")
    assert len(ids) == 4
    assert tokenizer.decode(ids) == "🌊"
    assert [tokenizer.token_text(i) for i in ids] == [r"\xf0", r"\x9f", r"\x8c", r"\x8a"]
    assert "�" in tokenizer.decode(ids[:1])


def test_every_text_prints_and_no_two_are_equal(tokenizer: Tokenizer):
    texts = [tokenizer.token_text(i) for i in range(300)]
    assert all(text and text.isprintable() for text in texts)
    assert len(set(texts)) == len(texts)


def test_the_byte_alphabet_is_the_one_of_the_package():
    assert set(_BYTES) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(_BYTES.values()) == list(range(256))
    engine = decoders.ByteLevel()
    for character, byte in _BYTES.items():
        if byte < 0x80:
            assert engine.decode([character]) == chr(byte)


SHARED = byte_level()
PIECE = re.compile(r"\\x(..)|\\u(....)|\\U(.{8})|\\(.)|(.)", re.DOTALL)


@given(st.text(max_size=20))
def test_the_texts_of_tokens_spell_the_whole_text(text: str):
    tokenizer = Tokenizer(Path("never read"), 300)
    tokenizer.__dict__["_engine"] = SHARED

    spelled = "".join(map(tokenizer.token_text, tokenizer.encode(text)))

    assert spelled.isprintable()
    data = b""
    for byte, short, long, named, plain in PIECE.findall(spelled):
        if byte:
            data += bytes.fromhex(byte)
        elif short or long:
            data += chr(int(short or long, 16)).encode()
        else:
            data += (plain or {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}[named]).encode()
    assert data.decode() == text


def test_spaces_spelled_as_blocks(tmp_path: Path):
    metaspace().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", 6)
    texts = [tokenizer.token_text(i) for i in range(6)]
    assert texts == ["<unk>", " the", " sea", "s", "<0xE2>", "<5>"]


def test_untrusted_text_is_escaped(tmp_path: Path):
    words = ["\x1b[31m", "a\u202eb", "\0", "<script>", "\xa0", "\U000e0001"]
    engine = tokenizers.Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, words[0]))
    engine.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", 6)
    assert [tokenizer.token_text(i) for i in range(6)] == [
        r"\u001b[31m", r"a\u202eb", r"\u0000", "<script>", r"\u00a0", r"\U000e0001",
    ]  # fmt: skip


@pytest.mark.parametrize("token_id", [-1, 300, 2**40])
def test_an_id_out_of_range(tokenizer: Tokenizer, token_id: int):
    message = rf"token id {token_id} is out of range: this model has ids 0 to 299"
    with pytest.raises(InputError, match=message):
        tokenizer.token_text(token_id)
    with pytest.raises(InputError, match=message):
        tokenizer.decode([1, token_id])


def test_an_id_of_the_model_without_a_token(tokenizer: Tokenizer):
    assert tokenizer.token_text(295) == "<295>"
    with pytest.raises(InputError, match=r"token id 295 has no text in '.*tokenizer\.json': leave"):
        tokenizer.decode([1, 295])


def test_text_that_is_not_unicode(tokenizer: Tokenizer):
    with pytest.raises(
        InputError, match=r"text is not valid Unicode at character 3: give it as UTF"
    ):
        tokenizer.encode("sea\udcff")


def test_a_model_without_a_tokenizer():
    none = Tokenizer(None, d_vocab=5)
    assert not none.available
    assert none.token_text(4) == "4"
    with pytest.raises(
        InputError,
        match=r"this model has no tokenizer \(no tokenizer\.json\), so text cannot be used: pass "
        r"token ids instead \(tokens=\[…\], --tokens 1,2,3\)",
    ):
        none.encode("text")
    with pytest.raises(InputError, match=r"no tokenizer .*, so ids have no text: pass token ids"):
        none.decode([1])
    with pytest.raises(InputError, match=r"token id 5 is out of range: this model has ids 0 to 4"):
        none.token_text(5)


def test_the_tokenizer_of_another_model(tmp_path: Path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    last = byte_level().get_vocab_size() - 1
    Tokenizer(tmp_path / "tokenizer.json", last + 1).encode("sea")
    with pytest.raises(
        CheckpointError,
        match=rf"tokenizer\.json' has the token '.+' with id {last}, but the model has d_vocab "
        rf"{last} \(ids 0 to {last - 1}\): this is the tokenizer of another model",
    ):
        Tokenizer(tmp_path / "tokenizer.json", last).encode("sea")


def test_an_added_token_out_of_range(tmp_path: Path):
    engine = byte_level()
    engine.add_special_tokens(["<|end|>"])
    engine.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        CheckpointError, match=r"has the token '<\|end\|>' with id \d+, but the model"
    ):
        Tokenizer(tmp_path / "tokenizer.json", engine.get_vocab_size() - 1).encode("sea")


def panicking() -> bytes:
    """A merge that is longer than the text that it makes, over which the engine stumbles."""
    engine = json.loads(byte_level().to_str())
    engine["model"] |= {"vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}
    return json.dumps(engine).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"{}", b"[]", b"\xff\xfe", b"[" * 100_000, b"\0" * 50, panicking(),
        b'{"model": {"type": "Unheard"}}', byte_level().to_str()[:-50].encode(),
    ],
    ids=in_short,
)  # fmt: skip
def test_a_file_that_is_no_tokenizer(tmp_path: Path, content: bytes):
    (tmp_path / "tokenizer.json").write_bytes(content)
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", 300)
    for use in (
        tokenizer.token_text,
        lambda i: tokenizer.decode([i]),
        lambda _: tokenizer.encode("a"),
    ):
        with pytest.raises(
            CheckpointError,
            match=r"tokenizer\.json' cannot be used as a tokenizer \(.+\): write it with the tok",
        ) as caught:
            use(1)
        assert str(caught.value).isprintable()


def test_an_interruption_is_not_taken_for_a_bad_file(tokenizer: Tokenizer, monkeypatch):
    class Interrupted:
        def id_to_token(self, _: int) -> str:
            return "a"

        def decode(self, *_: object, **__: object) -> str:
            raise KeyboardInterrupt

    monkeypatch.setitem(tokenizer.__dict__, "_engine", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        tokenizer.decode([1])


def test_a_file_that_vanished(tmp_path: Path):
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json' does not exist: the model's tokenizer"
    ):
        Tokenizer(tmp_path / "tokenizer.json", 300).encode("a")


def test_a_huge_file(tmp_path: Path):
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(2**28 + 1)  # sparse: no disk is used
    with pytest.raises(
        CheckpointError, match=r"is 268,435,457 bytes, more than the 268,435,456 that a"
    ):
        Tokenizer(tmp_path / "tokenizer.json", 300).encode("a")


def test_the_package_is_loaded_at_first_use(tokenizer: Tokenizer):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from otimes.bridge.loading import Tokenizer\n"
        f"tokenizer = Tokenizer(Path({str(tokenizer.path)!r}), 300)\n"
        "before = 'tokenizers' in sys.modules\n"
        "tokenizer.encode('a')\n"
        "print(before, 'tokenizers' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False True False\n"
