"""``otimes attribute``: split a logit of a model into what its paths add."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from otimes.cli.options import input_options, json_option, print_json, run_on, terminal
from otimes.cli.progress import search_progress
from otimes.cli.tables import check_tables, table_options, write_tables
from otimes.errors import InputError

if TYPE_CHECKING:
    from otimes.results import Attribution

_GROUPINGS = ["path", "order", "source", "source-position", "last-head", "last-edge"]


@click.command()
@click.argument("model")
@input_options
@click.option("--position", type=int, default=-1, show_default=True, help="Whose logits.")
@click.option("--target", help="The token to explain, as text; the predicted one by default.")
@click.option("--target-id", type=int, help="Its id instead.")
@click.option("--minus", help="A token whose logit is taken away, or mean (over the vocabulary).")
@click.option("--minus-id", type=int, help="Its id instead.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    help="How many rows to show: the largest. By default 20 paths, or all groups.",
)
@click.option("--path", "path", help="Only paths that match this expression, such as '0.7 > ..'.")
@click.option("--order", type=click.IntRange(min=0), help="Only paths with so many heads.")
@click.option(
    "--by",
    type=click.Choice(_GROUPINGS),
    default="path",
    show_default=True,
    help="What a row is: one path, or all paths with the same …",
)
@click.option(
    "--through",
    type=click.Choice(["head", "edge"]),
    help="Instead: all paths through each head or edge; these overlap.",
)
@click.option("--sources", is_flag=True, help="Split each path by the position that it starts at.")
@click.option(
    "--causal",
    type=click.Choice(["output", "input"]),
    help="Beside each path's frozen value, the effect of taking it away and recomputing the rest: "
    "from the stream behind its last head, or from that head's inputs.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of the estimates of path energy."
)
@table_options
@click.option(
    "--save", type=click.Path(path_type=Path, dir_okay=False), help="Also save the result as JSON."
)
@json_option
def attribute(
    model: str,
    prompt: str | None,
    tokens: str | None,
    mlp: str,
    position: int,
    target: str | None,
    target_id: int | None,
    minus: str | None,
    minus_id: int | None,
    top: int | None,
    path: str | None,
    order: int | None,
    by: str,
    through: str | None,
    sources: bool,
    causal: str | None,
    seed: int,
    csv: str | None,
    parquet: str | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Split a logit of MODEL, or a difference of two, exactly into what its paths add.

    \b
    otimes attribute attn-only-2l --prompt "The sea was" --target " the"
    otimes attribute attn-only-2l --prompt "The sea was" --minus mean --by last-head
    otimes attribute attn-only-2l --tokens 0,5,7,5 --target-id 7 --path "0.* > 1.*" --json
    """  # noqa: D301 - click reads the escape
    from otimes import bridge

    if target is not None and target_id is not None:
        raise InputError("give the target either as --target TEXT or as --target-id ID")
    if minus is not None and minus_id is not None:
        raise InputError("give what is taken away either as --minus or as --minus-id")
    if through is not None and by != "path":
        raise InputError("give either --by or --through: what goes through a head overlaps")
    check_tables(csv, parquet, save)
    run = run_on(model, prompt, tokens, mlp)
    with search_progress() as progress:
        found = bridge.attribute(
            run,
            target=target if target_id is None else target_id,
            minus=minus if minus_id is None else minus_id,
            position=position,
            top=top,
            path=path,
            order=order,
            by=by,
            through=through,
            sources=sources,
            causal=causal,
            seed=seed,
            progress=progress,
            announce=lambda text: click.echo(text, err=True),
        )
    write_tables(found, csv, parquet)
    if save is not None:
        found.save(save)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)


def _print(found: Attribution) -> None:
    from otimes.view.attribution import show_attribution

    show_attribution(terminal(), found)
