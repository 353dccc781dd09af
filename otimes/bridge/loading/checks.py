"""Checks of canonical tensors that all loaders make."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from otimes.bridge.loading.weights import Slot
from otimes.errors import CheckpointError


def check_gates(names: Collection[str], where: str) -> None:
    """Refuse a gate's bias without its matrix, which would be taken for a plain MLP."""
    for name in sorted(name for name in names if name.endswith("mlp.b_gate")):
        gate = name.replace("b_gate", "W_gate")
        if gate not in names:
            raise CheckpointError(
                f"{where} has {name} and no {gate}: add the gate's matrix or remove its bias"
            )


def check_finite(tensor: Tensor, slot: Slot, where: str) -> None:
    """Refuse NaN and infinities, naming the first."""
    # extremes carry NaN and infinities and need no array of the tensor's size
    smallest, largest = torch.aminmax(tensor)
    if bool(torch.isfinite(smallest)) and bool(torch.isfinite(largest)):
        return
    bad = ~torch.isfinite(tensor)
    index = [int(i) for i in bad.nonzero()[0]]
    value = float(tensor[tuple(index)])
    kind = "NaN" if math.isnan(value) else "infinite"
    count = int(bad.sum())
    raise CheckpointError(
        f"{where}: {slot.name} is {kind} at {index} ({', '.join(slot.axes)}), "
        f"{count:,} of its {tensor.numel():,} values are not finite: the weights are damaged or "
        "the training diverged, use another checkpoint"
    )
