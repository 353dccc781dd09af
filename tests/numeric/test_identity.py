"""The identity modulo primes: it holds for all paths, and sees what a sum without labels cannot."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from sympy import isprime

from otimes.numeric import identity
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.identity import Labels, PathNumbers, degree, draw_prime, identity_holds
from otimes.numeric.modular import difference_modulo
from otimes.numeric.residues import ResidueHeads, largest_modulus
from tests.synthetic import SHAPES, Shape, dense, make_frozen

ALL = pytest.mark.parametrize("name", SHAPES)
PRIME = 1048573


def paths_of(model: FrozenModel) -> list[PathNumbers]:
    return [(path.source, path.components) for path in dense(model).paths()]


def holds(model: FrozenModel, pairs: list[tuple[PathNumbers, PathNumbers]] | None) -> bool:
    return identity_holds(model, PRIME, Random(5), pairs)


@ALL
def test_all_paths_of_every_shape(name: str) -> None:
    model = make_frozen(SHAPES[name])
    paths = paths_of(model)

    assert holds(model, [(path, path) for path in paths])
    assert holds(model, None)
    assert holds(model.to(torch.float32), None)


@pytest.mark.parametrize("name", ["attention", "post, centred", "parallel"])
def test_exchanged_labels(name: str) -> None:
    """The plain sum is the same, so only labels see that two paths are called each other."""
    model = make_frozen(SHAPES[name])
    paths = paths_of(model)
    for a, b in ((0, 1), (3, 5), (len(paths) - 3, len(paths) - 4)):
        names = list(paths)
        names[a], names[b] = names[b], names[a]

        assert not difference_modulo(model, paths, PRIME).any()
        assert not holds(model, list(zip(names, paths, strict=True)))


@pytest.mark.parametrize("name", ["attention", "pre"])
def test_dropped_and_doubled_paths(name: str) -> None:
    model = make_frozen(SHAPES[name])
    pairs = [(path, path) for path in paths_of(model)]
    for place in np.linspace(0, len(pairs) - 1, 8, dtype=int):
        assert not holds(model, [*pairs[:place], *pairs[place + 1 :]])
        assert not holds(model, [*pairs, pairs[place]])
    assert not holds(model, pairs[:-1])  # the unembedding's bias


def test_a_wrong_order_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_frozen(SHAPES["attention"])
    right = identity.order_outputs
    monkeypatch.setattr(identity, "order_outputs", lambda m: right(m)[:-1])

    assert not holds(model, None)


def test_a_head_that_reads_another_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enumerated paths go through single heads, the forward recursion through all at once."""
    model = make_frozen(SHAPES["batch"])
    pairs = [(path, path) for path in paths_of(model)]
    right = ResidueHeads.component
    monkeypatch.setattr(ResidueHeads, "component", lambda self, index, x: right(self, index ^ 1, x))

    assert not holds(model, pairs)


def test_many_layers() -> None:
    model = make_frozen(Shape(layers=30, heads=3, kv_heads=3, length=2))

    assert holds(model, None)
    assert degree(model) == 31


def test_primes_leave_products_exact_and_labels_are_independent() -> None:
    model, random = make_frozen(SHAPES["pre"]), Random(0)
    primes = {draw_prime(model, random) for _ in range(20)}
    most = largest_modulus(model)

    assert len(primes) == 20
    assert all(isprime(prime) and most // 2 <= prime <= most for prime in primes)
    assert 5 * most**2 <= 2**52 < 5 * (most + 1) ** 2
    labels = Labels.draw(model, PRIME, random)
    numbers = torch.cat([*labels.components, labels.sources]).tolist()
    assert (
        len(set(numbers))
        == len(numbers)
        == sum(b.components for b in model.blocks) + len(model.sources)
    )
    source, (head, other) = 0, ((0, 1), (2, 0))
    product = int(labels.sources[0] * labels.components[0][1]) % PRIME
    assert labels.product((source, (head,))) == product
    assert labels.product((source, (head, other))) == product * int(labels.components[2][0]) % PRIME


def test_a_block_without_components_has_no_degree() -> None:
    assert degree(make_frozen(SHAPES["source MLPs"])) == 1 + 3
    assert degree(make_frozen(replace(SHAPES["parallel"], layers=4))) == 1 + 4
