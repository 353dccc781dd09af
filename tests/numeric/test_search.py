"""The search for the largest paths against full enumeration."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from otimes.numeric.moments import SecondMoments
from otimes.numeric.search import GuideName, Search, by_value, guide_of, search
from otimes.numeric.tree import PathTree
from tests.brute import Brute, brute, random_tables
from tests.kit import close
from tests.synthetic import SHAPES, Shape

GUIDES = pytest.mark.parametrize("guide", get_args(GuideName))


def tree_of(found: Brute) -> PathTree:
    return PathTree(found.model, found.target)


def largest(found: Brute, top: int) -> list[float]:
    return sorted(found.values.values(), key=abs, reverse=True)[:top]


@pytest.mark.parametrize("name", ["batch", "post", "parallel", "source MLPs"])
@GUIDES
def test_with_enough_expansions_the_largest_paths_are_found(name: str, guide: GuideName) -> None:
    expected = brute(SHAPES[name])
    found = search(tree_of(expected), 12, 1000, guide, batch=4)

    close([node.value for node in found.found], largest(expected, 12), 1e-10)
    for node in found.found:
        close(node.value, expected.values[node.source, node.components], 1e-10)
    assert found.proved
    close(found.shown + found.remainder, sum(expected.values.values()), 1e-11)
    share = sum(value**2 for value in largest(expected, 12)) / expected.energy()
    for part in (found.explained.low, found.explained.value, found.explained.high):
        close(part, share, 1e-9)


@pytest.mark.parametrize("name", ["attention", "batch", "parallel", "source MLPs", "multipliers"])
def test_exact_energies_prove_the_list_before_all_is_seen(name: str) -> None:
    expected = brute(SHAPES[name])
    exact = search(tree_of(expected), 5, 1000, "exact")
    every = search(tree_of(expected), 5, 1000, "value")

    assert exact.stopped == "proved"
    assert every.stopped == "exhausted"
    assert exact.expansions < every.expansions
    close([node.value for node in exact.found], largest(expected, 5), 1e-10)


def test_a_wrong_proof_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: with too small energies the list is called proved and is not."""
    expected = brute(SHAPES["pre"])
    right = SecondMoments.__call__
    monkeypatch.setattr(SecondMoments, "__call__", lambda *args: 1e-6 * right(*args))
    found = search(tree_of(expected), 5, 1000, "exact")

    assert found.proved
    with pytest.raises(AssertionError):
        close([node.value for node in found.found], largest(expected, 5), 1e-10)


@pytest.mark.parametrize("guide", ["energy", "exact"])
def test_paths_of_an_automaton_alone_are_found(guide: GuideName) -> None:
    whole = brute(SHAPES["multipliers"])
    tables = next(
        tables for seed in range(100)
        if len(whole.accepted(tables := random_tables(whole.model, seed)).values) > 30
    )  # fmt: skip
    expected = whole.accepted(tables)
    assert 30 < len(expected.values) < len(whole.values)

    found = search(PathTree(whole.model, whole.target, tables), 10, 1000, guide)

    close([node.value for node in found.found], largest(expected, 10), 1e-10)


def test_a_budget_leaves_an_exact_remainder_and_an_interval() -> None:
    expected = brute(SHAPES["pre"])
    found = search(tree_of(expected), 20, 10)

    assert (found.stopped, found.proved, found.expansions) == ("budget", False, 10)
    assert len(found.found) == 20
    close(found.total, sum(expected.values.values()), 1e-11)
    close(found.shown, sum(node.value for node in found.found))
    close(found.remainder, found.total - found.shown)
    share = sum(node.value**2 for node in found.found) / expected.energy()
    assert 0 < found.explained.low < found.explained.value < found.explained.high < 1
    assert found.explained.low <= share <= found.explained.high


def test_the_same_seed_gives_the_same_search_and_another_seed_other_energies() -> None:
    tree = tree_of(brute(SHAPES["sandwich"]))
    one, same, other = (search(tree, 10, 8, draws=4, seed=seed) for seed in (1, 1, 2))

    assert one == same
    assert one.explained != other.explained


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_limit_is_never_taken_for_the_end(limit: int) -> None:
    """Leaves that are not kept because they can't be split any more are still not seen."""
    tree = tree_of(brute(SHAPES["no biases"]))
    complete = search(tree, 5, 1000, "value").expansions
    found = Search(tree, by_value, 5, limit)
    while found.step():
        pass

    assert found.exhausted == (limit >= complete)
    assert found.ended == ("exhausted" if limit >= complete else "budget")


def cancelling() -> Brute:
    """Two heads of the first block write the opposite of each other; all else is small."""
    shape = Shape(layers=2, heads=4, kv_heads=4, biases=False, d_model=6, d_head=3)
    found = brute(shape)
    first, second = found.model.blocks
    assert first.attention is not None
    assert second.attention is not None
    pattern, W_V, W_O = (
        part.clone() for part in (first.attention.pattern, first.attention.W_V, first.attention.W_O)
    )
    pattern[:, 1], W_V[1], W_O[1] = pattern[:, 0], W_V[0], -W_O[0]
    W_O[:2] *= 100
    heads = replace(first.attention, pattern=pattern, W_V=W_V, W_O=W_O)
    blocks = (replace(first, attention=heads), second)
    return replace(found, model=replace(found.model, blocks=blocks))


def test_energy_finds_large_paths_that_cancel_where_the_value_does_not_look() -> None:
    tree = tree_of(cancelling())
    truth = [node.value for node in search(tree, 4, 1000, "value").found]
    energy, value = (Search(tree, guide_of(guide, tree), 4) for guide in ("energy", "value"))
    needed = dict[str, int]()
    for name, one in (("energy", energy), ("value", value)):
        while [node.value for node in one.found] != truth:
            assert one.step()
        needed[name] = one.expansions

    assert sum(truth[:2]) == pytest.approx(0, abs=1e-9 * abs(truth[0]))
    assert needed["energy"] < needed["value"]


def test_progress_is_told_and_an_interrupt_returns_what_is_known() -> None:
    expected = brute(SHAPES["pre"])
    seen = list[tuple[int, int]]()

    def stop(one: Search) -> None:
        seen.append((one.expansions, len(one.found)))
        assert one.bound > 0
        if one.expansions == 3:
            raise KeyboardInterrupt

    found = search(tree_of(expected), 30, 1000, progress=stop)

    assert [expansions for expansions, _ in seen] == [1, 2, 3]
    assert found.stopped == "interrupted"
    assert found.expansions == 3
    assert len(found.found) == seen[-1][1]
    assert not found.proved


def test_an_interrupted_step_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tree_of(brute(SHAPES["pre"]))
    one, other = (Search(tree, by_value, 30, 20) for _ in range(2))
    one.step()
    other.step()
    right = Search._take_paths

    def interrupted(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_take_paths", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.step()
    monkeypatch.setattr(Search, "_take_paths", right)
    while one.step():
        other.step()

    assert one.found == other.found
    assert one.expansions == other.expansions


def test_bad_sizes_are_refused() -> None:
    tree = tree_of(brute(SHAPES["attention"]))

    with pytest.raises(ValueError, match="at least 1, not 0 and 10"):
        search(tree, 0, 10, "value")
    with pytest.raises(ValueError, match="at least 1, not 5 and 0"):
        search(tree, 5, 0, "value")


def test_a_search_takes_part_in_no_gradient() -> None:
    tree = tree_of(brute(SHAPES["attention"]))

    assert not tree.children().values.requires_grad
    assert torch.is_grad_enabled()
