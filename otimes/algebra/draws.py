"""How large matrices must be for their values to decide an equality of maps.

Small matrices satisfy identities that hold for no others: 2 × 2 rotations commute. By Amitsur and
Levitzki, n × n matrices satisfy none of degree below 2n, so for words of ``d`` letters ``n`` is
``⌊d/2⌋ + 1``. Where transposes, rotations, numbers (the space ``1``) or a symbol in two slots may
add relations, it is ``d + 1``: relations of vectors, matrices and their transposes begin above
degree ``n`` (second fundamental theorem of invariants); for rotations that is a rule of thumb.

>>> from otimes.algebra import pattern, rotation
>>> A, B, R = pattern("A"), pattern("B"), rotation("R")
>>> deciding_sizes([A @ B @ A @ B @ A @ B]) == {"pos": 4, "1": 1, "any": 4}
True
>>> deciding_sizes([R @ R @ R])["d_model"]
4
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from math import prod
from typing import Final

from otimes.algebra.definitions import NONE, Definitions, definition
from otimes.algebra.evaluation import Valuation
from otimes.algebra.expressions import Expr, Factor, Product, Tensor, Transpose
from otimes.algebra.stacked import Column, Row
from otimes.algebra.types import ONE, summands

MAX_PRODUCTS: Final = 10_000_000
"""How many products of numbers one draw may take."""

_LEAST: Final = 3


def deciding_sizes(exprs: Iterable[Expr], definitions: Definitions = NONE) -> dict[str, int]:
    """Sizes of all spaces at which equal values of generic matrices mean equal maps."""
    survey = _Survey(definitions)
    degrees = [0]
    for expr in exprs:
        survey.visit(expr, 0)
        degrees = _greatest([degrees, survey.degrees(expr)])
    if survey.shared:
        degrees = [sum(degrees)] * len(degrees)
    needed = [max(_LEAST, d + 1 if survey.special else d // 2 + 1) for d in degrees]
    sizes = {"any": max(needed)}
    for slot, spaces in survey.spaces.items():
        for space in spaces:
            least = needed[slot] if slot < len(needed) else max(needed)
            sizes[space] = max(sizes.get(space, 0), least)
    return sizes | {ONE: 1}


def products(exprs: Iterable[Expr], values: Valuation) -> int:
    """About how many products of numbers the values of expressions take."""
    count, seen = 0, set[Expr]()
    todo = list(exprs)
    for expr in todo:  # grows as it goes
        if expr in seen:
            continue
        seen.add(expr)
        if isinstance(expr, Factor):
            meaning = definition(expr, values.definitions)
            todo.extend([] if meaning is None else [meaning])
        todo.extend(expr.children)
        slots = [slot or ("any", "any") for slot in expr.type.slots or (None,)]
        rows, columns = (prod(values.size(slot[side]) for slot in slots) for side in (0, 1))
        if isinstance(expr, Product | Row | Column):
            inner = max(_widths(expr, values))
            count += rows * inner * columns * len(expr.args)
        else:
            count += rows * columns
    return count


def _widths(expr: Product | Row | Column, values: Valuation) -> list[int]:
    ends = [[(slot or ("any", "any"))[1] for slot in arg.type.slots or ()] for arg in expr.args]
    return [prod(map(values.size, end)) for end in ends]


class _Survey:
    """What is in expressions: letters in each slot, spaces, and what adds relations."""

    def __init__(self, definitions: Definitions) -> None:
        self.definitions = definitions
        self.special = False
        self.spaces = dict[int, set[str]]()
        self._slots = dict[Factor, int]()
        self._seen = set[tuple[Expr, int]]()
        self._degrees = dict[Expr, list[int]]()
        self.shared = False

    def visit(self, expr: Expr, slot: int) -> None:
        if (expr, slot) in self._seen:
            return
        self._seen.add((expr, slot))
        if isinstance(expr, Factor):
            meaning = definition(expr, self.definitions)
            if meaning is not None:
                self.visit(meaning, slot)
            else:
                self._factor(expr, slot)
        elif isinstance(expr, Transpose):
            self.special = True
        for k, child in enumerate(expr.children):
            self.visit(child, slot + k if isinstance(expr, Tensor) else slot)

    def _factor(self, factor: Factor, slot: int) -> None:
        if self._slots.setdefault(factor, slot) != slot:
            self.shared = self.special = True
        ends = [end for end in factor.type.slots or () if end is not None]
        if factor.kind == "rotation" or any(end[0] == ONE for end in ends):
            self.special = True
        for k, end in enumerate(ends, start=slot):
            parts = {part for space in end for part in summands(space)}
            self.spaces.setdefault(k, set()).update(parts)

    def degrees(self, expr: Expr) -> list[int]:
        """The length of the longest word in each slot."""
        known = self._degrees.get(expr)
        if known is None:
            known = self._degrees[expr] = self._longest(expr)
        return known

    def _longest(self, expr: Expr) -> list[int]:
        if isinstance(expr, Factor):
            meaning = definition(expr, self.definitions)
            if meaning is not None:
                return self.degrees(meaning)
            return [int(expr.kind != "inclusion")] * len(expr.type.slots or ())
        inner = [self.degrees(child) for child in expr.children]
        if isinstance(expr, Tensor):
            return [max(degrees, default=0) for degrees in inner]
        if isinstance(expr, Product):
            return [sum(column) for column in zip_longest(*inner, fillvalue=0)]
        return _greatest(inner)


def _greatest(rows: list[list[int]]) -> list[int]:
    return [max(column) for column in zip_longest(*rows, fillvalue=0)]
