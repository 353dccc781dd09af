"""``otimes verify``: prove that the path terms of a model add up to its forward pass."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from otimes.cli.options import json_option, print_json, terminal
from otimes.errors import InputError

if TYPE_CHECKING:
    from otimes.bridge import Run
    from otimes.results import Certificate


@click.command()
@click.argument("model")
@click.option("--prompt", help="A text; the model's first token (BOS) is put in front.")
@click.option("--tokens", help="Token ids instead, taken as they are: 1,2,3.")
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
    dtype: str,
    primes: int,
    exact: bool,
    top: int,
    as_json: bool,
) -> None:
    """Prove that the path terms of MODEL add up to its own forward pass.

    MODEL is the name of a shipped checkpoint (see `otimes models`) or a checkpoint folder.

    \b
    otimes verify attn-only-2l --prompt "The sea was"
    otimes verify path/to/folder --tokens 0,5,7 --exact --json
    """  # noqa: D301 - click reads the escape
    from otimes import bridge

    if (prompt is None) == (tokens is None):
        raise InputError("give the input as --prompt TEXT or as --tokens 1,2,3")
    loaded = bridge.load(model)
    run = loaded.run(prompt) if tokens is None else loaded.run(tokens=_token_ids(tokens))
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


def _token_ids(text: str) -> list[int]:
    ids = list[int]()
    for place, part in enumerate(text.split(",")):
        try:
            ids.append(int(part))
        except ValueError:
            if not text.strip():
                raise InputError("no tokens: give at least one id, as in --tokens 1,2,3") from None
            raise InputError(
                f"--tokens takes ids with commas between them (1,2,3); place {place} is {part!r}"
            ) from None
    return ids
