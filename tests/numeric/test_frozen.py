"""The operators of frozen models against dense Kronecker matrices, for every shape of block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from otimes.numeric.frozen import FrozenEdge, FrozenModel
from otimes.numeric.functionals import Target, of_target, through_components, through_skip
from otimes.numeric.paths import order_outputs, order_streams, path_logits
from tests.kit import close
from tests.synthetic import SHAPES, dense, make_frozen

ALL = pytest.mark.parametrize("name", SHAPES)


def random(*size: int, seed: int = 9) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(size))


def flat(stream: torch.Tensor, row: int) -> np.ndarray:
    return stream[row].reshape(-1).numpy()


def logits_of(model: FrozenModel) -> torch.Tensor:
    read, joined = model.read(model.forward()[-1]), model.unembedded()
    read = read if joined is None else read + model.direction(joined)
    logits = read @ model.W_U
    return logits if model.b_U is None else logits + model.b_U


@ALL
def test_blocks_are_dense_matrices(name: str) -> None:
    model = make_frozen(SHAPES[name])
    x = random(model.batch, model.length, model.W_U.shape[0])
    for row in range(model.batch):
        for block, expected in zip(model.blocks, dense(model, row).blocks, strict=True):
            whole = expected.skip + sum(expected.components)
            for index, component in enumerate(expected.components):
                close(flat(block.component(index, x), row), component @ flat(x, row))
            close(flat(block.apply(x), row), whole @ flat(x, row))
            close(flat(block.adjoint(x), row), whole.T @ flat(x, row))
            bound = (1 + 1e-12) * flat(block.absolute().apply(x.abs()), row)
            assert (bound >= abs(whole) @ flat(x.abs(), row)).all()


@ALL
def test_axes_in_front_are_carried_along(name: str) -> None:
    model = make_frozen(SHAPES[name])
    many = random(2, 3, model.batch, model.length, model.W_U.shape[0])
    for block in model.blocks:
        found, back = block.apply(many), block.adjoint(many)
        for place in np.ndindex(2, 3):
            close(found[place], block.apply(many[place]))
            close(back[place], block.adjoint(many[place]))


@ALL
def test_the_forward_pass_is_the_dense_one_and_the_sum_over_paths(name: str) -> None:
    model = make_frozen(SHAPES[name])
    paths = [(path.source, path.components) for path in dense(model).paths()]
    total = sum(path_logits(model, paths))
    for row in range(model.batch):
        expected = dense(model, row).forward()
        close(logits_of(model)[row], expected)
        close(total[row], expected)


@ALL
def test_each_path_and_each_order_is_what_brute_force_gives(name: str) -> None:
    model = make_frozen(SHAPES[name])
    network = dense(model, model.batch - 1)
    paths = list(network.paths())
    orders = order_outputs(model) @ model.W_U
    if model.b_U is not None:
        orders[0] += model.b_U
    expected = np.zeros((len(orders), *network.forward().shape))
    for path, value in zip(
        paths, path_logits(model, [(p.source, p.components) for p in paths]), strict=True
    ):
        close(value[-1], network.logits(path), 1e-11)
        expected[path.order] += network.logits(path)

    close(orders[:, -1], expected)
    assert len(list(order_streams(model))) == model.depth + 1


@ALL
def test_a_target_reads_through_components_as_their_adjoints_do(name: str) -> None:
    model = make_frozen(SHAPES[name]).sequence(0)
    weights = random(model.W_U.shape[1])
    target = Target.logit(model, 1, weights)
    last = of_target(model, target)
    x = random(1, model.length, model.W_U.shape[0])

    close(last.of(x[0]), (model.read(x)[0, 1] @ model.W_U @ weights)[None])
    close(last.at_positions(x[0]).sum(-1), last.of(x[0]))
    for number, block in enumerate(model.blocks):
        rows, vectors = through_components(model, last, number)
        for index in range(block.components):
            written = block.component(index, x)
            for later in model.blocks[number + 1 :]:
                written = later.skip.apply(written)
            value = rows[0, index] @ x[0] @ vectors[0, index]
            close(value, model.read(written)[0, 1] @ model.W_U @ weights)
        skipped = through_skip(model, last, number)
        written = x
        for later in model.blocks[number:]:
            written = later.skip.apply(written)
        close(skipped.of(x[0])[0], model.read(written)[0, 1] @ model.W_U @ weights)


def test_a_sequence_of_a_batch_is_the_model_on_it_alone() -> None:
    for name in ("batch", "post, centred"):
        model = make_frozen(SHAPES[name])
        for row in range(model.batch):
            alone = model.sequence(row)

            assert alone.batch == 1
            close(logits_of(alone)[0], logits_of(model)[row])


def test_a_target_is_of_one_sequence() -> None:
    model = make_frozen(SHAPES["batch"])

    with pytest.raises(ValueError, match="of one sequence, not of 2"):
        of_target(model, Target.logit(model, 0, random(model.W_U.shape[1])))


@pytest.mark.parametrize("name", ["pre", "post", "sandwich", "parallel"])
def test_a_forgotten_edge_is_seen(name: str) -> None:
    """The comparison can fail: each edge of the first block matters."""
    model = make_frozen(SHAPES[name])
    expected = dense(model).forward()
    first = model.blocks[0]
    assert first.attention is not None
    heads, other = first.attention, FrozenEdge(multiplier=3.0)
    changed = [
        replace(first, attention=replace(heads, reads=other)),
        replace(first, attention=replace(heads, writes=other)),
        replace(first, skip=other),
    ]
    for block in changed:
        broken = replace(model, blocks=(block, *model.blocks[1:]))
        assert float(np.abs(logits_of(broken)[0].numpy() - expected).max()) > 1e-3
