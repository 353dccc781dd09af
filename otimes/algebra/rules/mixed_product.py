"""Mixed product: ``(A ⊗ B)(C ⊗ D) = AC ⊗ BD``.

Each slot is composed on its own (Elhage et al. 2021, "Notation"). It makes one head of two, and
one ``A ⊗ W`` of the three stages of a head:

>>> from otimes.algebra import Id, pattern, tensor, weight
>>> A, W_O, W_V = (
...     pattern("A"),
...     weight("W_O", "d_model", "d_head"),
...     weight("W_V", "d_head", "d_model"),
... )
>>> print(MixedProduct().apply(tensor(Id, W_O) @ tensor(A, Id) @ tensor(Id, W_V)))
Id A Id ⊗ W_O Id W_V
>>> MixedProduct().why_not(A @ A)
'no two tensor products stand side by side in A A'
"""

from __future__ import annotations

from itertools import groupby
from typing import final

from otimes.algebra.expressions import Expr, Product, Tensor
from otimes.algebra.rules.base import Refusal, Rule, product


@final
class MixedProduct(Rule):
    """Compose adjacent tensor products slot by slot."""

    name = "mixed product"
    identity = "(A ⊗ B)(C ⊗ D) = AC ⊗ BD"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """Merge each run of tensor products in a product."""
        if not isinstance(expr, Product):
            return Refusal(lambda: f"{expr} is not a product")
        merged = list[Expr]()
        for is_tensor, group in groupby(expr.args, lambda arg: isinstance(arg, Tensor)):
            run = list(group)
            if not is_tensor or len(run) == 1:
                merged.extend(run)
                continue
            # a well-typed product of tensor products has as many slots in each
            slots = zip(*(arg.children for arg in run), strict=True)
            merged.append(Tensor(*map(product, slots)))
        if len(merged) == len(expr.args):
            return Refusal(lambda: f"no two tensor products stand side by side in {expr}")
        return merged[0] if len(merged) == 1 else Product(*merged)
