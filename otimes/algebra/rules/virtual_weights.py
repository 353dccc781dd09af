"""Virtual weights: a later read times an earlier write, ``… (W_I W_O) …``.

Since the stream is a sum, what a component reads of another's output depends on the product of the
two matrices alone, however many layers lie between (Elhage et al. 2021, "Virtual Weights and the
Residual Stream as a Communication Channel"). The rule brackets each such product in a word.

>>> from otimes.algebra.definitions import ov_circuit
>>> from otimes.algebra.rules.ov import ExpandOV
>>> word = ExpandOV().apply(ov_circuit("1.0") @ ov_circuit("0.0"))
>>> print(VirtualWeights().apply(word))
W_O[1.0] (W_V[1.0] W_O[0.0]) W_V[0.0]
>>> VirtualWeights().why_not(ov_circuit("1.0") @ ov_circuit("0.0"))
'W_OV[1.0] W_OV[0.0] has no read W_I: … <- d_model beside a write W_O: d_model <- …'
"""

from __future__ import annotations

from typing import final

from otimes.algebra.expressions import Expr, Factor, Product, Transpose
from otimes.algebra.rules.base import Refusal, Rule
from otimes.algebra.types import D_MODEL


@final
class VirtualWeights(Rule):
    """Bracket each read with the write that stands beside it."""

    name = "virtual weights"
    identity = "… W_I W_O … = … (W_I W_O) …"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        """The word with its virtual weights as factors."""
        if not isinstance(expr, Product):
            return Refusal(lambda: f"{expr} is not a product")
        word = list[Expr]()
        for arg in expr.args:
            # a read has d_model as its domain alone, a write as its codomain alone
            if word and _ends(word[-1], 1) and _ends(arg, 0):
                word[-1] = Product(word[-1], arg)
            else:
                word.append(arg)
        if len(word) == len(expr.args):
            return Refusal(
                lambda: f"{expr} has no read W_I: … <- d_model beside a write W_O: d_model <- …"
            )
        if len(word) == 1:
            return Refusal(lambda: f"{expr} is a virtual weight already")
        return Product(*word)


def _ends(expr: Expr, side: int) -> bool:
    factor = expr.arg if isinstance(expr, Transpose) else expr
    slots = expr.type.slots or ()
    if not isinstance(factor, Factor) or len(slots) != 1 or slots[0] is None:
        return False
    return slots[0][side] == D_MODEL and slots[0][1 - side] != D_MODEL
