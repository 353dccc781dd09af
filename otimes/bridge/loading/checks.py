"""Checks of canonical tensors that all loaders make."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from otimes.bridge.loading.weights import Slot
from otimes.errors import CheckpointError, UnsupportedError


def check_gates(names: Collection[str], where: str) -> None:
    """Refuse a gate's bias without its matrix, which would be taken for a plain MLP."""
    for name in sorted(name for name in names if name.endswith("mlp.b_gate")):
        gate = name.replace("b_gate", "W_gate")
        if gate not in names:
            raise CheckpointError(
                f"{where} has {name} and no {gate}: add the gate's matrix or remove its bias"
            )


def check_plain(tensor: Tensor, name: str, where: str) -> None:
    """Refuse what is no array of numbers in the processor's memory.

    Raises:
        CheckpointError: it is on another device, or has no numbers.
        UnsupportedError: it is sparse, or of a class that has a meaning of its own.
    """
    if tensor.is_meta:
        raise CheckpointError(
            f"{where}: {name} has no numbers (it is on the meta device): load the module with its "
            "weights"
        )
    if tensor.device.type != "cpu":
        raise CheckpointError(
            f"{where}: {name} is on {tensor.device}, but otimes computes on the processor: move "
            "the module or the tensors there with .cpu()"
        )
    if tensor.layout != torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        raise UnsupportedError(
            f"{where}: {name} is a tensor of the layout {kind}: convert it with .to_dense()"
        )
    if type(tensor.detach()) is not Tensor:
        raise UnsupportedError(
            f"{where}: {name} is a {type(tensor).__name__}, a tensor that other code gives a "
            "meaning: dequantise it or convert it to a plain torch tensor"
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
