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
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from otimes.numeric.branches import FrozenHeads, FrozenNeurons
from otimes.numeric.edges import FrozenEdge
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.paths import Components, PrefixStack
from otimes.numeric.residues import residue_model
from otimes.numeric.rounding import absolute_read, block_magnitude, entering, source_magnitude


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

    size = _Size(model.zeros().double(), 0)
    for number in range(model.depth + 1):
        if number:
            size = _block_size(model, number - 1, size)
        for source in entering(model, number):
            if not number:
                size.magnitude = size.magnitude + source_magnitude(source)
            for part in source.parts:
                size.cover(_lowest_bit(part.stream) + _edge_bits(part.edge))
    magnitude = absolute_read(model, size.magnitude)
    size.lowest += _edge_bits(model.final)
    for source in model.sources:
        if source.joins == "unembed":
            magnitude = magnitude + abs(model.multiplier) * source_magnitude(source)
            for part in source.parts:
                size.cover(_lowest_bit(part.stream) + _edge_bits(part.edge))
    largest = float((magnitude @ model.W_U.double().abs()).max())
    lowest = size.lowest + _number_bits(model.multiplier) + _lowest_bit(model.W_U)
    if model.b_U is not None:
        largest += float(model.b_U.double().abs().max())
        lowest = min(lowest, _lowest_bit(model.b_U))
    if not math.isfinite(largest):
        raise OverflowError("values of the frozen network are beyond the range of float64")
    # largest was computed in floats, with a relative error far below the 2 bits that are spare
    bits = math.ceil(math.log2(max(largest, 1.0)) + math.log2(count + 1)) + 2 - lowest
    d_model, d_vocab = model.W_U.shape
    # the widest sum of products: over the stream, positions, or all components of a branch
    widths = [branch.size * branch.width for block in model.blocks for branch in block.branches]
    inner = max([d_model, model.length, *widths])
    prime, covered, primes = 2 ** ((52 - math.ceil(math.log2(inner))) // 2), 0.0, list[int]()
    while covered < bits + 1:
        prime = int(prevprime(prime))
        primes.append(prime)
        covered += math.log2(prime) - 1e-9
    places = model.batch * model.length
    d_head = max([0, *(branch.width for block in model.blocks for branch in block.branches)])
    each = places * (2 * d_model * d_head + model.length * d_head)
    every = (float(count) * each + 2 * places * d_model * d_vocab) * len(primes)
    return Plan(-lowest, tuple(primes), every, count * len(primes))


@dataclass
class _Size:
    """A bound on a stream's magnitude, and the exponent e such that 2^e divides its numbers."""

    magnitude: Tensor
    lowest: int

    def cover(self, lowest: int) -> None:
        self.lowest = min(self.lowest, lowest)


def _block_size(model: FrozenModel, number: int, size: _Size) -> _Size:
    block = model.blocks[number]
    found = _Size(block_magnitude(model, number, size.magnitude), size.lowest)
    found.lowest += _edge_bits(block.skip)
    for branch in block.branches:
        read = size.lowest + _edge_bits(branch.reads)
        if branch.reads.bias is not None:
            read = min(read, _lowest_bit(branch.reads.bias))
        if isinstance(branch, FrozenHeads):
            inside, bias, moving = branch.W_V, branch.b_V, branch.pattern
        else:
            assert isinstance(branch, FrozenNeurons)
            inside, bias, moving = branch.W_in, branch.b_in, branch.slope
        value = read + _lowest_bit(inside)
        if bias is not None:
            value = min(value, _lowest_bit(bias))
        value += _lowest_bit(moving) + _lowest_bit(branch.out)
        found.cover(value + _edge_bits(branch.writes))
    return found


def _edge_bits(edge: FrozenEdge) -> int:
    """The exponent that an edge can lower numbers by. A mean divides by ``d_model``."""
    if edge.centred:
        raise ValueError("means are no dyadic rationals")
    bits = _number_bits(edge.multiplier)
    bits += 0 if edge.scale is None else _lowest_bit(edge.scale)
    return bits + (0 if edge.gain is None else _lowest_bit(edge.gain))


def _number_bits(number: float) -> int:
    return _lowest_bit(torch.tensor([number], dtype=torch.float64))


def _lowest_bit(value: Tensor) -> int:
    """The least exponent e such that every entry is an integer times 2^e, or 0 if that is more."""
    mantissa, exponent = torch.frexp(value.double())
    integer = (mantissa * 2.0**53).long()
    lowest_set = integer & -integer
    trailing = torch.frexp(lowest_set.double()).exponent - 1
    places = torch.where(integer != 0, exponent - 53 + trailing, torch.zeros_like(exponent))
    return min(0, int(places.min())) if places.numel() else 0


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
        value = value * pow(2, chosen.denominator_bits, product) % product
        value = value - product if value > product // 2 else value
        largest = max(largest, value, key=abs)
    return Fraction(largest, 2**chosen.denominator_bits)
