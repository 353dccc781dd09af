"""What a head reads on one side as maps on all inputs stacked: streams, and single paths.

A source acts on an input of its own: the tokens, the positions, the ones that a bias is a multiple
of. For one map to hold all sources it acts on the inputs stacked, and ``ι[n]ᵀ`` takes the n-th. On
the query side words act on the first of two positions, on the key side on the second.

>>> from otimes.algebra import Architecture
>>> scores = Architecture(1, 1, positions="learned").scores("0.0")
>>> streams = StackedStreams(scores.key_stream, 1, inputs_of(scores))
>>> symbol, meanings = streams.read(projected=False)
>>> print(symbol, "=", meanings[symbol])
x_k[0] = Id ⊗ Id ⊗ W_E ι[0]ᵀ + Id ⊗ Id ⊗ W_pos ι[1]ᵀ
>>> print(streams.path(scores.key_stream.paths["pos"]))
Id ⊗ Id ⊗ W_pos ι[1]ᵀ
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otimes.algebra.expressions import Expr, Factor, Id, Product, Tensor, Transpose, tensor
from otimes.algebra.kinds import inclusion, operator
from otimes.algebra.layout import EMPTY, Word, product, total
from otimes.algebra.types import D_HEAD, D_MODEL, POS, direct_sum
from otimes.algebra.vocabulary import ONES, head_name

if TYPE_CHECKING:
    from otimes.algebra.scores.factored import Scores
    from otimes.algebra.scores.sides import ReadStream
    from otimes.algebra.sources import Source
    from otimes.algebra.terms import PathTerm


def inputs_of(scores: Scores) -> list[Expr]:
    """The vectors that sources of either side act on, each once."""
    sides = scores.query_stream, scores.key_stream
    return list(dict.fromkeys(_input(source) for side in sides for source in side.sources))


def _space(vector: Expr) -> str:
    """The space that a vector has beside positions."""
    slot = (vector.type.slots or (None,))[-1]
    assert slot is not None  # an input is a vector in pos ⊗ space
    return slot[0]


def _input(source: Source) -> Expr:
    """The vector that a source acts on; a constant of several parts acts on the ones."""
    return source.input if source.weight or isinstance(source.input, Factor) else ONES


def _words(source: Source) -> list[Word]:
    """What a source writes, as words on its input: several for a constant of several parts."""
    if _input(source) == source.input:
        return [Word(source.pattern, source.weight)]
    found = list[Word]()
    for part in source.input.children:
        operation = part.children[0]
        assert isinstance(operation, Tensor)
        pattern, weight = operation.args
        found.append(Word(() if pattern is Id else (pattern,), (weight,)))
    return found


class StackedStreams:
    """What a head reads on one side, layer by layer, as maps on all inputs stacked."""

    def __init__(self, side: ReadStream, slot: int, inputs: list[Expr]) -> None:
        self.side, self.slot, self.inputs = side, slot, inputs
        self.spaces = [_space(vector) for vector in inputs]
        self.letter = side.letter

    def read(self, *, projected: bool) -> tuple[Factor, dict[Factor, Expr]]:
        """What the head reads, and what each symbol stands for, the last first.

        Args:
            projected: whether it is the queries or keys, and not what they are made of.
        """
        side, found = self.side, dict[Factor, Expr]()
        blocks, tail = side.blocks, side.words.tails["stream"]
        own = [source for source in side.sources if source.joins == "logits"]
        symbols = [self._stream(str(number)) for number in range(len(blocks) + 1)]
        whole = symbols[-1]
        behind = [source for source in own if not side.is_projected(source)]
        if tail != EMPTY or behind:
            # the norm that the head reads through, and what is added behind it
            whole = self._stream(f"{len(blocks)}.read")
            through = product([*self._factor(tail), symbols[-1]])
            found[whole] = total([through, *self._written(behind)])
        if projected:
            name = head_name(side.reader)
            biases = [source for source in own if side.is_projected(source)]
            through = Product(self._projection, whole)
            queries = self._symbol(self.letter, name, D_HEAD)
            made = total([through, *self._written(biases)])
            found = {queries: product([*self._factor(side.norm_behind), made]), **found}
            whole = queries
        for number in range(len(blocks), 0, -1):
            block = blocks[number - 1]
            parts = [self._lifted(block.word(component)) for component in block.components()]
            stream = product([total([self._lifted(block.skip), *parts]), symbols[number - 1]])
            found[symbols[number]] = total([stream, *self._written(self._entering(number))])
        found[symbols[0]] = total(self._written(self._entering(0)))
        return whole, found

    def path(self, term: PathTerm, *, projected: bool = False) -> Expr:
        """One path to what the head reads: the product of what it goes through.

        Args:
            term: the path.
            projected: whether it leads to the queries or keys, and not to what they are made of.
        """
        side, source = self.side, term.source
        later = term.components if source.component is None else term.components[1:]
        chosen = {side.words.block_of(component): component for component in later}
        parts = self._factor(side.norm_behind) if projected else []
        if projected and not side.is_projected(source):
            parts.append(self._projection)
        parts += self._factor(side.words.tails[source.joins])
        if source.joins == "stream":
            for number in reversed(range(source.entry, len(side.blocks))):
                block = side.blocks[number]
                taken = number in chosen
                parts += self._factor(block.word(chosen[number]) if taken else block.skip)
        return product([*parts, total(self._written([source]))])

    @property
    def _projection(self) -> Expr:
        """``W_Q`` or ``W_K`` of the head."""
        return tensor(Id, Id, self.side.projection)

    def _entering(self, number: int) -> list[Source]:
        return [s for s in self.side.sources if s.joins == "stream" and s.entry == number]

    def _stream(self, label: str) -> Factor:
        return self._symbol(f"x_{self.letter}", label, D_MODEL)

    def _symbol(self, name: str, label: str, codomain: str) -> Factor:
        domain = direct_sum(*self.spaces)
        return operator(name, (POS, POS), (POS, POS), (codomain, domain), label=label)

    def _written(self, sources: list[Source]) -> list[Expr]:
        """What sources write, each from its part of the stacked inputs."""
        found = list[Expr]()
        for source in sources:
            taken = tuple[Expr, ...]()
            if len(self.inputs) > 1:
                number = self.inputs.index(_input(source))
                taken = (Transpose(inclusion(number, *self.spaces)),)
            found += [self._lifted(Word((), taken).then(word)) for word in _words(source)]
        return found

    def _factor(self, word: Word) -> list[Expr]:
        return [] if word == EMPTY else [self._lifted(word)]

    def _lifted(self, word: Word) -> Expr:
        """A word on the query's or the key's position, the other being left alone."""
        if word == EMPTY:
            return Id
        pattern, weights = product(word.pattern), product(word.weight)
        return tensor(pattern, Id, weights) if not self.slot else tensor(Id, pattern, weights)
