"""The tokenizer of a checkpoint: text to ids, ids to text, and one printable text for each id.

The ``tokenizers`` package and the file are loaded at first use, so that work on token ids alone
never needs them.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from otimes.bridge.loading.files import file_size, is_failure, shown, shown_path
from otimes.errors import CheckpointError, InputError, OtimesError

if TYPE_CHECKING:
    import tokenizers

MAX_TOKENIZER_BYTES = 2**28  # the largest vocabularies in use take a tenth of this


class Tokenizer:
    """The tokenizer of a model with ``d_vocab`` tokens.

    Without a tokenizer ``encode`` and ``decode`` raise ``InputError``; ``token_text`` is the id.

    Args:
        path: its ``tokenizer.json``; None: it has no file.
        d_vocab: the number of tokens of the model.
        serialized: the text of such a file instead, of a tokenizer that was made in memory.
    """

    def __init__(self, path: Path | None, d_vocab: int, *, serialized: str | None = None) -> None:
        self.path = path
        self.d_vocab = d_vocab
        self._serialized = serialized

    @property
    def available(self) -> bool:
        """Whether the model has a tokenizer."""
        return self.path is not None or self._serialized is not None

    def first_token(self) -> int | None:
        """The special token that the tokenizer by itself puts in front of a text; None: none.

        Raises:
            CheckpointError: the tokenizer's file cannot be used.
        """
        if not self.available:
            return None
        with _failures_of(self._where):
            plain = self._engine.encode("a", add_special_tokens=False).ids
            whole = self._engine.encode("a", add_special_tokens=True).ids
        added = whole[: len(whole) - len(plain)]
        # what follows a text is no beginning
        return added[0] if added and whole[1 : 1 + len(plain)] == plain else None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; no special token is added before or after it.

        Raises:
            InputError: the model has no tokenizer, or the text is not valid Unicode.
            CheckpointError: the tokenizer's file cannot be used.
        """
        engine = self._need("text cannot be used")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"the text is not valid Unicode at character {error.start}: "
                "give it as UTF-8, or pass token ids"
            ) from error
        with _failures_of(self._where):
            return list(engine.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included.

        Bytes that are not UTF-8 together become U+FFFD; see ``token_text`` for single tokens.

        Raises:
            InputError: the model has no tokenizer, or an id has no token.
            CheckpointError: the tokenizer's file cannot be used.
        """
        engine = self._need("ids have no text")
        for token_id in ids:
            self._check(token_id)
            if engine.id_to_token(token_id) is None:  # the engine would drop it silently
                raise InputError(
                    f"the token id {token_id} has no text in {self._where}: leave it out"
                )
        with _failures_of(self._where):
            return engine.decode(list(ids), skip_special_tokens=False)

    def token_text(self, token_id: int) -> str:
        r"""Return a printable text for one token, in which nothing is lost.

        Spaces stay; what does not print is escaped as in a Python string: ``\n``, ``\u202e`` and
        ``\\``. Bytes that are only part of a character are written ``\xe2``. An id without a token
        is ``<id>``, and without a tokenizer the text is the id itself.

        Raises:
            InputError: the id is not one of the model's.
            CheckpointError: the tokenizer's file cannot be used.
        """
        self._check(token_id)
        if not self.available:
            return str(token_id)
        piece = self._engine.id_to_token(token_id)
        if piece is None:
            return f"<{token_id}>"
        if token_id not in self._added:
            piece = self._spelled(piece)
        return "".join(map(_printable, piece))

    def _spelled(self, piece: str) -> str:
        """Undo how the vocabulary spells spaces and bytes; stray bytes become U+DC80 to U+DCFF."""
        if "ByteLevel" in self._decoder and all(character in _BYTES for character in piece):
            data = bytes(_BYTES[character] for character in piece)
            return data.decode("utf-8", errors="surrogateescape")
        if "▁" in self._decoder:  # Metaspace and its spelling as a replacement
            return piece.replace("▁", " ")
        return piece

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < self.d_vocab:
            raise InputError(
                f"the token id {token_id} is out of range: this model has ids 0 to "
                f"{self.d_vocab - 1}"
            )

    def _need(self, consequence: str) -> tokenizers.Tokenizer:
        if not self.available:
            raise InputError(
                f"this model has no tokenizer (no tokenizer.json), so {consequence}: "
                "pass token ids instead (tokens=[…], --tokens 1,2,3)"
            )
        return self._engine

    @property
    def _where(self) -> str:
        return "its tokenizer" if self.path is None else shown_path(self.path)

    @cached_property
    def _decoder(self) -> str:
        """The decoder as a text, which names its parts whether or not they are in a sequence."""
        return repr(self._engine.decoder)

    @cached_property
    def _added(self) -> frozenset[int]:
        """The ids of tokens that are spelled as they are."""
        return frozenset(self._engine.get_added_tokens_decoder())

    @cached_property
    def _engine(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer as Engine

        with _failures_of(self._where):
            if self._serialized is not None:
                engine = Engine.from_str(self._serialized)
            else:
                engine = Engine.from_file(str(self._checked_path()))
            # settings for training batches, which would cut or pad a prompt
            engine.no_truncation()
            engine.no_padding()
            vocabulary = engine.get_vocab(with_added_tokens=True)
        last, token = max(((i, token) for token, i in vocabulary.items()), default=(-1, ""))
        if last >= self.d_vocab:
            raise CheckpointError(
                f"{self._where} has the token {shown(token)} with id {last}, but the model has "
                f"d_vocab {self.d_vocab} (ids 0 to {self.d_vocab - 1}): this is the tokenizer of "
                "another model, replace it or remove it and pass token ids"
            )
        return engine

    def _checked_path(self) -> Path:
        assert self.path is not None
        size = file_size(self.path, "the model's tokenizer has vanished")
        if size > MAX_TOKENIZER_BYTES:
            raise CheckpointError(
                f"{self._where} is {size:,} bytes, more than the {MAX_TOKENIZER_BYTES:,} that a "
                "tokenizer.json may have: remove it and pass token ids"
            )
        return self.path


def find_tokenizer(folder: Path) -> Path | None:
    """The ``tokenizer.json`` of a folder, if it has one."""
    path = folder / "tokenizer.json"
    if not os.path.lexists(path):
        return None
    file_size(path, "tokenizer.json is the file of the tokenizers package; remove it if not")
    return path


@contextmanager
def _failures_of(where: str) -> Generator[None]:
    """Turn whatever the engine raises into a ``CheckpointError``; it has no type of its own."""
    try:
        yield
    except OtimesError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{where} cannot be used as a tokenizer ({reason}): write it with the tokenizers "
            "package, or remove it and pass token ids"
        ) from error


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for (as in GPT-2).

    Printable Latin-1 characters stand for themselves, the other bytes for U+0100 onwards.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): byte for byte in plain}
    return alphabet | {chr(0x100 + n): byte for n, byte in enumerate(rest)}


_BYTES = _byte_alphabet()
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\\": r"\\"}


def _printable(character: str) -> str:
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if character.isprintable():
        return character
    # never \x: that is how a byte is written
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
