"""Where symbols meet tensors: the one file in which the paper's convention and the layout meet.

The algebra writes matrices that act on columns; tensors are stored to be multiplied from the
right. So a symbol is bound to the transpose of its tensor: ``W_V[l.h]`` to ``W_V[g].T``,
``W_E`` to ``W_E.T``, ``W_OV[l.h]`` to ``(W_V[g] W_O[h]).T``; and ``(A ⊗ W) x = A x W^T`` for ``x``
stored ``[batch, pos, space]``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from otimes.algebra import (
    Expr,
    Factor,
    Identity,
    PathTerm,
    Product,
    Scaled,
    Sum,
    Tensor as TensorProduct,
    Transpose,
)
from otimes.algebra.architecture import TOKENS
from otimes.bridge.model import Model
from otimes.errors import UnknownComponentError, UnsupportedError
from otimes.models.reference import Recording
from otimes.numeric.frozen import FrozenBlock, FrozenModel, FrozenSource
from otimes.numeric.paths import Heads
from otimes.numeric.scores import FrozenReader


@dataclass(frozen=True)
class Frozen:
    """The frozen model, how each layer's scores read the stream, and what was used for both.

    ``used`` counts how often each tensor of the file was taken: the parameter audit.
    """

    model: FrozenModel
    readers: tuple[FrozenReader, ...]
    used: Counter[str]


def numbered(term: PathTerm) -> tuple[int, Heads]:
    """A term as integers: the number of its source, and (layer, head) pairs."""
    return term.architecture.sources.index(term.source), term.heads


def freeze(model: Model, tokens: Tensor, recording: Recording, dtype: torch.dtype) -> Frozen:
    """Build the frozen model in ``dtype`` from the weights and a recording's patterns."""
    used, tensors = Counter[str](), model.weights.tensors()

    def take(name: str) -> Tensor | None:
        if name not in tensors:
            return None
        used[name] += 1
        return tensors[name].to(dtype)

    def need(name: str) -> Tensor:
        tensor = take(name)
        if tensor is None:
            raise UnknownComponentError(f"the checkpoint has no tensor {name!r}", name)
        return tensor

    batch, length = tokens.shape
    W_pos = take("pos_embed.W_pos")
    positions = None if W_pos is None else W_pos[recording.positions]
    shortformer = model.config.positions == "shortformer"
    embedded = need("embed.W_E")[tokens]
    blocks, readers = list[FrozenBlock](), list[FrozenReader]()
    output_biases = list[Tensor | None]()
    for layer, pattern in enumerate(recording.patterns):
        name = f"blocks.{layer}.attn."
        blocks.append(
            FrozenBlock(pattern, need(name + "W_V"), need(name + "W_O"), take(name + "b_V"))
        )
        output_biases.append(take(name + "b_O"))
        readers.append(
            FrozenReader(
                need(name + "W_Q"),
                need(name + "W_K"),
                take(name + "b_Q"),
                take(name + "b_K"),
                positions if shortformer else None,
                model.config.attention_scale,
            )
        )
    W_U, b_U = need("unembed.W_U"), take("unembed.b_U")
    sources = list[FrozenSource]()
    for source in model.architecture.sources:
        stream = None
        if source.name == "embed":
            stream = embedded
        elif source.name == "pos":
            stream = positions
        elif source.name.endswith(".attn]"):
            bias = output_biases[source.entry - 1]
            stream = None if bias is None else bias[None, None, :]
        sources.append(FrozenSource(source.entry, stream, source.head))
    frozen = FrozenModel(tuple(blocks), tuple(sources), W_U, b_U, batch, length)
    return Frozen(frozen, tuple(readers), used)


class Binding:
    """The tensors of a run's symbols, and the value of expressions over them, in float64."""

    def __init__(self, model: Model, tokens: Tensor, recording: Recording) -> None:
        """Bind a model's symbols to its weights and a recording's patterns."""
        self.weights = model.weights
        self.config = model.config
        self.tokens = tokens
        self.recording = recording

    def matrix(self, factor: Factor) -> Tensor:
        """The matrix of a symbol: ``[codomain, domain]``, patterns ``[batch, dest, src]``."""
        layer, _, head = factor.label.partition(".")
        match factor.name, bool(layer), bool(head):
            case "A", True, True:
                return self.recording.patterns[int(layer)][:, int(head)]
            case ("W_E" | "W_pos" | "W_U"), False, _:
                tensor = getattr(self.weights, factor.name)
                return self._double(tensor, factor).T
            case "b_U", False, _:
                return self._double(self.weights.b_U, factor)[:, None]
            case "b_O", True, False:
                return self._double(self.weights.layers[int(layer)].b_O, factor)[:, None]
            case ("W_Q" | "W_K" | "W_V" | "W_O" | "b_Q" | "b_K" | "b_V"), True, True:
                return self._head(factor, int(layer), int(head))
            case "W_OV", True, True:
                written, read = (
                    self._head(Factor(name, factor.type, factor.label), int(layer), int(head))
                    for name in ("W_O", "W_V")
                )
                return written @ read
            case _:
                raise UnknownComponentError(f"{factor} is no symbol of this model", str(factor))

    def _head(self, factor: Factor, layer: int, head: int) -> Tensor:
        tensor = getattr(self.weights.layers[layer], factor.name)
        grouped = factor.name[-1] in "KV"
        group = self.config.n_heads // self.config.n_kv_heads if grouped else 1
        found = self._double(tensor, factor)[head // group]
        return found[:, None] if found.ndim == 1 else found.T

    def _double(self, tensor: Tensor | None, factor: Factor) -> Tensor:
        if tensor is None:
            raise UnknownComponentError(f"the checkpoint has no {factor}", str(factor))
        return tensor.double()

    def vector(self, factor: Factor) -> Tensor:
        """An input vector: one-hot tokens ``t``, one-hot positions ``p``, or ``ones``."""
        if factor.name == "t":
            return functional.one_hot(self.tokens, self.config.d_vocab).double()
        if factor.name == "p":
            return functional.one_hot(self.recording.positions, self.config.n_ctx).double()
        if factor.name == "ones":
            return torch.ones(*self.tokens.shape, 1, dtype=torch.float64)
        raise UnknownComponentError(f"{factor} is no input of this model", str(factor))

    def evaluate(self, expr: Expr) -> Tensor:
        """The value of an expression: an operator is applied to the one-hot tokens.

        Returns:
            ``[batch, pos, d_vocab]`` for one that ends in the vocabulary.
        """
        slots = expr.type.slots
        closed = slots is not None and all(slot is not None and slot[1] == "1" for slot in slots)
        return self._apply(expr, None if closed else self.vector(TOKENS))

    def _apply(self, expr: Expr, x: Tensor | None) -> Tensor:
        """An expression applied to ``x``, or its own value where it begins with an input."""
        match expr:
            case Factor():
                return self.vector(expr)
            case Sum():
                parts = [self._apply(arg, x) for arg in expr.args]
                return sum(parts[1:], parts[0])
            case Product():
                for arg in reversed(expr.args):
                    x = self._apply(arg, x)
                assert x is not None
                return x
            case Scaled():
                return float(expr.coefficient) * self._apply(expr.arg, x)
            case Identity() if x is not None:
                return x
            case TensorProduct() if x is not None and len(expr.args) == 2:
                pattern, weight = map(self._slot, expr.args)
                x = x if weight is None else x @ weight.T
                return x if pattern is None else pattern @ x
            case _:
                raise UnsupportedError(f"cannot evaluate {expr} on a run")

    def _slot(self, expr: Expr) -> Tensor | None:
        """The matrix of an expression between single spaces; None is the identity."""
        match expr:
            case Identity():
                return None
            case Factor():
                return self.matrix(expr)
            case Product():
                found: Tensor | None = None
                for arg in expr.args:
                    matrix = self._slot(arg)
                    if matrix is not None:
                        found = matrix if found is None else found @ matrix
                return found
            case Transpose():
                matrix = self._slot(expr.arg)
                return None if matrix is None else matrix.transpose(-1, -2)
            case _:
                raise UnsupportedError(f"cannot evaluate {expr} in one slot of a tensor product")
