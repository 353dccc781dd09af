"""What a verification takes, said before the work."""

from __future__ import annotations

from itertools import accumulate

import torch

from otimes.bridge.run import Run
from otimes.errors import LimitError
from otimes.models.reference import Recording

VERIFICATION_BUDGET = 8 * 2**30
"""Bytes that the streams of a verification may take."""

# for each step: streams as pairs of floats with their errors, magnitudes, deviations, bounds and
# distances, of both sides
_STREAMS_OF_A_STEP = 24


def verification_bytes(
    run: Run, paths: int | None, dtype: torch.dtype, *, large: bool = False
) -> int:
    """What the streams of a verification take.

    Args:
        run: what is verified.
        paths: so many paths are added up one by one; None: all, by order.
        dtype: what both sides compute in.
        large: named logits are checked, so that orders are no parts of their own.
    """
    architecture, (batch, length) = run.model.architecture, run.tokens.shape
    blocks = architecture.blocks
    place = batch * length * run.model.config.d_model
    if paths is None and large:
        parts = 2 * (len(blocks) + 1)
    elif paths is None:
        parts = sum(accumulate((int(block.heads > 0) for block in blocks), initial=1))
    else:
        # what passes a norm behind the addition is another stream behind each block
        parts = paths * (len(blocks) if run.model.config.norm_placement == "post" else 1)
    return place * (parts * dtype.itemsize + 8 * _STREAMS_OF_A_STEP * (len(blocks) + 1))


def recording_to_verify(
    run: Run, paths: int | None, dtype: torch.dtype, *, large: bool = False
) -> Recording:
    """What the judge did in ``dtype``; a verification that would take too much is refused before.

    Raises:
        LimitError: it says how much, and what to do.
    """
    size = verification_bytes(run, paths, dtype, large=large)
    if size > VERIFICATION_BUDGET:
        batch, length = run.tokens.shape
        raise LimitError(
            f"verifying {batch} × {length:,} tokens would take {size / 2**30:.3g} GiB, more than "
            f"the budget of {VERIFICATION_BUDGET / 2**30:.3g} GiB: give fewer tokens, or fewer "
            "sequences at once, or set otimes.bridge.memory.VERIFICATION_BUDGET to more bytes",
            size,
            VERIFICATION_BUDGET,
        )
    return run.recording(dtype)
