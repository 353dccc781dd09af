"""Sides of scores as frozen models, against dense matrices and brute force over all paths."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from otimes.numeric import score_sides
from otimes.numeric.edges import FrozenEdge
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.functionals import of_target
from otimes.numeric.score_sides import (
    LastPart,
    by_moved,
    largest_pairs,
    last_parts,
    side_model,
    side_target,
)
from otimes.numeric.scores import FrozenReader, score_bounds, sums_of_terms
from tests.kit import close
from tests.oracles.frozen import Dense, Path
from tests.synthetic import SHAPES, Shape, dense, make_frozen


def reader_of(model: FrozenModel, shape: Shape, *, full: bool = True) -> FrozenReader:
    """Heads that read through a norm with a bias, see positions, and whose scores are shifted."""
    generator = np.random.default_rng(7)

    def random(*size: int) -> torch.Tensor:
        return torch.from_numpy(generator.standard_normal(size))

    d, width, rows = shape.d_model, 3, (model.batch, model.length)
    edge = FrozenEdge(random(*rows).exp(), random(d), centred=True, bias=random(d))
    return FrozenReader(
        random(4, d, width),
        random(2, d, width),
        random(4, width) if full else None,
        random(2, width) if full else None,
        random(*rows, d) if full else None,
        0.7,
        edge if full else FrozenEdge(),
        random(model.batch, 4, model.length, model.length) if full else None,
    )


def sides(
    shape: Shape, boundary: int | None = None, *, full: bool = True
) -> tuple[FrozenModel, FrozenReader, int, list[FrozenModel]]:
    model = make_frozen(replace(shape, batch=1))
    boundary = model.depth if boundary is None else boundary
    reader = reader_of(model, shape, full=full)
    found = [
        side_model(model, reader, query=query, head=3, boundary=boundary) for query in (True, False)
    ]
    return model, reader, boundary, found


def group(judge: Dense, path: Path) -> LastPart:
    """The part that a path belongs to."""
    if not path.components:
        return LastPart(source=path.source)
    block, index = path.components[-1]
    if judge.blocks[block].orders[index]:
        return LastPart(block=block, component=index, moved=True)
    return LastPart(block=block, moved=path.order > 0)


@pytest.mark.parametrize("name", SHAPES)
def test_a_side_is_what_the_head_reads(name: str) -> None:
    """Computed without any path: the stream before the block, normed, projected."""
    for boundary in (0, 1, 2):
        model, reader, _, found = sides(SHAPES[name], boundary)
        x = model.forward()[boundary]
        read = reader.reads.apply(x) + reader.positions + reader.reads.bias
        for side, matrix, bias in zip(
            found, (reader.W_Q[3], reader.W_K[1]), (reader.b_Q[3], reader.b_K[1]), strict=True
        ):
            judge = dense(side)
            close(judge.forward(), (read @ matrix + bias)[0])
            _, values = last_parts(side, list(range(model.length)))
            close(values.sum(0), judge.forward())


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_parts_are_the_sums_of_their_paths(name: str, full: bool) -> None:
    _, _, _, found = sides(SHAPES[name], full=full)
    for side in found:
        judge = dense(side)
        expected = defaultdict[LastPart, Any](float)
        for path in judge.paths():
            expected[group(judge, path)] = expected[group(judge, path)] + judge.logits(path)

        parts, values = last_parts(side, [2, 0])

        assert len(set(parts)) == len(parts)
        assert set(parts) == set(expected)
        for part, value in zip(parts, values, strict=True):
            close(value, expected[part][[2, 0]], 1e-10)


@pytest.mark.parametrize("name", ["attention", "sandwich", "parallel"])
def test_by_kind_is_brute_force_over_pairs(name: str) -> None:
    _, reader, _, found = sides(SHAPES[name])
    i, j = 2, 1
    parts = [last_parts(side, [place]) for side, place in zip(found, (i, j), strict=True)]
    totals = [by_moved(v[:, 0], [part.moved for part in names]) for names, v in parts]
    judges = [dense(side) for side in found]
    paths = [
        [(judge.logits(path)[place], path.order > 0) for path in judge.paths()]
        for judge, place in zip(judges, (i, j), strict=True)
    ]

    for on_query in (0, 1):
        for on_key in (0, 1):
            expected = sum(
                q @ k for q, a in paths[0] for k, b in paths[1] if (a, b) == (on_query, on_key)
            )
            close(totals[0][on_query] @ totals[1][on_key], expected, 1e-10)

    whole = sum(q for q, _ in paths[0]) @ sum(k for k, _ in paths[1])
    model = make_frozen(replace(SHAPES[name], batch=1))
    value, _ = sums_of_terms(reader, [model.forward()[-1]])
    close(value[0, 3, i, j], reader.scale * whole + float(reader.shift[0, 3, i, j]), 1e-10)


@pytest.mark.parametrize("name", ["attention", "pre", "post, centred"])
def test_one_side_is_a_functional_when_the_other_is_summed(name: str) -> None:
    """So a tree over the paths of one side splits the score itself."""
    _, reader, boundary, (query, key) = sides(SHAPES[name])
    i, j = 2, 1
    keys = dense(key).forward()[j]

    target = side_target(query, i, reader.scale * torch.from_numpy(keys))
    functional = of_target(query, target)

    assert functional.boundary == boundary
    judge = dense(query)
    stream = sum(
        judge.stream(p) for p in judge.paths() if judge.sources[p.source].joins == "stream"
    )
    value = functional.of(torch.from_numpy(stream).reshape(query.length, -1))
    past = sum(
        judge.logits(p)[i] for p in judge.paths() if judge.sources[p.source].joins == "unembed"
    )
    whole = reader.scale * judge.forward()[i] @ keys
    close(float(value) + reader.scale * past @ keys + target.bias, whole, 1e-10)


@pytest.mark.parametrize(("many", "at_once"), [(5, 1 << 26), (7, 1), (200, 300), (200, 1 << 26)])
def test_largest_pairs(monkeypatch: pytest.MonkeyPatch, many: int, at_once: int) -> None:
    monkeypatch.setattr(score_sides, "_BYTES_AT_ONCE", at_once)
    generator = np.random.default_rng(many)
    q, k = generator.standard_normal((many, 3)), generator.standard_normal((many + 2, 3))
    table = q @ k.T
    flat = np.argsort(-abs(table), axis=None, kind="stable")

    for top in (0, 1, 10, 10**6):
        values, i, j = largest_pairs(torch.from_numpy(q), torch.from_numpy(k), top)

        close(values, table.flatten()[flat[:top]])
        assert (i * (many + 2) + j).tolist() == flat[:top].tolist()


def test_equal_values_come_in_the_order_of_their_pairs() -> None:
    ones = torch.ones(2, 1, dtype=torch.float64)

    _, i, j = largest_pairs(ones, -ones, 4)

    assert list(zip(i.tolist(), j.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_no_pair_at_all() -> None:
    nothing = torch.zeros(0, 3, dtype=torch.float64)

    assert [len(x) for x in largest_pairs(nothing, nothing, 5)] == [0, 0, 0]


def test_the_edge_of_some_positions() -> None:
    _, reader, _, _ = sides(SHAPES["attention"])
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((1, 3, 5)))

    close(reader.reads.places([2, 0]).apply(x[:, [2, 0]]), reader.reads.apply(x)[:, [2, 0]])


def test_a_bound_covers_the_rounding_of_a_norm_and_a_shift() -> None:
    """In float32, against the same reader in float64."""
    shape = SHAPES["batch"]
    model = make_frozen(shape)
    reader, x = reader_of(model, shape), model.forward()[-1].float()
    low = replace(
        reader,
        W_Q=reader.W_Q.float(), W_K=reader.W_K.float(), b_Q=reader.b_Q.float(),
        b_K=reader.b_K.float(), positions=reader.positions.float(),
        reads=reader.reads.to(torch.float32), shift=reader.shift.float(),
    )  # fmt: skip
    exact = replace(
        low,
        W_Q=low.W_Q.double(), W_K=low.W_K.double(), b_Q=low.b_Q.double(), b_K=low.b_K.double(),
        positions=low.positions.double(), reads=low.reads.to(torch.float64),
        shift=low.shift.double(),
    )  # fmt: skip
    values, pairs = sums_of_terms(low, [x])
    truth, _ = sums_of_terms(exact, [x.double()])
    size = x.double().abs()
    bounds = score_bounds(low, pairs, torch.float32, size, torch.zeros_like(size))
    errors = (values.double() - truth).abs()

    assert values.shape[1] == 4
    assert bool((errors <= bounds).all())
    assert (bounds.amax((0, 2, 3)) < 1e-2 * truth.abs().amax((0, 2, 3))).all()
