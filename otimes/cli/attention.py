"""``otimes scores``: an attention score of a run as a sum over pairs of paths."""

from __future__ import annotations

import click

from otimes.cli.options import input_options, json_option, print_json, run_on, terminal
from otimes.cli.tables import check_tables, table_options, write_tables


@click.command()
@click.argument("model")
@input_options
@click.option("--head", required=True, help="The head: L.H, such as 1.4.")
@click.option("--query", type=int, required=True, help="The query's position, from 0 or the end.")
@click.option("--key", type=int, required=True, help="The key's position.")
@click.option(
    "--minus-key", type=int, help="Another key: explain the log-odds of attention to the two."
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many terms to show.",
)
@table_options
@json_option
def scores(
    model: str,
    prompt: str | None,
    tokens: str | None,
    mlp: str,
    head: str,
    query: int,
    key: int,
    minus_key: int | None,
    top: int,
    csv: str | None,
    parquet: str | None,
    as_json: bool,
) -> None:
    """Split an attention score into its pairs of a query path and a key path.

    The score is that of head L.H of MODEL before the softmax, its scale applied, for the query at
    one position and the key at another. Negative positions count from the end.

    \b
    otimes scores attn-only-2l --prompt "The sea was" --head 1.4 --query -1 --key 0
    otimes scores path/to/folder --tokens 0,5,7 --head 1.0 --query 2 --key 1 --minus-key 0 --json
    """  # noqa: D301 - click reads the escape
    check_tables(csv, parquet)
    run = run_on(model, prompt, tokens, mlp)
    from otimes import bridge

    found = bridge.scores(run, head, query, key, minus_key, top=top)
    write_tables(found, csv, parquet)
    if as_json:
        print_json(found.to_json())
    else:
        from otimes.view.terminal import show_scores

        show_scores(terminal(), found)
