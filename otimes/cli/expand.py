"""``otimes expand``: the sum over paths, and the attention scores, term by term."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from otimes.cli.options import (
    architecture_of,
    convention_option,
    counts_of_any_length,
    json_option,
    listed,
    print_json,
    symbolic_options,
)
from otimes.cli.score_terms import expand_scores, is_scores
from otimes.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra import Architecture, PathSum, PathTerm
    from otimes.algebra.printing import Convention

_FACTORED_HEADS = 12


@click.command()
@symbolic_options
@click.option("--model", help="The architecture of this model instead.")
@click.option(
    "--target", default="logits", show_default=True, help="logits, or a head's scores: scores:1.4."
)
@click.option(
    "--path",
    help="Only paths that match, such as '0.7 > 1.4' or '0.7 > ..'; for scores, on both sides.",
)
@click.option("--query", help="For scores: only query paths that match.")
@click.option("--key", help="For scores: only key paths that match.")
@click.option(
    "--order",
    type=click.IntRange(min=0),
    help="Only terms with exactly this many heads; for scores, on both sides together.",
)
@click.option("--count", "only_count", is_flag=True, help="Only how many terms there are.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help="List the first N terms; without it, 10,000 at most.",
)
@convention_option
@json_option
def expand(
    layers: int | None,
    heads: str | None,
    positions: str,
    biases: str,
    mlp: str,
    model: str | None,
    target: str,
    path: str | None,
    query: str | None,
    key: str | None,
    order: int | None,
    only_count: bool,
    limit: int | None,
    convention: Convention,
    as_json: bool,
) -> None:
    """Expand the logits, or the attention scores of a head, term by term.

    A score term has a path on the query side and one on the key side: --path is what both must
    match, --query and --key what one of them must match besides.

    \b
    otimes expand --layers 2 --heads 2
    otimes expand --layers 2 --heads 12 --path "0.7 > 1.4"
    otimes expand --layers 2 --heads 12 --target scores:1.4 --limit 20
    otimes expand --layers 3 --heads 4 --target scores:2.0 --path ".. > 1.*" --key "0.3 > .."
    otimes expand --layers 100 --heads 100 --count
    """  # noqa: D301 - click reads the escape
    architecture = architecture_of(layers, heads, positions, biases, mlp, model)
    if is_scores(target):
        expand_scores(
            architecture,
            target,
            path=path,
            query=query,
            key=key,
            order=order,
            only_count=only_count,
            limit=limit,
            convention=convention,
            as_json=as_json,
        )
        return
    if target != "logits":
        raise UnsupportedError(f"cannot expand {target!r}: the target is 'logits' or 'scores:1.4'")
    if query is not None or key is not None:
        raise InputError("--query and --key are for scores; use --path for the logits")
    paths = architecture.logits.expand()
    if path is not None:
        paths = paths.where(path)
    if order is not None:
        paths = paths.order(order)
    shown = listed(paths, limit, only_count=only_count)
    with counts_of_any_length():
        if as_json:
            print_json(_expansion(paths, target, shown, convention))
        elif shown is None:
            click.echo(f"{paths.count:,}")
        else:
            _print_expansion(architecture, paths, shown, convention)


def _expansion(
    paths: PathSum, target: str, shown: list[PathTerm] | None, convention: Convention
) -> dict[str, Any]:
    from otimes.algebra import latex, text

    terms = shown and [
        {
            "path": term.short_path,
            "kind": term.kind,
            "order": term.order,
            "pattern": text(term.pattern, convention),
            "weight": text(term.weight, convention),
            "latex": latex(term.operator, convention),
        }
        for term in shown
    ]
    return {
        "target": target,
        "count": str(paths.count),
        "head_words": str(paths.head_words),
        "terms": terms,
    }


def _print_expansion(
    architecture: Architecture, paths: PathSum, shown: list[PathTerm], convention: Convention
) -> None:
    from otimes.algebra import text
    from otimes.algebra.held import held_by, sentence

    if sum(architecture.heads) <= _FACTORED_HEADS:
        click.echo(f"logits = {text(architecture.logits.expression, convention)}\n")
    several = len(architecture.sources) > 1
    width = max((len(term.short_path) for term in shown), default=0)
    for term in shown:
        click.echo(
            f"{term.short_path:{width}}  {term.kind:8}"
            f"{text(term.expression if several else term.operator, convention)}"
        )
    more = paths.count - len(shown)
    if more:
        click.echo(f"… and {more:,} more")
    click.echo(f"\n{paths.count:,} {'term' if paths.count == 1 else 'terms'}")
    held = sentence(held_by(architecture))
    if held:
        click.echo(f"with {held}")
