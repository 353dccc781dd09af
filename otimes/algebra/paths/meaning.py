"""What a path expression means for one architecture: checks, and regular expressions.

A path is a source and the components after it. For each source an expression becomes a regular
expression over components: at the front of an alternative ``embed`` has the empty word for the
source ``embed`` and nothing for others, and an alternative without a source is the same for all.
Complements are taken for each source, so ``!a`` has every path that ``a`` has not.

>>> from otimes.algebra import Architecture
>>> language = Architecture(2, 8, biases=["b_O"]).language
>>> language.compile("embed > 0.7 | bias > 1.4 | 0.7 > 1.4").count
3
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from otimes.algebra.paths import syntax
from otimes.algebra.vocabulary import Component, Neuron, component_name
from otimes.errors import NotationError, UnknownComponentError, UnknownPathPartError

if TYPE_CHECKING:
    from collections.abc import Collection

    from otimes.algebra.architecture import Architecture
    from otimes.algebra.paths.derivatives import Expressions
    from otimes.algebra.paths.grammar import PathExpression
    from otimes.algebra.paths.grid import Grid

Place = Literal["alone", "front", "later"]
"""Where a part stands: nothing is joined to it, or it is in front, or something precedes it."""

Atom = syntax.Member | syntax.OneOf


class Meaning:
    """A checked path expression: its atoms and the sources that its names stand for.

    Raises:
        NotationError: where the expression cannot mean a path of this architecture.
        UnknownPathPartError: for a head, neuron or source that the architecture does not have.
    """

    def __init__(self, expression: PathExpression, grid: Grid) -> None:
        self._text = expression.text
        self._grid = grid
        self._root = expression.root
        self.atoms = dict[Atom, int]()
        """The patterns of single components that occur, numbered."""
        self._named = dict[syntax.Node, frozenset[int]]()
        self._checked = set[tuple[int, Place]]()
        self._check(self._root, "alone")

    # --------------------------------------------------------------------------------- checks

    def _check(self, node: syntax.Node, place: Place) -> None:
        # a repetition asks for its part twice: without this, nested ones take 2^depth steps
        if (id(node), place) in self._checked:
            return
        self._checked.add((id(node), place))
        match node:
            case syntax.SourceName(name=name):
                self._check_source(node, place, (name,))
            case syntax.Mlp(layer=layer, neuron=None) if self._arch.mlp == "source":
                self._check_layer(node, layer)
                self._check_source(node, place, (str(node),))
            case syntax.Heads() | syntax.Mlp() | syntax.AnyComponent():
                self._check_component(node)
                self.atoms.setdefault(node, len(self.atoms))
            case syntax.OneOf(members=members):
                for member in members:
                    self._check_component(member)
                self.atoms.setdefault(node, len(self.atoms))
            case syntax.Direct() if place != "alone":
                raise self._error(
                    "'direct' is the path without a head; nothing can be joined to it", node
                )
            case syntax.Sequence(items=items):
                self._check_sequence(items, place)
            case syntax.Repeat(item=item, most=most):
                self._check(item, "front" if place == "alone" else place)
                if most > 1:
                    self._check(item, "later")
            case _:
                for child in syntax.children(node):
                    self._check(child, place)

    def _check_sequence(self, items: tuple[syntax.Node, ...], place: Place) -> None:
        if isinstance(items[0], syntax.Direct):
            raise self._error(
                "'direct' is the path without a head; nothing can follow it", items[1]
            )
        for number, item in enumerate(items):
            first = number == 0 and place != "later"
            self._check(item, "front" if first else "later")
        self._check_neighbours(items)

    @property
    def _arch(self) -> Architecture:
        return self._grid.architecture

    def _error(self, message: str, node: syntax.Node) -> NotationError:
        return NotationError(message, self._text, node.position)

    def _check_source(self, node: syntax.Node, place: Place, names: tuple[str, ...]) -> None:
        if place == "later":
            hint = '; mlp="frozen" makes its neurons components' * isinstance(node, syntax.Mlp)
            raise self._error(
                f"{node} is a source; a source stands in front of a path, once{hint}", node
            )
        sources = self._grid.sources
        found = frozenset(
            number
            for number, source in enumerate(sources)
            if source.name in names or source.kind in names
        )
        if not found:
            kinds = ", ".join(dict.fromkeys(source.kind for source in sources))
            raise self._unknown(
                f"no source {str(node)!r} in this model; its sources are of the kinds {kinds}, "
                f"for example {sources[-1].name!r}",
                node,
            )
        self._named[node] = found

    def _check_component(self, node: syntax.Member) -> None:
        """That the architecture has what a pattern names, if it names a layer or an index."""
        arch = self._arch
        most = max(arch.heads, default=0)
        try:
            match node:
                case syntax.Heads(layer=int(layer), index=int(index)):
                    arch.check_head((layer, index))
                case syntax.Mlp(layer=layer, neuron=int(index)):
                    arch.check_neuron(Neuron(layer, index))
                case syntax.Heads(layer=int(layer)):
                    self._check_layer(node, layer)
                case syntax.Heads(index=int(index)) if index >= most:
                    raise self._unknown(
                        f"no head {node}: no layer has more than {most} heads", node
                    )
                case syntax.Mlp(layer=layer):
                    self._check_layer(node, layer)
                    if arch.mlp != "frozen":
                        why = "the MLPs of this model are absent"
                        if arch.mlp:
                            why = (
                                "the MLPs of this model are sources, and a set lists components; "
                                f"the source is written {node}, in front of a path, and several "
                                "are combined with '|'"
                            )
                        raise self._unknown(f"no component {node}: {why}", node)
                case _:
                    pass
        except UnknownPathPartError:
            raise
        except UnknownComponentError as error:
            raise self._unknown(str(error), node) from None

    def _unknown(self, message: str, node: syntax.Node) -> UnknownPathPartError:
        return UnknownPathPartError(message, str(node), self._text, node.position)

    def _check_layer(self, node: syntax.Node, layer: int) -> None:
        layers = self._arch.layers
        if layer >= layers:
            known = f"layers 0 to {layers - 1}" if layers else "no layers"
            raise self._unknown(f"no layer {layer}: the model has {known}", node)

    def _check_neighbours(self, items: tuple[syntax.Node, ...]) -> None:
        """Two named components that are joined directly must be able to follow one another."""
        for earlier, later in pairwise(items):
            one, two = _component(earlier), _component(later)
            if one is None or two is None:
                continue
            blocks = self._grid.locate(one)[0], self._grid.locate(two)[0]
            if blocks[0] < blocks[1]:
                continue
            what = "neuron" if isinstance(two, Neuron) else "head"
            if blocks[0] > blocks[1]:
                why = "before"
            else:
                why = "in the same layer as" if self._arch.mlp is None else "in the same block as"
            raise self._error(
                f"{what} {component_name(two)} is {why} {component_name(one)} and cannot read it; "
                "a path is written earliest first",
                later,
            )

    # ------------------------------------------------------------------------ regular expressions

    def views(self) -> list[frozenset[syntax.Node]]:
        """For each source, the names in the expression that stand for it."""
        names: list[frozenset[syntax.Node]] = [frozenset()] * len(self._grid.sources)
        for node, sources in self._named.items():
            for source in sources:
                names[source] |= {node}
        return names

    def expression(self, names: Collection[syntax.Node], store: Expressions) -> int:
        """The components that may follow a source for which these names stand."""
        return self._front(self._root, names, store)

    def _front(self, node: syntax.Node, names: Collection[syntax.Node], store: Expressions) -> int:
        """A part at the front of a path, after the source has been taken off."""
        if node in self._named:
            return store.empty if node in names else store.nothing
        match node:
            case syntax.Direct():
                return store.empty
            case syntax.Sequence(items=(first, *rest)):
                later = [self._later(item, store) for item in rest]
                return store.join([self._front(first, names, store), *later])
            case syntax.Repeat(item=item, least=least, most=most):
                if most == 0:
                    return store.empty
                # only the first repetition can name a source
                once = self._front(item, names, store)
                more = store.empty
                if most > 1:
                    more = store.repeated(self._later(item, store), max(least - 1, 0), most - 1)
                found = store.join((once, more))
                return found if least else store.either((store.empty, found))
            case syntax.Union(options=options):
                return store.either([self._front(option, names, store) for option in options])
            case syntax.Intersection(options=options):
                return store.both([self._front(option, names, store) for option in options])
            case syntax.Complement(item=item):
                return store.other(self._front(item, names, store))
            case _:
                return self._later(node, store)

    def _later(self, node: syntax.Node, store: Expressions) -> int:
        """A part that stands behind another: components only."""
        match node:
            case syntax.Anything():
                return store.anything
            case syntax.Order(order=order):
                return store.order(order)
            case syntax.Sequence(items=items):
                return store.join([self._later(item, store) for item in items])
            case syntax.Repeat(item=item, least=least, most=most):
                return store.repeated(self._later(item, store), least, most)
            case syntax.Union(options=options):
                return store.either([self._later(option, store) for option in options])
            case syntax.Intersection(options=options):
                return store.both([self._later(option, store) for option in options])
            case syntax.Complement(item=item):
                return store.other(self._later(item, store))
            case syntax.SourceName() | syntax.Direct():
                raise AssertionError(node)  # refused by the checks
            case _:
                return store.atom(self.atoms[node])


def _component(node: syntax.Node) -> Component | None:
    """The one component that a part names, or None."""
    match node:
        case syntax.Heads(layer=int(layer), index=int(index)):
            return layer, index
        case syntax.Mlp(layer=layer, neuron=int(index)):
            return Neuron(layer, index)
        case _:
            return None
