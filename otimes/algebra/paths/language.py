"""The path language of one architecture: from text to sets of paths."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from otimes.algebra.paths.building import build
from otimes.algebra.paths.derivatives import Expressions
from otimes.algebra.paths.grammar import PathExpression, parse_path
from otimes.algebra.paths.grid import Classes, Grid
from otimes.algebra.paths.meaning import Meaning
from otimes.algebra.paths.positions import Positions, has_positions
from otimes.algebra.paths.syntax import Anything, Node, Order, Repeat, children
from otimes.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otimes.algebra.architecture import Architecture
    from otimes.algebra.paths.automaton import Automaton
    from otimes.algebra.paths.building import Step

_SHOWN = 60
"""Characters of an expression that an error shows."""


class PathLanguage:
    """Compiles path expressions to sets of paths of an architecture; it is ``arch.language``.

    >>> from otimes.algebra import Architecture
    >>> language = Architecture(100, 100).language
    >>> language.compile("0.7 > .. > 50.1").count == 101**49
    True
    """

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.grid = Grid(architecture)

    @cached_property
    def everything(self) -> Automaton:
        """All paths of the architecture."""
        return self.compile(PathExpression("..", Anything()))

    def of_order(self, order: int) -> Automaton:
        """All paths with this many heads."""
        return self.compile(PathExpression(f"order={order}", Order(order)))

    def compile(self, expression: str | PathExpression) -> Automaton:
        """The set of paths that an expression matches.

        Raises:
            NotationError: pointing at the character, if the expression is none.
            UnknownPathPartError: for a head, neuron or source that the architecture does not have.
            LimitError: if the automaton would be too large; it says what grew.
        """
        if not isinstance(expression, PathExpression):
            expression = parse_path(expression)
        meaning = Meaning(expression, self.grid)
        try:
            return self._compiled(expression, meaning)
        except LimitError as error:
            raise LimitError(f"{error}; {_advice(expression)}", error.count, error.limit) from None

    def _compiled(self, expression: PathExpression, meaning: Meaning) -> Automaton:
        text = str(expression)
        subject = f"the path expression '{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}'"
        grid = self.grid
        classes = Classes(grid, meaning.atoms)
        store = Expressions(grid.depth, classes.latest, subject, classes.universal)
        # many sources, but few names: sources with the same names begin alike
        views = meaning.views()
        of_names = {names: meaning.expression(names, store) for names in dict.fromkeys(views)}
        rest, begins = _remainders(store, classes, of_names)
        starts = list[int | None]()
        for source, names in zip(grid.sources, views, strict=True):
            left = begins[names]
            if source.component is not None:
                left = rest.derivative(left, classes.signature(*grid.locate(source.component)))
            starts.append(None if left == rest.nothing else left)

        # blocks in which the same patterns match the same components lead to the same expressions
        alike = dict[tuple[int, ...], int]()
        numbers = [alike.setdefault(sum(block, ()), len(alike)) for block in classes.of_block]
        known: list[dict[int, Step[int]]] = [{} for _ in alike]
        parts = [sorted(block, key=_lowest_bit) for block in classes.of_block]

        def step(block: int, left: int) -> Step[int]:
            rows = known[numbers[block]]
            found = rows.get(left)
            if found is None:
                masks = dict[int, int]()
                for signature, mask in parts[block]:
                    after = rest.derivative(left, signature)
                    masks[after] = masks.get(after, 0) | mask
                masks.pop(rest.nothing, None)
                found = rows[left] = tuple(masks.values()), (left, *masks)
            return found

        def settled(block: int, met: set[int | None]) -> dict[int | None, int | None]:
            found = dict[int | None, int | None]()
            for left in met:
                later = rest.nothing if left is None else rest.possible(left, block)
                found[left] = None if later == rest.nothing else later
            return found

        return build(grid, starts, step, rest.has_empty, subject, settled)


def _lowest_bit(part: tuple[int, int]) -> int:
    """The lowest bit of the mask of a class."""
    return part[1] & -part[1]


def _remainders(
    store: Expressions, classes: Classes, of_names: dict[frozenset[Node], int]
) -> tuple[Expressions | Positions, dict[frozenset[Node], int]]:
    """What computes what is left of the expressions, and what that begins with."""
    expressions = set(of_names.values())
    if not has_positions(store, expressions):
        return store, of_names
    positions = Positions(store, classes.latest, expressions)
    return positions, {names: positions.start(left) for names, left in of_names.items()}


def _advice(expression: PathExpression) -> str:
    """What probably grew, and what to do."""
    repeats = sorted(
        (node for node in _walk(expression.root) if isinstance(node, Repeat) and node.most > 1),
        key=lambda node: node.most,
    )
    nested = [
        node for node in repeats if any(isinstance(inner, Repeat) for inner in _walk(node.item))
    ]
    if repeats:
        node = (nested or repeats)[-1]
        shown = str(node)
        if len(shown) > _SHOWN:
            shown = f"{shown[: _SHOWN // 2]} … {shown[-_SHOWN // 2 :]}"
        why = "a repetition inside a repetition" if nested else "a repetition"
        return f"{why} grew, '{shown}': repeat it less often, or fewer different parts"
    return "ask for a smaller set of paths at a time"


def _walk(root: Node) -> Iterator[Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(children(node))
