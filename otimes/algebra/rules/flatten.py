"""Associativity: ``A(BC) = (AB)C = ABC`` and ``A + (B + C) = A + B + C``.

>>> from otimes.algebra import Product, pattern
>>> A, B, C = pattern("A"), pattern("B"), pattern("C")
>>> print(Product(A, Product(B, C)), "=", Flatten().apply(Product(A, Product(B, C))))
A (B C) = A B C
>>> Flatten().why_not(A @ B @ C)
'A B C has no product inside the product'
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr, Product, Sum
from otimes.algebra.rules.base import Refusal, Rule


@final
class Flatten(Rule):
    """Write nested products, or sums, as one; a product or sum of one is that one."""

    name = "associativity"
    identity = "A(BC) = (AB)C = ABC"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """Splice in the arguments that are of the node's own kind."""
        if not isinstance(expr, Product | Sum):
            return Refusal(lambda: f"{expr} is neither a product nor a sum")
        if len(expr.args) == 1:
            return expr.args[0]
        node = type(expr)
        if not any(isinstance(arg, node) for arg in expr.args):
            kind = "product" if node is Product else "sum"
            return Refusal(lambda: f"{expr} has no {kind} inside the {kind}")
        return node(
            *(x for arg in expr.args for x in (arg.children if isinstance(arg, node) else (arg,)))
        )
