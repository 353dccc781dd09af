"""Exact arithmetic on the frozen network, through residues modulo primes.

Every float is a dyadic rational, and a norm that centres takes the mean of ``d = d_model`` numbers,
so with the patterns fixed all values of the network are integers over ``2^a d^c``, with ``c`` the
largest number of centred edges that lie one behind the other. They are computed modulo many primes,
each with float64 matrix products that have no rounding error (inner size times prime squared is
below 2^53). The difference of two such values, times that denominator, is an integer whose size is
bounded beforehand; it is zero if it is zero modulo primes whose product exceeds the bound, and can
be reconstructed if it is not (Chinese remainder theorem).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from otimes.numeric.branches import FrozenHeads, FrozenNeurons
from otimes.numeric.edges import FrozenEdge
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.magnitudes import absolute_read, block_magnitude, source_magnitude
from otimes.numeric.measured import entering
from otimes.numeric.paths import Components, PrefixStack
from otimes.numeric.residues import is_prime, largest_modulus, residue_model


def difference_modulo(
    model: FrozenModel, paths: Iterable[tuple[int, Components]], prime: int
) -> Tensor:
    """The forward pass minus the sum over ``paths``, at all logits, modulo a prime."""
    small = residue_model(model, prime)
    stream = small.forward()[-1]
    forward = _logits(small, small.read(stream), small.unembedded(), 1, prime)
    return torch.remainder(forward - _sum_of_paths(small, paths, prime), prime)


def _sum_of_paths(
    model: FrozenModel, paths: Iterable[tuple[int, Components]], prime: int
) -> Tensor:
    """The logits of all paths; what they write is added up first, since that is exact here."""
    stack, total, biases = PrefixStack(model), model.zeros(), 0
    for source, components in paths:
        output = stack.output(source, components)
        if output is None:
            biases += 1
        else:
            total = torch.remainder(total + output, prime)
    return _logits(model, total, None, biases, prime)


def _logits(
    model: FrozenModel, output: Tensor, joined: Tensor | None, biases: int, prime: int
) -> Tensor:
    if joined is not None:
        output = torch.remainder(output + model.direction(joined), prime)
    logits = torch.remainder(output @ model.W_U, prime)
    if model.b_U is not None:
        logits = torch.remainder(logits + biases * model.b_U, prime)
    elif biases and any(source.joins == "logits" for source in model.sources):
        raise ValueError("the model has no unembedding bias")
    return logits


@dataclass(frozen=True)
class Plan:
    """What an exact comparison takes.

    The denominator is that of all values; ``heads`` is how often a head is applied, over all paths
    and primes.
    """

    denominator: int
    primes: tuple[int, ...]
    multiplications: float
    heads: int


def plan(model: FrozenModel, count: int) -> Plan:
    """Bound the difference of the forward pass and the sum over ``count`` paths; choose primes.

    Raises:
        OverflowError: if values of the network are not finite in float64.
    """
    size = _Size(model.zeros().double(), _WHOLE)
    for number in range(model.depth + 1):
        if number:
            size = _block_size(model, number - 1, size)
        for source in entering(model, number):
            if not number:
                size.magnitude = size.magnitude + source_magnitude(source)
            for part in source.parts:
                size.cover(_parts_of(part.stream) * _parts_of_edge(part.edge))
    magnitude = absolute_read(model, size.magnitude)
    size.parts *= _parts_of_edge(model.final)
    for source in model.sources:
        if source.joins == "unembed":
            magnitude = magnitude + abs(model.multiplier) * source_magnitude(source)
            for part in source.parts:
                size.cover(_parts_of(part.stream) * _parts_of_edge(part.edge))
    largest = float((magnitude @ model.W_U.double().abs()).max())
    parts = size.parts * _parts_of_number(model.multiplier) * _parts_of(model.W_U)
    if model.b_U is not None:
        largest += float(model.b_U.double().abs().max())
        parts |= _parts_of(model.b_U)
    if not math.isfinite(largest):
        raise OverflowError("values of the frozen network are beyond the range of float64")
    # largest was computed in floats, with a relative error far below the 2 bits that are spare
    bits = math.ceil(math.log2(max(largest, 1.0)) + math.log2(count + 1)) + 2
    d_model, d_vocab = model.W_U.shape
    denominator = parts.denominator(d_model)
    bits += math.ceil(math.log2(denominator))
    primes = _primes_below(largest_modulus(model), bits + 1)
    places = model.batch * model.length
    d_head = max([0, *(branch.width for block in model.blocks for branch in block.branches)])
    each = places * (2 * d_model * d_head + model.length * d_head)
    every = (float(count) * each + 2 * places * d_model * d_vocab) * len(primes)
    return Plan(denominator, primes, every, count * len(primes))


def _primes_below(most: int, bits: int) -> tuple[int, ...]:
    """The largest primes up to ``most`` whose product has more than so many bits."""
    covered, primes = 0.0, list[int]()
    for number in range(most, 1, -1):
        if covered >= bits:
            break
        if is_prime(number):
            primes.append(number)
            covered += math.log2(number) - 1e-9
    return tuple(primes)


@dataclass(frozen=True)
class _Parts:
    """Numbers are integers over ``2^bits d_model^means``."""

    bits: int
    means: int

    def __mul__(self, other: _Parts) -> _Parts:
        """What products of two numbers are made of."""
        return _Parts(self.bits + other.bits, self.means + other.means)

    def __or__(self, other: _Parts) -> _Parts:
        """What sums of two numbers are made of."""
        return _Parts(max(self.bits, other.bits), max(self.means, other.means))

    def denominator(self, d_model: int) -> int:
        return 2**self.bits * d_model**self.means


_WHOLE = _Parts(0, 0)


@dataclass
class _Size:
    """A bound on a stream's magnitude, and what its numbers are made of."""

    magnitude: Tensor
    parts: _Parts

    def cover(self, parts: _Parts) -> None:
        self.parts |= parts


def _block_size(model: FrozenModel, number: int, size: _Size) -> _Size:
    block = model.blocks[number]
    magnitude = block_magnitude(model, number, size.magnitude)
    found = _Size(magnitude, size.parts * _parts_of_edge(block.skip))
    for branch in block.branches:
        read = size.parts * _parts_of_edge(branch.reads)
        if branch.reads.bias is not None:
            read |= _parts_of(branch.reads.bias)
        if isinstance(branch, FrozenHeads):
            inside, bias, moving = branch.W_V, branch.b_V, branch.pattern
        else:
            assert isinstance(branch, FrozenNeurons)
            inside, bias, moving = branch.W_in, branch.b_in, branch.slope
        value = read * _parts_of(inside)
        if bias is not None:
            value |= _parts_of(bias)
        value = value * _parts_of(moving) * _parts_of(branch.out)
        found.cover(value * _parts_of_edge(branch.writes))
    return found


def _parts_of_edge(edge: FrozenEdge) -> _Parts:
    """What an edge multiplies numbers by. A mean divides by ``d_model``."""
    parts = _parts_of_number(edge.multiplier) * _Parts(0, int(edge.centred))
    for factor in (edge.scale, edge.gain):
        parts = parts if factor is None else parts * _parts_of(factor)
    return parts


def _parts_of_number(number: float) -> _Parts:
    return _parts_of(torch.tensor([number], dtype=torch.float64))


def _parts_of(value: Tensor) -> _Parts:
    """The least power of two that makes every entry an integer."""
    mantissa, exponent = torch.frexp(value.double())
    integer = (mantissa * 2.0**53).long()
    lowest_set = integer & -integer
    trailing = torch.frexp(lowest_set.double()).exponent - 1
    places = torch.where(integer != 0, exponent - 53 + trailing, torch.zeros_like(exponent))
    return _Parts(max(0, -int(places.min())), 0) if places.numel() else _WHOLE


def exact_difference(
    model: FrozenModel, paths: Sequence[tuple[int, Components]], chosen: Plan
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
        value = value * chosen.denominator % product
        value = value - product if value > product // 2 else value
        largest = max(largest, value, key=abs)
    return Fraction(largest, chosen.denominator)
