"""Virtual weights: what one component's output becomes at another's input, over the stream.

Between what writes and what reads stands nothing but norms: the virtual weight of the edge from
head 0.3 to the values of head 1.4 is ``W_V[1.4] W_O[0.3]``, that to its queries is
``W_Q[1.4] W_O[0.3]`` (Elhage et al. 2021, "Virtual Weights and the Residual Stream as a
Communication Channel"). The words of the edges of a walk, and the patterns of the heads between
them, spell the path's term, with ``W_OV = W_O W_V``.

>>> from otimes.algebra import Architecture
>>> words = EdgeWords(Architecture(2, 4, norm="rms"))
>>> print(words.between(words.writes((0, 3)), words.reads((1, 3), "q"), 1, 1).expression)
D[1.ln1] ⊗ W_Q[1.3] Γ[1.ln1] W_O[0.3]
"""

from __future__ import annotations

from typing import Final, Literal

from otimes.algebra.architecture import Architecture, Component, Neuron, Source
from otimes.algebra.expressions import Expr, Sum, Transpose, weight
from otimes.algebra.layout import (
    ATTENTION,
    EMPTY,
    MLP,
    Block,
    Word,
    branch_of,
    product,
    reading_norm,
    total,
)
from otimes.algebra.projections import head_norm, projection, projection_bias
from otimes.algebra.types import D_MODEL
from otimes.algebra.vocabulary import Head, of_head, of_neuron, of_norm

Key = Literal["q", "k", "v", "direct"]
"""What an edge enters: a head's queries, keys or values; or anything else, directly."""

Q: Final = "q"
K: Final = "k"
V: Final = "v"
DIRECT: Final = "direct"

D_MLP: Final = "d_mlp"

SIDES: Final[tuple[tuple[Key, str], ...]] = ((Q, "b_Q"), (K, "b_K"))
"""What enters scores, with the bias of each."""

INPUTS: Final[tuple[Key, ...]] = (Q, K, V)
"""The edges into a head."""


class EdgeWords:
    """The words that nodes of one architecture write and read, and those of the edges between."""

    def __init__(self, arch: Architecture) -> None:
        """Prepare nothing: words are made when asked for."""
        self.arch = arch
        self._text = dict[Expr, str]()

    def writes(self, component: Component) -> Word:
        """From a component's inside to the stream: ``W_O`` of a head, ``w_out`` of a neuron."""
        name = "w_out" if isinstance(component, Neuron) else "W_O"
        own = (
            of_neuron(name, component)
            if isinstance(component, Neuron)
            else of_head(name, component)
        )
        return Word((), (own,)).then(self._block(component).writes[branch_of(component)])

    def reads(self, component: Component, key: Key) -> Word:
        """From the stream to a component's inside: ``W_Q``, ``W_K``, ``W_V``; ``w_inᵀ``."""
        into = self.projection(component, key)
        return self._block(component).reads[branch_of(component)].then(into)

    def projection(self, component: Component, key: Key) -> Word:
        """What a component reads with behind its norm; a norm of queries or keys is in it."""
        if isinstance(component, Neuron):
            return Word((), (Transpose(of_neuron("w_in", component)),))
        if key not in (Q, K):
            return Word((), (self._values(component),))
        matrix = projection(self.arch, component, key)
        return Word((), (matrix,)).then(head_norm(self.arch, component, key))

    def bias(self, head: Head, key: Key) -> Word:
        """``b_Q`` or ``b_K`` of a head, through the norm of its queries or keys."""
        assert key in (Q, K)
        own = Word((), (projection_bias(self.arch, head, key),))
        return own.then(head_norm(self.arch, head, key))

    def _values(self, head: Head) -> Expr:
        return of_head("W_V", head, self.arch.group(head))

    def mlp_writes(self, block: Block) -> Word:
        """``W_out[3]``: all neurons of a frozen MLP as one node."""
        own = weight("W_out", D_MODEL, D_MLP, label=str(block.layer))
        return Word((), (own,)).then(block.writes[MLP])

    def mlp_reads(self, block: Block) -> Word:
        """``W_in[3]``: all neurons of a frozen MLP as one node."""
        own = weight("W_in", D_MLP, D_MODEL, label=str(block.layer))
        return block.reads[MLP].then(Word((), (own,)))

    def source(self, source: Source) -> Word:
        """From a source's input to the stream."""
        return Word(source.pattern, source.weight)

    def inside(self, component: Component) -> Word:
        """The constant inside a component: ``b_V + W_V β`` of a head, ``b_in + w_inᵀ β``."""
        layer, parts = component[0], list[Expr]()
        norm = reading_norm(self.arch, layer, branch_of(component))
        if isinstance(component, Neuron):
            if f"b_in[{layer}]" in self.arch.biases:
                parts.append(of_neuron("b_in", component))
        elif f"b_V[{layer}]" in self.arch.biases:
            parts.append(of_head("b_V", component, self.arch.group(component)))
        if norm is not None and f"b_{norm.partition('.')[2]}[{layer}]" in self.arch.biases:
            into = self.projection(component, V).weight
            parts.append(product((*into, of_norm("β", norm))))
        return Word((), (total(parts),))

    def output(self, joins: str) -> Word:
        """From the stream, or from what joins later, to the logits: ``W_U Γ[final]``."""
        return self.arch.words.tails[joins]

    def skips(self, first: int, last: int) -> Word:
        """The skip edges of the blocks from ``first`` to before ``last``: norms, in post-norm."""
        word = EMPTY
        for block in self.arch.blocks[first:last] if self.arch.words.skips_move else ():
            word = word.then(block.skip)
        return word

    def between(self, written: Word, read: Word, first: int, last: int) -> Word:
        """The virtual weight from what is written before block ``first`` to what ``last`` reads."""
        return written.then(self.skips(first, last)).then(read)

    def text(self, factors: tuple[Expr, ...]) -> str:
        """A word as text; the text of each factor is made once, since edges share them."""
        if not factors:
            return "Id"
        return " ".join(self._shown(factor, alone=len(factors) == 1) for factor in factors)

    def _shown(self, factor: Expr, *, alone: bool) -> str:
        shown = self._text.get(factor)
        if shown is None:
            shown = self._text[factor] = str(factor)
        return shown if alone or not isinstance(factor, Sum) else f"({shown})"

    def _block(self, component: Component) -> Block:
        return self.arch.blocks[self.arch.words.block_of(component)]


def side_sources(arch: Architecture, layer: int) -> tuple[bool, str | None]:
    """What queries and keys read beside the stream: positions or not, and a norm with a bias."""
    norm = reading_norm(arch, layer, ATTENTION)
    biased = norm is not None and f"b_ln1[{layer}]" in arch.biases
    return arch.positions == "shortformer", norm if biased else None
