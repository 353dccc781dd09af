"""Path energy: every draw against brute force, unbiased over seeds, and exact on small models."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest
import torch

from otimes.errors import LimitError
from otimes.numeric import prefixes as passes
from otimes.numeric.energy import Estimate, SignedEnergies
from otimes.numeric.moments import SecondMoments
from otimes.numeric.nodes import Node
from otimes.numeric.prefixes import Signs
from otimes.numeric.tree import PathTree
from tests.brute import Brute, brute, random_tables
from tests.kit import close
from tests.synthetic import SHAPES

ALL = pytest.mark.parametrize("name", SHAPES)
SEEDS, DRAWS = 20, 64


def tree_of(found: Brute) -> PathTree:
    return PathTree(found.model, found.target)


def product_of_signs(
    signs: Signs, source: int, components: tuple[tuple[int, int], ...]
) -> np.ndarray:
    found = signs.sources[:, source].numpy().copy()
    for block, index in components:
        found *= signs.components[block][:, index].numpy()
    return found


@ALL
@pytest.mark.parametrize("restricted", [False, True])
def test_every_draw_is_the_signed_sum_of_the_paths(name: str, restricted: bool) -> None:
    expected = brute(SHAPES[name])
    tables = random_tables(expected.model, 2) if restricted else None
    tree = PathTree(expected.model, expected.target, tables)
    expected = expected if tables is None else expected.accepted(tables)
    energies = SignedEnergies(tree, 5, seed=3, dtype=torch.float64)
    scale = 1e-11 * max(map(abs, brute(SHAPES[name]).values.values()))
    for suffix in [(), *expected.suffixes()[1::6]]:
        draws = np.zeros(5)
        for path, value in expected.ending(suffix).items():
            draws += value * product_of_signs(energies.signs, *path)
        for block, index in suffix:  # the suffix's own signs are left out
            draws *= energies.signs.components[block][:, index].numpy()

        assert np.abs(energies.signed(suffix).numpy() - draws).max() <= scale


def deviation(expected: Brute, tree: PathTree) -> float:
    """How many standard errors the mean estimate over many seeds is away from the true energy."""
    estimates = [
        SignedEnergies(tree, DRAWS, seed, torch.float64, root_alone=True).energy().value
        for seed in range(SEEDS)
    ]
    error = np.std(estimates, ddof=1) / sqrt(SEEDS)
    return (np.mean(estimates) - expected.energy()) / error


@ALL
def test_the_estimate_is_unbiased_over_many_seeds(name: str) -> None:
    expected = brute(SHAPES[name])
    stream = [source for source in expected.model.sources if source.joins == "stream"]
    assert len(stream) > 1 or name == "no biases"

    assert abs(deviation(expected, tree_of(expected))) < 4


def all_ones(which: str) -> Callable[..., Signs]:
    right = Signs.draw

    def draw(*args: object) -> Signs:
        found = right(*args)  # type: ignore[arg-type]
        if which == "sources":
            return Signs(found.components, torch.ones_like(found.sources))
        return Signs(tuple(map(torch.ones_like, found.components)), found.sources)

    return draw


@pytest.mark.parametrize("which", ["sources", "components"])
def test_forgotten_signs_are_a_bias_that_is_seen(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = brute(SHAPES["pre"])
    monkeypatch.setattr(Signs, "draw", all_ones(which))

    assert abs(deviation(expected, tree_of(expected))) > 10


@ALL
@pytest.mark.parametrize("restricted", [False, True])
def test_the_second_moment_gives_the_exact_energy(name: str, restricted: bool) -> None:
    whole = brute(SHAPES[name])
    tables = random_tables(whole.model, 1) if restricted else None
    tree = PathTree(whole.model, whole.target, tables)
    expected = whole if tables is None else whole.accepted(tables)
    moments = SecondMoments(tree)
    for suffix in [(), *expected.suffixes()[1::3]]:
        assert abs(moments.energy(suffix) - expected.energy(suffix)) < 1e-11 * whole.energy()
        if not restricted:
            close(moments.energy(suffix), expected.energy(suffix), 1e-10)


@ALL
def test_no_path_of_a_leaf_exceeds_the_root_of_its_energy(name: str) -> None:
    expected = brute(SHAPES[name])
    tree = tree_of(expected)
    for suffix in [(), *expected.suffixes()[1::12]]:
        children = tree.expand([suffix], SecondMoments(tree))[0]
        assert children.guides is not None
        for child, energy in zip(children, children.guides.tolist(), strict=True):
            if not child.complete:
                largest = max(map(abs, expected.ending(child.components).values()))
                assert largest <= sqrt(energy)


def test_guides_give_the_energies_of_the_children() -> None:
    expected = brute(SHAPES["parallel"])
    tree = tree_of(expected)
    for guide in (SecondMoments(tree), SignedEnergies(tree, 16, dtype=torch.float64)):
        (children,) = tree.expand([()], guide)
        assert children.guides is not None
        for child, found in zip(children, children.guides.tolist(), strict=True):
            energy = 0.0
            if not child.complete:
                known = guide.energy(child.components)
                energy = known.value if isinstance(known, Estimate) else known
            close(found, energy, 1e-10)


def test_chunks_of_draws_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tree_of(brute(SHAPES["sandwich"]))
    whole = SignedEnergies(tree, 7, dtype=torch.float64)
    monkeypatch.setattr(passes, "_CHUNK", 1)
    parts = SignedEnergies(tree, 7, dtype=torch.float64)

    for suffix in ((), ((2, 1),), ((1, 0), (3, 1))):
        close(parts.signed(suffix), whole.signed(suffix))


def test_single_precision_is_near() -> None:
    tree = tree_of(brute(SHAPES["pre"]))

    for suffix in ((), ((2, 1),)):
        single, double = (
            SignedEnergies(tree, 9, dtype=dtype).signed(suffix)
            for dtype in (torch.float32, torch.float64)
        )
        close(single, double, 1e-5)


def test_an_interval_is_of_its_seed_and_holds_the_mean() -> None:
    draws = torch.from_numpy(np.random.default_rng(0).standard_normal(200) ** 2)
    found = Estimate.of_mean(draws, seed=4)

    assert found == Estimate.of_mean(draws, seed=4)
    assert found != Estimate.of_mean(draws, seed=5)
    assert found.low < found.value < found.high
    # near the interval of the normal distribution
    half = 1.96 * float(draws.std()) / sqrt(200)
    assert 0.8 * half < (found.high - found.low) / 2 < 1.2 * half


def test_intervals_cover_about_as_often_as_they_say() -> None:
    expected = brute(SHAPES["attention"])
    tree, energy, hits = tree_of(expected), expected.energy(), 0
    for seed in range(SEEDS):
        found = SignedEnergies(tree, 256, seed, torch.float64, root_alone=True).energy()
        hits += found.low <= energy <= found.high

    assert hits >= 0.8 * SEEDS


def test_the_explained_energy_is_near_the_true_share() -> None:
    expected = brute(SHAPES["pre"])
    energies = SignedEnergies(tree_of(expected), 512, dtype=torch.float64)
    paths = sorted(expected.values.items(), key=lambda one: -abs(one[1]))
    nodes = [Node(*path, value, 1) for path, value in paths]
    for size in (1, 10, 100):
        share = sum(value**2 for _, value in paths[:size]) / expected.energy()
        found = energies.explained(nodes[:size])

        assert found.low <= share <= found.high
        assert found.low < found.value < found.high < 1
    assert abs(energies.explained(nodes).value - 1) < 1e-12
    assert energies.explained([]) == Estimate(0.0, 0.0, 0.0)


def test_bad_sizes_are_refused() -> None:
    tree = tree_of(brute(SHAPES["attention"]))

    with pytest.raises(ValueError, match="at least one draw, not 0"):
        SignedEnergies(tree, 0)
    with pytest.raises(LimitError, match=r"streams of 128 draws would take .* fewer draws"):
        SignedEnergies(tree, budget=1000)
    with pytest.raises(LimitError, match=r"matrices of 15 × 15 numbers, .* estimate the energy"):
        SecondMoments(tree, budget=1000)
