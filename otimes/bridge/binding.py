"""Where symbols meet tensors: the one file in which the paper's convention and the layout meet.

The algebra writes matrices that act on columns; tensors are stored to be multiplied from the
right. So a symbol is bound to the transpose of its tensor: ``W_V[l.kvg]`` to ``W_V[g].T``
(``W_V[l.h]`` names the same matrix by a query head that uses it), ``W_E`` to ``W_E.T``,
``W_OV[l.h]`` to ``(W_V[g] W_O[h]).T``; and ``(A ⊗ W) x = A x W^T`` for ``x``
stored ``[batch, pos, space]``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from otimes.algebra import (
    Expr,
    Factor,
    Identity,
    PathSum,
    PathTerm,
    Product,
    Scaled,
    Sum,
    Transpose,
)
from otimes.algebra import (
    Tensor as TensorProduct,
)
from otimes.algebra.architecture import TOKENS
from otimes.algebra.types import D_HEAD, D_MODEL, N_CTX, ONE, POS, VOCAB, Type, unify
from otimes.bridge.loading import Config
from otimes.bridge.model import Model
from otimes.errors import TypeMismatchError, UnknownComponentError, UnsupportedError
from otimes.models.reference import Recording
from otimes.numeric.frozen import FrozenBlock, FrozenHeads, FrozenModel, FrozenSource
from otimes.numeric.paths import Components
from otimes.numeric.scores import FrozenReader
from otimes.numeric.states import StateTables

_ONCE, _LAYER, _HEAD = "", r"\d+", r"\d+\.\d+"
_READS = r"\d+\.(?:kv)?\d+"
# label, and (codomain, domain), of every symbol
_SYMBOLS = {
    "A": (_HEAD, (POS, POS)),
    "W_E": (_ONCE, (D_MODEL, VOCAB)),
    "W_pos": (_ONCE, (D_MODEL, N_CTX)),
    "W_U": (_ONCE, (VOCAB, D_MODEL)),
    "b_U": (_ONCE, (VOCAB, ONE)),
    "b_O": (_LAYER, (D_MODEL, ONE)),
    "W_OV": (_HEAD, (D_MODEL, D_MODEL)),
    "W_O": (_HEAD, (D_MODEL, D_HEAD)),
    "W_Q": (_HEAD, (D_HEAD, D_MODEL)),
    "b_Q": (_HEAD, (D_HEAD, ONE)),
    **dict.fromkeys(("W_K", "W_V"), (_READS, (D_HEAD, D_MODEL))),
    **dict.fromkeys(("b_K", "b_V"), (_READS, (D_HEAD, ONE))),
}


_OPERATOR = Type.of((POS, POS), (VOCAB, VOCAB))
_VECTOR = Type.of((POS, ONE), (VOCAB, ONE))


@dataclass(frozen=True)
class Frozen:
    """The frozen model, how each layer's scores read the stream, and what was used for both.

    ``used`` counts how often each tensor of the file was taken: the parameter audit.
    """

    model: FrozenModel
    readers: tuple[FrozenReader, ...]
    used: Counter[str]


def numbered(term: PathTerm) -> tuple[int, Components]:
    """A term as integers: the number of its source, and (block, component) pairs."""
    architecture = term.architecture
    locate = architecture.language.grid.locate
    return architecture.sources.index(term.source), tuple(map(locate, term.components))


def state_tables(paths: PathSum) -> StateTables:
    """The automaton of a set of paths as integers."""
    tables = paths.automaton.tables()
    return StateTables(tables.member, tables.move, tables.skip, tables.entry, tables.start)


def freeze(
    model: Model, tokens: Tensor, position_ids: Tensor, recording: Recording, dtype: torch.dtype
) -> Frozen:
    """Build the frozen model in ``dtype`` from the weights and a recording's patterns.

    Raises:
        UnsupportedError: for a model that has more than plain attention heads; it names what.
    """
    _refuse_unfreezable(model.config)
    used, tensors = Counter[str](), model.weights.tensors()
    config, biases = model.config, model.architecture.biases

    def take(name: str) -> Tensor:
        if name not in tensors:
            raise UnknownComponentError(f"the checkpoint has no tensor {name!r}", name)
        used[name] += 1
        return tensors[name].to(dtype)

    def bias(name: str, layer: int) -> Tensor | None:
        return take(f"blocks.{layer}.attn.{name}") if f"{name}[{layer}]" in biases else None

    batch, length = tokens.shape
    embedded = take("embed.W_E")[tokens]
    positions = None
    if config.positions != "none":
        positions = take("pos_embed.W_pos")[position_ids]
    blocks, readers = list[FrozenBlock](), list[FrozenReader]()
    output_biases = list[Tensor | None]()
    for layer, pattern in enumerate(recording.patterns):
        W_Q, W_K, W_V, W_O = (
            take(f"blocks.{layer}.attn.{name}") for name in ("W_Q", "W_K", "W_V", "W_O")
        )
        blocks.append(FrozenBlock(FrozenHeads(pattern, W_V, W_O, bias("b_V", layer))))
        output_biases.append(bias("b_O", layer))
        readers.append(
            FrozenReader(
                W_Q,
                W_K,
                bias("b_Q", layer),
                bias("b_K", layer),
                positions if config.positions == "shortformer" else None,
                config.attention_scale,
            )
        )
    W_U, b_U = take("unembed.W_U"), take("unembed.b_U") if "b_U" in biases else None
    sources = list[FrozenSource]()
    for source in model.architecture.sources:
        stream = None
        if source.name == "embed":
            stream = embedded
        elif source.name == "pos":
            stream = positions
        elif source.name.endswith(".attn]"):
            b_O = output_biases[source.entry - 1]
            stream = None if b_O is None else b_O[None, None, :]
        if stream is not None:
            sources.append(FrozenSource.of(source.entry, stream))
        else:
            sources.append(FrozenSource(source.entry, (), source.head, source.joins))
    frozen = FrozenModel(tuple(blocks), tuple(sources), W_U, b_U, batch, length)
    return Frozen(frozen, tuple(readers), used)


_PLAIN = ("none", "learned", "shortformer")
_NOT_FROZEN = {
    "norm": "norms", "d_mlp": "MLPs", "embed_multiplier": "an embedding multiplier",
    "residual_multiplier": "a residual multiplier", "logits_multiplier": "a logits multiplier",
    "attention_softcap": "an attention soft-cap", "logits_softcap": "a logits soft-cap",
    "windows": "sliding windows", "n_token_types": "token types",
}  # fmt: skip


def _refuse_unfreezable(config: Config) -> None:
    found = [name for field, name in _NOT_FROZEN.items() if getattr(config, field) is not None]
    if config.positions not in _PLAIN:
        found.insert(0, f"{config.positions} positions")
    if found:
        raise UnsupportedError(
            f"this model has {', '.join(found)}: it can be loaded and run, but this release cannot "
            "hold that fixed and add up its paths yet; it can for attention-only models without "
            f"norms whose positions are {', '.join(_PLAIN)}"
        )


class Binding:
    """The tensors of a run's symbols, and the value of expressions over them, in float64."""

    def __init__(
        self, model: Model, tokens: Tensor, position_ids: Tensor, recording: Recording
    ) -> None:
        """Bind a model's symbols to its weights and a recording's patterns."""
        self.weights = model.weights
        self.config = model.config
        self.architecture = model.architecture
        self.tokens = tokens
        self.position_ids = position_ids
        self.recording = recording

    def matrix(self, factor: Factor) -> Tensor:
        """The matrix of a symbol: ``[codomain, domain]``, patterns ``[batch, dest, src]``."""
        numbers = self._numbers(factor)
        match factor.name, *numbers:
            case "A", layer, head:
                return self.recording.patterns[layer][:, head]
            case (("W_E" | "W_pos" | "W_U"), *_):
                return self._double(getattr(self.weights, factor.name), factor).T
            case "b_U", *_:
                return self._double(self.weights.b_U, factor)[:, None]
            case "b_O", layer:
                return self._double(self.weights.layers[layer].b_O, factor)[:, None]
            case "W_OV", layer, head:
                return self._head("W_O", layer, head, factor) @ self._head(
                    "W_V", layer, head, factor
                )
            case name, layer, head:
                return self._head(name, layer, head, factor)
            case _:
                raise UnknownComponentError(f"{factor} is no symbol of this model", str(factor))

    def _numbers(self, factor: Factor) -> tuple[int, ...]:
        """The layer and head of a symbol's label, checked together with its type."""
        known = _SYMBOLS.get(factor.name)
        if known is None or factor.type != Type.of(known[1]):
            raise UnknownComponentError(f"{factor} is no symbol of this model", str(factor))
        if re.fullmatch(known[0], factor.label) is None:
            raise UnknownComponentError(
                f"{factor} is no symbol of this model: its label is {factor.label!r}", str(factor)
            )
        layer, _, kv_head = factor.label.partition(".kv")
        if kv_head:
            return int(layer), self._first_reader(int(layer), int(kv_head), factor)
        numbers = tuple(int(part) for part in factor.label.split(".") if part)
        if numbers:
            self.architecture.check_head((numbers[0], numbers[1] if len(numbers) > 1 else 0))
        return numbers

    def _first_reader(self, layer: int, kv_head: int, factor: Factor) -> int:
        """The first query head that uses a key-value head."""
        heads, shared = self.config.n_heads, self.config.n_kv_heads
        self.architecture.check_head((layer, 0))
        if shared == heads or kv_head >= shared:
            what = "no shared key-value heads" if shared == heads else f"kv0 to kv{shared - 1}"
            raise UnknownComponentError(
                f"{factor} is no symbol of this model: layer {layer} has {what}", str(factor)
            )
        return kv_head * (heads // shared)

    def _head(self, name: str, layer: int, head: int, factor: Factor) -> Tensor:
        tensor = getattr(self.weights.layers[layer], name)
        group = self.config.n_heads // self.config.n_kv_heads if name[-1] in "KV" else 1
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
            return functional.one_hot(self.position_ids, self.config.n_ctx).double()
        if factor.name == "ones":
            return torch.ones(*self.tokens.shape, 1, dtype=torch.float64)
        raise UnknownComponentError(f"{factor} is no input of this model", str(factor))

    def evaluate(self, expr: Expr) -> Tensor:
        """The value of an expression: an operator is applied to the one-hot tokens.

        Returns:
            ``[batch, pos, d_vocab]``.

        Raises:
            TypeMismatchError: for an expression that does not end in the logits.
            UnknownComponentError: for a symbol that the model does not have.
        """
        if all(unify(expr.type, whole) != whole for whole in (_OPERATOR, _VECTOR)):
            raise TypeMismatchError(
                f"to evaluate, give an expression from the tokens to the logits, of the type "
                f"{_OPERATOR} or {_VECTOR}; {expr} is {expr.type}",
                expr.type,
                _OPERATOR,
            )
        closed = unify(expr.type, _VECTOR) == _VECTOR
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
