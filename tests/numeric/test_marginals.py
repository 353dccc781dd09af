"""Paths through components and edges, against brute force over dense matrices."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from otimes.numeric.batches import component_numbers
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.halves import order_sums
from otimes.numeric.marginals import component_marginals, edge_marginals
from tests.kit import close, heads_of
from tests.oracles.frozen import Path
from tests.synthetic import SHAPES
from tests.targets import cases

ALL = pytest.mark.parametrize("name", SHAPES)


def expected_marginals(model: FrozenModel, values: dict[Path, float]) -> dict[str, np.ndarray]:
    """Every path added to the components and edges that it goes through."""
    number = {(int(b), int(i)): n for n, (b, i) in enumerate(component_numbers(model))}
    size = len(number)
    found = {
        "components": np.zeros(size),
        "between": np.zeros((size, size)),
        "sources": np.zeros((len(model.sources), size)),
        "outputs": np.zeros(size),
    }
    for path, value in values.items():
        passed = [number[component] for component in path.components]
        for component in passed:
            found["components"][component] += value
        for earlier, later in itertools.pairwise(passed):
            found["between"][earlier, later] += value
        if passed:
            found["sources"][path.source, passed[0]] += value
            found["outputs"][passed[-1]] += value
    return found


@ALL
def test_through_every_component_and_edge(name: str) -> None:
    for model, target, _, values in cases(name):
        expected = expected_marginals(model, values)
        for streams in (None, model.forward()):
            edges = edge_marginals(model, target, streams)

            for what, value in expected.items():
                close(getattr(edges, what), value, 1e-10)
            close(component_marginals(model, target, streams), expected["components"], 1e-10)


@ALL
def test_every_path_enters_and_leaves_a_component_once(name: str) -> None:
    for model, target, _, _ in cases(name):
        edges = edge_marginals(model, target)

        close(edges.between.sum(0) + edges.sources.sum(0), edges.components, 1e-10)
        close(edges.between.sum(1) + edges.outputs, edges.components, 1e-10)


@ALL
def test_heads_count_each_path_as_often_as_its_order(name: str) -> None:
    """Σ_h M_h = Σ_k k · order_k."""
    for model, target, _, _ in cases(name):
        orders = order_sums(model, target)
        through = component_marginals(model, target)
        heads = [index < model.blocks[block].heads for block, index in component_numbers(model)]

        weighted = (orders * torch.arange(len(orders))).sum()
        close(through[torch.tensor(heads)].sum(), weighted, 1e-10)


@ALL
def test_a_small_budget_changes_nothing_and_a_tiny_one_is_refused(name: str) -> None:
    model, target, _, _ = cases(name)[0]
    whole = edge_marginals(model, target)
    sources = sum(s.component is None and s.joins == "stream" for s in model.sources)
    one = (2 * len(whole.components) + sources) * model.W_U.shape[0] * 8

    small = edge_marginals(model, target, budget=one)
    for what in ("components", "between", "sources", "outputs"):
        close(getattr(small, what), getattr(whole, what), 1e-10)
    with pytest.raises(ValueError, match=f"one position need {one} bytes, and the budget is 7"):
        edge_marginals(model, target, budget=7)


@ALL
def test_single_precision(name: str) -> None:
    model, target, _, values = cases(name)[0]
    single, at = model.to(torch.float32), replace(target, direction=target.direction.float())
    edges = edge_marginals(single, at)

    scale = sum(abs(value) for value in values.values())
    for what, value in expected_marginals(model, values).items():
        found = getattr(edges, what)
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), value, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("name", ["pre", "post", "sandwich", "parallel"])
def test_a_changed_factor_is_seen(name: str) -> None:
    """The comparison can fail: factors of one block changed by a thousandth, a constant dropped."""
    model, target, _, values = cases(name)[0]
    expected = expected_marginals(model, values)
    block, heads = model.blocks[-1], heads_of(model, 0)
    first = model.blocks[0]
    broken = [
        replace(first, attention=replace(heads, W_V=heads.W_V * 1.001)),
        replace(first, attention=replace(heads, b_V=None)),
        replace(first, skip=replace(first.skip, multiplier=1.001)),
    ]
    assert block is not first
    for changed in broken:
        other = replace(model, blocks=(changed, *model.blocks[1:]))
        with pytest.raises(AssertionError, match="Mismatched elements"):
            close(edge_marginals(other, target).components, expected["components"], 1e-10)
