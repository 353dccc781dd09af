"""The command line: ``otimes COMMAND``.

Exit status: 0 done, 1 a check did not hold, 2 the input cannot be used; then the last line on
stderr is ``error: …`` and there is no traceback.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from otimes.errors import InputError, OtimesError, UnsupportedError

if TYPE_CHECKING:
    from rich.console import Console

    from otimes.algebra import Architecture, PathSum, PathTerm
    from otimes.algebra.printing import Convention
    from otimes.bridge import Run
    from otimes.results import Certificate

_FACTORED_HEADS = 12
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(context_settings=_CONTEXT)
@click.version_option(package_name="otimes", message="otimes %(version)s")
def cli() -> None:
    """The algebra of transformer circuits: derive path expansions, evaluate and prove them.

    Start with `otimes verify attn-only-2l --prompt "The sea was"`.
    """


@cli.command()
@click.option("--layers", type=int, help="Number of layers of a symbolic model.")
@click.option("--heads", help="Heads in each layer: 4, or one number for each layer: 4,8,8.")
@click.option("--positions", default="none", help="none, learned or shortformer.")
@click.option("--biases", default="", help="Which biases there are: all, or names such as b_V,b_O.")
@click.option("--model", "source", help="The architecture of this model instead.")
@click.option("--target", default="logits", show_default=True, help="What to expand.")
@click.option("--path", help="One literal path only, such as '0.7 > 1.4' or 'direct'.")
@click.option("--order", type=int, help="Only the paths with exactly this many heads.")
@click.option("--count", "only_count", is_flag=True, help="Only how many terms there are.")
@click.option("--limit", type=int, help="List the first N terms; without it, 10,000 at most.")
@click.option(
    "--convention",
    type=click.Choice(["column", "row"]),
    default="column",
    show_default=True,
    help="Write W_O W_V as the paper does, or W_V W_O as in code.",
)
@json_option
def expand(
    layers: int | None,
    heads: str | None,
    positions: str,
    biases: str,
    source: str | None,
    target: str,
    path: str | None,
    order: int | None,
    only_count: bool,
    limit: int | None,
    convention: Convention,
    as_json: bool,
) -> None:
    r"""Expand the logits into the sum over paths, term by term.

    \b
    otimes expand --layers 2 --heads 2
    otimes expand --layers 2 --heads 12 --path "0.7 > 1.4"
    otimes expand --layers 100 --heads 100 --count
    """
    if target != "logits":
        raise UnsupportedError(f"cannot expand {target!r}: the target is 'logits'")
    architecture = _architecture(layers, heads, positions, biases, source)
    paths = architecture.logits.expand()
    if path is not None:
        paths = paths.where(path)
    if order is not None:
        if order < 0:
            raise InputError(f"--order is the number of heads, 0 or more, not {order}")
        paths = paths.order(order)
    if limit is not None and limit < 0:
        raise InputError(f"--limit is a number of terms, 0 or more, not {limit}")
    listed = None
    if not only_count:
        listed = paths.terms() if limit is None else list(islice(paths, limit))
    if as_json:
        _print_json(_expansion(paths, target, listed, convention))
    elif listed is None:
        click.echo(f"{paths.count:,}")
    else:
        _print_expansion(architecture, paths, listed, convention)


def _architecture(
    layers: int | None, heads: str | None, positions: str, biases: str, source: str | None
) -> Architecture:
    from otimes.algebra import Architecture

    if source is not None:
        if (layers, heads, positions, biases) != (None, None, "none", ""):
            raise InputError("give either --model or the numbers of a symbolic model, not both")
        from otimes.bridge import load

        return load(source).architecture
    if layers is None or heads is None:
        raise InputError("give --layers and --heads, or --model")
    try:
        numbers = [int(number) for number in heads.split(",")]
    except ValueError:
        raise InputError(
            f"--heads takes a number or one for each layer (4,8), not {heads!r}"
        ) from None
    names = [name.strip() for name in biases.split(",") if name.strip()]
    return Architecture(
        layers,
        numbers[0] if "," not in heads else numbers,
        positions=positions,
        biases=True if names == ["all"] else names,
    )


def _expansion(
    paths: PathSum, target: str, listed: list[PathTerm] | None, convention: Convention
) -> dict[str, Any]:
    from otimes.algebra import latex, text

    terms = listed and [
        {
            "path": term.short_path,
            "kind": term.kind,
            "order": term.order,
            "pattern": text(term.pattern, convention),
            "weight": text(term.weight, convention),
            "latex": latex(term.operator, convention),
        }
        for term in listed
    ]
    return {
        "target": target,
        "count": str(paths.count),
        "head_words": str(paths.head_words),
        "terms": terms,
    }


def _print_expansion(
    architecture: Architecture, paths: PathSum, listed: list[PathTerm], convention: Convention
) -> None:
    from otimes.algebra import text

    if sum(architecture.heads) <= _FACTORED_HEADS:
        click.echo(f"logits = {text(architecture.logits.expression, convention)}\n")
    several = len(architecture.sources) > 1
    width = max((len(term.short_path) for term in listed), default=0)
    for term in listed:
        click.echo(
            f"{term.short_path:{width}}  {term.kind:8}"
            f"{text(term.expression if several else term.operator, convention)}"
        )
    more = paths.count - len(listed)
    if more:
        click.echo(f"… and {more:,} more")
    click.echo(f"\n{paths.count:,} {'term' if paths.count == 1 else 'terms'}")


@cli.command()
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
@click.option("--exact", is_flag=True, help="Also in rational arithmetic, up to 8 tokens.")
@click.option("--top", type=int, default=12, show_default=True, help="How many terms to show.")
@json_option
def verify(
    model: str,
    prompt: str | None,
    tokens: str | None,
    dtype: str,
    exact: bool,
    top: int,
    as_json: bool,
) -> None:
    r"""Prove that the path terms of MODEL add up to its own forward pass.

    MODEL is the name of a shipped checkpoint (see `otimes models`) or a checkpoint folder.

    \b
    otimes verify attn-only-2l --prompt "The sea was"
    otimes verify path/to/folder --tokens 0,5,7 --exact --json
    """
    from otimes import bridge

    if (prompt is None) == (tokens is None):
        raise InputError("give the input as --prompt TEXT or as --tokens 1,2,3")
    if top < 0:
        raise InputError(f"--top is a number of terms, 0 or more, not {top}")
    loaded = bridge.load(model)
    run = loaded.run(prompt) if tokens is None else loaded.run(tokens=_token_ids(tokens))
    certificate = bridge.verify(run, dtype=dtype, exact=exact)
    if as_json:
        _print_json(certificate.to_json())
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
    show_verification(_console(), certificate, logit_shares(run, top=top), pieces)


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


@cli.command()
@json_option
def models(as_json: bool) -> None:
    """List the checkpoints that ship, with what they are and how they were trained."""
    from otimes.models import shipped

    cards = shipped()
    if as_json:
        _print_json({"models": cards})
        return
    from otimes.view.terminal import show_models

    show_models(_console(), cards)


def _console() -> Console:
    from rich.console import Console

    # in a file or a pipe there is no terminal to be as wide as
    wide = not (sys.stdout.isatty() or "COLUMNS" in os.environ)
    return Console(highlight=False, width=100 if wide else None)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def main() -> None:
    """Run the command line, turning every expected failure into one line."""
    try:
        # not cli.main(), which would turn a reader that went away into the status of a failed check
        with cli.make_context("otimes", sys.argv[1:]) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except OtimesError as error:
        _fail(str(error))
    except click.ClickException as error:
        usage = (
            error.ctx.get_usage() + "\n"
            if isinstance(error, click.UsageError) and error.ctx
            else ""
        )
        _fail(error.format_message(), before=usage)
    except click.Abort:
        _fail("interrupted")
    except MemoryError:
        _fail("out of memory: use a shorter input or a smaller model")
    except BrokenPipeError:
        # the reader of a pipe has gone; keep the interpreter from flushing into it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _fail(message: str, before: str = "") -> None:
    lines = message.split("\n")
    # the last line says what to do; a pointer at a character stands above it
    click.echo(before + "".join(f"{line}\n" for line in lines[1:]) + f"error: {lines[0]}", err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
