"""The checkpoints that ship, the script that trained them, and the module that judges."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any


def folder(name: str) -> Path:
    """The folder of a shipped checkpoint."""
    return Path(str(files(__name__))) / name


def shipped() -> list[dict[str, Any]]:
    """The cards of the checkpoints that ship: name, path, data, recipe, losses, head scores."""
    cards = list[dict[str, Any]]()
    for path in sorted(folder("").glob("*/card.json")):
        card = json.loads(path.read_text(encoding="utf-8"))
        cards.append({"name": card["name"], "path": str(path.parent), **card})
    return cards
