"""Terms that are not the expansion: what is missing, doubled, foreign or wrong is named."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from otimes.algebra import PathTerm
from otimes.bridge import Run, verify
from tests.factory import make_checkpoint
from tests.kit import ALL_KINDS, patterns_of, reasons, run_of
from tests.oracles import rational
from tests.oracles.paths import Path as OraclePath


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_of(tmp_path, **ALL_KINDS)[0]


def terms_of(run: Run) -> list[PathTerm]:
    return list(run.model.architecture.logits.expand())


@pytest.mark.parametrize(
    "path", ["embed", "pos > 0.3", "embed > 0.1 > 1.2", "bias[1.3] > 1.3", "bias[0.attn] > 1.0",
             "bias[unembed]", "bias[1.attn]"]
)  # fmt: skip
def test_a_dropped_term(run: Run, path: str) -> None:
    kept = [term for term in terms_of(run) if term.path != path]
    count = len(kept) + 1

    assert f"1 of {count} terms are missing: {path}\n" in reasons(run, kept)


def test_a_dropped_term_in_float32(run: Run) -> None:
    kept = terms_of(run)[:-1]

    assert f"terms are missing: {terms_of(run)[-1].path}\n" in reasons(run, kept, dtype="float32")


def test_the_direct_term_of_a_model_with_one_source(tmp_path: Path) -> None:
    """There is then no term at all before the first block."""
    run, _ = run_of(tmp_path)

    assert "1 of 16 terms are missing: embed\n" in reasons(run, terms_of(run)[1:])


def test_all_terms_dropped(run: Run) -> None:
    found = reasons(run, [], exact=True)

    assert "terms are missing: embed, pos, bias[0.attn], …" in found
    assert "exact: the rational difference is" in found


def test_a_doubled_term(run: Run) -> None:
    twice = run.model.architecture.logits.expand()["embed > 0.1 > 1.2"]

    found = reasons(run, [*terms_of(run), twice])

    assert "terms that were added more than once: embed > 0.1 > 1.2\n" in found
    assert "missing" not in found


def test_one_term_swapped_for_another(run: Run) -> None:
    terms = terms_of(run)
    terms[7] = terms[9]

    found = reasons(run, terms)

    assert f"terms are missing: {terms_of(run)[7].path}" in found
    assert f"added more than once: {terms[9].path}" in found


def test_a_foreign_term(run: Run, tmp_path: Path) -> None:
    other, _ = run_of(tmp_path / "other", n_layers=3, n_heads=4)
    foreign = other.model.architecture.logits.expand()["embed > 1.2 > 2.3"]

    assert "terms that this model does not have: embed > 1.2 > 2.3" in reasons(
        run, [*terms_of(run), foreign]
    )


@pytest.mark.parametrize("path", ["embed", "embed > 0.1 > 1.2", "bias[unembed]"])
def test_exact_gives_the_value_of_a_wrong_term(run: Run, tmp_path: Path, path: str) -> None:
    """Dropped, the exact difference is the term's value; doubled, minus the value."""
    run = run.model.run(tokens=[3, 1])
    checkpoint = make_checkpoint(tmp_path / "same", **ALL_KINDS)
    term = run.model.architecture.logits.expand()[path]
    exact = rational.path_logits(
        checkpoint.config,
        checkpoint.arrays,
        run.tokens[0],
        [pattern[0] for pattern in patterns_of(run)],
        OraclePath(term.source.name, term.heads),
    )
    largest = max((value for row in exact for value in row), key=abs)
    terms = terms_of(run)

    dropped = verify(run, terms=[t for t in terms if t != term], exact=True)
    doubled = verify(run, terms=[*terms, term], exact=True)

    assert dropped.exact is not None
    assert doubled.exact is not None
    assert abs(Fraction(dropped.exact.difference)) == abs(largest)
    assert Fraction(doubled.exact.difference) == -Fraction(dropped.exact.difference)
    assert f"exact: the rational difference is {doubled.exact.difference}, not 0" in doubled.reasons


# the engine
