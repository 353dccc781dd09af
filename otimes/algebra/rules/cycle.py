"""The cycle: ``λ(AB) = λ(BA)``, for nonzero eigenvalues and for nothing else.

It makes the eigenvalues of a vocabulary-sized circuit those of a d_head × d_head matrix (Elhage et
al. 2021, "Summarizing OV/QK Matrices"). Norms change under it: ``‖AB‖`` and ``‖BA‖`` are different
numbers, and so are the maps.

>>> from otimes.algebra.definitions import ov_circuit
>>> from otimes.algebra.measures import Eigenvalues, FrobeniusNorm
>>> from otimes.algebra.rules.ov import ExpandOV
>>> ov = ExpandOV().apply(ov_circuit("0.0"))
>>> print(Cycle().apply(Eigenvalues(ov)))
λ(W_V[0.0] W_O[0.0])
>>> Cycle().why_not(FrobeniusNorm(ov))
'a norm is taken, and norms of W_O[0.0] W_V[0.0] and W_V[0.0] W_O[0.0] differ'
>>> Cycle().why_not(ov)
'it preserves eigenvalues alone: take λ(W_O[0.0] W_V[0.0]), AB and BA are different maps'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from otimes.algebra.expressions import Expr, Product
from otimes.algebra.measures import Eigenvalues, FrobeniusNorm
from otimes.algebra.rules.base import Preserves, Refusal, Rule, product


@final
@dataclass(frozen=True)
class Cycle(Rule):
    """Move the first ``factors`` factors of a product to its end, under ``λ``."""

    factors: int = 1
    name = "cycle"
    identity = "λ(AB) = λ(BA)"
    preserves: ClassVar[Preserves] = "spectrum"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The eigenvalues of the product in its cycled order."""
        inner = expr.arg if isinstance(expr, Eigenvalues | FrobeniusNorm) else expr
        if not isinstance(inner, Product) or not 0 < self.factors < len(inner.args):
            return Refusal(lambda: f"{inner} is not a product of more than {self.factors} factors")
        cycled = inner.args[self.factors :] + inner.args[: self.factors]
        if isinstance(expr, FrobeniusNorm):
            other = " ".join(map(str, cycled))
            return Refusal(lambda: f"a norm is taken, and norms of {inner} and {other} differ")
        if not isinstance(expr, Eigenvalues):
            return Refusal(
                lambda: (
                    f"it preserves eigenvalues alone: take λ({inner}), AB and BA are different maps"
                )
            )
        return Eigenvalues(product(cycled))

    __str__ = Rule.__str__
