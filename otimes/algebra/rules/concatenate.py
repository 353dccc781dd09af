"""Concatenate, then project, is a sum over heads: ``(W¹ W² …)(r¹; r²; …) = Σ Wⁱ rⁱ``.

The output matrix of a whole layer is the row of its heads' own, so the heads write to the stream
independently (Elhage et al. 2021, "Attention heads are independent and additive").

>>> from otimes.algebra import Id, tensor, vector
>>> from otimes.algebra.definitions import write
>>> from otimes.algebra.stacked import Column, Row
>>> r1, r2 = (vector("r", "pos", "d_head", label=h) for h in ("0.0", "0.1"))
>>> layer = tensor(Id, Row(write("0.0"), write("0.1"))) @ Column(r1, r2)
>>> print(Concatenate().apply(layer))
(Id ⊗ W_O[0.0]) r[0.0] + (Id ⊗ W_O[0.1]) r[0.1]
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr, Product, Sum, Tensor
from otimes.algebra.rules.base import Refusal, Rule, product
from otimes.algebra.stacked import Column, Row
from otimes.algebra.types import Type


@final
class Concatenate(Rule):
    """Write a row times a column as the sum of the products of their blocks."""

    name = "concatenate-then-project"
    identity = "(W¹ W² …)(r¹; r²; …) = W¹r¹ + W²r² + …"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The sum over blocks, for the first row that meets a column."""
        if not isinstance(expr, Product):
            return Refusal(lambda: f"{expr} is not a product")
        for k, (left, right) in enumerate(zip(expr.args, expr.args[1:], strict=False)):
            row = left.args[-1] if isinstance(left, Tensor) else left
            if not (isinstance(row, Row) and isinstance(right, Column)):
                continue
            before = left.args[:-1] if isinstance(left, Tensor) else ()
            if [_last(arg.type, 1) for arg in row.args] != [
                _last(arg.type, 0) for arg in right.args
            ]:
                return Refusal(f"the blocks of {row} and {right} do not meet one to one")
            blocks = (
                product([Tensor(*before, w) if before else w, r])
                for w, r in zip(row.args, right.args, strict=True)
            )
            return product([*expr.args[:k], Sum(*blocks), *expr.args[k + 2 :]])
        return Refusal(lambda: f"no row of blocks meets a column in {expr}")


def _last(type_: Type, side: int) -> str | None:
    slot = (type_.slots or (None,))[-1]
    return slot and slot[side]
