"""Identity: ``Id A = A = A Id``, ``Id ⊗ Id = Id``, ``Idᵀ = Id``.

>>> from otimes.algebra import Id, pattern, tensor
>>> A = pattern("A")
>>> print(DropIdentity().apply(Id @ A @ Id))
A
>>> print(DropIdentity().apply(tensor(Id, Id)))
Id
>>> DropIdentity().why_not(tensor(Id, A))
'an identity beside A says that its slot is left alone'
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr, Id, Product, Tensor, Transpose
from otimes.algebra.rules.base import Refusal, Rule, product


@final
class DropIdentity(Rule):
    """Leave out the identities of a word, and the identity of all slots."""

    name = "identity"
    identity = "Id A = A = A Id"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """Drop what does nothing."""
        if isinstance(expr, Product) and Id in expr.args:
            return product([arg for arg in expr.args if arg is not Id] or [Id])
        if isinstance(expr, Tensor | Transpose) and all(arg is Id for arg in expr.children):
            return Id
        if isinstance(expr, Tensor) and Id in expr.args:
            busy = next(arg for arg in expr.args if arg is not Id)
            return Refusal(lambda: f"an identity beside {busy} says that its slot is left alone")
        return Refusal(lambda: f"{expr} has no identity that could be left out")
