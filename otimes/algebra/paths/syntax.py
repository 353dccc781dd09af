"""Path expressions as trees, and how they print.

A tree is made by the functions :func:`one_of`, :func:`sequence`, :func:`repeat`, :func:`union`,
:func:`intersection` and :func:`complement`, which bring it to a canonical form: no redundant
parentheses, no doubled alternatives, alternatives and members of sets in their natural order. So
equal trees print the same text, and that text parses to the same tree.

>>> from otimes.algebra.paths import parse_path
>>> print(parse_path("( L1H4|0.7 ){1} | {1.4 , 0.10, 0.9} > x".replace("x", "((..)){0,1}")))
0.7 | 1.4 | {0.9,0.10,1.4} > ..?

``position`` is the index of a node's first character in the text that it was read from; it says
where an error is and does not count in comparisons.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Heads:
    """One head, or all of a layer, or all of an index, or all: None leaves a number open."""

    layer: int | None
    index: int | None
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return ".".join("*" if n is None else str(n) for n in (self.layer, self.index))


@dataclass(frozen=True)
class Mlp:
    """``mlp3``: a source; where MLPs are frozen, any one of its neurons; or one, ``mlp3.n17``."""

    layer: int
    neuron: int | None = None
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"mlp{self.layer}" + ("" if self.neuron is None else f".n{self.neuron}")


@dataclass(frozen=True)
class AnyComponent:
    """``*``: any one head or frozen neuron."""

    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return "*"


Member = Heads | Mlp | AnyComponent
"""What stands for one component, and in a set."""


@dataclass(frozen=True)
class OneOf:
    """``{0.7,1.4}``, one of these; ``{^0.7}``, any one component but these."""

    members: tuple[Member, ...]
    excluded: bool = False
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return "{" + "^" * self.excluded + ",".join(map(str, self.members)) + "}"


@dataclass(frozen=True)
class Anything:
    """``..``: any sub-path, also the empty one."""

    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return ".."


@dataclass(frozen=True)
class SourceName:
    """``embed``, ``bias[0.attn]``: a source by its name or by its kind."""

    name: str
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Direct:
    """``direct``: a source that reaches the output through no component."""

    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return "direct"


@dataclass(frozen=True)
class Order:
    """``order=2``: exactly two attention heads."""

    order: int
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"order={self.order}"


@dataclass(frozen=True)
class Sequence:
    """``a > b``: a path of ``a``, followed directly by one of ``b``."""

    items: tuple[Node, ...]
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return " > ".join(_inside(item, Sequence) for item in self.items)


@dataclass(frozen=True)
class Repeat:
    """``x?``, ``x{2}``, ``x{1,3}``: from ``least`` to ``most`` sub-paths of ``item``, joined."""

    item: Node
    least: int
    most: int
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        if (self.least, self.most) == (0, 1):
            count = "?"
        elif self.least == self.most:
            count = f"{{{self.least}}}"
        else:
            count = f"{{{self.least},{self.most}}}"
        return _inside(self.item, Repeat) + count


@dataclass(frozen=True)
class Union:
    """``a | b``: the paths of either."""

    options: tuple[Node, ...]
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return " | ".join(_inside(option, Union) for option in self.options)


@dataclass(frozen=True)
class Intersection:
    """``a & b``: the paths of both."""

    options: tuple[Node, ...]
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return " & ".join(_inside(option, Intersection) for option in self.options)


@dataclass(frozen=True)
class Complement:
    """``!a``: the paths of the model that ``a`` does not match."""

    item: Node
    position: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return "!" + _inside(self.item, Complement)


Node = (
    Member
    | OneOf
    | Anything
    | SourceName
    | Direct
    | Order
    | Sequence
    | Repeat
    | Union
    | Intersection
    | Complement
)

# the loosest binding first: what binds looser than its surroundings needs parentheses
_BINDING: tuple[type, ...] = (Union, Intersection, Complement, Sequence, Repeat)


def _inside(node: Node, parent: type) -> str:
    """A part as it is written inside a node of type ``parent``."""
    if type(node) not in _BINDING:
        return str(node)
    own, around = _BINDING.index(type(node)), _BINDING.index(parent)
    # `x?{2}` would read as well without parentheses, but not `x{2}{3}`: one rule for both
    bare = own > around or (own == around and parent is Complement)
    return str(node) if bare else f"({node})"


def children(node: Node) -> tuple[Node, ...]:
    """The parts of a node, in the order in which they are written."""
    match node:
        case Sequence(items=items):
            return items
        case Union(options=options) | Intersection(options=options):
            return options
        case Repeat(item=item) | Complement(item=item):
            return (item,)
        case _:
            return ()


def one_of(members: tuple[Member, ...], *, excluded: bool, position: int = 0) -> Node:
    """A set of components; a set of one is that component.

    A set of all neurons of a layer stays one: ``mlp3`` alone may also name a source.
    """
    unique = tuple(sorted(dict.fromkeys(members), key=_natural))
    is_layer = isinstance(unique[0], Mlp) and unique[0].neuron is None
    if len(unique) == 1 and not excluded and not is_layer:
        return replace(unique[0], position=position)
    return OneOf(unique, excluded, position)


def sequence(items: tuple[Node, ...]) -> Node:
    """The parts joined by ``>``; sequences inside are taken apart."""
    flat = list[Node]()
    for item in items:
        for part in item.items if isinstance(item, Sequence) else (item,):
            # `.. > ..` is `..`
            if not (flat and isinstance(part, Anything) and isinstance(flat[-1], Anything)):
                flat.append(part)
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat), flat[0].position)


def repeat(item: Node, least: int, most: int) -> Node:
    """A repetition; once is the item itself."""
    if least == most == 1:
        return item
    if isinstance(item, Repeat) and (item.least, item.most, least, most) == (0, 1, 0, 1):
        return item
    return Repeat(item, least, most, item.position)


def union(options: tuple[Node, ...]) -> Node:
    """The options joined by ``|``, each once and in their natural order."""
    flat = _options(options, Union)
    return flat[0] if len(flat) == 1 else Union(flat, min(part.position for part in flat))


def intersection(options: tuple[Node, ...]) -> Node:
    """The options joined by ``&``, each once and in their natural order."""
    flat = _options(options, Intersection)
    return flat[0] if len(flat) == 1 else Intersection(flat, min(part.position for part in flat))


def complement(item: Node, position: int = 0) -> Node:
    """The complement; of a complement, what that is the complement of."""
    return item.item if isinstance(item, Complement) else Complement(item, position)


def _options(options: tuple[Node, ...], kind: type[Union | Intersection]) -> tuple[Node, ...]:
    flat = list[Node]()
    for option in options:
        flat.extend(option.options if isinstance(option, kind) else (option,))
    return tuple(sorted(dict.fromkeys(flat), key=_natural))


def _natural(node: Node) -> list[tuple[int, str]]:
    """Sort as one reads: ``0.9`` before ``0.10``."""
    # digits are compared by their number of digits first: as numbers, of any length
    return [
        (len(piece), piece) if piece.isdigit() else (0, piece)
        for piece in re.split(r"(\d+)", str(node))
    ]
