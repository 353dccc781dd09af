"""Draw the picture of the README: what `make demo` prints, as an SVG without outside resources.

Run it from the project's root: python docs/picture.py
"""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console

import otimes as ox
from otimes.view.terminal import show_verification

PROMPT = "Captain Peleg stood upon the deck, and the men looked at Captain Pe"


def main() -> None:
    """Write docs/images/verify.svg."""
    console = Console(record=True, width=100, highlight=False)
    run = ox.load("attn-only-2l").run(PROMPT)
    pieces = [run.model.tokenizer.token_text(token) for token in run.tokens[0].tolist()]
    show_verification(console, ox.verify(run), ox.logit_shares(run, top=8), pieces)
    svg = console.export_svg(title="otimes verify attn-only-2l --prompt …")
    # the default fetches fonts from the network: the reader's own monospace font will do
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    out = Path(__file__).parent / "images" / "verify.svg"
    out.parent.mkdir(exist_ok=True)
    out.write_text(svg.replace("Fira Code", "DejaVu Sans Mono"), encoding="utf-8")


if __name__ == "__main__":
    main()
