"""Words and paths of a target, one by one, against brute force over dense matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from otimes.numeric import suffixes
from otimes.numeric.functionals import Target
from otimes.numeric.words import TopWords, Words, all_words, each_words, top_words, walk_of
from tests.kit import close
from tests.oracles.frozen import Path
from tests.synthetic import SHAPES, Shape, dense, make_frozen
from tests.targets import accepted, cases, tables_of, weights_of

ALL = pytest.mark.parametrize("name", SHAPES)
Key = tuple[int, tuple[tuple[int, int], ...]]


def by_key(words: Words) -> dict[Key, np.ndarray]:
    """Values by source and word; no word stands twice."""
    found = {(int(words.sources[i]), words.word(i)): words.values[i] for i in range(len(words))}
    assert len(found) == len(words)
    return found


def same(words: Words, expected: dict[Key, float], relative: float = 1e-11) -> None:
    found = by_key(words)
    assert found.keys() == expected.keys()
    close([found[key] for key in expected], list(expected.values()), relative)


def summed(values: dict[Path, float], kept: Callable[[Path], bool]) -> dict[Key, float]:
    """The sums over sources of the paths kept."""
    found: dict[Key, float] = {}
    for path, value in values.items():
        if kept(path):
            key = -1, path.components
            found[key] = found.get(key, 0.0) + value
    return found


def ordered(words: Words) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    for number in range(len(words)):
        word = words.word(number)
        yield len(word), list(reversed(word))


@ALL
def test_every_word_has_the_sum_of_its_paths(name: str) -> None:
    for model, target, _, values in cases(name):
        words = all_words(walk_of(model, target))

        same(words, summed(values, lambda _: True))
        order = list(ordered(words))
        assert order == sorted(order)
        assert words.components.dtype == np.int32
        assert words.values.dtype == np.float64


@ALL
def test_limits_of_order_and_length(name: str) -> None:
    model, target, _, values = cases(name)[-1]
    for order in (0, 1, 2):
        same(all_words(walk_of(model, target, order=order)),
             summed(values, lambda p, most=order: p.order <= most))  # fmt: skip
    for length in (0, 1, 2):
        same(all_words(walk_of(model, target, length=length)),
             summed(values, lambda p, most=length: len(p.components) <= most))  # fmt: skip
    both = walk_of(model, target, order=1, length=2)
    same(all_words(both), summed(values, lambda p: p.order <= 1 and len(p.components) <= 2))


@ALL
def test_every_path_of_every_source(name: str) -> None:
    for model, target, _, values in cases(name):
        words = all_words(walk_of(model, target, by_source=True))

        same(words, {(p.source, p.components): v for p, v in values.items()})


@ALL
def test_values_by_the_position_that_the_first_component_reads(name: str) -> None:
    """A source that writes at one position only has its values there and nowhere else."""
    model, target, _, values = cases(name)[0]
    parts = by_key(all_words(walk_of(model, target, by_source=True, by_position=True)))

    close([parts[p.source, p.components].sum() for p in values], list(values.values()), 1e-11)
    sums = by_key(all_words(walk_of(model, target, by_position=True)))
    for (_, word), value in sums.items():
        close(value, sum(parts[key] for key in parts if key[1] == word), 1e-11)
    for position in range(model.length):
        mask = torch.zeros(1, model.length, 1, dtype=model.dtype)
        mask[0, position] = 1
        sources = tuple(
            replace(s, parts=tuple(
                replace(p, stream=p.stream * mask, edge=p.edge) for p in s.parts
            )) if s.joins == "stream" else s for s in model.sources
        )  # fmt: skip
        there = by_key(all_words(walk_of(replace(model, sources=sources), target, by_source=True)))
        for (source, word), value in there.items():
            if model.sources[source].joins == "stream" and model.sources[source].parts:
                close(parts[source, word][position], value, 1e-10)


def test_a_constant_begins_where_its_head_reads() -> None:
    model, target, _, _ = cases("attention")[0]
    parts = by_key(all_words(walk_of(model, target, by_source=True, by_position=True)))
    number = next(i for i, s in enumerate(model.sources) if s.component == (1, 0))
    heads = model.blocks[1].attention
    assert heads is not None
    constant = heads.value_constants()
    assert constant is not None
    value = constant[0] @ heads.W_O[0] @ target.direction

    close(parts[number, ((1, 0),)], heads.pattern[0, 0, target.position] * value)


@ALL
@pytest.mark.parametrize("seed", [4, 6])
def test_only_paths_that_an_automaton_accepts(name: str, seed: int) -> None:
    for model, target, network, values in cases(name)[-1:]:
        tables = tables_of(model, seed)
        kept = {p: v for p, v in values.items() if accepted(tables, network, p)}

        same(all_words(walk_of(model, target, tables=tables)), summed(kept, lambda _: True))
        same(all_words(walk_of(model, target, tables=tables, by_source=True)),
             {(p.source, p.components): v for p, v in kept.items()})  # fmt: skip
        same(all_words(walk_of(model, target, tables=tables, order=1)),
             summed(kept, lambda p: p.order <= 1))  # fmt: skip
        tails = all_words(walk_of(model, target, tables=tables, suffixes=True))
        for (_, word), value in by_key(tails).items():
            expected = sum(v for p, v in kept.items() if ends_with(p, word))
            assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)


def ends_with(path: Path, word: tuple[tuple[int, int], ...]) -> bool:
    return path.components[len(path.components) - len(word) :] == word


@ALL
def test_suffixes_stand_for_all_paths_that_end_with_them(name: str) -> None:
    for model, target, _, values in cases(name):
        tails = all_words(walk_of(model, target, suffixes=True))

        same(tails, {
            (-1, word): sum(v for p, v in values.items() if ends_with(p, word))
            for word in {p.components for p in values}
        }, 1e-10)  # fmt: skip


@ALL
def test_the_order_does_not_depend_on_the_budget(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, target, _, _ = cases(name)[0]
    for options in ({}, {"by_source": True}, {"tables": tables_of(model, 1)}):
        whole = walk_of(model, target, **options)
        expected = all_words(whole)
        monkeypatch.setattr(suffixes, "_ROWS", 2)
        most = int(max(whole._cost(whole._start())))
        small = walk_of(model, target, **options, budget=2 * most)
        found = all_words(small)
        monkeypatch.undo()

        np.testing.assert_array_equal(found.components, expected.components)
        np.testing.assert_array_equal(found.sources, expected.sources)
        close(found.values, expected.values)
        assert sum(len(part) for part in each_words(small)) == len(expected)


def test_a_budget_that_nothing_fits_in_is_refused() -> None:
    model, target, _, _ = cases("pre")[0]

    with pytest.raises(ValueError, match=r"one suffix needs \d+ bytes, and the budget is 10"):
        all_words(walk_of(model, target, budget=10))


@ALL
@pytest.mark.parametrize("k", [0, 5, 10**6])
def test_the_largest_and_the_remainder(name: str, k: int) -> None:
    model, target, network, values = cases(name)[0]
    walk = walk_of(model, target, by_source=True, budget=20_000)
    top = top_words(walk, k)

    largest = sorted((abs(v) for v in values.values()), reverse=True)[:k]
    close(np.abs(top.words.values), largest, 1e-11)
    assert top.count == len(values)
    close(top.total, sum(values.values()), 1e-11)
    assert top.remainder == pytest.approx(top.total - top.words.values.sum(), abs=1e-12)
    exact = {(p.source, p.components): v for p, v in values.items()}
    for key, value in by_key(top.words).items():
        assert value == pytest.approx(exact[key], rel=1e-9)
    tables = tables_of(model, 3)
    some = top_words(walk_of(model, target, tables=tables, length=1), k)
    kept = sum(v for p, v in values.items() if accepted(tables, network, p))
    assert some.total == pytest.approx(kept, rel=1e-9, abs=1e-9)


def test_what_top_words_cannot_do_is_refused() -> None:
    model, target, _, _ = cases("pre")[0]

    with pytest.raises(ValueError, match="by_position must be off"):
        top_words(walk_of(model, target, by_position=True), 3)
    with pytest.raises(ValueError, match="suffixes overlap"):
        top_words(walk_of(model, target, suffixes=True), 3)
    with pytest.raises(ValueError, match="k must not be negative, not -1"):
        top_words(walk_of(model, target), -1)
    with pytest.raises(ValueError, match="choose one of the two"):
        walk_of(model, target, by_source=True, suffixes=True)


def test_equal_words_keep_their_order() -> None:
    words = Words(np.zeros(0, int), np.zeros((0, 0, 2), np.int32), np.zeros(0))

    assert TopWords(words, 2.5, 0, 0.0).remainder == 2.5


@ALL
def test_single_precision(name: str) -> None:
    model, target, _, values = cases(name)[0]
    single = Target(target.position, target.direction.float(), target.bias)

    same(all_words(walk_of(model.to(torch.float32), single)), summed(values, lambda _: True), 1e-5)


def test_the_sequences_of_a_batch_are_refused_together() -> None:
    model = make_frozen(SHAPES["batch"])

    with pytest.raises(ValueError, match="of one sequence, not of 2"):
        all_words(walk_of(model, Target.logit(model, 0, weights_of(model))))


@pytest.mark.parametrize("what", ["pattern", "W_O", "skip", "reads"])
def test_a_changed_factor_is_seen(what: str) -> None:
    """The comparison can fail: one factor of one block changed by a thousandth."""
    model, target, _, values = cases("post" if what == "skip" else "pre")[0]
    block = model.blocks[0]
    heads = block.attention
    assert heads is not None
    changed = {
        "pattern": lambda: replace(block, attention=replace(heads, pattern=heads.pattern * 1.001)),
        "W_O": lambda: replace(block, attention=replace(heads, W_O=heads.W_O * 1.001)),
        "skip": lambda: replace(block, skip=replace(block.skip, multiplier=1.001)),
        "reads": lambda: replace(
            block, attention=replace(heads, reads=replace(heads.reads, multiplier=1.001))
        ),
    }[what]()
    broken = replace(model, blocks=(changed, *model.blocks[1:]))

    with pytest.raises(AssertionError, match="Mismatched elements"):
        same(all_words(walk_of(broken, target)), summed(values, lambda _: True))


def test_a_dropped_constant_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, target, _, values = cases("attention")[0]
    monkeypatch.setattr(type(model.blocks[0].branches[0]), "constant", lambda _: None)

    with pytest.raises(AssertionError, match="Mismatched elements"):
        same(all_words(walk_of(model, target)), summed(values, lambda _: True))


def test_deeper_models_share_their_suffixes() -> None:
    """Four layers: batches of suffixes with different first blocks, three components long."""
    shape = Shape(layers=4, heads=2, neurons=1, placement="post", length=2, d_model=3, seed=5)
    model = make_frozen(shape)
    weights = weights_of(model)
    network = dense(model)
    values = {p: float(network.logits(p)[1] @ weights.numpy()) for p in network.paths()}
    target = Target.logit(model, 1, weights)

    same(all_words(walk_of(model, target, budget=50_000)), summed(values, lambda _: True), 1e-10)
    same(all_words(walk_of(model, target, order=2)), summed(values, lambda p: p.order <= 2), 1e-10)
