"""The path language of one architecture: from text to sets of paths."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from otimes.algebra.paths.automaton import Automaton, build
from otimes.algebra.paths.derivatives import Expressions
from otimes.algebra.paths.grammar import PathExpression, parse_path
from otimes.algebra.paths.grid import Classes, Grid
from otimes.algebra.paths.meaning import Meaning
from otimes.algebra.paths.syntax import Anything, Node, Order, Repeat, children
from otimes.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otimes.algebra.architecture import Architecture
    from otimes.algebra.paths.automaton import Step

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
        of_names = dict[frozenset[Node], int]()
        starts = list[int | None]()
        for source, names in zip(grid.sources, meaning.views(), strict=True):
            if names not in of_names:
                of_names[names] = meaning.expression(names, store)
            left = of_names[names]
            if source.component is not None:
                left = store.derivative(left, classes.signature(*grid.locate(source.component)))
            starts.append(None if left == store.nothing else left)

        # blocks in which the same patterns match the same components lead to the same expressions
        alike = dict[tuple[int, ...], int]()
        numbers = [alike.setdefault(sum(block, ()), len(alike)) for block in classes.of_block]
        known = dict[tuple[int, int], list[tuple[int, int]]]()

        def moves(block: int, left: int) -> list[tuple[int, int]]:
            asked = numbers[block], left
            found = known.get(asked)
            if found is None:
                masks = dict[int, int]()
                for signature, mask in classes.of_block[block]:
                    after = store.derivative(left, signature)
                    masks[after] = masks.get(after, 0) | mask
                found = known[asked] = [(mask, after) for after, mask in masks.items()]
            return found

        def step(block: int, left: int) -> Step[int]:
            found = list[tuple[int, int | None]]()
            for mask, after in moves(block, left):
                later = store.possible(after, block)
                if later != store.nothing:
                    found.append((mask, later))
            rest = store.possible(left, block)
            return None if rest == store.nothing else rest, found

        return build(grid, starts, step, lambda left: store.nullable[left], subject)


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
