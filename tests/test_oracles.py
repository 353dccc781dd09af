"""The oracles are independent of otimes and agree with one another."""

from __future__ import annotations

import ast
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from tests.factory import BIASES, Checkpoint, make_checkpoint
from tests.oracles import numpy_model, paths, rational
from tests.strategies import Case, cases

ORACLES = Path(__file__).parent / "oracles"
# importlib could bring in anything
ALLOWED = {*sys.stdlib_module_names, "numpy"} - {"importlib"}


def foreign_imports(source: str) -> set[str]:
    """The modules that a source imports anywhere in it, but for ALLOWED and other oracles."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return {
        name
        for name in found
        if name.partition(".")[0] not in ALLOWED and not f"{name}.".startswith("tests.oracles.")
    }


@pytest.mark.parametrize("file", sorted(ORACLES.glob("*.py")), ids=lambda path: path.name)
def test_an_oracle_imports_numpy_and_the_standard_library_alone(file: Path):
    assert foreign_imports(file.read_text(encoding="utf-8")) == set()


def test_there_are_oracles_to_look_at():
    assert {"numpy_model.py", "paths.py", "rational.py"} <= {f.name for f in ORACLES.glob("*.py")}


@pytest.mark.parametrize(
    "source",
    [
        "import otimes",
        "import numpy, otimes.errors",
        "from otimes.models.reference import load",
        "from tests.factory import make_checkpoint",
        "from .. import factory",
        "def f():\n    if True:\n        import torch",
        "import importlib",
    ],
)
def test_a_forbidden_import_would_be_seen(source: str):
    assert foreign_imports(source) != set()


def made(case: Case) -> Checkpoint:
    with tempfile.TemporaryDirectory() as folder:
        return make_checkpoint(Path(folder), **case.architecture)


def close(actual: np.ndarray, expected: np.ndarray, scale: float = 0.0) -> None:
    largest = max(scale, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11 * max(largest, 1e-6))


def test_forward_of_a_model_computed_by_hand():
    config = {
        "n_layers": 1, "n_heads": 1, "n_kv_heads": 1, "positions": "none", "causal": True,
        "attention_scale": 0.5,
    }  # fmt: skip
    weights = {
        "embed.W_E": np.array([[1.0], [2.0]]),
        "blocks.0.attn.W_Q": np.array([[[1.0]]]),
        "blocks.0.attn.W_K": np.array([[[np.log(9.0)]]]),
        "blocks.0.attn.W_V": np.array([[[2.0]]]),
        "blocks.0.attn.W_O": np.array([[[5.0]]]),
        "unembed.W_U": np.array([[1.0, -1.0]]),
    }

    run = numpy_model.forward(config, weights, [[0, 1]])

    # the second token scores 0.5 * 2 * ln 9 * (1 or 2): odds 1 to 9
    np.testing.assert_allclose(run.scores[0][0, 0, 1], [np.log(9), 2 * np.log(9)])
    np.testing.assert_allclose(run.patterns[0][0, 0], [[1, 0], [0.1, 0.9]])
    # 1 + 2*5*1 = 11 and 2 + 2*5*1.9 = 21
    np.testing.assert_allclose(run.logits[0], [[11, -11], [21, -21]])


@settings(max_examples=100)
@given(cases())
def test_paths_add_up_to_the_forward_pass(case: Case):
    model = made(case)
    run = numpy_model.forward(model.config, model.arrays, case.tokens, case.mask)

    each = [
        paths.path_logits(model.config, model.arrays, case.tokens, run.patterns, path, case.mask)
        for path in paths.enumerate_paths(model.config, model.arrays)
    ]

    close(sum(each), run.logits, scale=max(np.abs(term).max() for term in each))


@settings(max_examples=100)
@given(cases())
def test_the_number_of_paths_is_the_closed_form(case: Case):
    model = made(case)
    layers, heads = model.config["n_layers"], model.config["n_heads"]

    found = paths.enumerate_paths(model.config, model.arrays)

    full = (1 + heads) ** layers
    count = full * (2 if model.config["positions"] == "learned" else 1)
    for layer in range(layers):
        later = (1 + heads) ** (layers - layer - 1)
        count += later * (f"blocks.{layer}.attn.b_O" in model.arrays)
        count += heads * later * (f"blocks.{layer}.attn.b_V" in model.arrays)
    count += "unembed.b_U" in model.arrays
    assert len(found) == len(set(found)) == count


@settings(max_examples=25)
@given(cases(max_layers=3, max_heads=2, max_ctx=4))
def test_a_path_is_its_kronecker_matrix(case: Case):
    model = made(case)
    run = numpy_model.forward(model.config, model.arrays, case.tokens, case.mask)
    patterns = [layer[0] for layer in run.patterns]
    mask = None if case.mask is None else case.mask[0]
    for path in paths.enumerate_paths(model.config, model.arrays):
        expected = paths.path_logits(
            model.config, model.arrays, case.tokens, run.patterns, path, case.mask
        )[0]

        actual = paths.kron_path_logits(
            model.config, model.arrays, case.tokens[0], patterns, path, mask
        )

        close(actual, expected, scale=np.abs(run.logits).max())


@settings(max_examples=12)
@given(cases(max_layers=2, max_heads=2, max_ctx=3))
def test_in_fractions_the_paths_add_up_exactly(case: Case):
    model = made(case)
    run = numpy_model.forward(model.config, model.arrays, case.tokens, case.mask)
    patterns = [layer[0] for layer in run.patterns]
    mask = None if case.mask is None else case.mask[0]
    given_run = (model.config, model.arrays, case.tokens[0], patterns, mask)

    forward = rational.forward_logits(*given_run)

    assert rational.sum_of_paths(*given_run) == forward
    close(np.array(forward, dtype=float), run.logits[0])


def test_names_of_paths(tmp_path: Path):
    model = make_checkpoint(tmp_path, n_heads=1, d_head=4, positions="learned", biases=BIASES)

    names = {path.text for path in paths.enumerate_paths(model.config, model.arrays)}

    assert names == {
        "embed", "embed > 0.0", "embed > 1.0", "embed > 0.0 > 1.0",
        "pos", "pos > 0.0", "pos > 1.0", "pos > 0.0 > 1.0",
        "bias[0.attn]", "bias[0.attn] > 1.0", "bias[1.attn]",
        "bias[0.0] > 0.0", "bias[0.0] > 0.0 > 1.0", "bias[1.0] > 1.0",
        "bias[unembed]",
    }  # fmt: skip


def test_a_dropped_or_doubled_path_does_not_add_up(tmp_path: Path):
    model = make_checkpoint(tmp_path, positions="learned", biases=BIASES, n_heads=2)
    run = numpy_model.forward(model.config, model.arrays, [[3, 1, 4, 1]])
    each = [
        paths.path_logits(model.config, model.arrays, [[3, 1, 4, 1]], run.patterns, path)
        for path in paths.enumerate_paths(model.config, model.arrays)
    ]
    close(sum(each), run.logits)
    for term in each:
        with pytest.raises(AssertionError):
            close(sum(each) - term, run.logits)
        with pytest.raises(AssertionError):
            close(sum(each) + term, run.logits)
