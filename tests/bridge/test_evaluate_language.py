"""Sums over path expressions, without enumeration, against the same paths one by one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import otimes as ox
from tests.factory import make_checkpoint
from tests.oracles import paths as oracle
from tests.oracles.numpy_model import forward

BIASES = {"b_Q", "b_K", "b_V", "b_O", "b_U"}
ATOMS = ("0.0", "0.1", "1.*", "*.1", "*", "..", "{0.1,2.0}", "{^1.1}", "*?", "*{1,2}")
SOURCES = ("embed", "pos", "bias", "bias[0.attn]", "bias[1.1]", "bias[unembed]")


@pytest.fixture(scope="module")
def run() -> ox.Run:
    with tempfile.TemporaryDirectory() as folder:
        made = make_checkpoint(
            Path(folder), seed=5, n_layers=3, n_heads=2, positions="learned", biases=BIASES
        )
        return ox.load(made.path).run(tokens=[[1, 2, 3, 4], [4, 1, 0, 2]])


@st.composite
def expressions(draw: st.DrawFn, depth: int = 2) -> str:
    """Random path expressions; those that name heads out of order are drawn again by the test."""
    if depth == 0 or draw(st.booleans()):
        parts = draw(st.lists(st.sampled_from(ATOMS), min_size=1, max_size=3))
        source = draw(st.sampled_from(("", *SOURCES)))
        return " > ".join([source, *parts] if source else parts)
    left, right = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    return draw(st.sampled_from((f"({left}) | ({right})", f"({left}) & ({right})", f"!({left})")))


@settings(max_examples=60)
@given(text=expressions())
def test_equals_the_sum_of_its_paths(run: ox.Run, text: str) -> None:
    try:
        paths = run.paths(text)
    except ox.OtimesError:
        return  # heads out of order, or a source with no such path
    expected = torch.zeros_like(run.logits)
    for _, value in run.terms(text):
        expected = expected + value

    torch.testing.assert_close(run.evaluate(text), expected, rtol=0, atol=1e-10)
    assert run.evaluate(text).shape == run.logits.shape
    assert paths.count == sum(1 for _ in run.terms(text))


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("..", lambda _: True),
        ("0.1 > ..", lambda heads: heads[:1] == ((0, 1),)),
        ("order=2", lambda heads: len(heads) == 2),
        ("!(.. > 1.0 > ..)", lambda heads: (1, 0) not in heads),
        ("*{2} & .. > 2.1", lambda heads: len(heads) == 2 and heads[-1] == (2, 1)),
    ],
)
def test_equals_plain_numpy_over_brute_force_paths(tmp_path: Path, text: str, keep: object) -> None:
    made = make_checkpoint(tmp_path, seed=6, n_layers=3, n_heads=2, biases=BIASES)
    tokens = np.array([[1, 3, 0, 2]])
    recorded = forward(made.config, made.arrays, tokens)
    expected = np.zeros_like(recorded.logits)
    for path in oracle.enumerate_paths(made.config, made.arrays):
        if keep(tuple(path.heads)):
            expected += oracle.path_logits(
                made.config, made.arrays, tokens, recorded.patterns, path
            )

    actual = ox.load(made.path).run(tokens=tokens).evaluate(text)

    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-10)


def test_an_empty_set_is_zero(run: ox.Run) -> None:
    assert not run.evaluate("0.0 & 0.1").any()
    assert run.evaluate("0.0 & 0.1", positions=-1, tokens=[1, 2]).shape == (2, 1, 2)


def test_positions_and_tokens_choose(run: ox.Run) -> None:
    whole = run.evaluate("0.* > ..")

    torch.testing.assert_close(run.evaluate("0.* > ..", [-1, 0], [2]), whole[:, [3, 0]][..., [2]])


def test_a_deep_sum_takes_a_few_passes(tmp_path: Path) -> None:
    # 3^24 paths: listing them would take years
    made = make_checkpoint(tmp_path, seed=7, n_layers=24, n_heads=2, scale=0.5)
    run = ox.load(made.path).run(tokens=[1, 2, 3])

    assert run.paths("..").count == 3**24
    parts = run.evaluate(".. > 7.1 > ..") + run.evaluate("!(.. > 7.1 > ..)")
    torch.testing.assert_close(parts, run.evaluate(".."), rtol=1e-9, atol=0)
    torch.testing.assert_close(run.evaluate(".."), run.logits, rtol=1e-9, atol=0)
