"""What the named terms add to one logit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class TermShare:
    """One term's part of a logit.

    ``value`` is in logits; ``above_mean`` is the value minus its mean over the vocabulary, because
    a constant over the vocabulary changes no probability.
    """

    path: str
    order: int
    term: str
    value: float
    above_mean: float


@dataclass(frozen=True)
class LogitShares:
    """The parts of one logit: the largest terms, and the exact sum of the others.

    Attributes:
        tokens: the ids of the sequence.
        position: the position whose logit it is, from 0.
        token: the id of the token.
        text: its text.
        probability: what the model gives it.
        total: the sum over all ``count`` terms; equal to the model's logit to the certificate's
            bound.
        shown: the largest terms by absolute ``above_mean``, largest first; all have the same kind
            of name: a path, or ``order k`` where there are too many paths.
        rest: the sum of the terms that are not shown.
    """

    tokens: tuple[int, ...]
    position: int
    token: int
    text: str
    probability: float
    total: TermShare
    shown: tuple[TermShare, ...]
    rest: TermShare
    count: int

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each shown term, the rest and the total."""
        import pandas

        return pandas.DataFrame([vars(row) for row in (*self.shown, self.rest, self.total)])

    def __repr__(self) -> str:
        width = max(len(row.path) for row in (*self.shown, self.rest, self.total))
        lines = [
            f"{row.path:{width}}  {row.value:9.4f}  {row.above_mean:9.4f}"
            for row in (*self.shown, self.rest, self.total)
        ]
        head = f"{'path':{width}}  {'logit':>9}  {'above mean':>9}"
        return "\n".join([f"logit of {self.text!r} at position {self.position}", head, *lines])
