"""Single logits that are checked where checking all of them would cost too much."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from otimes.numeric.extended import Extended

_NUMBERS_AT_ONCE = 2**20


@dataclass(frozen=True)
class Chosen:
    """``n`` logits, each by its sequence of the batch, its position and its token id."""

    rows: Int[Tensor, " n"]
    positions: Int[Tensor, " n"]
    tokens: Int[Tensor, " n"]

    @staticmethod
    def of(found: Iterable[tuple[int, int, int]]) -> Chosen:
        """From (row, position, token) triples."""
        columns = torch.tensor(list(found)).reshape(-1, 3).T
        return Chosen(columns[0], columns[1], columns[2])

    @staticmethod
    def largest(logits: Float[Tensor, "batch pos d_vocab"], count: int) -> Chosen:
        """The tokens with the largest logits at the last position, of each sequence."""
        tokens = logits[:, -1].topk(min(count, logits.shape[-1])).indices
        rows = torch.arange(len(tokens))[:, None].expand_as(tokens)
        last = torch.full_like(tokens, logits.shape[1] - 1)
        return Chosen(rows.flatten(), last.flatten(), tokens.flatten())

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, logits: Float[Tensor, "batch pos d_vocab"]) -> Float[Tensor, " n"]:
        """The chosen ones of all logits."""
        return logits[self.rows, self.positions, self.tokens]


def unembed(
    read: Float[Tensor, "*lead batch pos d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    chosen: Chosen | None,
) -> Tensor:
    """``read W_U``: all logits ``[..., batch, pos, d_vocab]``, or the chosen ones ``[..., n]``."""
    if chosen is None:
        return read @ W_U
    # [..., n, 1, d_model] x [n, d_model, 1]
    rows = read[..., chosen.rows, chosen.positions, :]
    return torch.matmul(rows[..., None, :], W_U.T[chosen.tokens][..., None])[..., 0, 0]


def unembed_exactly(read: Extended, W_U: Tensor, chosen: Chosen | None) -> Extended:
    """:func:`unembed` with about 100 bits."""
    if chosen is None:
        # slices of the vocabulary: a product takes many times what its right factor does
        columns = max(1, _NUMBERS_AT_ONCE // max(1, W_U.shape[0]))
        parts = [read @ part.double() for part in W_U.split(columns, dim=1)]
        high, low, error = zip(*((part.high, part.low, part.error) for part in parts), strict=True)
        return Extended(torch.cat(high, -1), torch.cat(low, -1), torch.cat(error, -1))
    rows = read.each(lambda part: part[chosen.rows, chosen.positions, None, :])
    return (rows @ W_U.T[chosen.tokens].double()[..., None]).each(lambda part: part[..., 0, 0])


def of_bias(b_U: Float[Tensor, " d_vocab"], chosen: Chosen | None) -> Tensor:
    """``b_U`` for all logits, or for the chosen ones."""
    return b_U if chosen is None else b_U[chosen.tokens]
