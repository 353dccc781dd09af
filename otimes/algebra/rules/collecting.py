"""What the rules that collect share: addends grouped by a key, in the order of first appearance."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from otimes.algebra.expressions import Expr, Factor, Product, Sum, Tensor
from otimes.algebra.rules.base import Refusal, coefficient, product, scaled, total
from otimes.algebra.types import POS


def by_slot(expr: Expr, kept: int) -> Expr | Refusal:
    """Group the addends ``A ⊗ W`` of a sum that agree in the slot ``kept``.

    Addends may be applied to one and the same input, as in ``(A ⊗ W) t``.
    """
    if not isinstance(expr, Sum):
        return Refusal(lambda: f"{expr} is not a sum")
    what = ("pattern", "weight")[kept]
    groups = _groups(expr, lambda addend: _key(addend, kept))
    if len(groups) == len(expr.args):
        return Refusal(lambda: f"no two addends of {expr} have the same {what}")
    return total(_together(group, kept) for group in groups)


def by_order(expr: Expr) -> Expr | Refusal:
    """Group the addends of a sum by the number of heads in each, lowest first."""
    if not isinstance(expr, Sum):
        return Refusal(lambda: f"{expr} is not a sum")
    orders = dict[Expr, int]()
    for addend in expr.args:
        if any(isinstance(inner, Sum) for inner in _nodes(addend)):
            return Refusal(f"{addend} is not one path: it holds a sum; distribute first")
        orders[addend] = order(addend)
    groups = sorted(_groups(expr, lambda addend: orders[addend]), key=lambda g: orders[g[0]])
    if len(groups) == 1:
        return Refusal(lambda: f"all addends of {expr} have one order")
    if len(groups) == len(expr.args) and [g[0] for g in groups] == list(expr.args):
        return Refusal(lambda: f"each order has one addend in {expr}, and they stand in order")
    return total(map(total, groups))


def order(expr: Expr) -> int:
    """The number of heads in a word: its patterns, diagonals not counted, and heads as symbols."""
    if isinstance(expr, Factor):
        moves = expr.type.slots == ((POS, POS),) and not expr.kind
        return int(moves or (expr.name == "h" and len(expr.type.slots or ()) == 2))
    return sum(map(order, expr.children))


def _groups(expr: Sum, key: Callable[[Expr], Hashable]) -> list[list[Expr]]:
    found = dict[Hashable, list[Expr]]()
    for addend in expr.args:
        found.setdefault(key(addend), []).append(addend)
    return list(found.values())


def _parts(addend: Expr) -> tuple[Expr, tuple[Expr, ...]]:
    """The tensor product of an addend and what it is applied to."""
    _, bare = coefficient(addend)
    if isinstance(bare, Product) and isinstance(bare.args[0], Tensor):
        return bare.args[0], bare.args[1:]
    return bare, ()


def _key(addend: Expr, kept: int) -> Hashable:
    first, rest = _parts(addend)
    if isinstance(first, Tensor) and len(first.args) == 2:
        return first.args[kept], rest
    return object()  # with nothing, not even its equal: that is for like terms


def _together(group: list[Expr], kept: int) -> Expr:
    if len(group) == 1:
        return group[0]
    first, rest = _parts(group[0])
    assert isinstance(first, Tensor)
    slots = list(first.args)
    slots[1 - kept] = Sum(*(_other(addend, 1 - kept) for addend in group))
    return product([Tensor(*slots), *rest])


def _other(addend: Expr, slot: int) -> Expr:
    return scaled(coefficient(addend)[0], _parts(addend)[0].children[slot])


def _nodes(expr: Expr) -> list[Expr]:
    return [expr, *(node for child in expr.children for node in _nodes(child))]
