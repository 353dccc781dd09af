"""Scalar targets of a run: one logit, a difference of two, or a logit above the mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.bridge.indices import index_of
from otimes.bridge.run import Run
from otimes.errors import InputError

MEAN = "mean"


@dataclass(frozen=True)
class ScalarTarget:
    """``Σ_t weights[t] logit[t]`` at one position of one sequence of a run.

    ``weights [d_vocab]`` is float64. ``text`` and ``minus`` are for people; ``minus`` is None,
    ``mean`` (then ``minus_token`` is None) or a token's text.
    """

    batch: int
    position: int
    token: int
    text: str
    minus: str | None
    minus_token: int | None
    weights: Float[Tensor, " d_vocab"]


def scalar_target(
    run: Run,
    target: str | int | None = None,
    minus: str | int | None = None,
    *,
    position: int = -1,
    batch: int = 0,
) -> ScalarTarget:
    """Check what a caller wants explained.

    Args:
        run: a recorded run.
        target: a token, as its text or its id; None is the token that the model predicts.
        minus: a token whose logit is taken away, or ``mean``: the mean over the vocabulary.
        position: whose logits, from 0 or from the end.
        batch: which sequence of the run.

    Raises:
        InputError: for a text that is not one token, an id, position or sequence that is not there,
            a position that is padding, or a run whose logits are not finite.
    """
    vocabulary = run.model.config.d_vocab
    batch = index_of("sequence", batch, len(run.tokens))
    position = index_of("position", position, run.tokens.shape[1])
    if run.mask is not None and not bool(run.mask[batch, position]):
        raise InputError(f"position {position} of sequence {batch} is padding")
    logits = run.logits[batch, position]
    if not bool(torch.isfinite(logits).all()):
        raise InputError(
            f"the model's logits at position {position} are not finite numbers: there is nothing "
            "to explain"
        )
    token = int(logits.argmax()) if target is None else token_id(run, target)
    weights = torch.zeros(vocabulary, dtype=torch.float64)
    weights[token] = 1
    other, name = None, None
    if minus == MEAN:
        weights, name = weights - 1 / vocabulary, MEAN
    elif minus is not None:
        other = token_id(run, minus)
        weights[other] -= 1
        name = run.model.tokenizer.token_text(other)
    text = run.model.tokenizer.token_text(token)
    return ScalarTarget(batch, position, token, text, name, other, weights)


def token_id(run: Run, token: str | int) -> int:
    """The id of a token given as its text or its id.

    Raises:
        InputError: for a text that is not exactly one token, or an id that is not in the
            vocabulary.
    """
    if not isinstance(token, str):
        return index_of("token id", token, run.model.config.d_vocab, negative=False)
    tokenizer = run.model.tokenizer
    if not tokenizer.available:
        raise InputError(f"the model has no tokenizer: name the token {token!r} by its id")
    ids = tokenizer.encode(token)
    if len(ids) == 1:
        return ids[0]
    spaced = [] if token.startswith(" ") else tokenizer.encode(f" {token}")
    hint = f"; {f' {token}'!r}, with a space in front, is one" if len(spaced) == 1 else ""
    pieces = ", ".join(f"{tokenizer.token_text(i)!r} ({i})" for i in ids[:6])
    what = f"{len(ids)} tokens: {pieces}{', …' if len(ids) > 6 else ''}" if ids else "no token"
    raise InputError(f"the target {token!r} is not one token of this model but {what}{hint}")
