"""The parts of the reference module: embeddings, norms, MLPs, the unembedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def empty(*shape: int) -> nn.Parameter:
    """A parameter of this shape."""
    return nn.Parameter(torch.zeros(*shape))


def like(weight: Tensor, x: Tensor) -> Tensor:
    """A weight in the dtype of what it is used with, converted where it is used.

    So a module keeps its parameters as they are stored, and one matrix at a time is converted.
    """
    return weight.to(x.dtype)


def plus(x: Tensor, bias: Tensor | None) -> Tensor:
    """``x`` with a bias, where there is one."""
    return x if bias is None else x + like(bias, x)


class Embed(nn.Module):
    """``W_E [d_vocab, d_model]``."""

    def __init__(self, d_vocab: int, d_model: int) -> None:
        super().__init__()
        self.W_E = empty(d_vocab, d_model)


class PositionEmbed(nn.Module):
    """``W_pos [n_ctx, d_model]``."""

    def __init__(self, n_ctx: int, d_model: int) -> None:
        super().__init__()
        self.W_pos = empty(n_ctx, d_model)


class TypeEmbed(nn.Module):
    """``W_type [types, d_model]``."""

    def __init__(self, n_types: int, d_model: int) -> None:
        super().__init__()
        self.W_type = empty(n_types, d_model)


class Unembed(nn.Module):
    """``W_U [d_model, d_vocab]`` unless it is tied and, where it exists, ``b_U [d_vocab]``."""

    def __init__(self, d_model: int, d_vocab: int, *, bias: bool, tied: bool) -> None:
        super().__init__()
        if not tied:
            self.W_U = empty(d_model, d_vocab)
        self.b_U = empty(d_vocab) if bias else None


class Norm(nn.Module):
    """LayerNorm or RMSNorm over ``axes`` of its input, with gain ``w`` and maybe bias ``b``.

    ``x / σ · w + b``; LayerNorm takes the mean from x first; ``σ = sqrt(mean(x²) + eps)``.
    """

    def __init__(
        self,
        kind: str,
        eps: float,
        shape: tuple[int, ...],
        *,
        bias: bool = False,
        axes: tuple[int, ...] = (-1,),
    ) -> None:
        super().__init__()
        if kind not in ("layer", "rms"):
            raise NotImplementedError(f"this reference has no {kind!r} norm")
        self.kind, self.eps, self.axes = kind, eps, axes
        self.w = empty(*shape)
        self.b = empty(shape[-1]) if bias else None

    def scaled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input centred and divided by σ, and 1/σ with the normed axes kept."""
        if self.kind == "layer":
            x = x - x.mean(self.axes, keepdim=True)
        scale = 1 / (x.square().mean(self.axes, keepdim=True) + self.eps).sqrt()
        return x * scale, scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normed input and 1/σ ``[batch, pos]``."""
        normed, scale = self.scaled(x)
        return plus(normed * like(self.w, x), self.b), scale.squeeze(-1)


@dataclass(frozen=True)
class Fired:
    """What an MLP did.

    ``preactivation [batch, pos, d_mlp]``: what ``W_in`` reads, its bias added; ``gate``: the same
    of ``W_gate``, before the activation; ``neurons``: what ``W_out`` multiplies; ``output [batch,
    pos, d_model]``, its bias added.
    """

    preactivation: Tensor
    gate: Tensor | None
    neurons: Tensor
    output: Tensor


class MLP(nn.Module):
    """The MLP of one layer; ``tensors`` names the optional tensors that exist: gate and biases."""

    def __init__(self, config: dict[str, Any], tensors: frozenset[str]) -> None:
        super().__init__()
        d_model, d_mlp = config["d_model"], config["d_mlp"]
        self.W_in = empty(d_model, d_mlp)
        self.W_out = empty(d_mlp, d_model)
        self.W_gate = empty(d_model, d_mlp) if "W_gate" in tensors else None
        self.b_in = empty(d_mlp) if "b_in" in tensors else None
        self.b_gate = empty(d_mlp) if "b_gate" in tensors else None
        self.b_out = empty(d_model) if "b_out" in tensors else None
        self.activation = ACTIVATIONS[config["activation"]]

    def forward(self, x: Tensor) -> Fired:
        """Run it on what it reads, ``[batch, pos, d_model]``."""
        z = plus(x @ like(self.W_in, x), self.b_in)
        gate = None
        if self.W_gate is None:
            neurons = self.activation(z)
        else:
            gate = plus(x @ like(self.W_gate, x), self.b_gate)
            neurons = self.activation(gate) * z
        return Fired(z, gate, neurons, plus(neurons @ like(self.W_out, x), self.b_out))
