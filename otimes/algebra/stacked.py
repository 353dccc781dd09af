"""Block matrices: a row of maps side by side, and a column of maps stacked.

Concatenating the results of a layer's heads stacks them in a direct sum of their spaces; the
output matrix of the whole layer is the row of the heads' own (Elhage et al. 2021, "Attention heads
are independent and additive"). A row and a column act on the *last* slot, which is where the
features are; any slots before it, such as ``pos``, are shared.

>>> from otimes.algebra import weight
>>> W = Row(weight("W1", "d_model", "d_head"), weight("W2", "d_model", "d_head"))
>>> W.type
d_model <- d_head ⊕ d_head
>>> eval(repr(W)) == W
True
>>> Row(weight("W1", "d_model", "d_head"), weight("V", "d_head", "d_model"))
Traceback (most recent call last):
    ...
otimes.errors.TypeMismatchError: the row of W1 and V does not fit: W1 is d_model <- d_head,
    V is d_head <- d_model. Blocks of a row need one codomain, and one domain in every slot but
    the last
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr, Nary
from otimes.algebra.types import Slot, Type, direct_sum
from otimes.errors import TypeMismatchError


@final
class Row(Nary):
    """``(M1 M2 …)``: maps with one codomain, side by side; the domain is the direct sum."""

    __slots__ = ()

    def __init__(self, *args: Expr) -> None:
        """Check that the blocks share a codomain."""
        self._fill(_stacked("row", args, 1), args)


@final
class Column(Nary):
    """``(M1; M2; …)``: maps with one domain, stacked; the codomain is the direct sum."""

    __slots__ = ()

    def __init__(self, *args: Expr) -> None:
        """Check that the blocks share a domain."""
        self._fill(_stacked("column", args, 0), args)


def _stacked(node: str, args: tuple[Expr, ...], side: int) -> Type:
    """The type of a row (``side`` 1, the domains add) or of a column (``side`` 0)."""
    if len(args) < 2 or not all(isinstance(arg, Expr) for arg in args):
        shown = ", ".join(str(arg) for arg in args)
        raise TypeMismatchError(f"a {node} takes 2 or more expressions, not ({shown})")
    closed = [_closed(node, arg) for arg in args]
    for arg, slots in zip(args, closed, strict=True):
        same = len(slots) == len(closed[0]) and slots[:-1] == closed[0][:-1]
        if not same or slots[-1][1 - side] != closed[0][-1][1 - side]:
            ends = ("codomain", "domain")
            raise TypeMismatchError(
                f"the {node} of {args[0]} and {arg} does not fit: {args[0]} is {args[0].type}, "
                f"{arg} is {arg.type}. Blocks of a {node} need one {ends[1 - side]}, and one "
                f"{ends[side]} in every slot but the last",
                args[0],
                arg,
            )
    shared = closed[0][-1][1 - side]
    total = direct_sum(*(slots[-1][side] for slots in closed))
    last: Slot = (total, shared) if side == 0 else (shared, total)
    return Type((*closed[0][:-1], last))


def _closed(node: str, arg: Expr) -> list[tuple[str, str]]:
    slots = [slot for slot in arg.type.slots or () if slot is not None]
    if not slots or len(slots) != len(arg.type.slots or ()):
        raise TypeMismatchError(
            f"a block of a {node} needs known spaces; {arg} is {arg.type}. Name the space by a "
            "factor, for an identity says none",
            arg,
        )
    return slots
