"""Exact arithmetic on the frozen network, through residues modulo primes.

Every float is a dyadic rational, so with the patterns fixed all values of the network are integers
over a power of two. They are computed modulo many primes, each with float64 matrix products that
have no rounding error (inner size times prime squared is below 2^53). The difference of two such
values, times that power of two, is an integer whose size is bounded beforehand; it is zero if it
is zero modulo primes whose product exceeds the bound, and can be reconstructed if it is not
(Chinese remainder theorem).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from otimes.numeric.frozen import FrozenBlock, FrozenModel, Stream
from otimes.numeric.paths import Heads, PrefixStack
from otimes.numeric.rounding import block_magnitude


@dataclass(frozen=True)
class ResidueBlock(FrozenBlock):
    """A block whose tensors are residues, and whose heads reduce after each product."""

    prime: int = 2

    def head(self, index: int, stream: Stream) -> Stream:
        """What head ``index`` writes, modulo the prime."""
        return self._move(index, self._reduce(stream @ self.W_V[index // self.group]))

    def _move(self, index: int, value: Tensor) -> Stream:
        moved = self._reduce(torch.matmul(self.pattern[:, index], value))
        return self._reduce(moved @ self.W_O[index])

    def _reduce(self, value: Tensor) -> Tensor:
        return torch.remainder(value, self.prime)


def residues(value: Tensor, prime: int) -> Tensor:
    """Each float64 number, a dyadic rational, modulo a prime; as float64 integers."""
    mantissa, exponent = torch.frexp(value)
    integer = torch.remainder((mantissa * 2.0**53).long(), prime)
    low, high = int(exponent.min()) - 53, int(exponent.max()) - 53
    powers = torch.tensor([pow(2, e, prime) for e in range(low, high + 1)])
    return torch.remainder(integer * powers[exponent.long() - 53 - low], prime).double()


def _residue_model(model: FrozenModel, prime: int) -> FrozenModel:
    def of(value: Tensor | None) -> Tensor | None:
        return None if value is None else residues(value.double(), prime)

    blocks = tuple(
        ResidueBlock(
            residues(block.pattern.double(), prime),
            residues(block.W_V.double(), prime),
            residues(block.W_O.double(), prime),
            of(block.b_V),
            prime,
        )
        for block in model.blocks
    )
    sources = tuple(replace(source, stream=of(source.stream)) for source in model.sources)
    return replace(
        model,
        blocks=blocks,
        sources=sources,
        W_U=residues(model.W_U.double(), prime),
        b_U=of(model.b_U),
    )


def difference_modulo(model: FrozenModel, paths: Iterable[tuple[int, Heads]], prime: int) -> Tensor:
    """The forward pass minus the sum over ``paths``, at all logits, modulo a prime."""
    small = _residue_model(model, prime)
    stream = torch.remainder(small.written(0), prime)
    for layer, block in enumerate(small.blocks):
        written = small.written(layer + 1)
        for index in range(block.heads):
            written = written + block.head(index, stream)
            if block.b_V is not None:
                written = written + block.value_bias(index)
        stream = torch.remainder(stream + written, prime)
    forward = torch.remainder(stream @ small.W_U, prime)
    if small.b_U is not None:
        forward = torch.remainder(forward + small.b_U, prime)
    return torch.remainder(forward - _sum_of_paths(small, paths, prime), prime)


def _sum_of_paths(model: FrozenModel, paths: Iterable[tuple[int, Heads]], prime: int) -> Tensor:
    """The logits of all paths; what they write is added up first, since that is exact here."""
    stack, total, biases = PrefixStack(model), torch.zeros_like(model.written(0)), 0
    for source, heads in paths:
        stream = stack.stream(source, heads)
        if stream is None:
            biases += 1
        else:
            total = torch.remainder(total + stream, prime)
    logits = torch.remainder(total @ model.W_U, prime)
    if biases:
        if model.b_U is None:
            raise ValueError("the model has no unembedding bias")
        logits = torch.remainder(logits + biases * model.b_U, prime)
    return logits


@dataclass(frozen=True)
class Plan:
    """What an exact comparison takes.

    The denominator is ``2^denominator_bits``; ``heads`` is how often a head is applied, over all
    paths and primes.
    """

    denominator_bits: int
    primes: tuple[int, ...]
    multiplications: float
    heads: int


def plan(model: FrozenModel, count: int) -> Plan:
    """Bound the difference of the forward pass and the sum over ``count`` paths; choose primes.

    Raises:
        OverflowError: if values of the network are not finite in float64.
    """
    from sympy import prevprime

    magnitude = torch.zeros_like(model.written(0), dtype=torch.float64)
    lowest = 0
    for source in model.sources:
        if source.stream is not None:
            magnitude = magnitude + source.stream.double().abs()
            lowest = min(lowest, _lowest_bit(source.stream))
    for layer, block in enumerate(model.blocks):
        magnitude = block_magnitude(model, layer, magnitude)
        outer = _lowest_bit(block.pattern) + _lowest_bit(block.W_O)
        value = lowest + _lowest_bit(block.W_V)
        if block.b_V is not None:
            value = min(value, _lowest_bit(block.b_V))
        lowest = min(lowest, outer + value)
    largest = float((magnitude @ model.W_U.double().abs()).max())
    lowest += _lowest_bit(model.W_U)
    if model.b_U is not None:
        largest += float(model.b_U.double().abs().max())
        lowest = min(lowest, _lowest_bit(model.b_U))
    if not math.isfinite(largest):
        raise OverflowError("values of the frozen network are beyond the range of float64")
    # largest was computed in floats, with a relative error far below the 2 bits that are spare
    bits = math.ceil(math.log2(max(largest, 1.0)) + math.log2(count + 1)) + 2 - lowest
    d_model, d_vocab = model.W_U.shape
    inner = max([d_model, model.length, *(block.W_O.shape[1] for block in model.blocks)])
    prime, covered, primes = 2 ** ((52 - math.ceil(math.log2(inner))) // 2), 0.0, list[int]()
    while covered < bits + 1:
        prime = int(prevprime(prime))
        primes.append(prime)
        covered += math.log2(prime) - 1e-9
    places = model.batch * model.length
    d_head = max([0, *(block.W_O.shape[1] for block in model.blocks)])
    each = places * (2 * d_model * d_head + model.length * d_head)
    every = (float(count) * each + 2 * places * d_model * d_vocab) * len(primes)
    return Plan(-lowest, tuple(primes), every, count * len(primes))


def _lowest_bit(value: Tensor) -> int:
    """The least exponent e such that every entry is an integer times 2^e, or 0 if that is more."""
    mantissa, exponent = torch.frexp(value.double())
    integer = (mantissa * 2.0**53).long()
    lowest_set = integer & -integer
    trailing = torch.frexp(lowest_set.double()).exponent - 1
    places = torch.where(integer != 0, exponent - 53 + trailing, torch.zeros_like(exponent))
    return min(0, int(places.min())) if places.numel() else 0


def exact_difference(
    model: FrozenModel, paths: Sequence[tuple[int, Heads]], chosen: Plan
) -> Fraction:
    """The forward pass minus the sum over ``paths``, exactly, where it is largest in size."""
    found = [difference_modulo(model, paths, prime).flatten().long() for prime in chosen.primes]
    places = torch.stack(found).any(0).nonzero().flatten()
    if not len(places):
        return Fraction(0)
    product = math.prod(chosen.primes)
    lifts = [(product // prime) * pow(product // prime, -1, prime) for prime in chosen.primes]
    largest = 0
    for place in places.tolist():
        parts = zip(found, lifts, strict=True)
        value = sum(int(residue[place]) * lift for residue, lift in parts)
        # residues are of the difference itself; times the denominator it is an integer
        value = value * pow(2, chosen.denominator_bits, product) % product
        value = value - product if value > product // 2 else value
        largest = max(largest, value, key=abs)
    return Fraction(largest, 2**chosen.denominator_bits)
