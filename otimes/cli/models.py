"""``otimes models``: the checkpoints that ship."""

from __future__ import annotations

import click

from otimes.cli.options import json_option, print_json, terminal
from otimes.models import shipped


@click.command()
@json_option
def models(as_json: bool) -> None:
    """List the checkpoints that ship, with what they are and how they were trained."""
    cards = shipped()
    if as_json:
        print_json({"models": cards})
        return
    from otimes.view.terminal import show_models

    show_models(terminal(), cards)
