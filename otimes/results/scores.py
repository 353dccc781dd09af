"""An attention score, or the contrast of two, as a sum over pairs of paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otimes.errors import InputError
from otimes.results.saved import Saved, read, write

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class ScoreShare:
    """One term of a score: what a query path and a key path add together.

    ``kind`` says on which sides there is a head: ``direct``, ``q``, ``k``, ``qk``; ``position`` is
    what positions add to the score themselves.
    """

    query_path: str
    key_path: str
    kind: str
    value: float


@dataclass(frozen=True)
class ScoreAttribution:
    """A score before the softmax, the attention scale applied, and its largest terms.

    With ``minus_key`` it is the difference of the scores of two keys, which is the difference of
    the logarithms of what the query attends to them: ``log A[i, j] − log A[i, j'] = S[i, j] −
    S[i, j']``.

    Attributes:
        model: its name.
        tokens: the ids of the sequence.
        texts: the text of each token.
        head: ``1.4``.
        query: the position of the query, from 0.
        key: the position of the key.
        minus_key: the position of the key whose score is taken away; None for a single score.
        score: the sum over all pairs of paths.
        by_kind: the sum of the terms of each kind: they add up to ``score``.
        terms: the largest terms by absolute value, largest first.
        pairs: how many pairs of paths there are.
        grouped: whether each side of a term is a sum over all paths that end alike (``.. > 0.3``:
            with head 0.3), because there are too many to list.
        recorded: the same score as the model itself computed it.
        attention: what the query attends to the key, and to the other key where there is one.
        frozen: what is held fixed.
    """

    model: str
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    head: str
    query: int
    key: int
    minus_key: int | None
    score: float
    by_kind: dict[str, float]
    terms: tuple[ScoreShare, ...]
    pairs: int
    grouped: bool
    recorded: float
    attention: tuple[float, ...]
    frozen: tuple[str, ...]
    grow: dict[str, Callable[[], Any]] | None = field(default=None, repr=False, compare=False)

    def tree(self, side: str = "key") -> Any:
        """The paths of one side, the other held fixed at its sum, as a tree that can be split.

        Args:
            side: ``query``, ``key`` or ``minus_key``. The query's tree adds up to the score without
                what positions add to it, and so do those of the key and of the key that is taken
                away together.

        Raises:
            InputError: for a side that there is not, or a result that was loaded from a file.
        """
        if self.grow is None:
            raise InputError("a saved score has no run: make it again to grow its trees")
        if side not in self.grow:
            raise InputError(f"unknown side {side!r}: this score has {', '.join(self.grow)}")
        return self.grow[side]()

    @property
    def total(self) -> float:
        """The sum over all pairs: ``shown_sum + remainder``."""
        return self.score

    @property
    def shown_sum(self) -> float:
        """The sum of the shown terms."""
        return sum(term.value for term in self.terms)

    @property
    def remainder(self) -> float:
        """The sum of all other terms."""
        return self.score - self.shown_sum

    @property
    def gap(self) -> float:
        """The sum over all pairs less the score that the model itself computed."""
        return self.score - self.recorded

    def to_json(self) -> dict[str, Any]:
        """The object that ``otimes scores --json`` prints."""
        return {
            "model": self.model,
            "tokens": list(self.tokens),
            "head": self.head,
            "query": self.query,
            "key": self.key,
            "minus_key": self.minus_key,
            "score": self.score,
            "shown_sum": self.shown_sum,
            "remainder": self.remainder,
            "by_kind": dict(self.by_kind),
            "terms": [asdict(term) for term in self.terms],
            "pairs": str(self.pairs),
            "grouped": self.grouped,
            "recorded": self.recorded,
            "gap": self.gap,
            "attention": list(self.attention),
            "frozen": list(self.frozen),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each shown term: query_path, key_path, kind, value."""
        import pandas

        columns = ["query_path", "key_path", "kind", "value"]
        return pandas.DataFrame([asdict(term) for term in self.terms], columns=columns)

    def save(self, path: str | Path) -> None:
        """Write the result as JSON; :meth:`load` reads it without the model."""
        saved = asdict(replace(self, grow=None))
        del saved["grow"]
        write(path, saved)

    @staticmethod
    def load(path: str | Path) -> ScoreAttribution:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: if the file holds no saved score attribution.
        """
        return read(path, "score attribution", _attribution)

    @property
    def title(self) -> str:
        """What was decomposed, in a line."""
        query = f"query {self.query} {self.texts[self.query]!r}"
        key = f"key {self.key} {self.texts[self.key]!r}"
        if self.minus_key is None:
            return f"score of head {self.head}, {query}, {key}"
        other = f"key {self.minus_key} {self.texts[self.minus_key]!r}"
        return f"scores of head {self.head}, {query}: {key} − {other}"

    @property
    def meaning(self) -> str:
        """What the number says about attention, in a line."""
        if self.minus_key is None:
            return f"score {self.score:+.4f}; the query attends {self.attention[0]:.4f} to this key"
        shares = " and ".join(f"{share:.4f}" for share in self.attention)
        return f"log-odds {self.score:+.4f}; the query attends {shares} to these keys"

    @property
    def note(self) -> str:
        """How many terms there are, and what they are, in a line."""
        kept = "grouped by the last components of both sides" if self.grouped else "listed"
        pairs = f"{self.pairs:,}" if self.pairs < 10**15 else f"about 10^{len(str(self.pairs)) - 1}"
        off = f"the model's own score is {abs(self.gap):.1e} away"
        return f"{pairs} pairs of paths, {kept}; {off}"

    def __repr__(self) -> str:
        rows = [(t.query_path, t.key_path, t.kind, f"{t.value:+.4f}") for t in self.terms]
        rows = [
            ("query path", "key path", "kind", "value"),
            *rows,
            ("other terms", "", "", f"{self.remainder:+.4f}"),
            ("total", "", "", f"{self.score:+.4f}"),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            f"{query:{widths[0]}}  {key:{widths[1]}}  {kind:{widths[2]}}  {value:>{widths[3]}}"
            for query, key, kind, value in rows
        ]
        kinds = "  ".join(f"{kind} {value:+.4f}" for kind, value in self.by_kind.items())
        head = [self.title, "=" * len(self.title), self.meaning, f"by kind  {kinds}"]
        held = [f"frozen   {line}" for line in self.frozen]
        return "\n".join([*head, self.note, *held, "", *lines])


def _attribution(saved: Saved) -> ScoreAttribution:
    kinds = Saved(saved.value["by_kind"])
    return ScoreAttribution(
        model=saved.get("model", str),
        tokens=tuple(saved.integers("tokens")),
        texts=saved.texts("texts"),
        head=saved.get("head", str),
        query=saved.get("query", int),
        key=saved.get("key", int),
        minus_key=None if saved.value["minus_key"] is None else saved.get("minus_key", int),
        score=saved.number("score"),
        by_kind={name: kinds.number(name) for name in kinds.value},
        terms=tuple(
            ScoreShare(
                item.get("query_path", str),
                item.get("key_path", str),
                item.get("kind", str),
                item.number("value"),
            )
            for item in saved.objects("terms")
        ),
        pairs=saved.get("pairs", int),
        grouped=saved.get("grouped", bool),
        recorded=saved.number("recorded"),
        attention=tuple(saved.numbers("attention")),
        frozen=saved.texts("frozen"),
    )
