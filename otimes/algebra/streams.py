"""The forward pass as the paper writes it: heads and norms as symbols, and the stream ``x[l]``.

The logits of an architecture are written with ``A ⊗ W_OV`` and nested as the layers are. Here the
same expression is read the other way: what stands behind the unembedding is the stream after the
last layer, and each stream is a block applied to the one before.

>>> from otimes.algebra import Architecture
>>> start, streams = name_streams(name_heads(Architecture(layers=2, heads=1).logits.expression))
>>> print(start)
(Id ⊗ W_U) x[2]
>>> for symbol, meaning in streams.items():
...     print(symbol, "=", meaning)
x[2] = (Id + h[1.0]) x[1]
x[1] = (Id + h[0.0]) x[0]
x[0] = Id ⊗ W_E
"""

from __future__ import annotations

from otimes.algebra.definitions import ov_circuit, shared
from otimes.algebra.expressions import Expr, Factor, Id, Product, Sum, Tensor, pattern, tensor
from otimes.algebra.kinds import head
from otimes.algebra.places import everywhere
from otimes.algebra.rules import FoldNorm
from otimes.algebra.rules.base import product
from otimes.algebra.types import D_MODEL, POS, Type


def name_heads(expr: Expr) -> Expr:
    """The expression with ``h`` for each ``A ⊗ W_OV`` of one head and ``N`` for each ``D ⊗ Γ``."""
    return everywhere(FoldNorm(), _name_heads(expr))


def _name_heads(expr: Expr) -> Expr:
    if isinstance(expr, Tensor) and isinstance(expr.args[0], Factor):
        label, circuit = expr.args[0].label, expr.args[1]
        group = circuit.group if isinstance(circuit, Factor) else ""
        if label and expr == tensor(pattern("A", label=label), shared(ov_circuit(label), group)):
            return shared(head(label), group)
    return expr.with_children(*map(_name_heads, expr.children))


def name_streams(expr: Expr) -> tuple[Expr, dict[Factor, Expr]]:
    """The expression in terms of the last stream, and what each stream is, the last first."""
    counting = _Namer(0)
    counting.top(expr)
    # the first stream that is met is the last of the model, so numbers need the count beforehand
    namer = _Namer(len(counting.found))
    return namer.top(expr), namer.found


class _Namer:
    def __init__(self, count: int) -> None:
        self.count = count
        self.found = dict[Factor, Expr]()

    def top(self, expr: Expr) -> Expr:
        """The logits: whatever stands before the stream, and constants beside it."""
        if isinstance(expr, Sum) and not _is_block(expr):
            return Sum(*map(self.top, expr.args))
        if isinstance(expr, Product):
            for cut, arg in enumerate(expr.args):
                if _is_block(arg) or not _from_stream(arg):
                    if cut and _to_stream(arg):
                        return product([*expr.args[:cut], self.named(product(expr.args[cut:]))])
                    break
        return expr

    def named(self, stream: Expr) -> Factor:
        """A symbol for a stream; those inside it are named after it."""
        number = self.count - 1 - len(self.found)
        symbol = Factor("x", _closed(stream.type), str(abs(number)))
        self.found[symbol] = stream
        self.found[symbol] = self.inside(stream)
        return symbol

    def inside(self, expr: Expr) -> Expr:
        """A stream as a block of the one before, with what is written beside it."""
        if isinstance(expr, Sum) and not _is_block(expr):
            return Sum(*map(self.inside, expr.args))
        if not isinstance(expr, Product):
            return expr
        for cut, arg in enumerate(expr.args):
            if _is_block(arg):
                return product([*expr.args[: cut + 1], self.named(product(expr.args[cut + 1 :]))])
            if _holds_block(arg):
                return product([*expr.args[:cut], self.named(product(expr.args[cut:]))])
        return expr


def _is_block(expr: Expr) -> bool:
    return isinstance(expr, Sum) and Id in expr.args


def _holds_block(expr: Expr) -> bool:
    return _is_block(expr) or any(map(_holds_block, expr.children))


def _ends(expr: Expr, side: int) -> str | None:
    slot = (expr.type.slots or (None,))[-1]
    return None if slot is None else slot[side]


def _from_stream(expr: Expr) -> bool:
    return _ends(expr, 1) in (None, D_MODEL)


def _to_stream(expr: Expr) -> bool:
    return _ends(expr, 0) in (None, D_MODEL)


def _closed(type_: Type) -> Type:
    return Type(tuple(slot or (POS, POS) for slot in type_.slots or ()))
