"""Prompts as token ids: text or ids, one sequence or a batch, padded where lengths differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from otimes.bridge.loading import Config, Tokenizer
from otimes.errors import InputError

Tokens = Sequence[int] | Sequence[Sequence[int]] | Tensor | np.ndarray
"""Token ids ``[pos]`` or ``[batch, pos]``; sequences of different lengths are padded."""


@dataclass(frozen=True)
class Prompt:
    """Ids ``[batch, pos]``, which of them are real, and their types.

    ``mask`` None is all; ``types`` is None where the model has none.
    """

    tokens: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"] | None
    types: Int[Tensor, "batch pos"] | None = None


def from_text(text: str | Sequence[str], config: Config, tokenizer: Tokenizer) -> Prompt:
    """Encode one text or several, with the beginning-of-sequence token first if there is one."""
    if not isinstance(text, str | Sequence) or isinstance(text, bytes):
        raise InputError(f"a prompt is a text, not {type(text).__name__}; pass ids as tokens=…")
    texts = [text] if isinstance(text, str) else list(text)
    if not texts:
        raise InputError("no prompt: give at least one text")
    start = [] if config.bos_token_id is None else [config.bos_token_id]
    rows = list[list[int]]()
    for one in texts:
        if not isinstance(one, str):
            raise InputError(f"a prompt is a text, not {type(one).__name__}; pass ids as tokens=…")
        ids = tokenizer.encode(one)
        if not ids:
            raise InputError("the prompt is empty: give a text of at least one token")
        rows.append([*start, *ids])
    return from_tokens(rows, config)


def from_tokens(
    tokens: Tokens,
    config: Config,
    mask: Tensor | np.ndarray | Sequence[object] | None = None,
    types: Tokens | None = None,
) -> Prompt:
    """Check ids and put them into one tensor; shorter sequences are padded on the right.

    Args:
        tokens: ids ``[pos]`` or ``[batch, pos]``; nothing is put in front of them.
        config: the model's, for the range of ids and the context length.
        mask: ``[batch, pos]``, False at padding, which may be left or right.
        types: the type of each token, in the form of ``tokens``; None is all 0.

    Raises:
        InputError: for empty input, ids out of range or not integers, more tokens than the
            context, a mask that does not fit, or types that do not fit or that the model lacks.
    """
    rows = _rows(tokens, "token id")
    if not rows or not all(rows):
        raise InputError("no tokens: give at least one token id")
    _check_range(rows, config.d_vocab, "token id")
    typed = _typed(types, rows, config)
    longest = max(map(len, rows))
    if longest > config.n_ctx:
        raise InputError(
            f"the prompt has {longest} tokens, but the model's context has {config.n_ctx}: "
            f"leave out at least {longest - config.n_ctx}"
        )
    if len({len(row) for row in rows}) > 1:
        if mask is not None:
            raise InputError("a mask goes with sequences of equal length; pad them first")
        padded = [row + [0] * (longest - len(row)) for row in rows]
        real = [[True] * len(row) + [False] * (longest - len(row)) for row in rows]
        if typed is not None:
            typed = [row + [0] * (longest - len(row)) for row in typed]
        mask = torch.tensor(real)
    else:
        padded, mask = rows, _mask(mask, (len(rows), longest))
    return Prompt(torch.tensor(padded), mask, None if typed is None else torch.tensor(typed))


def _check_range(rows: list[list[int]], size: int, what: str) -> None:
    for row in rows:
        for position, one in enumerate(row):
            if isinstance(one, bool) or not isinstance(one, int):
                raise InputError(f"{what}s are integers; position {position} holds {one!r}")
            if not 0 <= one < size:
                raise InputError(
                    f"{what} {one} at position {position} is out of range: this model has {what}s "
                    f"0 to {size - 1}"
                )


def _typed(types: Tokens | None, tokens: list[list[int]], config: Config) -> list[list[int]] | None:
    """The type of each token, before any padding; None: the model has no types."""
    if config.n_token_types is None:
        if types is not None:
            raise InputError("this model has no token types: leave out types=…")
        return None
    if types is None:
        return [[0] * len(row) for row in tokens]
    rows = _rows(types, "token type")
    _check_range(rows, config.n_token_types, "token type")
    lengths, wanted = [len(row) for row in rows], [len(row) for row in tokens]
    if lengths != wanted:
        raise InputError(
            f"types are one for each token: sequences of {_listed(wanted)} tokens have "
            f"{_listed(lengths)} types"
        )
    return rows


def _listed(lengths: list[int]) -> str:
    more = ", …" if len(lengths) > 4 else ""
    return ", ".join(map(str, lengths[:4])) + more


def _rows(tokens: Tokens, what: str) -> list[list[int]]:
    if isinstance(tokens, Tensor | np.ndarray):
        if tokens.ndim not in (1, 2):
            raise InputError(f"{what}s are [pos] or [batch, pos], not of {tokens.ndim} dimensions")
        whole = (
            not tokens.is_floating_point() and tokens.dtype != torch.bool
            if isinstance(tokens, Tensor)
            else np.issubdtype(tokens.dtype, np.integer)
        )
        if not whole:
            raise InputError(f"{what}s are integers, not {tokens.dtype}")
        tokens = tokens.tolist()
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Sequence):
        kind = type(tokens).__name__
        raise InputError(f"{what}s are a list of integers, not {kind}: {tokens!r:.40}")
    rows = list(tokens)
    if rows and all(isinstance(row, Sequence) and not isinstance(row, str) for row in rows):
        return [[_integer(token) for token in row] for row in rows]  # type: ignore[union-attr]
    return [[_integer(token) for token in rows]]


def _integer(token: object) -> int:
    """A plain int for numpy's integers; anything else goes on to be refused with its position."""
    return int(token) if isinstance(token, np.integer) else token  # type: ignore[return-value]


def _mask(
    mask: Tensor | np.ndarray | Sequence[object] | None, shape: tuple[int, int]
) -> Tensor | None:
    if mask is None:
        return None
    try:
        given = torch.as_tensor(mask)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"a mask is [batch, pos] of True and False: {error}") from error
    if not bool(((given == 0) | (given == 1)).all()):
        raise InputError("a mask is True (or 1) at real tokens and False (or 0) at padding")
    real = given.bool().clone()
    real = real[None] if real.ndim == 1 else real
    if tuple(real.shape) != shape:
        raise InputError(f"the mask has the shape {list(real.shape)}, the tokens {list(shape)}")
    if not bool(real.any(-1).all()):
        raise InputError("a sequence of padding alone: every sequence needs a real token")
    edges = real.int().diff(dim=-1)
    if bool(((edges != 0).sum(-1) > (1 + (~real[:, 0] & ~real[:, -1]).int())).any()):
        raise InputError("padding stands inside a sequence: put it on the left or on the right")
    return None if bool(real.all()) else real
