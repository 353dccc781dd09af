"""What several commands share: options, the model that they name, output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from otimes.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from otimes.algebra import Architecture
    from otimes.bridge import Run

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
TermT = TypeVar("TermT")


class TermSum(Protocol[TermT]):
    """A lazy sum of terms."""

    def __iter__(self) -> Iterator[TermT]:
        """All terms, one by one."""
        ...

    def terms(self) -> list[TermT]:
        """All terms, refused beyond the usual limit."""
        ...


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
convention_option = click.option(
    "--convention",
    type=click.Choice(["column", "row"]),
    default="column",
    show_default=True,
    help="Write W_O W_V as the paper does, or W_V W_O as in code.",
)
_MLP = click.option(
    "--mlp",
    type=click.Choice(["source", "frozen"]),
    default="source",
    show_default=True,
    help="The MLPs of a model: paths start at their outputs, or go through each frozen neuron.",
)
_SYMBOLIC = (
    click.option("--layers", type=int, help="Number of layers of a symbolic model."),
    click.option("--heads", help="Heads in each layer: 4, or one number for each layer: 4,8,8."),
    click.option(
        "--positions",
        default="none",
        show_default=True,
        help="none, learned, shortformer, rotary or alibi.",
    ),
    click.option(
        "--biases", default="", help="Which biases there are: all, or names such as b_V,b_O."
    ),
    _MLP,
)

_INPUT = (
    click.option("--prompt", help="A text; the model's first token (BOS) is put in front."),
    click.option("--tokens", help="Token ids instead, taken as they are: 1,2,3."),
    _MLP,
)


def input_options(command: CommandT) -> CommandT:
    """The input of a run, one sequence, and what MLPs are in it, as options."""
    for option in reversed(_INPUT):
        command = option(command)
    return command


def run_on(model: str, prompt: str | None, tokens: str | None, mlp: str) -> Run:
    """Load a model, its MLPs as ``mlp`` says, and run it on the input that the options name.

    Raises:
        InputError: for both, neither, or what is no list of ids.
    """
    from otimes import bridge

    if (prompt is None) == (tokens is None):
        raise InputError("give the input as --prompt TEXT or as --tokens 1,2,3")
    loaded = bridge.load(model, mlp=mlp)
    return loaded.run(prompt) if tokens is None else loaded.run(tokens=_token_ids(tokens))


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


def symbolic_options(command: CommandT) -> CommandT:
    """The numbers of a symbolic model, and what MLPs are in that of a checkpoint, as options."""
    for option in reversed(_SYMBOLIC):
        command = option(command)
    return command


def architecture_of(
    layers: int | None,
    heads: str | None,
    positions: str,
    biases: str,
    mlp: str,
    model: str | None = None,
) -> Architecture:
    """The architecture that the options name: that of a model, or of its numbers.

    Raises:
        InputError: for both, neither, or numbers that are none.
    """
    from otimes.algebra import Architecture

    if model is not None:
        if (layers, heads, positions, biases) != (None, None, "none", ""):
            raise InputError("give either a model or the numbers of a symbolic model, not both")
        from otimes.bridge import load

        return load(model, mlp=mlp).architecture
    if layers is None or heads is None:
        raise InputError("give --layers and --heads, or a model")
    if mlp != "source":
        raise InputError(
            f"--mlp {mlp} is for the MLPs of a model: the symbolic model here has none"
        )
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


def listed(terms: TermSum[TermT], limit: int | None, *, only_count: bool) -> list[TermT] | None:
    """The terms to list: the first ``limit``, or all within the usual limit; None for a count.

    Raises:
        LimitError: without a limit, if there are too many.
    """
    if only_count:
        return None
    return terms.terms() if limit is None else list(islice(terms, min(limit, sys.maxsize)))


@contextmanager
def counts_of_any_length() -> Generator[None]:
    """Let Python write integers of any length, which it refuses beyond some thousand digits.

    Only around output: for what is read from files the limit is a protection.
    """
    usual = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(usual)


def terminal() -> Console:
    """A console as wide as the terminal, or 100 columns in a file or a pipe."""
    from rich.console import Console

    wide = not (sys.stdout.isatty() or "COLUMNS" in os.environ)
    return Console(highlight=False, width=100 if wide else None)


def print_json(value: object) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(value, ensure_ascii=False))
