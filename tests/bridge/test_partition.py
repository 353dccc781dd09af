"""Sums by order, and partitions of the logits, against brute force in plain numpy."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import otimes as ox
from otimes.bridge import run as run_module
from otimes.errors import InputError, LimitError
from tests.factory import Checkpoint, make_checkpoint
from tests.kit import close
from tests.oracles import paths as oracle
from tests.oracles.numpy_model import forward

BIASES = {"b_Q", "b_K", "b_V", "b_O", "b_U"}
TOKENS = [[1, 2, 3, 4], [4, 1, 0, 2]]


@pytest.fixture(scope="module")
def made() -> Iterator[Checkpoint]:
    with tempfile.TemporaryDirectory() as folder:
        yield make_checkpoint(
            Path(folder), seed=5, n_layers=3, n_heads=2, n_kv_heads=1, positions="learned",
            biases=BIASES,
        )  # fmt: skip


@pytest.fixture(scope="module")
def run(made: Checkpoint) -> ox.Run:
    return ox.load(made.path).run(tokens=TOKENS)


@pytest.fixture(scope="module")
def values(made: Checkpoint) -> dict[str, tuple[int, np.ndarray]]:
    """The order and the logits of every path, by plain numpy."""
    tokens = np.array(TOKENS)
    patterns = forward(made.config, made.arrays, tokens).patterns
    return {
        path.text: (
            len(path.heads),
            oracle.path_logits(made.config, made.arrays, tokens, patterns, path),
        )
        for path in oracle.enumerate_paths(made.config, made.arrays)
    }


def test_orders_are_sums_of_brute_force_paths(
    run: ox.Run, values: dict[str, tuple[int, np.ndarray]]
) -> None:
    found = run.by_order()

    assert found.shape == (4, *run.logits.shape)
    for order, value in enumerate(found):
        close(value, sum(v for k, v in values.values() if k == order))
    close(run.by_order(positions=[-1, 0], tokens=[2, 1]), found[:, :, [3, 0]][..., [2, 1]])


def test_frozen_runs_of_the_paper_are_cumulative_orders(run: ox.Run, made: Checkpoint) -> None:
    """Path ablation (Elhage et al. 2021), by plain numpy.

    Run m carries the sources and the outputs that run m - 1 saved; what its own heads make of that
    stream is saved for run m + 1 and not added. It has all paths of at most m - 1 heads.
    """
    config, arrays, tokens = made.config, made.arrays, np.array(TOKENS)
    patterns = forward(config, arrays, tokens).patterns
    sources = arrays["embed.W_E"][tokens] + arrays["pos_embed.W_pos"][: tokens.shape[1]]
    orders = run.by_order().cumsum(0)
    saved = [np.zeros_like(sources)] * config["n_layers"]
    for number in range(1, config["n_layers"] + 2):
        stream, outputs = sources, []
        for layer in range(config["n_layers"]):
            at = f"blocks.{layer}.attn."
            value = stream[:, None] @ arrays[at + "W_V"] + arrays[at + "b_V"][:, None]
            value = np.repeat(value, config["n_heads"] // config["n_kv_heads"], axis=1)
            outputs.append((patterns[layer] @ value @ arrays[at + "W_O"]).sum(1))
            stream = stream + saved[layer] + arrays[at + "b_O"]
        saved = outputs

        close(orders[number - 1], stream @ arrays["unembed.W_U"] + arrays["unembed.b_U"], 1e-11)
    close(orders[-1], run.logits, 1e-11)


def test_a_partition_adds_up(run: ox.Run, values: dict[str, tuple[int, np.ndarray]]) -> None:
    found = run.partition({"first": "0.1 > ..", "rest": ..., "biases": "bias & order=0"})

    assert list(found) == ["first", "rest", "biases"]
    first = sum(v for path, (_, v) in values.items() if "0.1" in path.split(" > ")[1:2])
    biases = sum(v for path, (k, v) in values.items() if path.startswith("bias") and k == 0)
    close(found["biases"], biases)
    close(found["first"], first)
    close(sum(found.values()), run.logits, 1e-11)


def test_a_partition_is_one_pass_and_each_part_its_own_sum(run: ox.Run) -> None:
    parts = {"a": "embed > ..", "b": "pos > .. > 2.0", "c": "direct & bias", "d": ...}
    found = run.partition(parts, positions=-1, tokens=[3, 3])

    for name in "abc":
        expected = run.evaluate(parts[name], positions=-1, tokens=[3, 3])
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-12)
    assert found["d"].shape == (2, 1, 2)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (
            {"a": "0.1 > ..", "b": ".. > 1.0", "c": ...},
            r"the parts 'a' and 'b' share paths, such as embed > 0\.1 > 1\.0$",
        ),
        (
            {"a": "embed > ..", "b": "pos > .."},
            r"the parts leave out \d+ paths, such as bias\[0\.attn\]; name the others",
        ),
        ({"a": ..., "b": ...}, r"only one part can be \.\.\.: 'a' and 'b' are"),
    ],
)
def test_parts_that_overlap_or_leave_a_gap(run: ox.Run, parts: dict[str, object], why: str) -> None:
    with pytest.raises(InputError, match=why):
        run.partition(parts)


def test_the_memory_budget_counts_orders_and_parts(
    run: ox.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 8 * run.logits.numel()
    monkeypatch.setattr(run_module, "MEMORY_BUDGET", 3 * size)

    run.evaluate("..")
    run.partition({"a": "embed > ..", "b": ...})
    with pytest.raises(LimitError, match=r"choose positions= or tokens="):
        run.by_order()
    assert run.by_order(tokens=0).shape == (4, 2, 4, 1)
    with pytest.raises(LimitError, match=r"more than the budget"):
        run.partition({"a": "order=0", "b": "order=1", "c": "order=2", "d": "order=3"})
