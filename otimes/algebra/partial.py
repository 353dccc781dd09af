"""Partial expansion: some layers or heads written out, the rest gathered under names.

The heads that are not asked for become one symbol for each block, ``H[l] = Σ h``, so an expansion
stays readable and stays exact: what is shown and the remainder add up to the logits.

>>> from otimes.algebra import Architecture
>>> part = partial_expansion(Architecture(layers=2, heads=3), heads=["0.1", "1.0"])
>>> print(part.shown)
Id ⊗ W_U W_E + A[0.1] ⊗ W_U W_OV[0.1] W_E + A[1.0] ⊗ W_U W_OV[1.0] W_E
+ A[1.0] A[0.1] ⊗ W_U W_OV[1.0] W_OV[0.1] W_E
>>> print(part.remainder)
(Id ⊗ W_U) H[0] (Id ⊗ W_E) + (A[1.0] ⊗ W_U W_OV[1.0]) H[0] (Id ⊗ W_E)
+ (Id ⊗ W_U) H[1] (Id ⊗ W_E) + (Id ⊗ W_U) H[1] H[0] (Id ⊗ W_E)
+ (Id ⊗ W_U) H[1] (A[0.1] ⊗ W_OV[0.1] W_E)
>>> for symbol, meaning in part.definitions.items():
...     print(symbol, "=", meaning)
H[0] = A[0.0] ⊗ W_OV[0.0] + A[0.2] ⊗ W_OV[0.2]
H[1] = A[1.1] ⊗ W_OV[1.1] + A[1.2] ⊗ W_OV[1.2]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from otimes.algebra.definitions import Definitions, ov_circuit
from otimes.algebra.derivations import Derivation
from otimes.algebra.expressions import Expr, Scaled, Sum, pattern, tensor
from otimes.algebra.kinds import operator
from otimes.algebra.rules import (
    Collapse,
    Distribute,
    DropIdentity,
    Flatten,
    MixedProduct,
)
from otimes.algebra.rules.base import total
from otimes.algebra.types import D_MODEL, POS
from otimes.errors import UnknownComponentError, UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture


@final
@dataclass(frozen=True)
class PartialExpansion:
    """``shown + remainder`` is the whole, exactly.

    ``derivation`` shows how it came about; its definitions say what the names stand for.
    """

    derivation: Derivation
    shown: Expr
    remainder: Expr

    @property
    def definitions(self) -> Definitions:
        """What ``H[l]`` stands for."""
        return self.derivation.definitions

    @property
    def whole(self) -> Expr:
        """Shown and remainder together."""
        return Sum(self.shown, self.remainder)

    def __str__(self) -> str:
        names = "".join(f"\n  {symbol} = {what}" for symbol, what in self.definitions.items())
        where = f"\nwhere{names}" if names else ""
        return f"{self.shown}\n+ remainder: {self.remainder}{where}"


def partial_expansion(
    architecture: Architecture,
    *,
    heads: Iterable[str] = (),
    layers: Iterable[int] = (),
) -> PartialExpansion:
    """Expand the logits in some heads, or in all heads of some layers.

    Args:
        architecture: the transformer.
        heads: the heads to write out, such as ``1.4``.
        layers: the layers of which all heads are written out.

    Raises:
        UnknownComponentError: for a head or layer that there is not.
        UnsupportedError: if nothing is asked for.
    """
    asked = _asked(architecture, list(heads), list(layers))
    derivation = Derivation(architecture.logits.expression)
    for layer, number in enumerate(architecture.heads):
        rest = [f"{layer}.{h}" for h in range(number) if f"{layer}.{h}" not in asked]
        if rest:
            meaning = total(tensor(pattern("A", label=h), ov_circuit(h)) for h in rest)
            symbol = operator("H", (POS, POS), (D_MODEL, D_MODEL), label=str(layer))
            derivation = derivation.everywhere(Collapse(symbol, meaning))
    derivation = derivation.where_possible(Distribute(), DropIdentity(), Flatten()).where_possible(
        MixedProduct(), DropIdentity(), Flatten()
    )
    named = set(derivation.definitions)
    addends = derivation.end.args if isinstance(derivation.end, Sum) else (derivation.end,)
    shown = [addend for addend in addends if not named.intersection(addend.factors)]
    rest = [addend for addend in addends if addend not in shown]
    nothing = Scaled(0, derivation.end)
    return PartialExpansion(
        derivation, total(shown) if shown else nothing, total(rest) if rest else nothing
    )


def _asked(architecture: Architecture, heads: list[str], layers: list[int]) -> set[str]:
    known = {f"{layer}.{h}": layer for layer, n in enumerate(architecture.heads) for h in range(n)}
    for head in heads:
        if head not in known:
            raise UnknownComponentError(
                f"no head {head}: {architecture!r} has {', '.join(known) or 'none'}", head
            )
    for layer in layers:
        if not 0 <= layer < architecture.layers:
            raise UnknownComponentError(
                f"no layer {layer}: {architecture!r} has {architecture.layers}", str(layer)
            )
    if not heads and not layers:
        raise UnsupportedError("name the heads or layers to expand; .expand() expands them all")
    return set(heads).union(head for head, layer in known.items() if layer in layers)
