"""Branches whose tensors are made at each use, against the same branches with tensors."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor

from otimes.numeric.branches import FrozenHeads, FrozenNeurons
from otimes.numeric.frozen import FrozenBlock, FrozenModel
from otimes.numeric.identity import draw_prime, identity_holds
from otimes.numeric.modular import exact_difference, plan
from otimes.numeric.paths import order_outputs
from otimes.numeric.remade import Remade, RemadeBlocks, RemadeHeads, RemadeNeurons, each_block
from otimes.numeric.residues import residue_model
from tests.numeric.test_frozen import random
from tests.synthetic import SHAPES, make_frozen

ALL = pytest.mark.parametrize("name", SHAPES)


class Maker:
    """Counts what is made, and remembers it without keeping it alive."""

    def __init__(self) -> None:
        self.made = Counter[str]()
        self.living = list[weakref.ref[Tensor]]()

    def of(self, name: str, value: Tensor) -> Remade:
        def make() -> Tensor:
            self.made[name] += 1
            found = value.clone()
            self.living.append(weakref.ref(found))
            return found

        return Remade(make, value.shape, value.dtype)

    def block(self, block: FrozenBlock) -> FrozenBlock:
        heads, neurons = block.attention, block.mlp
        if heads is not None:
            tensors = {n: self.of(n, getattr(heads, n)) for n in ("pattern", "W_V", "W_O")}
            heads = RemadeHeads(**tensors, b_V=heads.b_V, reads=heads.reads, writes=heads.writes)
        if neurons is not None:
            tensors = {n: self.of(n, getattr(neurons, n)) for n in ("slope", "W_in", "W_out")}
            neurons = RemadeNeurons(
                **tensors, b_in=neurons.b_in, reads=neurons.reads, writes=neurons.writes
            )
        return replace(block, attention=heads, mlp=neurons)

    def model(self, model: FrozenModel) -> FrozenModel:
        return replace(model, blocks=tuple(map(self.block, model.blocks)))


def assert_same(one: FrozenBlock, other: FrozenBlock, x: Tensor) -> None:
    """All that a block does, bit by bit."""
    assert (one.heads, one.components) == (other.heads, other.components)
    assert torch.equal(one.apply(x), other.apply(x))
    assert torch.equal(one.adjoint(x), other.adjoint(x))
    for mine, right in zip(one.branches, other.branches, strict=True):
        assert (mine.size, mine.width) == (right.size, right.width)
        moved = right.moved(x)
        assert torch.equal(mine.values(x), right.values(x))
        assert torch.equal(mine.moved_back(moved), right.moved_back(moved))
        assert torch.equal(mine.inner(x[0]), right.inner(x[0]))
        assert torch.equal(mine.vectors(right.inner(x[0])), right.vectors(right.inner(x[0])))
        assert torch.equal(mine.rows(x[0].T), right.rows(x[0].T))
        constant, expected = mine.constant(), right.constant()
        assert (constant is None) == (expected is None)
        if constant is not None and expected is not None:
            assert torch.equal(constant, expected)
            own = mine.component_constant(right.size - 1)
            assert torch.equal(own, right.component_constant(right.size - 1))
    for index in range(other.components):
        assert torch.equal(one.component(index, x), other.component(index, x))


@ALL
def test_they_do_the_same(name: str) -> None:
    model = make_frozen(SHAPES[name])
    other, last = Maker().model(model), model.batch - 1
    x = random(model.batch, model.length, model.W_U.shape[0])
    for block, right in zip(other.blocks, model.blocks, strict=True):
        assert_same(block, right, x)
        assert_same(block.to(torch.float32), right.to(torch.float32), x.float())
        assert_same(block.absolute(), right.absolute(), x.abs())
        assert_same(block.sequence(last), right.sequence(last), x[last:])
    assert torch.equal(order_outputs(other), order_outputs(model))


@ALL
def test_fields_are_made_when_they_are_read_and_not_kept(name: str) -> None:
    model, maker = make_frozen(SHAPES[name]), Maker()
    other = maker.model(model)
    for block in other.blocks:
        branches = [block.to(torch.float32), block.to(torch.float64), block.sequence(0), block]
        assert all(found.components == block.components for found in branches)
        assert all(branch.width > 0 for branch in block.branches)
    assert not maker.made  # sizes and conversions make nothing

    other.forward()
    first = maker.made.copy()
    other.forward()
    assert maker.made == Counter({field: 2 * times for field, times in first.items()})
    gc.collect()
    assert maker.living
    assert not any(reference() is not None for reference in maker.living)


def test_a_kept_tensor_would_be_seen() -> None:
    maker = Maker()
    kept = maker.of("pattern", torch.ones(2)).make()
    gc.collect()

    assert [reference() is kept for reference in maker.living] == [True]


def test_one_field_can_be_replaced() -> None:
    maker = Maker()
    heads, neurons = maker.model(make_frozen(SHAPES["sandwich"])).blocks[:2]
    assert isinstance(heads.attention, FrozenHeads)
    assert isinstance(neurons.mlp, FrozenNeurons)

    doubled = replace(heads.attention, W_O=2 * heads.attention.W_O)
    silent = replace(neurons.mlp, slope=0 * neurons.mlp.slope)

    x = random(1, 3, 5)
    assert torch.equal(doubled.inner(x[0]), 2 * heads.attention.inner(x[0]))
    assert float(silent.moved(x).abs().max()) == 0
    with pytest.raises(AttributeError, match="RemadeHeads has no W_Q"):
        doubled.W_Q  # type: ignore[attr-defined] # noqa: B018


def test_a_changed_tensor_knows_its_shape_without_being_made() -> None:
    maker = Maker()
    wide = maker.of("W", torch.ones(3, 2, dtype=torch.bfloat16)).then(lambda t: t[:2].double())

    assert (tuple(wide.shape), wide.dtype) == ((2, 2), torch.float64)
    assert not maker.made
    assert torch.equal(wide.make(), torch.ones(2, 2, dtype=torch.float64))


# modulo primes


@pytest.mark.parametrize("name", ["pre", "sandwich", "parallel", "batch"])
def test_residues_are_made_at_each_use_too(name: str) -> None:
    model, maker = make_frozen(SHAPES[name]), Maker()
    other = maker.model(model)
    prime = draw_prime(model, Random(1))

    small = residue_model(other, prime)

    assert isinstance(small.blocks, RemadeBlocks)
    # the checks of types that are on in tests look at one block
    assert max(maker.made.values(), default=0) <= 1 < len(model.blocks)
    right = residue_model(model, prime)
    assert isinstance(right.blocks, tuple)
    assert len(small.blocks) == len(right.blocks)
    assert torch.equal(small.forward()[-1], right.forward()[-1])
    assert [b.components for b in small.blocks[1:]] == [b.components for b in right.blocks[1:]]
    assert identity_holds(other, prime, Random(2), None)
    with pytest.raises(IndexError):
        small.blocks[len(right.blocks)]


def test_rational_arithmetic_of_remade_blocks() -> None:
    model = make_frozen(SHAPES["attention"])
    other = Maker().model(model)
    paths = [(0, ()), (0, ((0, 1),))]

    expected = exact_difference(model, paths, plan(model, 2))

    assert expected != 0
    assert exact_difference(other, paths, plan(other, 2)) == expected


def test_blocks_with_tensors_are_changed_at_once() -> None:
    blocks = make_frozen(SHAPES["attention"]).blocks
    numbers = list[int]()

    def change(number: int, block: FrozenBlock) -> FrozenBlock:
        numbers.append(number)
        return block

    assert each_block(blocks, change) == tuple(blocks)
    assert numbers == list(range(len(blocks)))
