"""The symbols of the field: one home for the name, label and type of every factor of a transformer.

Weights are written as they act on columns, ``name: codomain <- domain``. A label says which
component a symbol belongs to: a head ``1.4``, a layer ``3``, a norm ``3.ln1``, a neuron ``3.n17``.
Where query heads share key-value heads (grouped-query attention), ``W_K``, ``W_V`` and their biases
belong to the key-value head, ``W_K[1.kv2]``, and not to a query head.

| symbol | type | what it is |
| --- | --- | --- |
| ``A[1.4]`` | pos <- pos | attention pattern, ``A[dest, src]`` |
| ``S[3.n17]`` | pos <- pos | diagonal: the secant slope of a frozen neuron at each position |
| ``D[3.ln1]`` | pos <- pos | diagonal: 1/σ of a frozen norm at each position |
| ``Γ[3.ln1]`` | d_model <- d_model | a norm's centring and gain |
| ``β[3.ln1]`` | d_model <- 1 | a norm's bias |
| ``D[3.4.q_norm]`` | pos <- pos | 1/σ of a frozen norm of queries (keys: ``D[3.kv2.k_norm]``) |
| ``Γ[3.q_norm]`` | d_head <- d_head | its centring and gain |
| ``R(j−i)`` | d_head <- d_head | how rotary positions turn: i the query's slot, j the key's |
| ``W_OV[1.4]`` | d_model <- d_model | ``W_O W_V`` |
| ``W_QK[1.4]`` | d_model <- d_model | ``W_Qᵀ W_K`` |
| ``w_out[3.n17]``, ``w_in[3.n17]`` | d_model <- 1 | what a neuron writes, and reads |
| ``m[3]`` | a vector in pos ⊗ d_model | the output of an MLP that is a source |
| ``μ_embed``, ``μ_res``, ``μ_logits`` | endomorphisms | multipliers |

What heads share is not in the label: :mod:`otimes.algebra.projections`.

>>> from otimes.algebra.vocabulary import standard
>>> standard("W_OV", "1.4")
weight('W_OV', 'd_model', 'd_model', label='1.4')
>>> standard("W_OV", "3.ln1") is None
True
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from otimes.algebra.expressions import Factor, pattern, vector, weight
from otimes.algebra.kinds import diagonal, grouped, offset
from otimes.algebra.types import (
    D_HEAD,
    D_HEADS,
    D_KV_HEADS,
    D_MODEL,
    N_CTX,
    ONE,
    POS,
    VOCAB,
)

TYPES = "types"
"""The space of token types (segments)."""

Head = tuple[int, int]
"""(layer, head), zero-based."""


class Neuron(NamedTuple):
    """A neuron of a frozen MLP; its third field keeps it apart from a head of the same numbers."""

    layer: int
    number: int
    kind: str = "n"


Component = Head | Neuron
"""What a path goes through."""

W_E: Final = weight("W_E", D_MODEL, VOCAB)
W_POS: Final = weight("W_pos", D_MODEL, N_CTX)
W_TYPE: Final = weight("W_type", D_MODEL, TYPES)
W_U: Final = weight("W_U", VOCAB, D_MODEL)
B_U: Final = weight("b_U", VOCAB, ONE)
ROTATION: Final = offset("R")
TOKENS: Final = vector("t", POS, VOCAB)
POSITION_IDS: Final = vector("p", POS, N_CTX)
TYPE_IDS: Final = vector("s", POS, TYPES)
ONES: Final = vector("ones", POS, ONE)
STREAM: Final = vector("x", POS, D_MODEL)
MULTIPLIERS: Final = {
    "embed": weight("μ_embed", D_MODEL, D_MODEL),
    "residual": weight("μ_res", D_MODEL, D_MODEL),
    "logits": weight("μ_logits", VOCAB, VOCAB),
}

_HEAD_TYPES: Final = {
    "A": (POS, POS),
    "W_OV": (D_MODEL, D_MODEL),
    "W_QK": (D_MODEL, D_MODEL),
    "W_Q": (D_HEAD, D_MODEL),
    "W_K": (D_HEAD, D_MODEL),
    "W_V": (D_HEAD, D_MODEL),
    "W_O": (D_MODEL, D_HEAD),
    "b_Q": (D_HEAD, ONE),
    "b_K": (D_HEAD, ONE),
    "b_V": (D_HEAD, ONE),
}
_KV_TYPES: Final = {name: _HEAD_TYPES[name] for name in ("W_K", "W_V", "b_K", "b_V")}
_NEURON_TYPES: Final = {
    "S": (POS, POS),
    "w_out": (D_MODEL, ONE),
    "w_in": (D_MODEL, ONE),
    "b_in": (ONE, ONE),
}
_NORM_TYPES: Final = {"D": (POS, POS), "Γ": (D_MODEL, D_MODEL), "β": (D_MODEL, ONE)}
_DIAGONAL: Final = frozenset({"D", "S"})
_LAYER_TYPES: Final = {
    "b_O": (D_MODEL, ONE),
    "b_out": (D_MODEL, ONE),
    # of all heads of a layer side by side, where a norm of queries and keys couples them
    "W_Q": (D_HEADS, D_MODEL),
    "b_Q": (D_HEADS, ONE),
    "W_K": (D_KV_HEADS, D_MODEL),
    "b_K": (D_KV_HEADS, ONE),
}
_HEAD_NORM_TYPES: Final = {"D": (POS, POS), "Γ": (D_HEAD, D_HEAD)}
_PLAIN: Final = {
    factor.name: factor
    for factor in (
        *(W_E, W_POS, W_TYPE, W_U, B_U, ROTATION, TOKENS, POSITION_IDS, TYPE_IDS, ONES, STREAM),
        *MULTIPLIERS.values(),
    )
}
_SHAPES: Final = (
    (re.compile(r"\d+\.\d+"), _HEAD_TYPES),
    (re.compile(r"\d+\.kv\d+"), _KV_TYPES),
    (re.compile(r"\d+\.n\d+"), _NEURON_TYPES),
    (re.compile(r"\d+\.ln[12](_post)?|final|embed"), _NORM_TYPES),
    (re.compile(r"\d+\.((kv)?\d+\.)?[qk]_norm"), _HEAD_NORM_TYPES),
    (re.compile(r"\d+"), _LAYER_TYPES),
)


def standard(name: str, label: str = "") -> Factor | None:
    """The symbol of this name and label, or None where the field has none of that form."""
    if not label:
        return _PLAIN.get(name)
    if name in ("m", "x") and re.fullmatch(r"\d+", label):
        return vector(name, POS, D_MODEL, label=label)
    for shape, types in _SHAPES:
        if name in types and shape.fullmatch(label):
            return _factor(name, types[name], label)
    return None


def _factor(name: str, spaces: tuple[str, str], label: str) -> Factor:
    if name in _DIAGONAL:
        return diagonal(name, spaces[0], label=label)
    return weight(name, *spaces, label=label)


def head_name(head: Head) -> str:
    """Write (1, 4) as ``1.4``."""
    return f"{head[0]}.{head[1]}"


def component_name(component: Component) -> str:
    """Write a component as in a path: ``1.4``, ``mlp3.n17``."""
    if isinstance(component, Neuron):
        return f"mlp{component.layer}.n{component.number}"
    return f"{component[0]}.{component[1]}"


def kv_name(head: Head, group: int | None) -> str:
    """The label of a head's key-value head, ``1.kv2``; empty where it shares none."""
    return "" if group is None else f"{head[0]}.kv{group}"


def of_head(name: str, head: Head, group: int | None = None) -> Factor:
    """A symbol of a head: ``W_OV``, ``W_QK``, ``W_Q``, ``b_V``, ….

    Args:
        name: its name.
        head: the query head.
        group: the number of the key-value head that it shares; None where it has its own.
    """
    kv = kv_name(head, group)
    own = kv if kv and name in _KV_TYPES else head_name(head)
    factor = weight(name, *_HEAD_TYPES[name], label=own)
    return grouped(factor, kv) if kv and name in ("W_OV", "W_QK") else factor


def ov(head: Head, group: int | None = None) -> Factor:
    """``W_OV = W_O W_V`` of a head."""
    return of_head("W_OV", head, group)


def attention(head: Head) -> Factor:
    """The attention pattern of a head, rows are destinations."""
    return pattern("A", label=head_name(head))


def of_neuron(name: str, neuron: Neuron) -> Factor:
    """A symbol of a neuron: ``S``, ``w_out``, ``w_in``, ``b_in``."""
    return _factor(name, _NEURON_TYPES[name], f"{neuron.layer}.n{neuron.number}")


def of_norm(name: str, norm: str) -> Factor:
    """A symbol of a norm such as ``3.ln1`` or ``final``: ``D``, ``Γ``, ``β``."""
    return _factor(name, _NORM_TYPES[name], norm)


def of_head_norm(name: str, label: str) -> Factor:
    """A symbol of a norm of queries or keys such as ``3.q_norm`` or ``3.kv2.k_norm``: D, Γ."""
    return _factor(name, _HEAD_NORM_TYPES[name], label)


def of_layer(name: str, layer: int) -> Factor:
    """A symbol of a layer: ``b_O``, ``b_out``."""
    return weight(name, *_LAYER_TYPES[name], label=str(layer))


def mlp_output(layer: int) -> Factor:
    """The output of an MLP that is a source, ``m[3]``, its biases included."""
    return vector("m", POS, D_MODEL, label=str(layer))
