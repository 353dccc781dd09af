"""The shares of named terms in one logit."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from otimes.bridge.binding import numbered
from otimes.bridge.run import Run
from otimes.errors import InputError
from otimes.numeric.paths import PrefixStack, Readout, order_outputs
from otimes.results.shares import LogitShares, TermShare

ENUMERATION_LIMIT = 4096
"""More paths than this are grouped by order."""


def logit_shares(
    run: Run, *, position: int = -1, token: int | None = None, top: int = 12, batch: int = 0
) -> LogitShares:
    """Split one logit of a run into its named terms, exactly.

    Args:
        run: a recorded run.
        position: from 0, or from the end.
        token: the token's id; None is the one that the model predicts there.
        top: how many terms to show by themselves.
        batch: which sequence of the run.

    Raises:
        InputError: for a position, token or sequence that the run does not have.
    """
    for name, index, size in (
        ("position", position, run.tokens.shape[1]),
        ("sequence", batch, run.tokens.shape[0]),
        ("token id", token or 0, run.model.config.d_vocab),
    ):
        if not -size <= index < size:
            raise InputError(f"{name} {index} is out of range: {-size} to {size - 1}")
    position %= run.tokens.shape[1]
    logits = run.logits[batch, position]
    token = int(logits.argmax()) if token is None else token % run.model.config.d_vocab
    rows = [
        TermShare(path, order, term, float(value[0]), float(value[0] - value[1]))
        for path, order, term, value in _values(run, position, token, batch)
    ]
    ranked = sorted(rows, key=lambda row: -abs(row.above_mean))
    shown, others = ranked[:top], ranked[top:]
    paths = run.model.architecture.logits.expand()
    return LogitShares(
        tokens=tuple(run.tokens[batch].tolist()),
        position=position,
        token=token,
        text=run.model.tokenizer.token_text(token),
        probability=float(torch.softmax(logits, -1)[token]),
        total=_sum("all paths", rows),
        shown=tuple(shown),
        rest=_sum(f"{len(others)} others", others),
        count=paths.count,
    )


def _sum(name: str, rows: list[TermShare]) -> TermShare:
    return TermShare(
        name, -1, "", sum(row.value for row in rows), sum(row.above_mean for row in rows)
    )


def _values(
    run: Run, position: int, token: int, batch: int
) -> Iterator[tuple[str, int, str, Tensor]]:
    """Names and orders of terms, with the token's logit and the mean over the vocabulary."""
    frozen = run.frozen().model
    paths = run.model.architecture.logits.expand()
    W_U, b_U = frozen.W_U, frozen.b_U
    readout = Readout(
        torch.stack([W_U[:, token], W_U.mean(1)], dim=1),
        None if b_U is None else torch.stack([b_U[token], b_U.mean()]),
        [position],
    )
    if paths.count <= ENUMERATION_LIMIT:
        stack = PrefixStack(frozen)
        for term in paths.depth_first():
            value = readout.logits(stack.output(*numbered(term)), frozen)[batch, 0]
            yield term.short_path, term.order, str(term), value
        return
    for order, output in enumerate(order_outputs(frozen)):
        value = readout.logits(output, frozen)[batch, 0]
        if order == 0 and b_U is not None:
            value = value + readout.logits(None, frozen)[batch, 0]
        heads = f"{paths.order_counts[order]:,} paths"
        yield f"order {order}", order, heads, value
