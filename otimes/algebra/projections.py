r"""From what a head reads to its queries and keys: ``W_Q``, ``b_Q``, and the norm behind them.

A norm of queries or keys with its scale held fixed is one more factor ``D ⊗ Γ``, behind ``W_Q x +
b_Q`` and before the queries turn with their position. Its labels say what heads share:

- over each head (``qk_norm="head"``: Qwen3, Gemma-3): a head has scales of its own,
  ``D[1.4.q_norm]``, and the layer one gain, ``Γ[1.q_norm]``, with the centring of a LayerNorm;
- over all heads of a token (``"all"``: OLMo-2): one scale, ``D[1.q_norm]``, and each head its part
  of the gain, ``Γ[1.4.q_norm]``. The mean that a LayerNorm takes away is then that of all heads,
  so a head's query depends on the matrices of all, ``W_Q[1]: d_heads <- d_model``, and
  ``Γ[1.4.q_norm]: d_head <- d_heads`` is the head's rows of centring and gain.

>>> from otimes.algebra import Architecture
>>> for norm, over in (("rms", "head"), ("rms", "all"), ("layer", "all")):
...     arch = Architecture(2, 8, kv_heads=4, norm=norm, qk_norm=over)
...     for side in ("q", "k"):
...         word = head_norm(arch, (1, 5), side).expression
...         print(f"{norm:5} {over:4} {word} after {projection(arch, (1, 5), side)}")
rms   head D[1.5.q_norm] ⊗ Γ[1.q_norm] after W_Q[1.5]
rms   head D[1.kv2.k_norm] ⊗ Γ[1.k_norm] after W_K[1.kv2]
rms   all  D[1.q_norm] ⊗ Γ[1.5.q_norm] after W_Q[1.5]
rms   all  D[1.k_norm] ⊗ Γ[1.kv2.k_norm] after W_K[1.kv2]
layer all  D[1.q_norm] ⊗ Γ[1.5.q_norm] after W_Q[1]
layer all  D[1.k_norm] ⊗ Γ[1.kv2.k_norm] after W_K[1]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from otimes.algebra.expressions import Factor, weight
from otimes.algebra.layout import EMPTY, Word
from otimes.algebra.types import D_HEAD, D_HEADS, D_KV_HEADS, D_MODEL, ONE
from otimes.algebra.vocabulary import Head, head_name, kv_name, of_head, of_head_norm

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture

Side = Literal["q", "k"]


def couples_heads(arch: Architecture) -> bool:
    """Whether the queries of a head depend on the matrices of all: a mean over all is taken."""
    return arch.qk_norm == "all" and arch.norm == "layer"


def projection(arch: Architecture, head: Head, side: Side) -> Factor:
    """``W_Q[1.4]`` or ``W_K[1.kv2]``; ``W_Q[1]`` of all heads where their norm couples them."""
    return _read(arch, head, side, "W", D_MODEL)


def projection_bias(arch: Architecture, head: Head, side: Side) -> Factor:
    """``b_Q[1.4]`` or ``b_K[1.kv2]``; ``b_Q[1]`` of all heads where their norm couples them."""
    return _read(arch, head, side, "b", ONE)


def _read(arch: Architecture, head: Head, side: Side, letter: str, domain: str) -> Factor:
    name = f"{letter}_{side.upper()}"
    if couples_heads(arch):
        return weight(name, _all_heads(side), domain, label=str(head[0]))
    return of_head(name, head, arch.group(head))


def _all_heads(side: Side) -> str:
    return D_HEADS if side == "q" else D_KV_HEADS


def head_norm(arch: Architecture, head: Head, side: Side) -> Word:
    """``D ⊗ Γ`` of the frozen norm of a head's queries or keys; empty where there is none."""
    if arch.qk_norm is None:
        return EMPTY
    own = head_name(head) if side == "q" else kv_name(head, arch.group(head)) or head_name(head)
    of_layer, of_one = f"{head[0]}.{side}_norm", f"{own}.{side}_norm"
    if arch.qk_norm == "head":
        return Word((of_head_norm("D", of_one),), (of_head_norm("Γ", of_layer),))
    gain = of_head_norm("Γ", of_one)
    if couples_heads(arch):
        gain = weight("Γ", D_HEAD, _all_heads(side), label=of_one)
    return Word((of_head_norm("D", of_layer),), (gain,))


def read_symbols(arch: Architecture, head: Head) -> list[Factor]:
    """The symbols of a head's queries and keys that are there because of their norms."""
    if arch.qk_norm is None:
        return []
    found = list[Factor]()
    sides: tuple[Side, ...] = ("q", "k")
    for side in sides:
        found += [projection(arch, head, side), projection_bias(arch, head, side)]
        norm = head_norm(arch, head, side)
        found += [f for f in (*norm.pattern, *norm.weight) if isinstance(f, Factor)]
    return found
