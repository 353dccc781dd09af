"""Which symbols a text may use: those of an architecture, of an expression, or of the field.

>>> from otimes.algebra import Architecture
>>> sorted(Architecture(1, 1).symbols)[:4]
['A[0.0]', 'R(j−i)', 'W_E', 'W_K[0.0]']
>>> lookup(Architecture(1, 1))("A[0.0]")
pattern('A', label='0.0')
>>> lookup(Architecture(1, 1))("A[1.0]") is None
True
>>> lookup(None)("A[1.0]")
pattern('A', label='1.0')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from otimes.algebra.definitions import shared
from otimes.algebra.expressions import Expr, Factor
from otimes.algebra.kinds import head as whole_head
from otimes.algebra.kinds import norm as whole_norm
from otimes.algebra.layout import ATTENTION, MLP, reading_norm, writing_norm
from otimes.algebra.projections import read_symbols
from otimes.algebra.sources import Source
from otimes.algebra.vocabulary import (
    MULTIPLIERS,
    ROTATION,
    STREAM,
    W_U,
    Neuron,
    head_name,
    kv_name,
    mlp_output,
    of_head,
    of_layer,
    of_neuron,
    of_norm,
    standard,
)
from otimes.errors import UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture

Lookup = Callable[[str], Expr | None]

_HEAD_SYMBOLS = ("A", "W_Q", "W_K", "W_V", "W_O", "W_OV", "W_QK", "b_Q", "b_K", "b_V")
_NEURON_SYMBOLS = ("S", "w_in", "w_out", "b_in")
_NAME = re.compile(r"(\w+)(?:\[([\w.]*)\])?")


def symbols_of(arch: Architecture) -> dict[str, Factor]:
    """Every symbol of an architecture, by the name that it prints."""
    factors = [W_U, ROTATION, STREAM, *(MULTIPLIERS[name] for name in sorted(arch.multipliers))]
    norms = dict.fromkeys(
        norm
        for layer in range(arch.layers)
        for branch in ((ATTENTION, MLP) if arch.mlp else (ATTENTION,))
        for norm in (reading_norm(arch, layer, branch), writing_norm(arch, layer, branch))
        if norm is not None
    )
    norms |= dict.fromkeys(["final"] if arch.final_norm else [])
    norms |= dict.fromkeys(["embed"] if arch.embed_norm else [])
    for norm in norms:
        factors += [of_norm(name, norm) for name in ("D", "Γ", "β")]
        factors.append(whole_norm(norm))
    for layer, heads in enumerate(arch.heads):
        for head in ((layer, index) for index in range(heads)):
            group = arch.group(head)
            factors += [of_head(name, head, group) for name in _HEAD_SYMBOLS]
            factors.append(shared(whole_head(head_name(head)), kv_name(head, group)))
            factors += read_symbols(arch, head)
        for neuron in (Neuron(layer, index) for index in range(arch.neurons[layer])):
            factors += [of_neuron(name, neuron) for name in _NEURON_SYMBOLS]
        factors.append(of_layer("b_O", layer))
        if arch.mlp is not None:
            factors += [of_layer("b_out", layer), mlp_output(layer)]
    for source in arch.sources:
        factors += _source_symbols(source)
    for layer in range(arch.layers + 1):
        stream = standard("x", str(layer))
        assert stream is not None
        factors.append(stream)
    return {str(factor): factor for factor in factors}


def _source_symbols(source: Source) -> list[Factor]:
    return list(source.written.factors)


def lookup(context: object) -> Lookup:
    """A function from the name that a symbol prints to the symbol, or to None.

    Args:
        context: an architecture; an expression; a mapping from names to symbols (or to any
            expressions); symbols; or None for the standard symbols of the field.

    Raises:
        UnsupportedError: for anything else.
    """
    if context is None:
        return _standard
    return names(context).get


def names(context: object) -> Mapping[str, Expr]:
    """The names that a context knows; none for None, which knows infinitely many."""
    if context is None:
        return {}
    symbols = getattr(context, "symbols", None)  # an expression or an architecture
    if isinstance(symbols, Mapping):
        return symbols
    if isinstance(context, Mapping):
        return context
    if isinstance(context, Iterable) and not isinstance(context, str):
        factors = list(context)
        if all(isinstance(factor, Factor) for factor in factors):
            return {str(factor): factor for factor in factors}
    raise UnsupportedError(
        "a context is an architecture, an expression, symbols or a mapping of them, "
        f"not {context!r}"
    )


def _standard(name: str) -> Expr | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return ROTATION if name == str(ROTATION) else None
    if match[1] == "h" and match[2]:
        return whole_head(match[2])
    if match[1] == "N" and match[2]:
        return whole_norm(match[2])
    return standard(match[1], match[2] or "")
