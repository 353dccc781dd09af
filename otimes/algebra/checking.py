"""Exact checks: whether two expressions have one value, and where they do not.

A step is checked on explicit rectangular matrices of small random integers, in rational
arithmetic: equal values are equal, not close. ``equivalent`` decides by normal forms; where they
differ, the difference is an expression and a counterexample is a choice of small matrices.

>>> from otimes.algebra import Id, pattern, tensor, weight
>>> A, B = pattern("A"), pattern("B")
>>> W = weight("W", "d_model", "d_model")
>>> equivalent(tensor(A, W) + tensor(B, W), tensor(A + B, W)).holds
True
>>> wrong = equivalent(A @ B, B @ A)
>>> wrong.holds, str(wrong.difference)
(False, 'A B - B A')
>>> print(wrong.counterexample)
A B ≠ B A: entry [0, 0] is -12 on the left and -4 on the right, where
  A = [3 -2; -1 1]
  B = [-2 -2; 3 0]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otimes.algebra.definitions import NONE, Definitions, checked, definition
from otimes.algebra.evaluation import SIZES, Matrix, Valuation
from otimes.algebra.expressions import Expr, Factor
from otimes.algebra.normal import polynomial
from otimes.algebra.types import Type, unify
from otimes.errors import TypeMismatchError

SEEDS: Final = (1, 2)
"""The two draws of matrices on which a step is checked."""

_WIDTH: Final = 88
_SMALL: Final[tuple[Mapping[str, int], ...]] = (
    # numbers first: the shortest counterexample there is; then small matrices
    dict.fromkeys([*SIZES, "any"], 1),
    {space: 1 if space == "1" else 2 for space in [*SIZES, "any"]},
    SIZES,
)


@dataclass(frozen=True)
class Counterexample:
    """Matrices at which two expressions have different values.

    ``left_value`` and ``right_value`` are the values; ``matrices`` those of the free symbols.
    """

    left: Expr
    right: Expr
    matrices: Mapping[str, Matrix]
    left_value: Matrix
    right_value: Matrix

    @property
    def entry(self) -> tuple[int, int]:
        """Row and column of the first entry that differs; the shape's end where a shape does."""
        for i, (a, b) in enumerate(zip(self.left_value, self.right_value, strict=False)):
            for j, (x, y) in enumerate(zip(a, b, strict=False)):
                if x != y:
                    return i, j
        return len(self.left_value), len(self.left_value[0])

    def __str__(self) -> str:
        row, column = self.entry
        shown = "".join(f"\n  {name} = {_shown(value)}" for name, value in self.matrices.items())
        where = f", where{shown}" if shown else ""
        sides = f"{self.left} ≠ {self.right}"
        if len(sides) > _WIDTH:
            sides = f"{self.left}\n≠ {self.right}"
        if _shape(self.left_value) != _shape(self.right_value):
            left, right = _shown(self.left_value), _shown(self.right_value)
            return f"{sides}: {left} on the left and {right} on the right{where}"
        x, y = self.left_value[row][column], self.right_value[row][column]
        return f"{sides}: entry [{row}, {column}] is {x} on the left and {y} on the right{where}"


@dataclass(frozen=True)
class Equivalence:
    """The answer of :func:`equivalent`.

    ``holds``; ``difference``, left minus right in its normal form; a ``counterexample`` exactly if
    it does not hold; ``method``: ``normal form``, or ``evaluation`` where the values agreed on all
    draws of matrices although the rules do not lead from one side to the other.
    """

    left: Expr
    right: Expr
    holds: bool
    difference: Expr | None
    counterexample: Counterexample | None
    method: str

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        if self.holds:
            return f"{self.left} = {self.right} (by {self.method})"
        return f"{self.counterexample}\nleft - right = {self.difference}"


def equivalent(left: Expr, right: Expr, definitions: Definitions = NONE) -> Equivalence:
    """Whether two expressions are one map, whatever the matrices.

    Args:
        left: one side.
        right: the other; of the same spaces.
        definitions: of symbols, beside the built-in ones such as ``W_OV = W_O W_V``.

    Raises:
        TypeMismatchError: if the sides do not map the same spaces, so that the question has no
            sense.
    """
    type_ = common_type(left, right)
    checked(definitions)
    if not left.type.is_map:
        found = counterexample(left, right, definitions)
        return Equivalence(left, right, found is None, None, found, "evaluation")
    one = polynomial(left, definitions, type_)
    other = polynomial(right, definitions, type_)
    difference = one.minus(other).expression
    if one == other:
        return Equivalence(left, right, True, difference, None, "normal form")
    found = counterexample(left, right, definitions)
    return Equivalence(left, right, found is None, difference, found, "evaluation")


def common_type(left: Expr, right: Expr) -> Type:
    """The type that both sides of a claimed equality have, or an error that shows them."""
    if not left.type.is_map and type(left) is type(right):
        return left.type
    both = unify(left.type, right.type)
    if both is None:
        raise TypeMismatchError(
            f"{left} and {right} cannot be compared: {left} is {left.type}, {right} is "
            f"{right.type}. Equal maps have equal spaces on both sides",
            left,
            right,
        )
    return both


def counterexample(
    left: Expr, right: Expr, definitions: Definitions = NONE
) -> Counterexample | None:
    """Matrices at which the sides differ, the smallest sizes first; None if they agree on all."""
    type_ = common_type(left, right)
    for sizes in _SMALL:
        for seed in SEEDS:
            found = _compared(left, right, type_, Valuation(seed, sizes, definitions))
            if found is not None:
                return found
    return None


def check_step(before: Expr, after: Expr, definitions: Definitions = NONE) -> bool:
    """Whether two expressions have exactly one value on rectangular random matrices."""
    type_ = common_type(before, after)
    return all(
        values(before, type_) == values(after, type_)
        for values in (Valuation(seed, SIZES, definitions) for seed in SEEDS)
    )


def _compared(left: Expr, right: Expr, type_: Type, values: Valuation) -> Counterexample | None:
    a, b = values(left, type_), values(right, type_)
    if a == b:
        return None
    free = _free([left, right], values.definitions)
    return Counterexample(left, right, {str(f): values(f) for f in free}, a, b)


def _free(exprs: list[Expr], definitions: Definitions) -> list[Factor]:
    """The symbols that have no definition, those inside definitions included."""
    found = dict[Factor, None]()
    todo = [factor for expr in exprs for factor in expr.factors]
    for factor in todo:  # grows as it goes
        meaning = definition(factor, definitions)
        if meaning is None:
            found[factor] = None
        else:
            todo.extend(meaning.factors)
    return list(found)


def _shape(value: Matrix) -> tuple[int, int]:
    return len(value), len(value[0])


def _shown(value: Matrix) -> str:
    rows = [" ".join(map(str, row)) for row in value]
    return rows[0] if _shape(value) == (1, 1) else f"[{'; '.join(rows)}]"
