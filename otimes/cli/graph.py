"""``otimes graph``: the path graph of a model, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from otimes.cli.options import architecture_of, symbolic_options
from otimes.errors import InputError, LimitError

if TYPE_CHECKING:
    import networkx as nx

    from otimes.algebra import Architecture

FORMATS = ("graphml", "json", "dot", "mermaid")
FORMS = ("auto", "pairs", "stream")


@click.command()
@click.argument("model", required=False)
@symbolic_options
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    default="graphml",
    show_default=True,
    help="GraphML and JSON read back, DOT and Mermaid are drawn.",
)
@click.option(
    "--form",
    type=click.Choice(FORMS),
    default="auto",
    show_default=True,
    help="Join components in pairs, or through the stream; auto takes pairs while they are few.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write to this file.")
def graph(
    model: str | None,
    layers: int | None,
    heads: str | None,
    positions: str,
    biases: str,
    mlp: str,
    format_: str,
    form: str,
    output: str | None,
) -> None:
    """Write the graph of paths of MODEL, or of a symbolic model.

    Edges are keyed q, k, v and direct and carry virtual weights; the paths to the logits are its
    walks over v and direct edges.

    \b
    otimes graph --layers 2 --heads 2 --format mermaid
    otimes graph attn-only-2l --format graphml -o paths.graphml
    """  # noqa: D301 - click reads the escape
    architecture = architecture_of(layers, heads, positions, biases, mlp, model)
    text = graph_text(architecture, format_, form)
    if output is None:
        click.echo(text)
        return
    try:
        Path(output).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror}") from error


def graph_text(architecture: Architecture, format_: str, form: str = "auto") -> str:
    """The graph as text.

    Args:
        architecture: the model.
        format_: ``graphml``, ``json``, ``dot`` or ``mermaid``.
        form: ``pairs``, ``stream`` or ``auto``, which is ``pairs`` while the edges are few enough;
            a note on stderr says so where it is not.
    """
    from otimes.algebra.graph_export import write_graph

    return write_graph(_graph(architecture, form), format_)


def _graph(architecture: Architecture, form: str) -> nx.MultiDiGraph[str]:
    if form != "auto":
        return architecture.graph(stream=form == "stream")
    try:
        return architecture.graph()
    except LimitError as error:
        click.echo(
            f"note: {error.count:,} edges between pairs of components are too many, so these are "
            "joined through the stream (--form stream)",
            err=True,
        )
        return architecture.graph(stream=True)
