"""What a model reads on the command line: a prompt or token ids, as options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from otimes.cli.options import CommandT
from otimes.errors import InputError

if TYPE_CHECKING:
    from otimes.bridge import Run

_INPUT = (
    click.option("--prompt", help="A text; the model's first token (BOS) is put in front."),
    click.option("--tokens", help="Token ids instead, taken as they are: 1,2,3."),
)


def input_options(command: CommandT) -> CommandT:
    """``--prompt`` and ``--tokens``."""
    for option in reversed(_INPUT):
        command = option(command)
    return command


def recorded_run(model: str, prompt: str | None, tokens: str | None) -> Run:
    """Load a model and run it on what the options say.

    Raises:
        InputError: without an input, with two, or for ids that are none.
    """
    from otimes import bridge

    if (prompt is None) == (tokens is None):
        raise InputError("give the input as --prompt TEXT or as --tokens 1,2,3")
    ids = None if tokens is None else token_ids(tokens)
    loaded = bridge.load(model)
    return loaded.run(prompt) if ids is None else loaded.run(tokens=ids)


def token_ids(text: str) -> list[int]:
    """The ids of ``1,2,3``.

    Raises:
        InputError: for what is no id; it says at which place.
    """
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
