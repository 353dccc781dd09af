"""Exact checks: whether two expressions have one value, and where they do not.

A step is checked on explicit rectangular matrices of small random integers, in rational
arithmetic: equal values are equal, not close. ``equivalent`` decides by normal forms; where they
differ, the difference is an expression and a counterexample is a choice of small matrices. Where
small matrices agree, larger ones decide (:mod:`otimes.algebra.draws`): 2 × 2 matrices satisfy
identities that maps do not.

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
from otimes.algebra.draws import MAX_PRODUCTS, deciding_sizes, products
from otimes.algebra.evaluation import SIZES, Matrix, Valuation
from otimes.algebra.expressions import Expr, Factor
from otimes.algebra.normal import Polynomial, polynomial, zero
from otimes.algebra.types import Type, unify
from otimes.errors import InputError, LimitError, TypeMismatchError

SEEDS: Final = (1, 2)
"""The two draws of matrices on which a step is checked."""

_LARGEST: Final = 10**6
"""Integers of the last draw: so many that equal values by chance have no chance."""

_SPECTRA: Final = (3, 4)
"""Sizes of spaces at which measures are compared; no size decides for them."""

ON_DRAWS: Final = "evaluation on draws of sizes up to 5; for measures no size decides"

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
    it does not hold; ``method``: ``normal form``, or ``evaluation`` where the values agreed on
    draws of matrices that are large enough to decide, although the rules do not lead from one side
    to the other. For measures, ``method`` says that no size decides. Where the normal form is too
    large, ``method`` says so and the difference is as given.
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
        LimitError: if it is not decided: the matrices that would decide it are too large.
    """
    type_ = common_type(left, right)
    checked(definitions)
    if left == right:
        same = zero(type_) if type_.is_map else None
        return Equivalence(left, right, True, same, None, "normal form")
    if not left.type.is_map:
        if _measured_alike(left, right, definitions):
            return Equivalence(left, right, True, None, None, "normal form")
        found = counterexample(left, right, definitions)
        return Equivalence(left, right, found is None, None, found, ON_DRAWS)
    try:
        one = polynomial(left, definitions, type_)
        other = polynomial(right, definitions, type_)
    except LimitError:
        found = _decided(left, right, definitions)
        difference = zero(type_) if found is None else left - right
        method = "evaluation; the normal form is too large"
        return Equivalence(left, right, found is None, difference, found, method)
    difference = one.minus(other).expression
    if one == other:
        return Equivalence(left, right, True, difference, None, "normal form")
    found = _decided(left, right, definitions, difference)
    return Equivalence(left, right, found is None, difference, found, "evaluation")


def common_type(left: Expr, right: Expr) -> Type:
    """The type that both sides of a claimed equality have, or an error that shows them."""
    for side in (left, right):
        if not isinstance(side, Expr):
            raise InputError(
                f"only expressions are compared, not {side!r}; read a text with "
                "otimes.algebra.parse(text) first"
            )
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
    """Matrices at which the sides differ, the smallest sizes first; None if they agree on all.

    That they agree decides nothing: :func:`equivalent` does.
    """
    type_ = common_type(left, right)
    sizes = list(_SMALL)
    if not left.type.is_map:
        spaces = {*SIZES, "any", *deciding_sizes([left, right], definitions)}
        sizes += [{space: 1 if space == "1" else n for space in spaces} for n in _SPECTRA]
    for size in sizes:
        for seed in SEEDS:
            found = _compared(left, right, type_, Valuation(seed, size, definitions))
            if found is not None:
                return found
    return None


def _decided(
    left: Expr, right: Expr, definitions: Definitions, difference: Expr | None = None
) -> Counterexample | None:
    """A counterexample, or None if the sides agree on matrices that are large enough to decide.

    Raises:
        LimitError: if they agree on small ones and the large ones would take too long.
    """
    found = counterexample(left, right, definitions)
    return found or _large(left, right, definitions, difference)


def _large(
    left: Expr, right: Expr, definitions: Definitions, difference: Expr | None
) -> Counterexample | None:
    type_ = common_type(left, right)
    sizes = deciding_sizes([left, right] if difference is None else [difference], definitions)
    sizes = {space: max(n, SIZES.get(space, 1)) for space, n in sizes.items()}
    for largest in (3, _LARGEST):
        values = Valuation(SEEDS[0], sizes, definitions, largest)
        count = products([left, right], values)
        if count > MAX_PRODUCTS:
            raise LimitError(
                f"whether {_short(left)} = {_short(right)} is not decided: they agree on small "
                f"matrices, and those that would decide take about {count:,} products of numbers, "
                f"more than {MAX_PRODUCTS:,}; compare parts of the expression",
                count,
                MAX_PRODUCTS,
            )
        found = _compared(left, right, type_, values)
        if found is not None:
            return found
    return None


def _measured_alike(left: Expr, right: Expr, definitions: Definitions) -> bool:
    """Whether what two measures of one kind measure has one normal form."""
    one, other = left.children[0], right.children[0]
    type_ = unify(one.type, other.type)
    if type_ is None:
        return False
    try:
        return polynomial(one, definitions, type_) == polynomial(other, definitions, type_)
    except LimitError:
        return False


def check_step(before: Expr, after: Expr, definitions: Definitions = NONE) -> bool:
    """Whether two expressions have exactly one value on rectangular matrices.

    Small matrices must agree, and normal forms or else larger matrices.

    Raises:
        LimitError: if it is not decided.
    """
    return Checker(definitions).holds(before, after)


class Checker:
    """Checks the steps of one chain; values and normal forms are kept for all of it."""

    def __init__(self, definitions: Definitions = NONE) -> None:
        self.definitions = definitions
        self._draws = [Valuation(seed, SIZES, definitions) for seed in SEEDS]
        self._known = dict[tuple[Expr, Type], Polynomial | None]()

    def holds(self, before: Expr, after: Expr) -> bool:
        """Whether two expressions have one value; an error where that is not decided."""
        type_ = common_type(before, after)
        if before == after:
            return True
        if any(draw(before, type_) != draw(after, type_) for draw in self._draws):
            return False
        if not before.type.is_map:
            return equivalent(before, after, self.definitions).holds
        one, other = self._polynomial(before, type_), self._polynomial(after, type_)
        if one is None or other is None:
            return _large(before, after, self.definitions, None) is None
        if one == other:
            return True
        difference = one.minus(other).expression
        return _large(before, after, self.definitions, difference) is None

    def counterexample(self, before: Expr, after: Expr) -> Counterexample | None:
        """Matrices at which the sides of a step that does not hold differ."""
        return equivalent(before, after, self.definitions).counterexample

    def _polynomial(self, expr: Expr, type_: Type) -> Polynomial | None:
        key = (expr, type_)
        if key not in self._known:
            try:
                self._known[key] = polynomial(expr, self.definitions, type_)
            except LimitError:
                self._known[key] = None
        return self._known[key]


def _compared(left: Expr, right: Expr, type_: Type, values: Valuation) -> Counterexample | None:
    a, b = values(left, type_), values(right, type_)
    if a == b:
        return None
    free = _free([left, right], values.definitions)
    names = [str(factor) for factor in free]
    # two factors of one name are told apart by what they are
    keys = [n if names.count(n) == 1 else repr(f) for n, f in zip(names, free, strict=True)]
    shown = {key: values(factor) for key, factor in zip(keys, free, strict=True)}
    return Counterexample(left, right, shown, a, b)


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


def _short(expr: Expr) -> str:
    text = str(expr)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 2]} …"


def _shape(value: Matrix) -> tuple[int, int]:
    return len(value), len(value[0])


def _shown(value: Matrix) -> str:
    rows = [" ".join(map(str, row)) for row in value]
    return rows[0] if _shape(value) == (1, 1) else f"[{'; '.join(rows)}]"
