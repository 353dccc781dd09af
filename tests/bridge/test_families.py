"""Every kind of native model: verified, summed, evaluated, and as plain numpy computes it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import otimes as ox
from otimes.bridge import Run, load, verify
from otimes.bridge.binding import numbered
from otimes.numeric.paths import path_logits
from tests.factory import ALL_BIASES, Checkpoint, make_checkpoint
from tests.kit import close
from tests.models.test_reference_families import FAMILIES
from tests.oracles import transformer
from tests.strategies import Case, cases, families

TOKENS = [[1, 12, 7, 7, 0], [4, 4, 0, 11, 2]]
MASK = [[False, True, True, True, True], [True, True, True, False, False]]
BASE: dict[str, Any] = {"positions": "none", "n_heads": 2, "n_kv_heads": 1, "biases": ALL_BIASES}
MORE: dict[str, Any] = {"grouped": {"n_heads": 4, "n_kv_heads": 2}}
# small MLPs: paths through their neurons are written out one by one
FEW = {"d_mlp": 2}


def made(folder: Path, name: str, mlp: str, **changed: Any) -> tuple[Run, Checkpoint]:
    options = BASE | (FAMILIES | MORE)[name] | changed
    checkpoint = make_checkpoint(folder, seed=3, **options | (FEW if options.get("d_mlp") else {}))
    return load(folder, mlp=mlp).run(tokens=TOKENS, mask=MASK), checkpoint


CASES = [
    (name, mlp)
    for name in FAMILIES
    for mlp in (("source", "frozen") if FAMILIES[name].get("d_mlp") else ("source",))
]


@pytest.mark.parametrize(("name", "mlp"), CASES)
def test_a_family_verifies_and_adds_up(tmp_path: Path, name: str, mlp: str) -> None:
    run, checkpoint = made(tmp_path, name, mlp)
    expected = transformer.forward(checkpoint.config, checkpoint.arrays, TOKENS, MASK)
    logits = expected["uncapped_logits"]

    for dtype, limit in (("float64", 300), ("float32", 0)):
        certificate = verify(run, dtype=dtype, enumeration_limit=limit)
        assert certificate.holds, certificate
    close(run.evaluate(".."), logits, 1e-11)
    close(run.by_order().sum(0), logits, 1e-11)
    close(run.evaluate(run.model.architecture.logits.expression), logits, 1e-11)
    # symbols bound to tensors give the engine's value: every source, and paths of all lengths
    terms = list(run.paths("..").depth_first())
    chosen = {term.source.name: term for term in terms}
    some = [*chosen.values(), *terms[:: max(1, len(terms) // 8)]]
    values = path_logits(run.frozen().model, map(numbered, some))
    for term, value in zip(some, values, strict=True):
        close(run.evaluate(term.expression), value, 1e-11)


@settings(max_examples=8)
@given(cases(of=families, max_heads=2))
def test_any_model_verifies(case: Case) -> None:
    for mlp in ("source", "frozen"):
        with tempfile.TemporaryDirectory() as folder:
            make_checkpoint(Path(folder), **case.architecture)
            run = load(folder, mlp=mlp).run(tokens=case.tokens, mask=case.mask)
            certificate = verify(run, dtype="float64")
            assert certificate.holds, certificate
            logits = run.model.architecture.logits
            close(run.evaluate(logits.expression), run.uncapped_logits, 1e-9)
            if logits.expand().count <= 500:
                total = sum(value for _, value in run.terms())
                close(total, run.uncapped_logits, 1e-9)


TWO_LAYERS = {"everything": {"n_layers": 2, "windows": [3, None], "n_heads": 2, "n_kv_heads": 1}}
GROUPINGS = ("order", "source", "source-position", "last-head", "last-edge")


@pytest.mark.parametrize(
    "name", ["sandwich norms", "post-norms", "parallel, one norm", "multipliers", "everything"]
)
def test_attributions_add_up_with_frozen_neurons(tmp_path: Path, name: str) -> None:
    run, checkpoint = made(tmp_path, name, "frozen", **TWO_LAYERS.get(name, {}))
    logits = transformer.forward(checkpoint.config, checkpoint.arrays, TOKENS, MASK)
    expected = logits["uncapped_logits"][0, 4]
    expected = float(expected[3] - expected[5])
    size = float(run.uncapped_logits.abs().max())

    paths = ox.attribute(run, 3, 5, 4, top=5)
    assert paths.total == pytest.approx(expected, rel=1e-11, abs=1e-12 * size)
    assert abs(paths.gap) < 1e-11 * size
    assert paths.shown + paths.remainder == pytest.approx(expected, rel=1e-10, abs=1e-11 * size)
    values = {
        term.short_path: float(value[0, 0, 0] - value[0, 0, 1])
        for term, value in run.terms(positions=4, tokens=[3, 5])
    }
    best = sorted(values.values(), key=abs, reverse=True)[:5]
    close(sorted((row.value for row in paths.rows), key=abs, reverse=True), best, 1e-9)
    for row in paths.rows:
        assert row.value == pytest.approx(values[row.key], rel=1e-10, abs=1e-12 * size)
    for by in GROUPINGS:
        grouped = ox.attribute(run, 3, 5, 4, by=by)
        total = sum(row.value for row in grouped.rows)
        assert total == pytest.approx(expected, rel=1e-10, abs=1e-11 * size), by
    assert "neurons" in " ".join(paths.frozen)


def test_a_neuron_is_named_in_paths_and_its_constant_is_its_own(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "layer norm", "source")
    assert all(not name.startswith("mlp") for name in run.model.architecture.symbols)
    run, _ = made(tmp_path / "mlp", "plain silu", "frozen")
    neurons = [run.evaluate(f".. > mlp1.n{n}") for n in range(2)]

    close(run.evaluate(".. > mlp1"), neurons[0] + neurons[1], 1e-12)
    own = run.evaluate("bias[mlp1.n1] > mlp1.n1")
    passed = run.evaluate("!(bias[mlp1.n1] > ..) & (.. > mlp1.n1)")
    close(own + passed, neurons[1], 1e-12)
    assert float(own.abs().max()) > 0.01


PADDED = ("rotary, half", "alibi, both ways", "windows", "sandwich norms", "everything")


@pytest.mark.parametrize("name", PADDED)
def test_padding_on_the_left_changes_no_term(tmp_path: Path, name: str) -> None:
    """The terms of the real tokens are those of the prompt alone; padding itself is finite."""
    mlp = "frozen" if FAMILIES[name].get("d_mlp") else "source"
    model = made(tmp_path, name, mlp, **TWO_LAYERS.get(name, {}))[0].model
    alone = model.run(tokens=[5, 2, 7])
    padded = model.run(tokens=[[0, 1, 5, 2, 7]], mask=[[0, 0, 1, 1, 1]])

    some = list(alone.paths("..").depth_first())[::7]
    here, there = (path_logits(r.frozen().model, map(numbered, some)) for r in (alone, padded))
    for one, other in zip(here, there, strict=True):
        assert bool(other.isfinite().all())
        close(other[:, 2:], one, 1e-9)
    for head in ("1.0", "1.1"):
        one, other = ox.scores(alone, head, 2, 1, top=5), ox.scores(padded, head, 4, 3, top=5)
        close([t.value for t in other.terms], [t.value for t in one.terms], 1e-9)
        assert [t.query_path for t in other.terms] == [t.query_path for t in one.terms]
