"""What a checkpoint's card reports, measured on the reference module alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from otimes.models.reference import Reference


def stimulus(
    config: dict[str, Any], tokenizer: Tokenizer, sequences: int, seed: int
) -> torch.Tensor:
    """BOS, then N random tokens, then the same again: ids ``[sequences, 1 + 2 N]``.

    N is min(64, floor((n_ctx - 1) / 2)); the tokens are uniform over the ids of two or more bytes
    that are not special.
    """
    bos = config["bos_token_id"]
    # byte-level BPE writes one character per byte
    ids = sorted(i for t, i in tokenizer.get_vocab().items() if i != bos and len(t) >= 2)
    segment = min(64, (config["n_ctx"] - 1) // 2)
    random = np.random.default_rng(seed)
    once = random.choice(np.array(ids), size=(sequences, segment))
    first = np.full((sequences, 1), bos)
    return torch.from_numpy(np.concatenate([first, once, once], axis=1))


def repeated_text(
    config: dict[str, Any], tokenizer: Tokenizer, text: str, sequences: int, seed: int
) -> torch.Tensor:
    """BOS, then a passage of N tokens of a text, then the same again: ids ``[sequences, 1 + 2 N]``.

    N is that of :func:`stimulus`.
    """
    ids = np.array(tokenizer.encode(text).ids)
    segment = min(64, (config["n_ctx"] - 1) // 2)
    random = np.random.default_rng(seed)
    starts = random.integers(0, len(ids) - segment, size=sequences)
    once = np.stack([ids[start : start + segment] for start in starts])
    first = np.full((sequences, 1), config["bos_token_id"])
    return torch.from_numpy(np.concatenate([first, once, once], axis=1))


@torch.no_grad()
def repeated_losses(model: Reference, tokens: torch.Tensor) -> tuple[float, float]:
    """Mean losses in nats on the first and on the second copy of a repeated stimulus.

    The first token of the second copy cannot be foreseen and counts in neither.
    """
    losses = _losses(model, tokens)  # losses[:, i] is about tokens[:, i + 1]
    segment = (tokens.shape[1] - 1) // 2
    return losses[:, :segment].mean().item(), losses[:, segment + 1 :].mean().item()


def _losses(model: Reference, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens).logits[:, :-1]
    return functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


@torch.no_grad()
def validation_loss(model: Reference, ids: np.ndarray) -> float:
    """Mean loss in nats per token over the text in windows of BOS and n_ctx - 1 tokens."""
    window = model.config["n_ctx"] - 1
    count = len(ids) // window
    rows = torch.from_numpy(ids[: count * window].reshape(count, window))
    bos = torch.full((count, 1), model.config["bos_token_id"])
    tokens = torch.cat([bos, rows], dim=1)
    losses = [_losses(model, part).flatten() for part in tokens.split(16)]
    return torch.cat(losses).mean().item()


@torch.no_grad()
def head_scores(model: Reference, tokens: torch.Tensor) -> list[dict[str, Any]]:
    """Mean attention over the second copy on three stripes, for every head.

    The previous token is at offset -1, the duplicate at -N, and the token after the duplicate
    (induction) at 1 - N.
    """
    segment = (tokens.shape[1] - 1) // 2
    rows = torch.arange(segment + 1, 2 * segment + 1)
    scores = list[dict[str, Any]]()
    for layer, pattern in enumerate(model(tokens).patterns):
        for head in range(pattern.shape[1]):
            means = {
                name: round(pattern[:, head, rows, rows + offset].mean().item(), 4)
                for name, offset in (
                    ("previous_token", -1),
                    ("induction", 1 - segment),
                    ("duplicate_token", -segment),
                )
            }
            scores.append({"head": f"{layer}.{head}", **means})
    return scores
