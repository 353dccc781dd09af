"""Factors with a meaning: named heads and norms, and those of which more than a type is known.

A head and a frozen norm are symbols of their own until their definition is asked for
(:mod:`otimes.algebra.definitions`):

>>> head("1.0").type
pos ⊗ d_model <- pos ⊗ d_model
>>> print(head("1.0") @ norm("1.ln1"))
h[1.0] N[1.ln1]
>>> eval(repr(head("1.0"))) == head("1.0"), eval(repr(diagonal("D"))) == diagonal("D")
(True, True)
"""

from __future__ import annotations

from otimes.algebra.expressions import Factor
from otimes.algebra.types import D_HEAD, D_MODEL, POS, Slot, Type, direct_sum, summands


def operator(name: str, *slots: Slot, label: str = "") -> Factor:
    """A named map of several slots, each ``(codomain, domain)``."""
    return Factor(name, Type(slots), label)


def head(label: str) -> Factor:
    """The attention head ``h[1.4]`` as a symbol; it reads and writes the stream."""
    return operator("h", (POS, POS), (D_MODEL, D_MODEL), label=label)


def norm(label: str) -> Factor:
    """The frozen norm ``N[label]`` as a symbol; its scales are those that a run recorded."""
    return operator("N", (POS, POS), (D_MODEL, D_MODEL), label=label)


def diagonal(name: str, space: str = POS, *, label: str = "") -> Factor:
    """A diagonal matrix, such as the scales ``D = diag(1/σ_pos)`` of a frozen norm."""
    return Factor(name, Type.of((space, space)), label, "diagonal")


def rotation(name: str, space: str = D_MODEL, *, label: str = "") -> Factor:
    """An orthogonal matrix: ``RᵀR = RRᵀ = Id``."""
    return Factor(name, Type.of((space, space)), label, "rotation")


def offset(name: str, space: str = D_HEAD, *, label: str = "") -> Factor:
    """A matrix for each offset ``j − i`` of the key's slot j from the query's slot i.

    >>> print(offset("R"))
    R(j−i)
    """
    return Factor(name, Type.of((space, space)), label, "offset")


def offset_form(name: str, space: str = D_HEAD, *, label: str = "") -> Factor:
    """The same as one map on both slots: for the slots i and j the matrix of ``j − i``.

    >>> print(offset_form("R", label="f").type)
    pos ⊗ pos ⊗ d_head <- pos ⊗ pos ⊗ d_head
    """
    return Factor(name, Type.of((POS, POS), (POS, POS), (space, space)), label, "offset")


def inclusion(number: int, *spaces: str) -> Factor:
    """``ι[i]``: puts a vector of ``spaces[i]`` into their direct sum; ``ιᵀ`` takes it out."""
    return Factor("ι", Type.of((direct_sum(*spaces), spaces[number])), str(number), "inclusion")


def grouped(symbol: Factor, kv_head: str) -> Factor:
    """A head's symbol, ``W_OV``, ``W_QK`` or ``h``, where heads share the key-value head.

    >>> print(grouped(head("1.4"), "1.kv2"))
    h[1.4]
    """
    return Factor(symbol.name, symbol.type, symbol.label, symbol.kind, kv_head)


def represent(factor: Factor) -> str:
    """The ``repr`` of a factor with a kind or a group: the call that makes it."""
    if factor.group:
        plain = Factor(factor.name, factor.type, factor.label, factor.kind)
        return f"grouped({plain!r}, {factor.group!r})"
    slots = factor.type.slots
    assert slots is not None
    assert slots[0] is not None
    codomain = slots[0][0]
    if factor.kind == "inclusion":
        spaces = ", ".join(map(repr, summands(codomain)))
        return f"inclusion({factor.label}, {spaces})"
    label = f", label={factor.label!r}" if factor.label else ""
    if len(slots) > 1 and slots[-1] is not None:
        return f"offset_form({factor.name!r}, {slots[-1][0]!r}{label})"
    return f"{factor.kind}({factor.name!r}, {codomain!r}{label})"
