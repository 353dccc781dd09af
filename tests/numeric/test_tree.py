"""The path tree against brute force: every node, and the leaves at every step."""

from __future__ import annotations

from math import fsum

import numpy as np
import pytest
import torch

from otimes.numeric.functionals import Target
from otimes.numeric.nodes import ANY, Gathered, Node
from otimes.numeric.paths import path_logits
from otimes.numeric.prefixes import everything
from otimes.numeric.tree import PathTree
from tests.brute import Brute, brute, random_tables
from tests.kit import close
from tests.synthetic import SHAPES, Shape, make_frozen

ALL = pytest.mark.parametrize("name", SHAPES)


def total(found: Brute) -> float:
    return fsum(found.values.values())


def split_all(tree: PathTree, scale: float) -> dict[tuple[int, tuple[tuple[int, int], ...]], float]:
    """Split the largest leaf until all are paths; the leaves add up to the total at every step."""
    leaves = {tree.root.id: tree.root}
    done = dict[tuple[int, ...], Node]()
    while leaves:
        largest = max(leaves, key=lambda one: (abs(leaves[one].value), one))
        node = leaves.pop(largest)
        for child in tree.children(node.components):
            into = done if child.complete else leaves
            assert child.id not in done
            assert child.id not in leaves
            into[child.id] = child
        every = [one.value for found in (leaves, done) for one in found.values()]
        assert abs(fsum(every) - tree.total) < 1e-12 * scale
    return {(node.source, node.components): node.value for node in done.values()}


@ALL
def test_the_leaves_add_up_at_every_step_and_end_as_all_paths(name: str) -> None:
    shape = SHAPES[name]
    # another sequence, and neither the first position nor the last
    expected = brute(shape, shape.batch - 1, shape.length - 2)
    tree = PathTree(expected.model, expected.target)
    scale = sum(map(abs, expected.values.values()))

    found = split_all(tree, scale)

    assert abs(tree.total - total(expected)) < 1e-12 * scale
    assert found.keys() == expected.values.keys()
    close([found[path] for path in expected.values], list(expected.values.values()), 1e-11)


@ALL
@pytest.mark.parametrize("seed", range(3))
def test_a_tree_of_an_automaton_has_the_paths_that_it_accepts(name: str, seed: int) -> None:
    whole = brute(SHAPES[name])
    tables = random_tables(whole.model, seed)
    expected = whole.accepted(tables)
    tree = PathTree(whole.model, whole.target, tables)

    found = split_all(tree, sum(map(abs, whole.values.values())))

    assert tree.root.count == len(expected.values)
    assert found.keys() == expected.values.keys()
    for path, value in expected.values.items():
        assert abs(found[path] - value) < 1e-11 * max(map(abs, whole.values.values()))


@ALL
def test_every_suffix_is_the_sum_of_its_paths(name: str) -> None:
    expected = brute(SHAPES[name])
    tree = PathTree(expected.model, expected.target)
    scale = max(map(abs, expected.values.values()))
    for suffix in expected.suffixes():
        paths = expected.ending(suffix)

        assert tree.count(suffix) == len(paths)
        assert abs(tree.value(suffix) - fsum(paths.values())) < 1e-11 * scale


@ALL
def test_children_stand_by_absolute_value_with_an_exact_remainder(name: str) -> None:
    expected = brute(SHAPES[name])
    tree = PathTree(expected.model, expected.target)
    children = tree.children()
    sizes = [abs(child.value) for child in children]

    assert sizes == sorted(sizes, reverse=True)
    assert sum(child.count for child in children) == tree.root.count == len(expected.values)
    for shown in (0, 2, len(children)):
        found = fsum(child.value for child in children[:shown]) + children.remainder(shown)
        assert abs(found - tree.total) < 1e-12 * sum(sizes)
    for child in children:
        assert all(type(number) is int for number in child.id)
        assert len(child.id) == 1 + 2 * len(child.components)


@ALL
def test_several_suffixes_at_once_and_the_automaton_of_all_paths_change_nothing(name: str) -> None:
    expected = brute(SHAPES[name])
    tree = PathTree(expected.model, expected.target)
    labelled = PathTree(expected.model, expected.target, everything(expected.model))
    suffixes = expected.suffixes()[::-5]
    for one in (tree, labelled):
        for suffix, children in zip(suffixes, one.expand(suffixes), strict=True):
            alone = {child.id: child for child in tree.children(suffix)}
            assert {child.id: child.count for child in children} == {
                node: child.count for node, child in alone.items()
            }
            close(
                [child.value for child in children],
                [alone[child.id].value for child in children],
                1e-11,
            )


def test_a_model_of_sixty_blocks_is_walked_down() -> None:
    shape = Shape(layers=60, heads=1, biases=False, d_model=4, length=2)
    model = make_frozen(shape)
    weights = torch.from_numpy(np.random.default_rng(2).standard_normal(shape.d_vocab))
    tree = PathTree(model, Target.logit(model, 1, weights))
    assert tree.root.count == 2**60

    suffix = ()
    for block in range(59, -1, -4):
        longer = [node for node in tree.children(suffix) if node.components[:1] == ((block, 0),)]
        assert [node.count for node in longer] == [2**block]
        suffix = longer[0].components

    (node,) = [node for node in tree.children(suffix) if node.components == suffix]
    (logits,) = path_logits(model, [(node.source, node.components)])
    close(node.value, logits[0, 1] @ weights, 1e-10)


def test_a_suffix_stands_in_increasing_blocks() -> None:
    expected = brute(SHAPES["attention"])
    tree = PathTree(expected.model, expected.target)

    with pytest.raises(ValueError, match="no component 0 of block 1 before block 1"):
        tree.children(((1, 0), (1, 1)))
    with pytest.raises(ValueError, match="no component 9 of block 0 before block 2"):
        tree.value(((0, 9),))


def test_an_automaton_of_another_model_is_refused() -> None:
    expected = brute(SHAPES["attention"])
    other = make_frozen(Shape(heads=4, kv_heads=2))
    fewer = make_frozen(Shape(biases=False))

    with pytest.raises(ValueError, match="of another model: the components differ"):
        PathTree(expected.model, expected.target, everything(other))
    with pytest.raises(ValueError, match="of another model: the sources differ"):
        PathTree(expected.model, expected.target, everything(fewer))


def test_a_tree_is_of_one_sequence() -> None:
    model = make_frozen(SHAPES["batch"])

    with pytest.raises(ValueError, match="of one sequence, not of 2"):
        PathTree(model, Target(0, model.W_U[:, 0]))


def test_a_forgotten_path_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum over leaves can fail: without what sources write directly it is another number."""
    expected = brute(SHAPES["pre"])
    tree = PathTree(expected.model, expected.target)
    monkeypatch.setattr(Gathered, "add_path", lambda *_: None)

    with pytest.raises(AssertionError):
        split_all(tree, sum(map(abs, expected.values.values())))


def test_what_neither_has_a_path_nor_reaches_anything_is_no_child() -> None:
    """Components that no accepted path goes through are left out, not shown as zeros."""
    expected = brute(SHAPES["attention"])
    tables = everything(expected.model)
    member = ((0, -1), *tables.member[1:])
    tree = PathTree(
        expected.model, expected.target, type(tables)(member, *list(vars(tables).values())[1:])
    )

    for suffix in ((), ((1, 0),)):
        components = [node.components[0] for node in tree.children(suffix) if node.source == ANY]
        assert (0, 1) not in components
