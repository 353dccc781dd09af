"""The smallest mistake that a certificate sees, found by bisection on the shipped models.

    python -m benchmarks.smallest_perturbation

The engine is given one thing that is wrong by a relative change of ``2^-n``: the output matrix of
one head, which changes every path through it, or the value of one path alone. Printed is the
smallest change with which ``verify`` fails, where every larger power of two fails as well, and the
first check that fails. The judge is left as it is. The identity compares the engine with itself
modulo a prime and cannot see a wrong weight, so it is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

import otimes as ox
from otimes.bridge import Run
from otimes.bridge.binding import numbered
from otimes.bridge.freezing import Frozen
from otimes.numeric import traces
from otimes.numeric.frozen import Stream
from otimes.numeric.paths import Components, PrefixStack

MODELS = ("attn-only-1l", "attn-only-2l", "attn-only-2l-natural")
DTYPES = ("float64", "float32")
PROMPT = "Captain Peleg stood upon the deck"


class WrongHead(Run):
    """A recorded run whose engine has the output matrix of the last layer's head 0 too large."""

    def __init__(self, run: Run, change: float) -> None:
        super().__init__(run.model, run.model.prompt(tokens=run.tokens))
        self.change = change

    def frozen(self, dtype: torch.dtype = torch.float64) -> Frozen:
        frozen = super().frozen(dtype)
        block = frozen.model.blocks[-1]
        assert block.attention is not None
        W_O = block.attention.W_O.clone()
        W_O[0] *= 1 + self.change
        block = replace(block, attention=replace(block.attention, W_O=W_O))
        model = replace(frozen.model, blocks=(*frozen.model.blocks[:-1], block))
        return replace(frozen, model=model)


def wrong_head(run: Run, dtype: str, change: float) -> tuple[str, ...]:
    """Why the certificate fails where a head is wrong."""
    return ox.verify(WrongHead(run, change), dtype=dtype, primes=0).reasons


def wrong_path(run: Run, dtype: str, change: float) -> tuple[str, ...]:
    """Why the certificate fails where the path through head 0 of every layer is wrong."""
    heads = " > ".join(f"{layer}.0" for layer in range(run.model.config.n_layers))
    path = numbered(run.model.architecture.logits.expand()[f"embed > {heads}"])

    class WrongPath(PrefixStack):
        def stream(self, source: int, components: Components) -> Stream | None:
            found = super().stream(source, components)
            return found if found is None or (source, components) != path else found * (1 + change)

    right = traces.PrefixStack
    traces.PrefixStack = WrongPath
    try:
        return ox.verify(run, dtype=dtype, primes=0).reasons
    finally:
        traces.PrefixStack = right


def smallest(fails: Callable[[float], tuple[str, ...]]) -> tuple[float, str]:
    """Bisect over powers of two; the change that is seen, and the first reason's check."""
    seen, unseen = 0, 60
    reasons = fails(1.0)
    assert reasons, "a change of the whole value is not seen"
    assert not fails(2.0**-unseen), "the right engine fails"
    while unseen - seen > 1:
        middle = (seen + unseen) // 2
        found = fails(2.0**-middle)
        if found:
            seen, reasons = middle, found
        else:
            unseen = middle
    return 2.0**-seen, reasons[0].partition(":")[0]


def main() -> None:
    """Print the table."""
    print("| model | number | what is wrong | smallest change seen | by |")
    print("| --- | --- | --- | ---: | --- |")
    for name in MODELS:
        run = ox.load(name).run(PROMPT)
        for dtype in DTYPES:
            for what, wrong in (("a head's `W_O`", wrong_head), ("one path", wrong_path)):
                change, check = smallest(partial(wrong, run, dtype))
                row = f"| `{name}` | {dtype} | {what} | {change:.1e} | {check} |"
                print(row, flush=True)


if __name__ == "__main__":
    main()
