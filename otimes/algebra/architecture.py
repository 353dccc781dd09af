"""The symbolic transformer: its heads, its sources and its unexpanded logits.

With the attention patterns fixed, a head is ``A ⊗ W_OV`` (Elhage et al. 2021) and the logits are
a product of sums. Where the model has one source, the token embedding, this is an operator on the
one-hot tokens:

>>> print(Architecture(layers=2, heads=1).logits)
(Id ⊗ W_U)(Id + A[1.0] ⊗ W_OV[1.0])(Id + A[0.0] ⊗ W_OV[0.0])(Id ⊗ W_E)

Learned positions and biases enter beside the tokens, so then the logits are a sum over the input
vectors: the one-hot tokens ``t``, the one-hot positions ``p`` and ``ones``, a 1 at each position:

>>> print(Architecture(layers=1, heads=1, biases={"b_V", "b_O"}).logits)
(Id ⊗ W_U)((Id + A[0.0] ⊗ W_OV[0.0])(Id ⊗ W_E) t + (A[0.0] ⊗ W_O[0.0] b_V[0.0]) ones + (Id ⊗ b_O[0]) ones)

Every constant has exactly one home. ``b_O`` is the source ``bias[l.attn]``, which is written
directly; ``b_V`` moves through its head's pattern and is the source ``bias[l.h]``, whose paths
begin with that head; ``b_U`` is ``bias[unembed]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from otimes.algebra.expressions import (
    Expr,
    Factor,
    Id,
    Product,
    Sum,
    pattern,
    tensor,
    vector,
    weight,
)
from otimes.algebra.types import D_HEAD, D_MODEL, N_CTX, ONE, POS, VOCAB
from otimes.errors import UnknownComponentError, UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra.expansion import PathSum

POSITIONS = ("none", "learned", "shortformer")
ATTENTION_BIASES = ("b_Q", "b_K", "b_V", "b_O")

Head = tuple[int, int]
"""(layer, head), zero-based."""

W_E = weight("W_E", D_MODEL, VOCAB)
W_POS = weight("W_pos", D_MODEL, N_CTX)
W_U = weight("W_U", VOCAB, D_MODEL)
B_U = weight("b_U", VOCAB, ONE)
TOKENS = vector("t", POS, VOCAB)
POSITION_IDS = vector("p", POS, N_CTX)
ONES = vector("ones", POS, ONE)


@dataclass(frozen=True, slots=True)
class Source:
    """Where paths start.

    ``entry`` is the first block that can read what the source wrote (the number of layers: the
    unembedding alone). ``head`` is the head through whose pattern a value bias enters.
    """

    name: str
    kind: str
    entry: int
    head: Head | None
    input: Factor
    weight: tuple[Factor, ...]

    def __str__(self) -> str:
        return self.name


def head_name(head: Head) -> str:
    """Write (1, 4) as ``1.4``."""
    return f"{head[0]}.{head[1]}"


def ov(head: Head) -> Factor:
    """``W_OV = W_O W_V`` of a head."""
    return weight("W_OV", D_MODEL, D_MODEL, label=head_name(head))


def attention(head: Head) -> Factor:
    """The attention pattern of a head, rows are destinations."""
    return pattern("A", label=head_name(head))


@dataclass(frozen=True, init=False)
class Architecture:
    """Layers of attention heads around a residual stream.

    Args:
        layers: the number of layers, 0 or more.
        heads: heads in each layer, or one number for each layer.
        positions: ``none``, ``learned`` (added to the stream: the source ``pos``) or
            ``shortformer`` (enter queries and keys only, never the stream).
        biases: True for all, or names: ``b_V`` is in every layer, ``b_V[1]`` in layer 1 alone;
            ``b_Q``, ``b_K``, ``b_V``, ``b_O`` and ``b_U``.

    Raises:
        UnsupportedError: for sizes, positions or biases that no model has.
    """

    heads: tuple[int, ...]
    positions: str
    biases: frozenset[str]

    def __init__(
        self,
        layers: int,
        heads: int | Sequence[int],
        *,
        positions: str = "none",
        biases: bool | Iterable[str] = False,
    ) -> None:
        _size("layers", layers)
        per_layer = (heads,) * layers if isinstance(heads, int) else tuple(heads)
        for number in (heads,) if isinstance(heads, int) else per_layer:
            _size("heads", number)
        if len(per_layer) != layers:
            raise UnsupportedError(
                f"heads has {len(per_layer)} numbers for {layers} layers; give one for each layer"
            )
        if positions not in POSITIONS:
            raise UnsupportedError(
                f"unknown positions {positions!r}; known are {', '.join(POSITIONS)}"
            )
        object.__setattr__(self, "heads", per_layer)
        object.__setattr__(self, "positions", positions)
        object.__setattr__(self, "biases", _bias_names(biases, layers))

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.heads)

    def __repr__(self) -> str:
        same = len(set(self.heads)) == 1
        heads = repr(self.heads[0] if same else self.heads)
        positions = f", positions={self.positions!r}" if self.positions != "none" else ""
        biases = f", biases={sorted(self.biases)!r}" if self.biases else ""
        return f"Architecture(layers={self.layers}, heads={heads}{positions}{biases})"

    def check_head(self, head: Head) -> None:
        """Raise UnknownComponentError, with what there is, unless the head exists."""
        layer, index = head
        if not 0 <= layer < self.layers:
            known = f"layers 0 to {self.layers - 1}" if self.layers else "no layers"
            raise UnknownComponentError(
                f"no head {head_name(head)}: the model has {known}", head_name(head)
            )
        if not 0 <= index < self.heads[layer]:
            raise UnknownComponentError(
                f"no head {head_name(head)}: layer {layer} has heads 0 to {self.heads[layer] - 1}",
                head_name(head),
            )

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """All sources, in the order of their entry."""
        found = [Source("embed", "embed", 0, None, TOKENS, (W_E,))]
        if self.positions == "learned":
            found.append(Source("pos", "pos", 0, None, POSITION_IDS, (W_POS,)))
        for layer, heads in enumerate(self.heads):
            if f"b_V[{layer}]" in self.biases:
                for head in ((layer, index) for index in range(heads)):
                    name = head_name(head)
                    words = (
                        weight("W_O", D_MODEL, D_HEAD, label=name),
                        weight("b_V", D_HEAD, ONE, label=name),
                    )
                    found.append(Source(f"bias[{name}]", "bias", layer + 1, head, ONES, words))
            if f"b_O[{layer}]" in self.biases:
                bias = weight("b_O", D_MODEL, ONE, label=str(layer))
                found.append(Source(f"bias[{layer}.attn]", "bias", layer + 1, None, ONES, (bias,)))
        if "b_U" in self.biases:
            found.append(Source("bias[unembed]", "bias", self.layers, None, ONES, (B_U,)))
        return tuple(found)

    @property
    def logits(self) -> Logits:
        """The factored, unexpanded logits; ``.expand()`` gives the sum over paths."""
        return Logits(self)


@dataclass(frozen=True)
class Logits:
    """The logits of an architecture as one expression that knows how to expand."""

    architecture: Architecture

    @cached_property
    def expression(self) -> Expr:
        """The product of sums; see the module's text for its form with several sources."""
        arch = self.architecture
        if len(arch.sources) == 1:
            blocks = [_block(arch, layer) for layer in reversed(range(arch.layers))]
            return Product(tensor(Id, W_U), *blocks, tensor(Id, W_E))
        written = {
            entry: [_written(s) for s in arch.sources if s.entry == entry and s.weight[0] != B_U]
            for entry in range(arch.layers + 1)
        }
        stream = _sum(written[0])
        for layer in range(arch.layers):
            through = Product(_block(arch, layer), *_factors(stream))
            stream = _sum([through, *written[layer + 1]])
        logits = Product(tensor(Id, W_U), *_factors(stream))
        unembed_bias = [_written(s) for s in arch.sources if s.weight[0] == B_U]
        return _sum([logits, *unembed_bias])

    def expand(self) -> PathSum:
        """The lazy sum over paths: knows its count, iterates over named terms."""
        from otimes.algebra.expansion import PathSum

        return PathSum(self.architecture)

    def __str__(self) -> str:
        return str(self.expression)

    @property
    def latex(self) -> str:
        """LaTeX of the factored form."""
        return self.expression.latex

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {self.latex}$"


def _block(arch: Architecture, layer: int) -> Expr:
    heads = ((layer, index) for index in range(arch.heads[layer]))
    return Sum(Id, *(tensor(attention(head), ov(head)) for head in heads))


def _written(source: Source) -> Expr:
    moved = Id if source.head is None else attention(source.head)
    word = source.weight[0] if len(source.weight) == 1 else Product(*source.weight)
    return Product(tensor(moved, word), source.input)


def _sum(parts: list[Expr]) -> Expr:
    return parts[0] if len(parts) == 1 else Sum(*parts)


def _factors(expr: Expr) -> tuple[Expr, ...]:
    return expr.args if isinstance(expr, Product) else (expr,)


def _size(what: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UnsupportedError(f"{what} must be an integer of 0 or more, not {value!r}")


def _bias_names(biases: bool | Iterable[str], layers: int) -> frozenset[str]:
    if isinstance(biases, str):
        biases = (biases,)
    if isinstance(biases, bool):
        biases = (*ATTENTION_BIASES, "b_U") if biases else ()
    names = set[str]()
    for name in biases:
        match = re.fullmatch(r"(b_[QKVO])(?:\[(\d+)\])?", name)
        if name == "b_U":
            names.add(name)
        elif match is None or (match[2] is not None and int(match[2]) >= layers):
            raise UnsupportedError(
                f"unknown bias {name!r}: use b_Q, b_K, b_V or b_O for every layer, b_V[1] for "
                f"layer 1 of 0 to {layers - 1}, and b_U"
            )
        elif match[2] is not None:
            names.add(f"{match[1]}[{int(match[2])}]")
        else:
            names.update(f"{match[1]}[{layer}]" for layer in range(layers))
    return frozenset(names)
