"""The command line: ``otimes COMMAND``.

Exit status: 0 done, 1 a check did not hold, 2 the input cannot be used; then the last line on
stderr is ``error: …`` and there is no traceback.
"""

from __future__ import annotations

import io
import os
import sys

import click

from otimes.cli.attention import scores
from otimes.cli.attribute import attribute
from otimes.cli.derive import derive
from otimes.cli.expand import expand
from otimes.cli.graph import graph
from otimes.cli.models import models
from otimes.cli.verify import verify
from otimes.errors import OtimesError

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(package_name="otimes", message="otimes %(version)s")
def cli() -> None:
    """The algebra of transformer circuits: derive path expansions, evaluate and prove them.

    Start with `otimes verify attn-only-2l --prompt "The sea was"`.
    """


for _command in (expand, derive, verify, attribute, scores, graph, models):
    cli.add_command(_command)


def main() -> None:
    """Run the command line, turning every expected failure into one line."""
    _write_what_can_be_written()
    try:
        # not cli.main(), which would turn a reader that went away into the status of a failed check
        with cli.make_context("otimes", sys.argv[1:]) as context:
            cli.invoke(context)
        if sys.stdout is not None:
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
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:  # a full disk, for example
        _fail(f"{error.strerror or error}: {error.filename or 'the output cannot be written'}")
    except RecursionError:
        _fail("this is nested too deeply: use fewer layers, or --count")


def _write_what_can_be_written() -> None:
    """Let characters that the terminal does not have, such as ⊗, be replaced instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if stream is sys.stdout else "backslashreplace")


def _fail(message: str, before: str = "") -> None:
    lines = message.split("\n")
    # the last line says what to do; a pointer at a character stands above it
    click.echo(before + "".join(f"{line}\n" for line in lines[1:]) + f"error: {lines[0]}", err=True)
    sys.exit(2)
