"""What symbols stand for: the matrices of a head, the head itself, a frozen norm.

============  ===========================================  =====================================
symbol        definition                                   source
============  ===========================================  =====================================
``W_OV``      ``W_O W_V``                                  Elhage et al. 2021, "Splitting
                                                           Attention Head terms into Circuits"
``W_QK``      ``W_Qᵀ W_K``                                 the same
``h``         ``(Id ⊗ W_O)(A ⊗ Id)(Id ⊗ W_V)``             the same, "Attention Heads as
                                                           Information Movement"
``N``         ``D ⊗ Γ``, ``D = diag(1/σ_pos)`` recorded    a norm with its scales held fixed
============  ===========================================  =====================================

The label is that of the symbol: ``W_OV[1.4] = W_O[1.4] W_V[1.4]``. Where query heads share a
key-value head, their symbols know which: ``W_OV[1.4] = W_O[1.4] W_V[1.kv2]``. Any other symbol is
free, unless a derivation brings a definition of its own, such as that of the stream ``x[1]``.

>>> from otimes.algebra.architecture import ov
>>> print(definition(ov((1, 4))))
W_O[1.4] W_V[1.4]
>>> print(definition(ov((1, 4), 2)))
W_O[1.4] W_V[1.kv2]
>>> from otimes.algebra.kinds import head
>>> print(definition(head("1.4")))
(Id ⊗ W_O[1.4])(A[1.4] ⊗ Id)(Id ⊗ W_V[1.4])
>>> definition(weight("W_E", "d_model", "vocab")) is None
True
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from otimes.algebra.expressions import Expr, Factor, Id, Product, Transpose, pattern, tensor, weight
from otimes.algebra.kinds import diagonal, grouped, head, norm
from otimes.algebra.types import D_HEAD, D_MODEL
from otimes.errors import TypeMismatchError

Definitions = Mapping[Factor, Expr]
"""Symbols and what they stand for, beside the built-in ones."""

NONE: Final[Definitions] = MappingProxyType({})


def write(label: str) -> Factor:
    """``W_O: d_model <- d_head`` of a head."""
    return weight("W_O", D_MODEL, D_HEAD, label=label)


def read(which: str, label: str) -> Factor:
    """``W_Q``, ``W_K`` or ``W_V``: ``d_head <- d_model`` of a head."""
    return weight(f"W_{which}", D_HEAD, D_MODEL, label=label)


def ov_circuit(label: str) -> Factor:
    """``W_OV`` of a head."""
    return weight("W_OV", D_MODEL, D_MODEL, label=label)


def qk_circuit(label: str) -> Factor:
    """``W_QK`` of a head, a bilinear form on the stream."""
    return weight("W_QK", D_MODEL, D_MODEL, label=label)


def definition(factor: Factor, more: Definitions = NONE) -> Expr | None:
    """What ``factor`` stands for, in ``more`` or built in; None for a free symbol."""
    own = more.get(factor)
    if own is not None:
        return own
    label, group = factor.label, factor.group
    if factor.name == "W_OV" and factor is shared(ov_circuit(label), group):
        return Product(write(label), read("V", group or label))
    if factor.name == "W_QK" and factor is shared(qk_circuit(label), group):
        return Product(Transpose(read("Q", label)), read("K", group or label))
    if factor.name == "h" and factor is shared(head(label), group):
        return stages(label, group)
    if factor.name == "N" and factor is norm(label):
        return tensor(diagonal("D", label=label), weight("Γ", D_MODEL, D_MODEL, label=label))
    return None


def shared(symbol: Factor, group: str) -> Factor:
    """The symbol of a head that reads with a key-value head; ``""`` where it shares none."""
    return grouped(symbol, group) if group else symbol


def stages(label: str, group: str = "") -> Product:
    """The three stages of a head: values, mixing across positions, output projection."""
    return Product(
        tensor(Id, write(label)),
        tensor(pattern("A", label=label), Id),
        tensor(Id, read("V", group or label)),
    )


def checked(definitions: Definitions) -> Definitions:
    """The definitions themselves, if each fits its symbol and none leads back to itself.

    Raises:
        TypeMismatchError: with the symbol and what it was said to stand for.
    """
    from otimes.algebra.types import unify

    for symbol, meaning in definitions.items():
        if unify(symbol.type, meaning.type) is None:
            raise TypeMismatchError(
                f"the definition {symbol} = {meaning} does not fit: {symbol} is {symbol.type}, "
                f"{meaning} is {meaning.type}",
                symbol,
                meaning,
            )
    done = set[Factor]()

    def visit(symbol: Factor, above: tuple[Factor, ...]) -> None:
        if symbol in above:
            circle = " → ".join(map(str, (*above[above.index(symbol) :], symbol)))
            raise TypeMismatchError(f"the definitions go in a circle: {circle}", symbol)
        meaning = None if symbol in done else definition(symbol, definitions)
        if meaning is not None:
            for inner in meaning.factors:
                visit(inner, (*above, symbol))
        done.add(symbol)

    for symbol in definitions:
        visit(symbol, ())
    return definitions
