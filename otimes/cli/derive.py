"""``otimes derive``: how the sum over paths follows from the forward pass, step by step.

It needs no model. Every step is made by a rule and checked exactly on explicit matrices before it
is shown; the exit status is 1 if one did not hold.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from otimes.cli.options import architecture_of, json_option, print_json, symbolic_options
from otimes.cli.scores import head_of, is_scores
from otimes.errors import UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra import Architecture, Derivation


@click.command()
@symbolic_options
@click.option("--model", help="The architecture of this model instead.")
@click.option(
    "--target", default="logits", show_default=True, help="logits, or a head's scores: scores:1.4."
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=None,
    help="The number of terms that may be written out.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown with displayed mathematics.")
@click.option("--latex", is_flag=True, help="Print an align* environment.")
@json_option
def derive(
    layers: int | None,
    heads: str | None,
    positions: str,
    biases: str,
    model: str | None,
    target: str,
    limit: int | None,
    *,
    markdown: bool,
    latex: bool,
    as_json: bool,
) -> None:
    """Derive the sum over paths from the forward pass, checking each step.

    The steps are those of the framework paper: the stream of each layer is substituted, heads are
    taken apart into their three stages, the product of sums is multiplied out, and the mixed
    product makes one term A ⊗ W of each path.

    \b
    otimes derive --layers 2 --heads 2
    otimes derive --layers 2 --heads 1 --target scores:1.0 --latex
    """  # noqa: D301 - click reads the escape
    architecture = architecture_of(layers, heads, positions, biases, model)
    derivation = derivation_of(architecture, target, limit)
    held = derivation.check()
    if as_json:
        print_json({"target": target, **derivation.to_json()})
    elif latex:
        click.echo(derivation.latex)
    elif markdown:
        click.echo(derivation.markdown)
    else:
        click.echo(f"{derivation}\n\n{held}, checked exactly on explicit matrices")
    if not held.holds:
        sys.exit(1)


def derivation_of(
    architecture: Architecture, target: str = "logits", limit: int | None = None
) -> Derivation:
    """The derivation of a target.

    Raises:
        UnsupportedError: for a target that there is not.
        LimitError: for more terms than may be written out.
    """
    from otimes.algebra.paper import MAX_TERMS, derive_logits
    from otimes.algebra.scores.deriving import MAX_PAIRS, derive_scores

    if is_scores(target):
        scores = architecture.scores(head_of(target))
        return derive_scores(scores, MAX_PAIRS if limit is None else limit)
    if target != "logits":
        raise UnsupportedError(f"cannot derive {target!r}: the target is 'logits' or 'scores:1.4'")
    return derive_logits(architecture, MAX_TERMS if limit is None else limit)
