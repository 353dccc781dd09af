"""The value of algebraic expressions, given the tensors of their symbols.

An operator ``(A ⊗ W) x = A x W^T`` is applied to ``x`` stored ``[batch, pos, space]``; nothing is
made larger than a stream or the logits.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from otimes.algebra import Expr, Factor, Identity, Product, Scaled, Sum, Transpose
from otimes.algebra import Tensor as TensorProduct
from otimes.algebra.types import ONE, POS, VOCAB, Type, unify
from otimes.algebra.vocabulary import TOKENS
from otimes.errors import TypeMismatchError, UnsupportedError

_OPERATOR = Type.of((POS, POS), (VOCAB, VOCAB))
_VECTOR = Type.of((POS, ONE), (VOCAB, ONE))


@runtime_checkable
class Symbols(Protocol):
    """What gives the tensors of symbols."""

    def matrix(self, factor: Factor) -> Tensor:
        """``[codomain, domain]``, over positions ``[batch, dest, src]``; a multiple of Id: []."""
        ...

    def vector(self, factor: Factor) -> Tensor:
        """``[batch, pos, space]``."""
        ...


def evaluate(expr: Expr, symbols: Symbols) -> Tensor:
    """The value of an expression: an operator is applied to the one-hot tokens.

    Returns:
        ``[batch, pos, d_vocab]``.

    Raises:
        TypeMismatchError: for an expression that does not end in the logits.
        UnknownComponentError: for a symbol that the model does not have.
        UnsupportedError: for an expression of a form that has no value here.
    """
    if all(unify(expr.type, whole) != whole for whole in (_OPERATOR, _VECTOR)):
        raise TypeMismatchError(
            f"to evaluate, give an expression from the tokens to the logits, of the type "
            f"{_OPERATOR} or {_VECTOR}; {expr} is {expr.type}",
            expr.type,
            _OPERATOR,
        )
    closed = unify(expr.type, _VECTOR) == _VECTOR
    return applied(expr, None if closed else symbols.vector(TOKENS), symbols)


def applied(expr: Expr, x: Tensor | None, symbols: Symbols) -> Tensor:
    """An expression applied to ``x``, or its own value where it begins with an input."""
    match expr:
        case Factor():
            return symbols.vector(expr)
        case Sum():
            parts = [applied(arg, x, symbols) for arg in expr.args]
            return sum(parts[1:], parts[0])
        case Product():
            for arg in reversed(expr.args):
                x = applied(arg, x, symbols)
            assert x is not None
            return x
        case Scaled():
            return float(expr.coefficient) * applied(expr.arg, x, symbols)
        case Identity() if x is not None:
            return x
        case TensorProduct() if x is not None and len(expr.args) == 2:
            pattern, weight = (slot(arg, symbols) for arg in expr.args)
            if weight is not None:
                x = x * weight if weight.ndim == 0 else x @ weight.T
            return x if pattern is None else pattern @ x
        case _:
            raise UnsupportedError(f"cannot evaluate {expr} on a run")


def slot(expr: Expr, symbols: Symbols) -> Tensor | None:
    """The matrix of an expression between single spaces; None is the identity."""
    match expr:
        case Identity():
            return None
        case Factor():
            return symbols.matrix(expr)
        case Product():
            found: Tensor | None = None
            for arg in expr.args:
                found = _composed(found, slot(arg, symbols))
            return found
        case Sum():
            parts = [slot(arg, symbols) for arg in expr.args]
            added = [part for part in parts if part is not None]
            # a sum of matrices; Id and its multiples have no size of their own here
            if len(added) == len(parts) and all(part.ndim for part in added):
                return sum(added[1:], added[0])
        case Scaled():
            matrix = slot(expr.arg, symbols)
            return None if matrix is None else float(expr.coefficient) * matrix
        case Transpose():
            matrix = slot(expr.arg, symbols)
            return matrix if matrix is None or matrix.ndim == 0 else matrix.transpose(-1, -2)
        case _:
            pass
    raise UnsupportedError(f"cannot evaluate {expr} in one slot of a tensor product")


def _composed(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left @ right if left.ndim and right.ndim else left * right
