"""The identity of two polynomials modulo primes: forward recursion and sum over labelled paths.

Every component ``c`` and every source ``s`` gets an independent random residue as its *label*. The
forward recursion with all components and sources multiplied by their labels is a polynomial in the
labels,

    Σ_paths label(source) · Π_{c on the path} label(c) · value(path),

so it is the sum over paths, each multiplied by the product of its labels. Both sides are compared
modulo a prime. A sum without labels cannot see two paths that were exchanged; this can: in the
enumerated sum a path is multiplied by the labels of its *name*, while its value is computed from
the components that it went through. Above an enumeration limit the sums grouped by order take the
place of the paths.

The polynomial has degree at most ``blocks + 1``: a source and one component a block. If the two
sides are different polynomials modulo the prime, they agree by chance with a probability of at most
degree / prime (Schwartz 1980, Zippel 1979). What is compared is what the unembedding reads, at
every position and in every direction of the stream, and what multiplies ``b_U``; equal logits
follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.frozen import FrozenBlock, FrozenModel, FrozenPart, FrozenSource
from otimes.numeric.paths import Components, PrefixStack, order_outputs
from otimes.numeric.remade import each_block
from otimes.numeric.residues import (
    ResidueHeads,
    ResidueModel,
    ResidueNeurons,
    is_prime,
    largest_modulus,
    residue_model,
)

PathNumbers = tuple[int, Components]


def draw_prime(model: FrozenModel, random: Random) -> int:
    """A prime of the upper half of those that leave all products exact, each as likely."""
    most = largest_modulus(model)
    while True:
        found = random.randint(most // 2, most)
        if is_prime(found):
            return found


def degree(model: FrozenModel) -> int:
    """The degree of the polynomial in the labels: a source, and one component of each block."""
    return 1 + sum(block.components > 0 for block in model.blocks)


@dataclass(frozen=True)
class Labels:
    """A residue for each component of each block, and for each source."""

    components: tuple[Tensor, ...]  # [component] for each block
    sources: Float[Tensor, " source"]
    prime: int

    @staticmethod
    def draw(model: FrozenModel, prime: int, random: Random) -> Labels:
        """Independent, each of the prime's residues as likely."""

        def some(count: int) -> Tensor:
            found = [random.randrange(prime) for _ in range(count)]
            return torch.tensor(found, dtype=torch.float64)  # float32 would round large ones

        components = tuple(some(block.components) for block in model.blocks)
        return Labels(components, some(len(model.sources)), prime)

    def product(self, path: PathNumbers) -> int:
        """The product of the labels of a path's source and components."""
        source, components = path
        found = int(self.sources[source])
        for block, index in components:
            found = found * int(self.components[block][index]) % self.prime
        return found


@dataclass(frozen=True)
class Side:
    """One side, modulo a prime: what the unembedding reads, and what multiplies ``b_U``."""

    output: Float[Tensor, "batch pos d_model"]
    bias: int

    def agrees(self, other: Side) -> bool:
        """Whether both sides are the same."""
        return self.bias == other.bias and torch.equal(self.output, other.output)


def identity_holds(
    model: FrozenModel,
    prime: int,
    random: Random,
    paths: Iterable[tuple[PathNumbers, PathNumbers]] | None,
) -> bool:
    """Whether forward recursion and sum over labelled paths agree modulo ``prime``.

    ``paths`` are pairs of what a path is called and what is evaluated; None groups all paths by
    order.
    """
    small = residue_model(replace(model, W_U=model.W_U[:, :0], b_U=None), prime)
    labels = Labels.draw(model, prime, random)
    labelled = labelled_model(small, labels)
    total = by_order(labelled, labels) if paths is None else enumerated(small, labels, paths)
    return forward(labelled, labels).agrees(total)


def labelled_model(model: ResidueModel, labels: Labels) -> ResidueModel:
    """The model with what every component and every source writes multiplied by its label.

    A constant inside a component is multiplied by its source's label and by the component's.
    """
    inside = {
        source.component: float(labels.sources[number])
        for number, source in enumerate(model.sources)
        if source.component is not None
    }

    def of(number: int, block: FrozenBlock) -> FrozenBlock:
        own, heads = labels.components[number], block.heads
        constants = [inside.get((number, index), 0.0) for index in range(block.components)]
        constant = torch.tensor(constants, dtype=torch.float64)
        attention, mlp = block.attention, block.mlp
        if attention is not None and attention.size:
            assert isinstance(attention, ResidueHeads)
            W_O = torch.remainder(attention.W_O * own[:heads, None, None], labels.prime)
            attention = replace(attention, W_O=W_O, constant_labels=constant[:heads])
        if mlp is not None and mlp.size:
            assert isinstance(mlp, ResidueNeurons)
            W_out = torch.remainder(mlp.W_out * own[heads:, None], labels.prime)
            mlp = replace(mlp, W_out=W_out, constant_labels=constant[heads:])
        return replace(block, attention=attention, mlp=mlp)

    def source_of(number: int, source: FrozenSource) -> FrozenSource:
        label = float(labels.sources[number])
        parts = tuple(
            FrozenPart(torch.remainder(part.stream * label, labels.prime), part.edge)
            for part in source.parts
        )
        return replace(source, parts=parts)

    return replace(
        model,
        blocks=each_block(model.blocks, of),
        sources=tuple(source_of(number, source) for number, source in enumerate(model.sources)),
    )


def forward(labelled: ResidueModel, labels: Labels) -> Side:
    """The forward recursion."""
    output, joined = labelled.read(labelled.forward()[-1]), labelled.unembedded()
    if joined is not None:
        output = output + labelled.direction(joined)
    return Side(labelled.reduced(output), _bias(labelled, labels))


def by_order(labelled: ResidueModel, labels: Labels) -> Side:
    """The sum over all paths, grouped by order."""
    output = labelled.reduced(order_outputs(labelled).sum(0))
    return Side(output, _bias(labelled, labels))


def enumerated(
    model: ResidueModel, labels: Labels, paths: Iterable[tuple[PathNumbers, PathNumbers]]
) -> Side:
    """The sum over paths, each by itself: the labels of its name times its value."""
    stack, total, bias = PrefixStack(model), model.zeros(), 0
    for name, path in paths:
        label, output = labels.product(name), stack.output(*path)
        if output is None:
            bias = (bias + label) % labels.prime
        else:
            total = model.reduced(total + output * float(label))
    return Side(total, bias)


def _bias(model: FrozenModel, labels: Labels) -> int:
    found = [n for n, source in enumerate(model.sources) if source.joins == "logits"]
    return sum(int(labels.sources[number]) for number in found) % labels.prime
