"""``otimes expand --target scores:1.4``: the attention scores of a head as pairs of paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from otimes.cli.options import counts_of_any_length, listed, print_json
from otimes.errors import UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra import Architecture
    from otimes.algebra.printing import Convention
    from otimes.algebra.scores import PositionTerm, Scores, ScoreSum, ScoreTerm

PREFIX = "scores:"


def is_scores(target: str) -> bool:
    """Whether a target names the scores of a head."""
    return target.startswith(PREFIX)


def expand_scores(
    architecture: Architecture,
    target: str,
    *,
    path: str | None = None,
    query: str | None = None,
    key: str | None = None,
    kinds: Sequence[str] = (),
    order: int | None = None,
    only_count: bool = False,
    limit: int | None = None,
    convention: Convention = "column",
    as_json: bool = False,
) -> None:
    """Print the score terms of a head, as a list or as one JSON object.

    Args:
        architecture: the model.
        target: ``scores:1.4``.
        path: a path expression for both sides.
        query: one for the query side besides.
        key: one for the key side besides.
        kinds: any of ``direct``, ``q``, ``k``, ``qk``, ``position``; none for all.
        order: the number of heads on both sides together.
        only_count: whether to say how many terms there are and nothing else.
        limit: how many terms to list; without it, 10,000 at most, and more is refused.
        convention: ``column`` or ``row``.
        as_json: whether to print JSON.

    Raises:
        OtimesError: for heads, paths and numbers that cannot be used.
    """
    scores = architecture.scores(head_of(target))
    pairs = scores.expand().where(path, path).where(query, key)
    if kinds:
        pairs = pairs.kind(*kinds)
    if order is not None:
        pairs = pairs.order(order)
    shown = listed(pairs, limit, only_count=only_count)
    with counts_of_any_length():
        if as_json:
            print_json(score_json(scores, pairs, shown, convention))
        elif shown is None:
            click.echo(f"{pairs.count:,}")
        else:
            _print(scores, pairs, shown, convention)


def head_of(target: str) -> str:
    """The head that a target names."""
    if not is_scores(target):
        raise UnsupportedError(f"cannot expand {target!r}: the target is 'logits' or 'scores:1.4'")
    return target.removeprefix(PREFIX)


def score_json(
    scores: Scores,
    pairs: ScoreSum,
    shown: Sequence[ScoreTerm | PositionTerm] | None,
    convention: Convention = "column",
) -> dict[str, Any]:
    """What ``--json`` prints: the counts, and each listed term."""
    from otimes.algebra.vocabulary import head_name

    return {
        "target": f"{PREFIX}{head_name(scores.head)}",
        "count": str(pairs.count),
        "query_paths": str(pairs.query_paths.count),
        "key_paths": str(pairs.key_paths.count),
        "by_kind": {kind: str(number) for kind, number in pairs.kind_counts.items()},
        "scale": scores.scale.text,
        "kv_head": f"{scores.head[0]}.{scores.kv_head}",
        "terms": None if shown is None else [_term_json(term, convention) for term in shown],
    }


def _term_json(term: ScoreTerm | PositionTerm, convention: Convention) -> dict[str, Any]:
    from otimes.algebra import text
    from otimes.algebra.scores import PositionTerm

    shown = {
        "query_path": term.query_path,
        "key_path": term.key_path,
        "kind": term.kind,
        "order": term.order,
    }
    if isinstance(term, PositionTerm):
        shown |= {"pattern": term.text(convention), "weight": None}
    else:
        weight = text(term.weight, convention)
        shown |= {"pattern": text(term.pattern, convention), "weight": weight}
    return shown | {"latex": term.to_latex(convention)}


def _print(
    scores: Scores,
    pairs: ScoreSum,
    shown: Sequence[ScoreTerm | PositionTerm],
    convention: Convention,
) -> None:
    from otimes.algebra.held import sentence

    click.echo(f"scores = {scores.text(convention)}\n")
    widths = [
        max((len(path) for path in paths), default=0)
        for paths in ([t.query_path for t in shown], [t.key_path for t in shown])
    ]
    for term in shown:
        click.echo(
            f"{term.query_path:{widths[0]}}  {term.key_path:{widths[1]}}  {term.kind:8}  "
            f"{term.text(convention)}"
        )
    more = pairs.count - len(shown)
    if more:
        click.echo(f"… and {more:,} more")
    parts = [f"{number:,} {kind}" for kind, number in pairs.kind_counts.items()]
    click.echo(f"\n{pairs.count:,} {'term' if pairs.count == 1 else 'terms'}: {', '.join(parts)}")
    if scores.held:
        click.echo(f"with {sentence(scores.held)}")
