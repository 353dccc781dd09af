"""``otimes derive``: how the sum over paths follows from the forward pass, step by step.

It needs no model. Every step is made by a rule and checked exactly on explicit matrices before it
is shown; the exit status is 1 if one did not hold.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from otimes.errors import UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra import Derivation


@click.command()
@click.option("--layers", type=int, required=True, help="The number of layers.")
@click.option(
    "--heads",
    required=True,
    help="Heads in each layer: one number, or one for each layer, such as 2,3.",
)
@click.option("--target", default="logits", show_default=True, help="What is derived: logits.")
@click.option(
    "--limit", type=int, default=None, help="The number of paths that may be written out."
)
@click.option("--markdown", is_flag=True, help="Print Markdown with displayed mathematics.")
@click.option("--latex", is_flag=True, help="Print an align* environment.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def derive(
    context: click.Context,
    layers: int,
    heads: str,
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
    """
    derivation = build(layers, heads, target, limit)
    held = derivation.check()
    if as_json:
        click.echo(json.dumps({"target": target, **derivation.to_json()}, ensure_ascii=False))
    elif latex:
        click.echo(derivation.latex)
    elif markdown:
        click.echo(derivation.markdown)
    else:
        click.echo(f"{derivation}\n\n{held}, checked exactly on explicit matrices")
    context.exit(0 if held.holds else 1)


def build(layers: int, heads: str, target: str = "logits", limit: int | None = None) -> Derivation:
    """The derivation that the options ask for.

    Raises:
        UnsupportedError: for a target or numbers that there are not.
        LimitError: for more paths than may be written out.
    """
    from otimes.algebra import Architecture
    from otimes.algebra.paper import MAX_TERMS, derive_logits

    if target != "logits":
        raise UnsupportedError(f"cannot derive {target!r}: use --target logits")
    try:
        numbers = [int(part) for part in heads.split(",")]
    except ValueError:
        raise UnsupportedError(
            f"--heads is one number, or one for each layer such as 2,3; not {heads!r}"
        ) from None
    architecture = Architecture(layers, numbers[0] if len(numbers) == 1 else numbers)
    return derive_logits(architecture, MAX_TERMS if limit is None else limit)
