"""The logits that a verification checks where it does not check all: named targets."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

from torch import Tensor

from otimes.bridge.run import Run
from otimes.errors import InputError
from otimes.numeric.chosen import Chosen

LARGEST = 10
"""So many of the largest logits at the last position are the default targets."""


def chosen_targets(run: Run, targets: Iterable[tuple[int, int]]) -> Chosen:
    """(position, token id) pairs, in every sequence of the batch.

    Raises:
        InputError: for no targets, for what is no pair of integers, or one out of range.
    """
    batch, length = run.tokens.shape
    d_vocab, found = run.model.config.d_vocab, list[tuple[int, int]]()
    for target in targets:
        try:
            position, token = map(index, target)
        except (TypeError, ValueError):
            raise InputError(
                f"a target is a pair of position and token id, not {target!r:.60}"
            ) from None
        if not -length <= position < length:
            raise InputError(
                f"target {target}: position {position} is out of range: {-length} to {length - 1}"
            )
        if not 0 <= token < d_vocab:
            raise InputError(
                f"target {target}: token id {token} is out of range: 0 to {d_vocab - 1}"
            )
        found.append((position % length, token))
    if not found:
        raise InputError("no targets: give at least one (position, token id), or leave them out")
    return Chosen.of((row, *target) for row in range(batch) for target in found)


def in_words(logits: Tensor, chosen: Chosen | None, default: Chosen) -> str:
    """What of the logits was checked."""
    batch, length, d_vocab = logits.shape
    if chosen is None:
        return f"logits: {batch} × {length} positions × {d_vocab} tokens"
    count = len(chosen) // batch
    if chosen is default:
        return f"logits: {batch} × the {count} largest at the last position"
    return f"logits: {batch} × {count} chosen by position and token"
