"""Expressions: named factors, and their sums, products, tensor products, transposes and multiples.

Nodes are immutable and hashable, operators build one node each and check its type; nothing is
rewritten when built. As with any left-associative operator ``a + b + c`` is one sum of three and
``a + (b + c)`` a sum of two, and likewise for ``@``.

>>> from otimes.algebra import Id, pattern, tensor, weight
>>> A1, A2 = pattern("A1"), pattern("A2")
>>> W1, W2 = weight("W1", "d_model", "d_model"), weight("W2", "d_model", "d_model")
>>> product = tensor(A2, W2) @ tensor(A1, W1)
>>> print(product)
(A2 ⊗ W2)(A1 ⊗ W1)
>>> eval(repr(product)) == product
True
>>> weight("W_U", "vocab", "d_model") @ weight("W_O", "d_head", "vocab")
Traceback (most recent call last):
    ...
otimes.errors.TypeMismatchError: the product W_U W_O does not fit: W_U is vocab <- d_model, W_O is
    d_head <- vocab. The domain of the left side must be the codomain of the right side
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import reduce
from typing import Any, ClassVar, Final, Self, final
from weakref import WeakValueDictionary

from otimes.algebra.node import Expr
from otimes.algebra.types import ONE, OPEN, POS, Type, compose, unify
from otimes.errors import TypeMismatchError

FACTOR_KINDS: Final = ("", "diagonal", "rotation", "inclusion", "offset")

# not isidentifier(), which admits the middle dot and combining marks
_NAME = re.compile(r"[^\W\d]\w*")
_LABEL = re.compile(r"[\w.]*")


@final
class Factor(Expr):
    """A named linear map: a pattern, a weight, an input, or an operator on several slots.

    ``label`` tells which component it belongs to: ``W_OV[1.4]`` has the name ``W_OV`` and the
    label ``1.4``. ``kind`` tells what is known of it beside its type: a ``diagonal`` is its own
    transpose and commutes with diagonals, a ``rotation`` is orthogonal, an ``inclusion`` embeds
    one summand of a direct sum, an ``offset`` is one matrix for each offset of the key's slot from
    the query's. ``group`` is the label of the key-value head that a head reads
    with, where heads share them: ``W_OV[1.4]`` with the group ``1.kv2`` is ``W_O[1.4] W_V[1.kv2]``.
    Equal factors are one object.
    """

    __slots__ = ("group", "kind", "label", "name")
    name: str
    label: str
    kind: str
    group: str
    _interned: ClassVar[WeakValueDictionary[tuple[str, str, str, str, Type], Factor]] = (
        WeakValueDictionary()
    )

    def __new__(
        cls, name: str, type_: Type, label: str = "", kind: str = "", group: str = ""
    ) -> Factor:
        """Return the one factor of this name, type, label, kind and group.

        Raises:
            TypeMismatchError: for what cannot name a factor, a label, a kind or a space.
        """
        _check_names(name, label, type_)
        known = cls._interned.get((name, label, kind, group, type_))
        if known is not None:
            return known
        if kind not in FACTOR_KINDS:
            raise TypeMismatchError(f"unknown kind of factor {kind!r}; known are {FACTOR_KINDS}")
        taken = name == "Id" or "ᵀ" in name + label
        if taken or not _NAME.fullmatch(name) or not _LABEL.fullmatch(label + group):
            raise TypeMismatchError(
                f"{name!r} with label {label!r} cannot name a factor: a name is letters, digits "
                "and _ (Id and ᵀ are taken), a label letters, digits and ."
            )
        self = super().__new__(cls)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "group", group)
        self._set(type_, name, type_, label, kind, group)
        cls._interned[name, label, kind, group, type_] = self
        return self

    def __repr__(self) -> str:
        label = f", label={self.label!r}" if self.label else ""
        slots = self.type.slots or ()
        if self.kind or self.group:
            from otimes.algebra.kinds import represent

            return represent(self)
        if slots == ((POS, POS),):
            return f"pattern({self.name!r}{label})"
        if len(slots) == 1 and slots[0] is not None:
            return f"weight({self.name!r}, {slots[0][0]!r}, {slots[0][1]!r}{label})"
        if all(slot is not None and slot[1] == ONE for slot in slots):
            spaces = ", ".join(repr(slot[0]) for slot in slots if slot is not None)
            return f"vector({self.name!r}, {spaces}{label})"
        return f"operator({self.name!r}, {', '.join(map(repr, slots))}{label})"


def _check_names(name: object, label: object, type_: Type) -> None:
    """Refuse numbers and the like where names stand: sizes of spaces are no part of a symbol."""
    for what, value in (("name", name), ("label", label)):
        if not isinstance(value, str):
            raise TypeMismatchError(f"the {what} of a factor is a text such as 'W', not {value!r}")
    spaces: list[object] = [space for slot in type_.slots or () for space in slot or ()]
    for space in spaces:
        if not isinstance(space, str) or not space:
            raise TypeMismatchError(
                f"the spaces of {name} are names such as 'd_model', not {space!r}; sizes are given "
                "where values are taken"
            )


@final
class Identity(Expr):
    """The identity on whatever it meets."""

    __slots__ = ()

    def __init__(self) -> None:
        """Build the identity; ``Id`` is the one to use."""
        self._set(OPEN)

    def __repr__(self) -> str:
        return "Id"


Id: Final = Identity()


class Nary(Expr):
    """A node over any number of expressions, ``args``."""

    __slots__ = ("args",)
    args: tuple[Expr, ...]

    def _fill(self, type_: Type, args: tuple[Expr, ...]) -> None:
        object.__setattr__(self, "args", args)
        self._set(type_, *args, depth=1 + max([arg.depth for arg in args]))

    @classmethod
    def unchecked(cls, type_: Type, args: tuple[Expr, ...]) -> Self:
        """The node without its check of types, where the caller knows that they fit."""
        self = object.__new__(cls)
        self._fill(type_, args)
        return self

    def __getattr__(self, name: str) -> Any:
        # what `word` left open, when it is first asked for
        if name == "depth":
            object.__setattr__(self, "depth", 1 + max([arg.depth for arg in self.args]))
            return self.depth
        if name == "_key":
            object.__setattr__(self, "_key", self.args)
            return self._key
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def children(self) -> tuple[Expr, ...]:
        """The arguments."""
        return self.args

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.args))})"


def _need(node: str, args: tuple[object, ...], least: int) -> None:
    if len(args) < least or not all(isinstance(arg, Expr) for arg in args):
        shown = ", ".join(str(arg) for arg in args)
        raise TypeMismatchError(f"a {node} takes {least} or more expressions, not ({shown})")


def _need_map(node: str, arg: Expr) -> None:
    _need(node, (arg,), 1)
    if not arg.type.is_map:
        raise TypeMismatchError(f"a {node} is of a map; {arg} is {arg.type}", arg)


@final
class Sum(Nary):
    """A sum of maps of one type."""

    __slots__ = ()

    def __init__(self, *args: Expr) -> None:
        """Check that the addends share a type."""
        _need("sum", args, 1)

        def join(left: tuple[Type, Expr], right: Expr) -> tuple[Type, Expr]:
            common = unify(left[0], right.type)
            if common is None:
                raise TypeMismatchError(
                    f"the sum {left[1]} + {right} does not fit: {left[1]} is {left[0]}, "
                    f"{right} is {right.type}. Addends need equal spaces on both sides",
                    left[1],
                    right,
                )
            return common, right

        self._fill(reduce(join, args[1:], (args[0].type, args[0]))[0], args)


@final
class Product(Nary):
    """A composition of maps; the later factor stands on the left."""

    __slots__ = ()

    def __init__(self, *args: Expr) -> None:
        """Check that each domain is the next codomain."""
        _need("product", args, 1)

        def join(left: tuple[Type, Expr], right: Expr) -> tuple[Type, Expr]:
            whole = compose(left[0], right.type)
            if whole is None:
                raise TypeMismatchError(
                    f"the product {left[1]} {right} does not fit: {left[1]} is {left[1].type}, "
                    f"{right} is {right.type}. "
                    "The domain of the left side must be the codomain of the right side",
                    left[1],
                    right,
                )
            return whole, right

        self._fill(reduce(join, args[1:], (args[0].type, args[0]))[0], args)


class _Draft(Nary):
    """A product while its fields are set, which is many times faster where none is refused."""

    __slots__ = ()
    # both, or neither is looked up quickly; a slot wrapper's parameters have no names
    __setattr__ = object.__setattr__  # pyright: ignore[reportAssignmentType]
    __delattr__ = object.__delattr__  # pyright: ignore[reportAssignmentType]


def word(type_: Type, factors: tuple[Expr, ...]) -> Product:
    """``Product.unchecked`` for millions of words, which leaves open what few are asked for."""
    draft: Any = _Draft()
    draft.args = factors
    draft.type = type_
    draft.__class__ = Product  # from here on nothing can be set
    return draft


@final
class Tensor(Nary):
    """A tensor product: one slot for each argument."""

    __slots__ = ()

    def __init__(self, *args: Expr) -> None:
        """Check that each argument is a map of one slot."""
        _need("tensor product", args, 2)
        for arg in args:
            if arg.type.slots is not None and len(arg.type.slots) != 1:
                raise TypeMismatchError(
                    f"a slot of a tensor product takes a map between single spaces; {arg} is "
                    f"{arg.type}",
                    arg,
                )
        self._fill(Type(tuple(a.type.slots[0] if a.type.slots else None for a in args)), args)

    def __repr__(self) -> str:
        return f"tensor({', '.join(map(repr, self.args))})"


@final
class Transpose(Expr):
    """The transpose of a map."""

    __slots__ = ("arg",)
    arg: Expr

    def __init__(self, arg: Expr) -> None:
        """Build the transpose; any expression has one."""
        _need_map("transpose", arg)
        object.__setattr__(self, "arg", arg)
        self._set(arg.type.transposed, arg, depth=1 + arg.depth)

    @property
    def children(self) -> tuple[Expr, ...]:
        """The one argument."""
        return (self.arg,)

    def __repr__(self) -> str:
        return f"{self.arg!r}.T"


@final
class Scaled(Expr):
    """An exact rational multiple of a map."""

    __slots__ = ("arg", "coefficient")
    arg: Expr
    coefficient: Fraction

    def __init__(self, coefficient: int | Fraction, arg: Expr) -> None:
        """Take an int or a Fraction: floats are not exact and are refused."""
        if isinstance(coefficient, bool) or not isinstance(coefficient, int | Fraction):
            raise TypeMismatchError(
                f"a coefficient is an int or a Fraction, not {coefficient!r}; "
                "exact values keep sums exact"
            )
        _need_map("multiple", arg)
        object.__setattr__(self, "arg", arg)
        object.__setattr__(self, "coefficient", Fraction(coefficient))
        self._set(arg.type, Fraction(coefficient), arg, depth=1 + arg.depth)

    @property
    def children(self) -> tuple[Expr, ...]:
        """The one argument."""
        return (self.arg,)

    def with_children(self, *children: Expr) -> Expr:
        """The same multiple of another expression."""
        return Scaled(self.coefficient, *children)

    def __repr__(self) -> str:
        return f"Scaled({self.coefficient!r}, {self.arg!r})"


def pattern(name: str, *, label: str = "") -> Factor:
    """An attention pattern ``name: pos <- pos``."""
    return Factor(name, Type.of((POS, POS)), label)


def weight(name: str, codomain: str, domain: str, *, label: str = "") -> Factor:
    """A weight matrix ``name: codomain <- domain``, in the order of a matrix's shape."""
    return Factor(name, Type.of((codomain, domain)), label)


def vector(name: str, *spaces: str, label: str = "") -> Factor:
    """A vector in a tensor product of spaces, such as the tokens ``t`` in ``pos ⊗ vocab``."""
    return Factor(name, Type(tuple((space, "1") for space in spaces)), label)


def tensor(*args: Expr) -> Tensor:
    """The tensor product ``A ⊗ W``; on ``x [pos, d_model]`` it acts as ``A x W^T``.

    As a matrix on the row-major flattening of ``x`` it is ``kron(A, W)``
    (Elhage et al. 2021, "Notation").
    """
    return Tensor(*args)
