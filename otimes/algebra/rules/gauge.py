"""Gauge: rotating the stream, with every matrix that touches it, changes no result.

The stream has no privileged basis: with ``W_E → R W_E``, ``W_U → W_U Rᵀ``, ``W → R W Rᵀ`` the
rotations cancel in pairs (Elhage et al. 2021, "The residual stream"). So the weights are other
weights, and the function is the same. The gain of a norm singles out coordinates and has to be
folded into its neighbours first.

>>> from otimes.algebra import weight
>>> from otimes.algebra.kinds import rotation
>>> R = rotation("R")
>>> W_U, W_E = weight("W_U", "vocab", "d_model"), weight("W_E", "d_model", "vocab")
>>> print(Rotate(R).apply(W_U @ W_E))
W_U Rᵀ R W_E
>>> Rotate(R).why_not(W_E)
'W_E is d_model <- vocab: coordinates of the stream are rotated with it'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from otimes.algebra.expressions import Expr, Factor, Id, Product, Tensor, Transpose
from otimes.algebra.rules.base import Preserves, Refusal, Rule, product
from otimes.algebra.types import summands


@final
@dataclass(frozen=True)
class Rotate(Rule):
    """Replace each symbol by the one of the model in rotated coordinates of one space."""

    rotation: Factor
    name = "gauge"
    identity = "W_U → W_U Rᵀ, W → R W Rᵀ, W_E → R W_E"
    preserves: ClassVar[Preserves] = "gauge"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The same expression of the rotated model."""
        if self.rotation.kind != "rotation":
            return Refusal(
                lambda: f"{self.rotation} is not known to be a rotation; see kinds.rotation"
            )
        slot = (self.rotation.type.slots or (None,))[0]
        assert slot is not None
        space = slot[0]
        if not expr.type.is_map:
            return Refusal("it rotates maps; apply it to what is measured")
        if any(end == space for s in expr.type.slots or ((space, space),) for end in s or ()):
            return Refusal(
                lambda: f"{expr} is {expr.type}: coordinates of the stream are rotated with it"
            )
        for factor in expr.factors:
            if factor.name in ("Γ", "N"):
                return Refusal(f"the gain of {factor} singles out coordinates; fold it first")
            whole = _proper_sum(factor, space)
            if whole is not None:
                return Refusal(
                    f"{factor} is {factor.type}: {space} is a part of {whole}, and the rotation "
                    "would have to turn that part alone; take the blocks apart first"
                )
            if factor.kind and space in _spaces(factor):
                return Refusal(f"{factor} is a {factor.kind} and would not stay one")
        rotated = self._rotated(expr, space)
        return Refusal(lambda: f"{expr} nowhere touches {space}") if rotated == expr else rotated

    def _rotated(self, expr: Expr, space: str) -> Expr:
        if not isinstance(expr, Factor):
            inner = [self._rotated(child, space) for child in expr.children]
            return product(inner) if isinstance(expr, Product) else expr.with_children(*inner)
        slots = [slot for slot in expr.type.slots or () if slot is not None]
        into = [self.rotation if slot[0] == space else Id for slot in slots]
        out = [Transpose(self.rotation) if slot[1] == space else Id for slot in slots]
        sides = [
            [parts[0] if len(parts) == 1 else Tensor(*parts)]
            if any(p is not Id for p in parts)
            else []
            for parts in (into, out)
        ]
        return product([*sides[0], expr, *sides[1]])

    __str__ = Rule.__str__


def _proper_sum(factor: Factor, space: str) -> str | None:
    """An end of a factor of which the space is a part and not the whole."""
    ends = (end for slot in factor.type.slots or () if slot for end in slot)
    return next((end for end in ends if end != space and space in summands(end)), None)


def _spaces(factor: Factor) -> set[str]:
    ends = (end for slot in factor.type.slots or () if slot for end in slot)
    return {part for end in ends for part in summands(end)}
