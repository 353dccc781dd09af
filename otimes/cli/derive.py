"""``otimes derive``: how the sum over paths follows from the forward pass, step by step.

It needs no model. Every step is made by a rule and checked exactly on explicit matrices before it
is shown; the exit status is 1 if one did not hold.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from otimes.cli.options import architecture_of, json_option, print_json, symbolic_options
from otimes.cli.score_terms import head_of, is_scores
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
    "--path",
    help="Only paths that match, such as '0.7 > 1.4' or '0.7 > ..'; for scores, on both sides.",
)
@click.option(
    "--order",
    type=click.IntRange(min=0),
    help="Only paths with so many heads; for scores, on both sides together.",
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
    mlp: str,
    model: str | None,
    target: str,
    path: str | None,
    order: int | None,
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
    otimes derive --layers 2 --heads 12 --path "0.7 > 1.4"
    otimes derive --layers 2 --heads 1 --target scores:1.0 --latex
    otimes derive --layers 1 --heads 1 --positions rotary --biases b_Q --target scores:0.0
    """  # noqa: D301 - click reads the escape
    architecture = architecture_of(layers, heads, positions, biases, mlp, model)
    if path is None and order is None:
        derivation = derivation_of(architecture, target, limit)
    elif is_scores(target):
        derivation = chosen_pairs(architecture, target, path, order, limit)
    elif target == "logits":
        derivation = chosen_paths(architecture, path, order, limit)
    else:
        raise unknown_target(target)
    held, notes = derivation.check(), notes_on(architecture, target)
    if as_json:
        print_json({"target": target, **derivation.to_json(), "notes": notes})
    elif latex:
        click.echo(derivation.latex)
    elif markdown:
        click.echo(derivation.markdown)
    else:
        said = "".join(f"\nnote: {note}" for note in notes)
        click.echo(f"{derivation}\n\n{held}, checked exactly on explicit matrices{said}")
    if not held.holds:
        sys.exit(1)


def chosen_paths(
    architecture: Architecture, path: str | None, order: int | None, limit: int | None
) -> Derivation:
    """The derivation of some of the paths, from products of heads."""
    from otimes.algebra.paper import MAX_TERMS, derive_paths

    paths = architecture.logits.expand()
    paths = paths if path is None else paths.where(path)
    paths = paths if order is None else paths.order(order)
    return derive_paths(paths, MAX_TERMS if limit is None else limit)


def chosen_pairs(
    architecture: Architecture, target: str, path: str | None, order: int | None, limit: int | None
) -> Derivation:
    """The derivation of some pairs of paths, from products of what they go through."""
    from otimes.algebra.scores.deriving import MAX_PAIRS, derive_pairs

    pairs = architecture.scores(head_of(target)).expand().where(path, path)
    pairs = pairs if order is None else pairs.order(order)
    return derive_pairs(pairs, MAX_PAIRS if limit is None else limit)


def unknown_target(target: str) -> UnsupportedError:
    """The error of a target that there is not."""
    return UnsupportedError(f"cannot derive {target!r}: the target is 'logits' or 'scores:1.4'")


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
        raise unknown_target(target)
    return derive_logits(architecture, MAX_TERMS if limit is None else limit)


def notes_on(architecture: Architecture, target: str) -> list[str]:
    """What the expressions of a derivation leave unsaid."""
    from otimes.algebra.held import held_by, sentence
    from otimes.algebra.scores.deriving import notes

    if is_scores(target):
        return notes(architecture.scores(head_of(target)))
    held = held_by(architecture)
    return [sentence(held)] if held else []
