"""Sources: where paths start. Every constant of a transformer has exactly one home among them.

A constant that is written directly is a source of order 0: ``bias[l.attn]`` (``b_O`` and the bias
of a norm behind the attention), ``bias[l.mlp]``, ``bias[embed]``, ``bias[final]``,
``bias[unembed]``. A constant that a head adds inside itself (``b_V``, and the reading norm's bias
through ``W_V``) moves with its pattern: it is the source ``bias[l.h]``, whose paths begin with that
head; frozen neurons work the same way. An MLP that is not frozen is itself a source, ``mlp3``, its
own biases included.

>>> from otimes.algebra import Architecture
>>> arch = Architecture(1, 1, norm="layer", biases=True)
>>> for source in arch.sources:
...     print(f"{source.name:14} {source.written}")
embed          (Id ⊗ W_E) t
bias[0.0]      (A[0.0] ⊗ (W_O[0.0] b_V[0.0] + W_OV[0.0] β[0.ln1])) ones
bias[0.attn]   (Id ⊗ b_O[0]) ones
bias[final]    (Id ⊗ β[final]) ones
bias[unembed]  (Id ⊗ b_U) ones
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from otimes.algebra.expressions import Expr, Product, Transpose, tensor
from otimes.algebra.layout import (
    ATTENTION,
    EMPTY,
    MLP,
    Block,
    Word,
    branch_of,
    norm_word,
    product,
    reading_norm,
    residual_word,
    total,
    writing_norm,
)
from otimes.algebra.vocabulary import (
    B_U,
    MULTIPLIERS,
    ONES,
    POSITION_IDS,
    TOKENS,
    TYPE_IDS,
    W_E,
    W_POS,
    W_TYPE,
    Component,
    Head,
    Neuron,
    attention,
    component_name,
    mlp_output,
    of_head,
    of_layer,
    of_neuron,
    of_norm,
    ov,
)

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture

Joins = Literal["stream", "unembed", "logits"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where paths start: it writes ``(pattern ⊗ weight) input``.

    Attributes:
        name: ``embed``, ``pos``, ``type``, ``mlp3``, ``bias[0.attn]``, ``bias[1.4]``, …
        kind: ``embed``, ``pos``, ``type``, ``mlp`` or ``bias``.
        entry: the first block that can read what the source wrote (the number of blocks: none).
            Without MLPs a block is a layer.
        component: the head or neuron inside which a constant is added; its paths begin there.
        input: the vector that the word acts on.
        weight: the weight word.
        pattern: the pattern word, such as the source's own ``A`` or the ``D`` of a norm behind it.
        joins: ``stream``, or past the final norm (``unembed``), or past the unembedding
            (``logits``).
    """

    name: str
    kind: str
    entry: int
    component: Component | None
    input: Expr
    weight: tuple[Expr, ...]
    pattern: tuple[Expr, ...] = ()
    joins: Joins = "stream"

    def __str__(self) -> str:
        return self.name

    @property
    def head(self) -> Head | None:
        """The head through whose pattern a value bias enters."""
        return None if isinstance(self.component, Neuron) else self.component

    @property
    def written(self) -> Expr:
        """What the source writes, as an expression."""
        if not self.pattern and not self.weight:
            return self.input
        return Product(tensor(product(self.pattern), product(self.weight)), self.input)


def build_sources(arch: Architecture, blocks: tuple[Block, ...]) -> tuple[Source, ...]:
    """All sources, in the order of their entry."""
    found = _inputs(arch)
    for number, block in enumerate(blocks):
        for branch in block.branches:
            # asked once for the branch: a model may have millions of heads and no biases
            if _adds_inside(arch, block.layer, branch):
                for component in block.components():
                    if branch_of(component) == branch:
                        found.append(_inside(arch, block, component, number + 1))
            found.extend(_written_by(arch, block, branch, number + 1))
    if "b_final" in arch.biases:
        word = Word((), (of_norm("β", "final"),))
        found.append(_constant("bias[final]", len(blocks), [word], joins="unembed"))
    if "b_U" in arch.biases:
        word = Word((), (B_U,))
        found.append(_constant("bias[unembed]", len(blocks), [word], joins="logits"))
    return tuple(found)


def _inputs(arch: Architecture) -> list[Source]:
    norm = norm_word("embed" if arch.embed_norm else None)
    scale = (MULTIPLIERS["embed"],) if "embed" in arch.multipliers else ()
    words: list[tuple[str, Expr, tuple[Expr, ...]]] = [("embed", TOKENS, (*scale, W_E))]
    if arch.positions == "learned":
        words.append(("pos", POSITION_IDS, (W_POS,)))
    if arch.token_types:
        words.append(("type", TYPE_IDS, (W_TYPE,)))
    found = [
        Source(name, name, 0, None, vector, norm.weight + weights, norm.pattern)
        for name, vector, weights in words
    ]
    if "b_embed" in arch.biases:
        found.append(_constant("bias[embed]", 0, [Word((), (of_norm("β", "embed"),))]))
    return found


def _adds_inside(arch: Architecture, layer: int, branch: str) -> bool:
    """Whether heads or neurons of a branch add a constant inside themselves."""
    norm = reading_norm(arch, layer, branch)
    own = "b_V" if branch == ATTENTION else "b_in"
    return f"{own}[{layer}]" in arch.biases or (norm is not None and _has_norm_bias(arch, norm))


def _inside(arch: Architecture, block: Block, component: Component, entry: int) -> Source:
    """The constant that a head or neuron adds inside itself."""
    layer, branch = block.layer, branch_of(component)
    norm = reading_norm(arch, layer, branch)
    beta = of_norm("β", norm) if norm is not None and _has_norm_bias(arch, norm) else None
    parts = list[tuple[Expr, ...]]()
    if isinstance(component, Neuron):
        pattern: Expr = of_neuron("S", component)
        written = of_neuron("w_out", component)
        if f"b_in[{layer}]" in arch.biases:
            parts.append((written, of_neuron("b_in", component)))
        if beta is not None:
            parts.append((written, Transpose(of_neuron("w_in", component)), beta))
    else:
        pattern, group = attention(component), block.group(component)
        if f"b_V[{layer}]" in arch.biases:
            parts.append((of_head("W_O", component), of_head("b_V", component, group)))
        if beta is not None:
            parts.append((ov(component, group), beta))
    word = parts[0] if len(parts) == 1 else (total([product(part) for part in parts]),)
    whole = Word((pattern,), word).then(block.writes[branch])
    name = f"bias[{component_name(component)}]"
    return Source(name, "bias", entry, component, ONES, whole.weight, whole.pattern)


def _written_by(arch: Architecture, block: Block, branch: str, entry: int) -> list[Source]:
    """What a branch writes directly: its output bias, a following norm's bias, a source MLP."""
    layer, found, parts = block.layer, list[Source](), list[Word]()
    norm = writing_norm(arch, layer, branch)
    if branch == MLP and arch.mlp == "source":
        word = block.writes[branch]
        found.append(
            Source(f"mlp{layer}", "mlp", entry, None, mlp_output(layer), word.weight, word.pattern)
        )
    else:
        name = "b_O" if branch == ATTENTION else "b_out"
        if f"{name}[{layer}]" in arch.biases:
            parts.append(Word((), (of_layer(name, layer),)).then(block.writes[branch]))
    if norm is not None and _has_norm_bias(arch, norm):
        # but for a post-norm it stands inside the branch, which the residual multiplier multiplies
        scale = EMPTY if arch.norm_placement == "post" else residual_word(arch)
        parts.append(Word((), (of_norm("β", norm),)).then(scale))
    if parts:
        found.append(_constant(f"bias[{layer}.{branch}]", entry, parts))
    return found


def _has_norm_bias(arch: Architecture, norm: str) -> bool:
    layer, _, name = norm.partition(".")
    return f"b_{name}[{layer}]" in arch.biases


def _constant(name: str, entry: int, parts: list[Word], joins: Joins = "stream") -> Source:
    """A constant written at every position; parts with different patterns stay a sum of vectors."""
    if len({part.pattern for part in parts}) == 1:
        words = [product(part.weight) for part in parts]
        weight = parts[0].weight if len(parts) == 1 else (total(words),)
        return Source(name, "bias", entry, None, ONES, weight, parts[0].pattern, joins)
    written = total([Product(part.expression, ONES) for part in parts])
    return Source(name, "bias", entry, None, written, (), (), joins)
