"""The frozen model in residues modulo a prime.

Every float is a dyadic rational, so it has a residue modulo any odd prime, and so has the mean of
``d_model`` numbers. Sums of products are float64 matrix products without rounding error, as long as
the inner size times the prime squared is below 2^53; after each product the residues are reduced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.branches import Branch, FrozenHeads, FrozenNeurons, Moved
from otimes.numeric.edges import FrozenEdge, Stream
from otimes.numeric.frozen import FrozenBlock, FrozenModel, FrozenPart
from otimes.numeric.remade import each_block


def largest_modulus(model: FrozenModel) -> int:
    """Up to this modulus no product of residues of the model rounds.

    The widest sum of products goes over the stream, over positions, or over all components of a
    branch; one of its factors may be a sum of two residues.
    """
    widths = [branch.size * branch.width for block in model.blocks for branch in block.branches]
    inner = max([model.W_U.shape[0], model.length, *widths])
    return math.isqrt(2**52 // inner)


def is_prime(number: int) -> bool:
    """Whether a number below 3,215,031,751 is prime (Miller and Rabin; these bases are enough)."""
    if number < 11 or number % 2 == 0:
        return number in (2, 3, 5, 7)
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    for base in (2, 3, 5, 7):
        power = pow(base, (number - 1) >> twos, number)
        if power in (1, number - 1):
            continue
        if all((power := power * power % number) != number - 1 for _ in range(twos - 1)):
            return False
    return True


def residues(value: Tensor, prime: int) -> Tensor:
    """Each float64 number, a dyadic rational, modulo a prime; as float64 integers."""
    if not value.numel():
        return value
    mantissa, exponent = torch.frexp(value)
    integer = torch.remainder((mantissa * 2.0**53).long(), prime)
    low, high = int(exponent.min()) - 53, int(exponent.max()) - 53
    powers = torch.tensor([pow(2, e, prime) for e in range(low, high + 1)])
    return torch.remainder(integer * powers[exponent.long() - 53 - low], prime).double()


def residue_of(number: float, prime: int) -> int:
    """One number modulo a prime."""
    return int(residues(torch.tensor([number], dtype=torch.float64), prime))


@dataclass(frozen=True)
class ResidueEdge(FrozenEdge):
    """An edge whose tensors are residues, and which reduces after each product."""

    prime: int = 2

    def apply(self, stream: Float[Tensor, "*rows places d_model"]) -> Stream:
        """``μ (D ⊗ Γ) x`` modulo the prime."""
        if self.centred:
            inverse = pow(stream.shape[-1], -1, self.prime)
            total = torch.remainder(stream.sum(-1, keepdim=True), self.prime)
            mean = torch.remainder(total * inverse, self.prime)
            stream = torch.remainder(stream - mean, self.prime)
        if self.scale is not None:
            stream = torch.remainder(stream * self.scale[..., None], self.prime)
        if self.gain is not None:
            stream = torch.remainder(stream * self.gain, self.prime)
        if self.multiplier != 1:
            stream = torch.remainder(stream * self.multiplier, self.prime)
        return stream


@dataclass(frozen=True)
class ResidueHeads(FrozenHeads):
    """Heads in residues.

    ``constant_labels`` multiply what each head adds inside itself, one for each.
    """

    prime: int = 2
    constant_labels: Float[Tensor, " head"] | None = None

    def moved(self, stream: Stream) -> Moved:
        """What every head moves, modulo the prime."""
        value = torch.remainder(self.reads.apply(stream) @ self.flat_values(), self.prime)
        return self._moved(value.reshape(*value.shape[:-1], *self._value_shape))

    def constant(self) -> Moved | None:
        """What every head moves of its constant, modulo the prime."""
        value = self.value_constant()
        if value is None:
            return None
        sums = torch.remainder(self.pattern.sum(-1).transpose(1, 2), self.prime)
        moved = torch.remainder(
            sums[..., None] * value.repeat_interleave(self.group, dim=0), self.prime
        )
        return _labelled(moved, self.constant_labels, self.prime)

    def value_constant(self) -> Float[Tensor, "kv_head d_head"] | None:
        """``b_V + β W_V`` modulo the prime."""
        value = super().value_constant()
        return None if value is None else torch.remainder(value, self.prime)

    def component(self, index: int, stream: Stream) -> Stream:
        """What head ``index`` writes, modulo the prime."""
        value = self.reads.apply(stream) @ self.W_V[index // self.group]
        return self._write(index, torch.remainder(value, self.prime))

    def written(self, moved: Moved) -> Stream:
        """What all heads write, modulo the prime."""
        return _written(self, moved, self.prime)

    def _moved(self, value: Tensor) -> Moved:
        return torch.remainder(self._mix(value), self.prime)

    def _write(self, index: int, value: Tensor) -> Stream:
        moved = torch.remainder(torch.matmul(self.pattern[:, index], value), self.prime)
        return self.writes.apply(torch.remainder(moved @ self.W_O[index], self.prime))


@dataclass(frozen=True)
class ResidueNeurons(FrozenNeurons):
    """Frozen neurons in residues.

    ``constant_labels`` multiply what each neuron adds inside itself, one for each.
    """

    prime: int = 2
    constant_labels: Float[Tensor, " neuron"] | None = None

    def moved(self, stream: Stream) -> Moved:
        """What every neuron moves, modulo the prime."""
        value = torch.remainder(self.reads.apply(stream) @ self.W_in, self.prime)
        return torch.remainder(value * self.slope, self.prime)[..., None]

    def constant(self) -> Moved | None:
        """What every neuron moves of its constant, modulo the prime."""
        value = self.value_constant()
        if value is None:
            return None
        moved = torch.remainder(self.slope * value, self.prime)[..., None]
        return _labelled(moved, self.constant_labels, self.prime)

    def value_constant(self) -> Float[Tensor, " neuron"] | None:
        """``b_in + β W_in`` modulo the prime."""
        value = super().value_constant()
        return None if value is None else torch.remainder(value, self.prime)

    def component(self, index: int, stream: Stream) -> Stream:
        """What neuron ``index`` writes, modulo the prime."""
        value = self.reads.apply(stream) @ self.W_in[:, index]
        return self._write(index, torch.remainder(value, self.prime))

    def written(self, moved: Moved) -> Stream:
        """What all neurons write, modulo the prime."""
        return _written(self, moved, self.prime)

    def _write(self, index: int, value: Tensor) -> Stream:
        moved = torch.remainder(self.slope[..., index] * value, self.prime)
        return self.writes.apply(torch.remainder(moved[..., None] * self.W_out[index], self.prime))


def _labelled(moved: Moved, labels: Tensor | None, prime: int) -> Moved:
    return moved if labels is None else torch.remainder(moved * labels[:, None], prime)


def _written(branch: Branch, moved: Moved, prime: int) -> Stream:
    flat = moved.reshape(*moved.shape[:-2], branch.size * branch.width)
    out = branch.out.reshape(branch.size * branch.width, -1)
    return branch.writes.apply(torch.remainder(flat @ out, prime))


@dataclass(frozen=True)
class ResidueModel(FrozenModel):
    """A model in residues."""

    prime: int = 2

    def start(self, number: int) -> Stream | None:
        """What a source writes, modulo the prime."""
        found = super().start(number)
        return None if found is None else torch.remainder(found, self.prime)

    def written(self, entry: int) -> Stream:
        """What sources add before a block, modulo the prime."""
        return torch.remainder(super().written(entry), self.prime)

    def reduced(self, stream: Stream) -> Stream:
        """The stream modulo the prime."""
        return torch.remainder(stream, self.prime)

    def forward(self) -> list[Stream]:
        """The streams, modulo the prime."""
        streams = [self.added(0)]
        for number, block in enumerate(self.blocks):
            after = block.apply(streams[-1]) + self.added(number + 1)
            streams.append(self.reduced(after))
        return streams

    def _multiplied(self, value: Tensor) -> Tensor:
        return torch.remainder(value * self.multiplier, self.prime)


def residue_model(model: FrozenModel, prime: int) -> ResidueModel:
    """The model with every number replaced by its residue."""

    def of(value: Tensor) -> Tensor:
        return residues(value.double(), prime)

    def maybe(value: Tensor | None) -> Tensor | None:
        return None if value is None else of(value)

    def edge(found: FrozenEdge) -> ResidueEdge:
        multiplier = float(residue_of(found.multiplier, prime))
        return ResidueEdge(
            maybe(found.scale), maybe(found.gain), found.centred, multiplier, maybe(found.bias),
            prime=prime,
        )  # fmt: skip

    def heads(found: FrozenHeads) -> ResidueHeads:
        return ResidueHeads(
            of(found.pattern), of(found.W_V), of(found.W_O), maybe(found.b_V),
            edge(found.reads), edge(found.writes), prime,
        )  # fmt: skip

    def neurons(found: FrozenNeurons) -> ResidueNeurons:
        return ResidueNeurons(
            of(found.slope), of(found.W_in), of(found.W_out), maybe(found.b_in),
            edge(found.reads), edge(found.writes), prime,
        )  # fmt: skip

    return ResidueModel(
        blocks=each_block(
            model.blocks,
            lambda _, block: FrozenBlock(
                None if block.attention is None else heads(block.attention),
                None if block.mlp is None else neurons(block.mlp),
                edge(block.skip),
            ),
        ),
        sources=tuple(
            replace(
                source,
                parts=tuple(FrozenPart(of(p.stream), edge(p.edge)) for p in source.parts),
            )
            for source in model.sources
        ),
        W_U=of(model.W_U),
        b_U=maybe(model.b_U),
        batch=model.batch,
        length=model.length,
        final=edge(model.final),
        multiplier=float(residue_of(model.multiplier, prime)),
        prime=prime,
    )
