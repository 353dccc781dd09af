"""What is read off a map: its eigenvalues and its Frobenius norm.

They are the two measures that the circuits of heads are summarised by, and rules treat them
differently: ``λ(AB) = λ(BA)`` for eigenvalues, up to zeros, while ``‖AB‖`` and ``‖BA‖`` differ. A
measure is no map, so it neither composes nor adds.

>>> from otimes.algebra import Product, weight
>>> ov = weight("W_O", "d_model", "d_head") @ weight("W_V", "d_head", "d_model")
>>> eval(repr(Eigenvalues(ov))) == Eigenvalues(ov)
True
>>> Eigenvalues(weight("W_V", "d_head", "d_model"))
Traceback (most recent call last):
    ...
otimes.errors.TypeMismatchError: only a map of a space to itself has eigenvalues; W_V is
    d_head <- d_model
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr
from otimes.algebra.types import MEASURE
from otimes.errors import TypeMismatchError


class Measure(Expr):
    """The base of what is read off one map, ``arg``."""

    __slots__ = ("arg",)
    arg: Expr

    def __init__(self, arg: Expr) -> None:
        """Check that there is a map to measure."""
        if not isinstance(arg, Expr) or not arg.type.is_map:
            raise TypeMismatchError(f"only a map can be measured, not {arg}", arg)
        object.__setattr__(self, "arg", arg)
        self._set(MEASURE, arg, depth=1 + arg.depth)

    @property
    def children(self) -> tuple[Expr, ...]:
        """The map that is measured."""
        return (self.arg,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.arg!r})"


@final
class Eigenvalues(Measure):
    """``λ(M)``: the nonzero eigenvalues of a square map, with multiplicity."""

    __slots__ = ()

    def __init__(self, arg: Expr) -> None:
        """Check that the map is square."""
        super().__init__(arg)
        if any(slot is not None and slot[0] != slot[1] for slot in arg.type.slots or ()):
            raise TypeMismatchError(
                f"only a map of a space to itself has eigenvalues; {arg} is {arg.type}", arg
            )


@final
class FrobeniusNorm(Measure):
    """``‖M‖``: the root of the sum of the squared entries, as in composition scores."""

    __slots__ = ()
