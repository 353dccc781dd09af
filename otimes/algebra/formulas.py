r"""What an architecture computes, as a few formulas: one for each kind of part, not for each part.

All layers are alike, so the last one stands for them, and its last head for its heads:

>>> from otimes.algebra import Architecture
>>> print(Architecture(4, 6, norm="rms", positions="rotary"))
4 layers of 6 heads, RMSNorm before each branch, rotary positions
logits         = (Id ⊗ W_U)(D[final] ⊗ Γ[final]) x[4]
x[4]           = x[3] + Σ head 3.h (x[3])
head 3.5       = A[3.5] D[3.ln1] ⊗ W_OV[3.5] Γ[3.ln1]
scores of 3.5  = 1/√d_head · x[3.read] W_Q[3.5]ᵀ R(j−i) W_K[3.5] x[3.read]ᵀ
x[3.read]      = (D[3.ln1] ⊗ Γ[3.ln1]) x[3]
x[0]           = (Id ⊗ W_E) t
with A (attention patterns) and D (1/σ of norms) held at the run's values

Scores say how a pattern comes about; with the patterns held fixed the logits are a sum over paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otimes.algebra.expressions import Expr, Factor, Product, tensor, vector
from otimes.algebra.held import held_by, latex_sentence, sentence
from otimes.algebra.latex_names import latex_label
from otimes.algebra.layout import (
    EMPTY,
    MLP,
    Block,
    branch_of,
    norm_word,
    product,
    total,
    unembedding,
)
from otimes.algebra.printing import latex, text
from otimes.algebra.types import D_MODEL, POS
from otimes.algebra.vocabulary import Neuron, component_name, head_name

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture
    from otimes.algebra.sources import Source

_NORMS: Final = {"layer": "LayerNorm", "rms": "RMSNorm"}
_PLACES: Final = {
    "pre": "before each branch",
    "post": "behind each addition",
    "sandwich": "before and behind each branch",
    "output": "behind each branch",
}
_OVER: Final = {"head": "of each head", "all": "of all heads together"}
_POSITIONS: Final = {
    "learned": "learned positions",
    "shortformer": "shortformer positions",
    "rotary": "rotary positions",
    "alibi": "ALiBi",
    "relative": "relative positions",
}
_CAPPED: Final = {"scores": "attention", "logits": "logits"}
_MLPS: Final = {"source": "MLPs as sources", "frozen": "frozen MLPs, each neuron a component"}


@dataclass(frozen=True, slots=True)
class _Line:
    """A name and what it is, each as text and in LaTeX."""

    name: str
    latex_name: str
    meaning: str
    latex_meaning: str

    @staticmethod
    def of(name: str | Factor, meaning: Expr) -> _Line:
        shown = latex(name) if isinstance(name, Factor) else _in_words(name)
        return _Line(str(name), shown, text(meaning), latex(meaning))


def formulas(arch: Architecture) -> str:
    """The parts of an architecture, as text: a title, a line for each, and what is held fixed."""
    lines = list(_lines(arch))
    width = max(len(line.name) for line in lines)
    shown = [_title(arch), *(f"{line.name:{width}} = {line.meaning}" for line in lines)]
    said = sentence(held_by(arch))
    return "\n".join([*shown, f"with {said}"] if said else shown)


def latex_formulas(arch: Architecture) -> str:
    """The same in LaTeX, without dollar signs, as an ``aligned`` environment."""
    rows = [f"{line.latex_name} &= {line.latex_meaning}" for line in _lines(arch)]
    said = latex_sentence(held_by(arch))
    rows += [f"& {said}"] if said else []
    return r"\begin{aligned} " + r" \\ ".join(rows) + r" \end{aligned}"


def _title(arch: Architecture) -> str:
    heads = f"{arch.heads[0]}" if len(set(arch.heads)) == 1 else ", ".join(map(str, arch.heads))
    one = arch.layers == 1, arch.heads == (1,) * arch.layers
    layers = "1 layer" if one[0] else f"{arch.layers} layers"
    parts = [f"{layers} of {heads} head{'' if one[1] else 's'}" if arch.layers else "no layers"]
    if arch.kv_heads != arch.heads:
        shared = dict.fromkeys(arch.kv_heads)
        parts.append(f"which share {', '.join(map(str, shared))} key-value heads")
    if arch.norm is not None:
        parts.append(f"{_NORMS[arch.norm]} {_PLACES[arch.norm_placement]}")
    if arch.qk_norm is not None:
        parts.append(f"norms of the queries and keys {_OVER[arch.qk_norm]}")
    if arch.positions in _POSITIONS:
        still = sorted(set(range(arch.layers)) - arch.rotary_layers)
        but = f" but in layers {', '.join(map(str, still))}" if still else ""
        parts.append(_POSITIONS[arch.positions] + (but if arch.positions == "rotary" else ""))
    if arch.mlp is not None:
        parts.append(_MLPS[arch.mlp])
    if arch.parallel:
        through = " through one norm" if arch.parallel == "shared" else ""
        parts.append(f"attention and MLP in parallel{through}")
    capped = [name for name, cap in _CAPPED.items() if cap in arch.softcaps]
    if capped:
        parts.append(f"{' and '.join(capped)} before their soft-cap")
    return ", ".join(parts)


def _lines(arch: Architecture) -> Iterator[_Line]:
    last = arch.layers - 1
    yield _Line.of("logits", _logits(arch))
    numbers = [n for n, block in enumerate(arch.blocks) if block.layer == last]
    for number in reversed(numbers):
        yield _block(arch, number)
    for number in numbers:
        yield from _parts(arch, number)
    if last >= 0 and arch.heads[last]:
        scores = arch.scores((last, arch.heads[last] - 1))
        name = f"scores of {head_name(scores.head)}"
        formulas = scores.formula(), scores.formula(as_latex=True)
        yield _Line(name, _in_words(name), *formulas)
        if scores.reads is not None:
            yield _Line.of(_stream(f"{last}.read"), scores.reads)
    entering = [s.written for s in arch.sources if s.joins == "stream" and s.entry == 0]
    yield _Line.of(_stream("0"), total(entering))


def _logits(arch: Architecture) -> Expr:
    """The logits of the last stream, with the constants that are added behind it."""
    norm = norm_word("final" if arch.final_norm else None)
    unembed = tensor(product(()), product(unembedding(arch).weight))
    read: Expr = _stream(str(arch.layers))
    if norm != EMPTY:
        read = Product(norm.expression, read)
    added = {joins: [s.written for s in arch.sources if s.joins == joins] for joins in _BEHIND}
    if added["unembed"]:
        read = total([read, *added["unembed"]])
    through = (unembed, *read.args) if isinstance(read, Product) else (unembed, read)
    return total([Product(*through), *added["logits"]])


_BEHIND: Final = ("unembed", "logits")


def _state(arch: Architecture, number: int) -> Factor:
    """The stream before a block: ``x[1]`` before layer 1, ``x[1.mid]`` before its MLP."""
    blocks = arch.blocks
    if number == len(blocks):
        return _stream(str(arch.layers))
    layer = blocks[number].layer
    second = number > 0 and blocks[number - 1].layer == layer
    return _stream(f"{layer}.mid" if second else str(layer))


def _stream(label: str) -> Factor:
    return vector("x", POS, D_MODEL, label=label)


def _block(arch: Architecture, number: int) -> _Line:
    """A step of the stream: the skip edge, what its components add, and what is written beside."""
    block, before = arch.blocks[number], _state(arch, number)
    skip = before if block.skip == EMPTY else Product(block.skip.expression, before)
    parts = [(text(skip), latex(skip))]
    for name, some in (("head", block.heads), ("neuron", block.neurons)):
        if some:
            one = f"{block.layer}.{'h' if name == 'head' else 'n'}"
            shown = rf"\sum_{one[-1]} \text{{{name} }}{latex_label(one)}\,({latex(before)})"
            parts.append((f"Σ {name} {one} ({before})", shown))
    inside = [s for s in arch.sources if s.entry == number + 1 and s.component is not None]
    for kind in dict.fromkeys(branch_of(s.component) for s in inside if s.component is not None):
        name = f"bias[{block.layer}.h]" if kind != MLP else f"bias[mlp{block.layer}.n]"
        parts.append((f"Σ {name}", rf"\sum_{name[-2]} {_in_words(name)}"))
    parts += [(s.name, _in_words(s.name)) for s in _written(arch, number)]
    after = _state(arch, number + 1)
    shown, set_ = (" + ".join(part) for part in zip(*parts, strict=True))
    return _Line(str(after), latex(after), shown, set_)


def _written(arch: Architecture, number: int) -> list[Source]:
    """What a block writes beside its components."""
    return [
        s
        for s in arch.sources
        if s.joins == "stream" and s.entry == number + 1 and s.component is None
    ]


def _parts(arch: Architecture, number: int) -> Iterator[_Line]:
    """The last head and the last neuron of a block, what they add inside, and its sources."""
    block = arch.blocks[number]
    for component in _last_of_each(block):
        neuron = isinstance(component, Neuron)
        name = f"neuron {block.layer}.n{component.number}" if neuron else head_name(component)
        yield _Line.of(name if neuron else f"head {name}", block.word(component).expression)
        own = f"bias[{component_name(component)}]"
        for source in arch.sources:
            if source.name == own:
                yield _Line.of(own, source.written)
    for source in _written(arch, number):
        yield _Line.of(source.name, source.written)


def _last_of_each(block: Block) -> list[tuple[int, int] | Neuron]:
    heads = [(block.layer, block.heads - 1)] if block.heads else []
    neurons = [Neuron(block.layer, block.neurons - 1)] if block.neurons else []
    return [*heads, *neurons]


def _in_words(name: str) -> str:
    return rf"\text{{{name}}}"
