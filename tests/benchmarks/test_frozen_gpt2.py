"""The model that kernels are measured on, and the pass that they are compared with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import otimes as ox
from benchmarks.harness.shapes import Shape
from benchmarks.own.frozen_gpt2 import FrozenPass, frozen_model
from benchmarks.own.random_checkpoint import write_checkpoint
from otimes.numeric.paths import order_streams

SHAPE = Shape(layers=3, heads=4, d_model=10, d_head=3, d_vocab=17, length=5)


def test_patterns_are_causal_and_their_rows_sum_to_1():
    for block in frozen_model(SHAPE, torch.float64).blocks:
        pattern = block.attention.pattern.numpy()

        assert pattern.shape == (1, 4, 5, 5)
        assert np.allclose(pattern.sum(-1), 1)
        assert not np.triu(pattern, 1).any()


def test_the_frozen_pass_adds_every_head_to_the_stream():
    model = frozen_model(SHAPE, torch.float64)
    stream = model.written(0)[0].numpy()
    for block in model.blocks:
        own = block.attention
        heads = zip(own.pattern[0].numpy(), own.W_V.numpy(), own.W_O.numpy(), strict=True)
        stream = stream + sum(A @ stream @ W_V @ W_O for A, W_V, W_O in heads)

    assert np.allclose(FrozenPass(model)()[0].numpy(), stream, rtol=1e-12)


@pytest.mark.parametrize("biases", [False, True])
def test_the_model_is_one_that_the_engine_takes(biases):
    model = frozen_model(SHAPE, torch.float64, biases=biases)
    *_, streams = order_streams(model)

    assert len(streams) == SHAPE.layers + 1
    assert len(model.sources) == (1 + SHAPE.layers * (SHAPE.heads + 1) if biases else 1)


def test_the_random_checkpoint_is_one_that_verifies(tmp_path):
    model = ox.load(write_checkpoint(tmp_path, SHAPE))

    assert model.config.d_vocab == SHAPE.d_vocab
    assert ox.verify(model.run(tokens=[3, 1, 4, 1, 5])).holds
