"""Partial expansion: some layers or heads written out, the rest gathered under names.

The heads that are not asked for become one symbol for each layer, ``H[l] = Σ h``, so an expansion
stays readable and stays exact: what is shown and the remainder add up to the logits. Likewise the
neurons of a frozen MLP become ``M[l]``; constants that such heads and neurons add inside themselves
(``b_V``, a norm's bias) become ``c_H[l]`` and ``c_M[l]``.

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

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from otimes.algebra.definitions import Definitions
from otimes.algebra.derivations import Derivation
from otimes.algebra.expressions import Expr, Factor, Scaled, Sum, vector
from otimes.algebra.kinds import operator
from otimes.algebra.layout import ATTENTION, MLP, branch_of
from otimes.algebra.rules import (
    Collapse,
    Distribute,
    DropIdentity,
    Flatten,
    MixedProduct,
)
from otimes.algebra.rules.base import total
from otimes.algebra.types import D_MODEL, POS
from otimes.algebra.vocabulary import Component, component_name
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
        """What ``H[l]`` and the other names stand for."""
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
    heads: str | Iterable[str] = (),
    layers: int | Iterable[int] = (),
) -> PartialExpansion:
    """Expand the logits in some heads, or in some layers.

    Args:
        architecture: the transformer.
        heads: the heads to write out, such as ``1.4`` or ``L1H4``; neurons such as ``mlp1.n3`` too.
        layers: the layers of which all heads, and all neurons of a frozen MLP, are written out.

    Raises:
        UnknownComponentError: for a head or layer that there is not.
        UnsupportedError: if nothing is asked for.
    """
    asked = _asked(
        architecture,
        [heads] if isinstance(heads, str) else list(heads),
        [layers] if isinstance(layers, int) else list(layers),
    )
    derivation = Derivation(architecture.logits.expression)
    for symbol, meaning in _names(architecture, asked):
        derivation = derivation.everywhere(Collapse(symbol, meaning))
    derivation = derivation.where_possible(Distribute(), DropIdentity(), Flatten()).where_possible(
        MixedProduct(), DropIdentity(), Flatten()
    )
    named = set(derivation.definitions)
    addends = derivation.end.args if isinstance(derivation.end, Sum) else (derivation.end,)
    shown, rest = list[Expr](), list[Expr]()
    for addend in addends:
        (rest if named.intersection(addend.factors) else shown).append(addend)
    nothing = Scaled(0, derivation.end)
    return PartialExpansion(
        derivation, total(shown) if shown else nothing, total(rest) if rest else nothing
    )


def _names(architecture: Architecture, asked: set[Component]) -> Iterator[tuple[Factor, Expr]]:
    """Symbols for what is not asked for, and what they stand for, from the first block on."""
    constants = dict[tuple[int, str], list[Expr]]()
    for source in architecture.sources:
        if source.component is not None and source.component not in asked:
            place = source.component[0], branch_of(source.component)
            constants.setdefault(place, []).append(source.written)
    for block in architecture.blocks:
        for branch, name in ((ATTENTION, "H"), (MLP, "M")):
            rest = [c for c in block.components() if branch_of(c) == branch and c not in asked]
            if not rest:
                continue
            label = str(block.layer)
            symbol = operator(name, (POS, POS), (D_MODEL, D_MODEL), label=label)
            yield symbol, total(block.bare_word(component).expression for component in rest)
            written = constants.get((block.layer, branch))
            if written:
                yield vector(f"c_{name}", POS, D_MODEL, label=label), total(written)


def _asked(architecture: Architecture, heads: list[str], layers: list[int]) -> set[Component]:
    known = {
        component_name(component): component
        for block in architecture.blocks
        for component in block.components()
    }
    found = set[Component]()
    for head in heads:
        name = re.sub(r"^L(\d+)H(\d+)$", r"\1.\2", head)
        if name not in known:
            raise UnknownComponentError(
                f"no head {head}: {architecture!r} has {', '.join(known) or 'none'}", head
            )
        found.add(known[name])
    for layer in layers:
        if not 0 <= layer < architecture.layers:
            raise UnknownComponentError(
                f"no layer {layer}: {architecture!r} has {architecture.layers}", str(layer)
            )
        found.update(component for component in known.values() if component[0] == layer)
    if not heads and not layers:
        raise UnsupportedError("name the heads or layers to expand; .expand() expands them all")
    return found
