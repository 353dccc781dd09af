"""``otimes verify``: prove that the path terms of a model add up to its forward pass."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from otimes.cli.options import input_options, json_option, print_json, run_on, terminal

if TYPE_CHECKING:
    from otimes.bridge import Run
    from otimes.results import Certificate


@click.command()
@click.argument("model")
@input_options
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32"]),
    default="float64",
    show_default=True,
    help="What both sides compute in.",
)
@click.option(
    "--primes",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Compare both sides modulo so many random primes.",
)
@click.option("--exact", is_flag=True, help="Also in rational arithmetic, up to 8 tokens.")
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=12,
    show_default=True,
    help="How many terms to show.",
)
@json_option
def verify(
    model: str,
    prompt: str | None,
    tokens: str | None,
    mlp: str,
    dtype: str,
    primes: int,
    exact: bool,
    top: int,
    as_json: bool,
) -> None:
    """Prove that the path terms of MODEL add up to its own forward pass.

    MODEL is the name of a shipped checkpoint (see `otimes models`), or a folder, file or name that
    otimes loads.

    \b
    otimes verify attn-only-2l --prompt "The sea was"
    otimes verify path/to/folder --tokens 0,5,7 --exact --json
    otimes verify smollm2-135m --prompt "The capital of France is"
    """  # noqa: D301 - click reads the escape
    from otimes import bridge

    run = run_on(model, prompt, tokens, mlp)
    certificate = bridge.verify(run, dtype=dtype, primes=primes, exact=exact)
    if as_json:
        print_json(certificate.to_json())
    else:
        _print_verification(run, certificate, top)
    if not certificate.holds:
        sys.exit(1)


def _print_verification(run: Run, certificate: Certificate, top: int) -> None:
    from otimes.bridge.shares import logit_shares
    from otimes.view.terminal import show_verification

    pieces = [run.model.tokenizer.token_text(token) for token in run.tokens[0].tolist()]
    if not run.model.tokenizer.available:
        pieces = [f"{piece} " for piece in pieces]
    show_verification(terminal(), certificate, logit_shares(run, top=top), pieces)
