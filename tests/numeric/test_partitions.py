"""Groups of paths that add up to a target's value, against brute force over dense matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from otimes.numeric.batches import component_numbers
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.functionals import Target
from otimes.numeric.halves import accepted_sum, order_sums, target_sum
from otimes.numeric.partitions import (
    last_component_position_sums,
    last_component_sums,
    last_edge_sums,
    source_position_sums,
    source_sums,
)
from tests.kit import close, heads_of
from tests.oracles.frozen import Path
from tests.synthetic import SHAPES
from tests.targets import accepted, cases, tables_of

ALL = pytest.mark.parametrize("name", SHAPES)


def grouped(
    values: dict[Path, float], size: int, group: Callable[[Path], int | None]
) -> np.ndarray:
    found = np.zeros(size)
    for path, value in values.items():
        number = group(path)
        if number is not None:
            found[number] += value
    return found


def numbers(model: FrozenModel) -> dict[tuple[int, int], int]:
    return {(int(b), int(i)): n for n, (b, i) in enumerate(component_numbers(model))}


@ALL
def test_by_order(name: str) -> None:
    for model, target, _, values in cases(name):
        heads = sum(block.heads > 0 for block in model.blocks)
        expected = grouped(values, heads + 1, lambda p: p.order)

        for meet in (None, *range(model.depth + 1)):
            close(order_sums(model, target, meet), expected, 1e-11)
        close(target_sum(model, target), expected.sum(), 1e-11)
        close(target_sum(model, target, model.forward()), expected.sum(), 1e-11)


@ALL
def test_by_source_and_position(name: str) -> None:
    for model, target, _, values in cases(name)[1:]:
        expected = grouped(values, len(model.sources), lambda p: p.source)

        close(source_sums(model, target), expected, 1e-11)
        places = source_position_sums(model, target)
        close(places.sum(1), expected, 1e-11)
        for position in range(model.length):
            sources = tuple(
                replace(
                    source,
                    parts=tuple(
                        replace(part, stream=only(part.stream, position, model.length))
                        for part in source.parts
                    ),
                )
                if source.joins == "stream"
                else source
                for source in model.sources
            )
            there = source_sums(replace(model, sources=sources), target)
            for number, source in enumerate(model.sources):
                if source.parts and source.joins == "stream":
                    close(places[number, position], there[number], 1e-10)


def only(stream: torch.Tensor, position: int, length: int) -> torch.Tensor:
    """A stream that is zero but at one position."""
    found = torch.zeros(stream.shape[0], length, stream.shape[2], dtype=stream.dtype)
    found[:, position] = stream[:, position if stream.shape[1] > 1 else 0]
    return found


@ALL
def test_by_last_component(name: str) -> None:
    for model, target, _, values in cases(name):
        number = numbers(model)
        expected = grouped(
            values, len(number), lambda p, n=number: n[p.components[-1]] if p.components else None
        )
        direct = sum(v for p, v in values.items() if not p.components)
        for streams in (None, model.forward()):
            found = last_component_sums(model, target, streams)

            close(found.components, expected, 1e-11)
            close(found.direct, direct, 1e-11)
        close(last_component_position_sums(model, target).sum(1), expected, 1e-11)


@ALL
def test_a_head_and_the_position_that_it_reads(name: str) -> None:
    """Zeroing all but one column of a head's pattern leaves that position's part."""
    model, target, _, _ = cases(name)[0]
    found = last_component_position_sums(model, target)
    streams, last = model.forward(), model.depth - 1
    while not model.blocks[last].heads:
        last -= 1
    heads = heads_of(model, last)
    first = numbers(model)[last, 0]
    for position in range(model.length):
        pattern = torch.zeros_like(heads.pattern)
        pattern[..., position] = heads.pattern[..., position]
        block = replace(model.blocks[last], attention=replace(heads, pattern=pattern))
        blocks = (*model.blocks[:last], block, *model.blocks[last + 1 :])
        alone = last_component_sums(replace(model, blocks=blocks), target, streams)

        close(
            found[first : first + heads.size, position],
            alone.components[first : first + heads.size],
            1e-10,
        )


@ALL
def test_by_last_edge(name: str) -> None:
    for model, target, _, values in cases(name):
        edges = last_edge_sums(model, target)

        pairs = {edges.pairs.word(i): edges.pairs.values[i] for i in range(len(edges.pairs))}
        expected = dict.fromkeys(pairs, 0.0)
        for path, value in values.items():
            if len(path.components) > 1:
                expected[path.components[-2:]] += value
        close(list(pairs.values()), list(expected.values()), 1e-11)
        single = {
            (int(edges.single.sources[i]), edges.single.word(i)): edges.single.values[i]
            for i in range(len(edges.single))
        }
        short = {(p.source, p.components): v for p, v in values.items() if len(p.components) < 2}
        assert single.keys() == short.keys()
        close([single[key] for key in short], list(short.values()), 1e-11)
        total = edges.pairs.values.sum() + edges.single.values.sum()
        close(total, sum(values.values()), 1e-11)


@ALL
@pytest.mark.parametrize("seed", [4, 6])
def test_what_an_automaton_accepts(name: str, seed: int) -> None:
    for model, target, network, values in cases(name)[-1:]:
        tables = tables_of(model, seed)
        expected = sum(v for p, v in values.items() if accepted(tables, network, p))
        scale = max(abs(v) for v in values.values())

        for meet in (None, *range(model.depth + 1)):
            found = float(accepted_sum(model, tables, target, meet))
            assert found == pytest.approx(expected, rel=1e-11, abs=1e-10 * scale)


@ALL
def test_single_precision(name: str) -> None:
    model, target, _, values = cases(name)[0]
    single, at = model.to(torch.float32), replace(target, direction=target.direction.float())
    total = sum(values.values())
    scale = sum(abs(value) for value in values.values())

    sums = [
        order_sums(single, at),
        source_sums(single, at),
        last_component_position_sums(single, at).flatten(),
    ]
    assert all(found.dtype == torch.float32 for found in sums)
    last = last_component_sums(single, at)
    for found in (sums[0].sum(), sums[1].sum(), last.direct + last.components.sum()):
        assert float(found) == pytest.approx(total, abs=1e-5 * scale)


@pytest.mark.parametrize("name", ["pre", "post", "parallel"])
def test_a_forgotten_edge_or_constant_is_seen(name: str) -> None:
    """The comparisons can fail: one block changed by a thousandth changes each partition."""
    model, target, _, values = cases(name)[0]
    heads = heads_of(model, 0)
    assert heads.b_V is not None
    broken = [
        replace(model, blocks=(replace(model.blocks[0], attention=changed), *model.blocks[1:]))
        for changed in (
            replace(heads, b_V=heads.b_V * 1.001),
            replace(heads, W_O=heads.W_O * 1.001),
            replace(heads, pattern=heads.pattern.transpose(2, 3)),
        )
    ]
    orders = grouped(values, 3, lambda p: p.order)
    sources = grouped(values, len(model.sources), lambda p: p.source)
    for other in broken:
        with pytest.raises(AssertionError, match="Mismatched elements"):
            close(order_sums(other, target), orders, 1e-11)
        with pytest.raises(AssertionError, match="Mismatched elements"):
            close(source_sums(other, target), sources, 1e-11)


def test_the_bias_is_counted_once() -> None:
    model, target, _, _ = cases("attention")[0]
    without = replace(model, b_U=None, sources=model.sources[:-1])
    free = Target(target.position, target.direction)

    assert model.sources[-1].joins == "logits"
    for kernel in (
        lambda m, t: order_sums(m, t).sum(),
        lambda m, t: source_sums(m, t).sum(),
        lambda m, t: last_component_sums(m, t).direct,
        target_sum,
    ):
        close(kernel(model, target) - kernel(without, free), target.bias, 1e-10)
