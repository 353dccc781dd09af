"""Where the sum over paths is the forward pass, the certificate holds and its bound says much."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from otimes.bridge import checks, load, verification, verify
from otimes.errors import InputError, LimitError, UnsupportedError
from otimes.numeric.rounding import carry, recorded_trace, steps
from tests.factory import make_checkpoint
from tests.kit import run_of, untyped
from tests.oracles import numpy_model, paths
from tests.strategies import Case, cases


def check_holds(case: Case, **options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder), **case.architecture)
        run = load(folder).run(tokens=case.tokens, mask=case.mask)
        certificate = verify(run, **options)

    assert certificate.holds, certificate
    assert 0 <= certificate.max_abs_error <= certificate.bound
    share = 1e-6 if certificate.dtype == "float64" else 1e-2
    assert certificate.bound <= share * certificate.largest_logit
    assert certificate.paths == len(paths.enumerate_paths(checkpoint.config, checkpoint.arrays))
    for check in (*certificate.blocks, *certificate.terms, certificate.scores):
        assert check.holds
        assert check.max_abs_error <= check.bound
    steps = ["embed", *(f"{n}.attn" for n in range(checkpoint.config["n_layers"])), "unembed"]
    assert [check.block for check in certificate.blocks] == steps
    assert [check.block for check in certificate.terms] == steps
    if certificate.dtype == "float64":  # roundings grow through large scores and the softmax
        oracle = numpy_model.forward(checkpoint.config, checkpoint.arrays, case.tokens, case.mask)
        assert certificate.largest_logit == pytest.approx(np.abs(oracle.logits).max(), rel=1e-5)


@settings(max_examples=10)
@given(cases(max_layers=3))
def test_holds_on_every_model(case: Case) -> None:
    check_holds(case)


@settings(max_examples=6)
@given(cases(max_layers=3))
def test_holds_grouped_by_order(case: Case) -> None:
    check_holds(case, enumeration_limit=0)


@settings(max_examples=6)
@given(cases(max_layers=2))
def test_holds_in_float32(case: Case) -> None:
    check_holds(case, dtype="float32")


@settings(max_examples=4)
@given(cases(max_layers=3, max_heads=2, max_ctx=4))
def test_exact_difference_is_zero(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), **case.architecture)
        certificate = verify(load(folder).run(tokens=case.tokens, mask=case.mask), exact=True)

    assert certificate.exact is not None
    assert certificate.exact.difference == "0"
    assert certificate.exact.tokens == len(case.tokens[0])
    assert certificate.holds, certificate


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_holds_whatever_the_storage(tmp_path: Path, dtype: str) -> None:
    run, _ = run_of(tmp_path, dtype=dtype, biases=("b_Q", "b_V", "b_O", "b_U"))

    certificate = verify(run)

    assert certificate.holds, certificate
    assert certificate.dtype == "float64"
    assert certificate.bound < 1e-11 * certificate.largest_logit


def test_the_bound_is_near_the_rounding_of_four_layers(tmp_path: Path) -> None:
    """Measured deviations say more than absolute values, which depend on nothing measured."""
    run, _ = run_of(tmp_path, n_layers=4, biases=("b_V", "b_O"))

    certificate = verify(run)

    assert certificate.holds
    assert certificate.method == "enumerated"
    assert certificate.analysis == "absolute values"
    assert certificate.bound < 1e-9 * certificate.largest_logit
    assert certificate.measured is not None
    # what is left of it is adding up the terms of 596 paths in any order
    assert certificate.measured.bound < 1e-11 * certificate.largest_logit
    assert certificate.measured.bound < 0.1 * certificate.bound


def test_named_targets(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, biases=("b_V",))

    certificate = verify(run, targets=[(-1, 3), (0, 12)])

    assert certificate.holds, certificate
    assert certificate.analysis == "adjoint"
    assert certificate.checked[0] == "logits: 1 × 2 chosen by position and token"
    assert certificate.bound < verify(run).bound
    for bad, message in (
        ([(9, 0)], "position 9 is out of range: -9 to 8"),
        ([(0, 13)], "token id 13 is out of range: 0 to 12"),
        ([7], "a target is a pair of position and token id, not 7"),
        ([], "no targets"),
    ):
        with untyped(), pytest.raises(InputError, match=message):
            verify(run, targets=bad)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("limit", [0, 10_000])
def test_large_models_are_checked_at_the_largest_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, limit: int
) -> None:
    monkeypatch.setattr(verification, "FULL_LIMIT", 0)
    run, _ = run_of(tmp_path, biases=("b_V", "b_O", "b_U"), n_kv_heads=1, scale=0.3,
                    tokens=[[1, 2, 3], [4, 5, 6]])  # fmt: skip

    certificate = verify(run, dtype=dtype, enumeration_limit=limit)

    assert certificate.holds, certificate
    assert certificate.analysis == "adjoint"
    assert certificate.measured is None
    assert certificate.checked[0] == "logits: 2 × the 10 largest at the last position"


def test_deep_models_whose_operator_norms_say_nothing(tmp_path: Path) -> None:
    """Norms behind each addition keep the stream, and its operator norm, as large as it was."""
    run, _ = run_of(
        tmp_path, n_layers=30, n_heads=2, n_kv_heads=1, norm="layer", norm_placement="post",
        d_mlp=6, scale=0.4, tokens=[[1, 2, 3, 4]],
    )  # fmt: skip
    frozen, recording = run.frozen().model, run.recording()
    trace = recorded_trace(recording.streams, recording.uncapped_logits)
    assert float(carry(frozen, steps(frozen, trace)).logits.max()) > 1

    certificate = verify(run, primes=0)

    assert certificate.holds, certificate
    assert certificate.analysis == "adjoint"
    assert certificate.measured is None  # carried deviations say nothing, and are not shown
    assert certificate.checked[0] == "logits: 1 × the 10 largest at the last position"
    assert certificate.bound < 1e-9 * certificate.largest_logit
    assert certificate.scores.bound < 1e-8


def test_the_identity(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, biases=("b_V",))

    found, other = verify(run, primes=3).identity, verify(run, seed=1).identity

    assert found is not None
    assert other is not None
    assert (found.holds, len(found.primes), found.degree) == (True, 3, 3)
    assert len(other.primes) == 2
    assert set(other.primes).isdisjoint(found.primes)
    assert found.false_pass < 1e-18
    assert verify(run, primes=0).identity is None
    with pytest.raises(InputError, match="the number of primes is at least 0, not -1"):
        verify(run, primes=-1)


def test_more_paths_than_the_limit_are_grouped_by_order(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, n_layers=6, n_heads=4, n_kv_heads=2, biases=("b_V",), scale=0.3)

    certificate = verify(run)

    assert certificate.paths > 15_625
    assert certificate.method == "by order"
    assert certificate.holds, certificate
    assert certificate.bound < 1e-6 * certificate.largest_logit


def test_many_orders_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more orders than score pairs are enumerated for, the orders are still all paths."""
    monkeypatch.setattr(checks, "PAIR_LIMIT", 8)
    run, _ = run_of(tmp_path, n_layers=6, n_heads=1, scale=0.3, biases=("b_V", "b_O"))

    certificate = verify(run, enumeration_limit=0)

    assert certificate.holds, certificate


def test_paths_that_are_many_for_pairs_are_grouped_in_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = run_of(tmp_path, n_layers=3, biases=("b_V", "b_O"))
    whole = verify(run)
    monkeypatch.setattr(checks, "PAIR_LIMIT", 60)

    grouped = verify(run)

    assert grouped.method == "enumerated"
    assert grouped.holds, grouped
    assert grouped.checked[1] != whole.checked[1]
    assert grouped.scores.max_abs_error < 1e-13


def test_terms_may_come_in_any_order(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, biases=("b_V", "b_U"))
    terms = list(run.model.architecture.logits.expand())

    assert verify(run, terms=reversed(terms)).holds
    assert verify(run, terms=iter(terms)).holds


def test_it_says_what_was_checked_and_frozen(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, biases=("b_V",))

    certificate = verify(run)

    assert certificate.frozen == (
        "attention patterns of 2 layers × 3 heads, as the run recorded them",
    )
    assert certificate.checked[0] == "logits: 1 × 9 positions × 13 tokens"
    assert certificate.checked[1].startswith("scores: 6 heads, ")
    assert certificate.checked[2] == "parameters: 13 tensors, each used once"
    assert certificate.tokens == (tuple(run.tokens[0].tolist()),)


def test_dtypes(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path)

    assert verify(run, dtype=torch.float32).dtype == "float32"
    with pytest.raises(UnsupportedError, match="cannot verify in float16: use float64 or float32"):
        verify(run, dtype="float16")


def test_exact_says_beforehand_what_it_would_take(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path)

    with pytest.raises(
        LimitError, match=r"of 9 tokens and 16 paths needs about \d.*multiplications.*at most 8"
    ) as caught:
        verify(run, exact=True)

    assert caught.value.count > 0


def test_exact_of_too_many_paths_is_refused_before_they_are_listed(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, tokens=[1], n_layers=40, n_heads=8, scale=0.1)

    with pytest.raises(LimitError, match=f"1 tokens and {9**40:,} paths needs about"):
        verify(run, exact=True)


def test_exact_grouped_by_order(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, tokens=[1, 2, 3], biases=("b_V", "b_O"))

    certificate = verify(run, exact=True, enumeration_limit=0)

    assert certificate.method == "by order"
    assert certificate.exact is not None
    assert certificate.exact.difference == "0"
