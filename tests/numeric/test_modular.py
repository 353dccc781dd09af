"""Residues and exact differences against fractions."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import isprime

from otimes.bridge import Run, load
from otimes.bridge.binding import numbered
from otimes.bridge.exact import exact_plan
from otimes.errors import LimitError, UnsupportedError
from otimes.numeric.modular import difference_modulo, exact_difference, plan
from otimes.numeric.residues import is_prime, residues
from tests.factory import make_checkpoint
from tests.kit import run_of
from tests.numeric.exact_network import exact_network
from tests.oracles import paths as oracle
from tests.oracles import rational
from tests.strategies import Case, cases
from tests.synthetic import SHAPES, dense, make_frozen

PRIMES = (1048573, 67108859, 65521, 3)


def modulo(value: Fraction, prime: int) -> int:
    return value.numerator * pow(value.denominator, -1, prime) % prime


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8),
    st.sampled_from(PRIMES),
)
def test_residues_are_those_of_the_fractions(numbers: list[float], prime: int) -> None:
    """Also of zeros, denormals and the largest numbers."""
    found = residues(torch.tensor(numbers, dtype=torch.float64), prime)

    assert found.dtype == torch.float64
    assert found.tolist() == [modulo(Fraction(number), prime) for number in numbers]


@pytest.mark.parametrize("number", [0.0, -0.0, 5e-324, -5e-324, 2.0**-1022, 1.5, -1.0, 1.7e308])
def test_residues_of_special_numbers(number: float) -> None:
    found = residues(torch.tensor([number], dtype=torch.float64), 1048573)

    assert found.tolist() == [modulo(Fraction(number), 1048573)]


def numbers_of(run: Run) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    return [numbered(term) for term in run.model.architecture.logits.expand().depth_first()]


@settings(max_examples=6)
@given(cases(max_layers=3, max_heads=2, max_ctx=3))
def test_the_sum_of_all_paths_differs_by_exactly_zero(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), **case.architecture)
        run = load(folder).run(tokens=case.tokens, mask=case.mask)
    paths = numbers_of(run)
    model = run.frozen().model

    assert exact_difference(model, paths, plan(model, len(paths))) == 0


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_of(
        tmp_path, tokens=[3, 1, 4], n_heads=2, n_kv_heads=1, biases=("b_V", "b_O", "b_U")
    )[0]


@pytest.mark.parametrize("place", [0, 3, 7, -1])
def test_the_difference_of_a_wrong_sum_is_the_exact_value(
    run: Run, tmp_path: Path, place: int
) -> None:
    checkpoint = make_checkpoint(
        tmp_path / "same", n_heads=2, n_kv_heads=1, biases=("b_V", "b_O", "b_U")
    )
    model, numbers = run.frozen().model, numbers_of(run)
    terms = list(run.model.architecture.logits.expand().depth_first())
    patterns = [layer[0].numpy() for layer in run.recording().patterns]
    path = oracle.Path(terms[place].source.name, terms[place].heads)
    value = np.array(
        rational.path_logits(checkpoint.config, checkpoint.arrays, run.tokens[0], patterns, path)
    )
    largest = np.abs(value).max()
    without = [number for number in numbers if number != numbers[place]]
    twice = [*numbers, numbers[place]]

    for prime in (1048573, 65521):
        found = difference_modulo(model, without, prime)[0]
        assert found.tolist() == [[modulo(x, prime) for x in row] for row in value]
    assert abs(exact_difference(model, without, plan(model, len(without)))) == largest
    doubled = exact_difference(model, twice, plan(model, len(twice)))
    assert abs(doubled) == largest
    assert doubled in -value


def test_the_largest_difference_is_found_wherever_it_is(tmp_path: Path) -> None:
    """Also beyond the first four thousand logits."""
    run, _ = run_of(
        tmp_path, tokens=[1, 2], n_layers=0, d_model=2, d_vocab=2600, n_ctx=2, biases=("b_U",)
    )
    model = run.frozen().model
    assert model.b_U is not None
    b_U = model.b_U.clone()
    b_U[2500] = 1000.25
    changed = replace(model, b_U=b_U)

    assert exact_difference(changed, [(0, ())], plan(changed, 1)) == Fraction(4001, 4)


def test_chunks_of_paths_are_all_added(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, tokens=[1], n_layers=4, n_heads=3, d_model=3, d_head=2, d_vocab=3)
    model, numbers = run.frozen().model, numbers_of(run)
    assert len(numbers) == 256

    assert not difference_modulo(model, numbers, 1048573).any()
    assert difference_modulo(model, numbers[:-1], 1048573).any()
    assert difference_modulo(model, numbers[:64], 1048573).any()


def test_the_plan_covers_the_difference(run: Run) -> None:
    model, numbers = run.frozen().model, numbers_of(run)
    chosen = plan(model, len(numbers))

    assert all(isprime(prime) for prime in chosen.primes)
    assert len(set(chosen.primes)) == len(chosen.primes)
    inner = max(model.W_U.shape[0], model.length, 4)
    assert inner * max(chosen.primes) ** 2 < 2**53
    product = 1
    for prime in chosen.primes:
        product *= prime
    # all paths dropped: the difference is the whole of the logits
    whole = exact_difference(model, [], chosen)
    assert (whole * chosen.denominator).denominator == 1
    assert abs(whole) * chosen.denominator * (len(numbers) + 1) < product / 2
    assert float(abs(whole)) == pytest.approx(float(run.logits.abs().max()), rel=1e-12)


def test_a_plan_with_too_few_primes_misses_a_difference(run: Run) -> None:
    """Its primes are needed: a multiple of one prime looks like zero to that prime alone."""
    model, numbers = run.frozen().model, numbers_of(run)
    chosen = plan(model, len(numbers))
    prime = chosen.primes[0]
    assert model.b_U is not None
    far = replace(model, b_U=model.b_U * 0 + float(prime))
    without = [number for number in numbers if model.sources[number[0]].entry < 2 or number[1]]

    assert (
        difference_modulo(far, numbers[:-1], prime).any()
        == difference_modulo(replace(model, b_U=model.b_U * 0), numbers[:-1], prime).any()
    )
    assert exact_difference(far, without, plan(far, len(without))) != 0


@pytest.mark.parametrize("scale", [1e-20, 1e10, 1e-3])
def test_scales(tmp_path: Path, scale: float) -> None:
    run, _ = run_of(tmp_path, tokens=[1, 2], scale=scale, n_heads=2, biases=("b_V",),
                    attention_scale=0.0)  # fmt: skip
    model, numbers = run.frozen().model, numbers_of(run)
    chosen = plan(model, len(numbers))

    assert exact_difference(model, numbers, chosen) == 0
    assert exact_difference(model, numbers[1:], chosen) != 0


def test_all_zero(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, tokens=[1, 2], scale=0.0, biases=("b_V", "b_U"))
    model, numbers = run.frozen().model, numbers_of(run)

    assert exact_difference(model, numbers, plan(model, len(numbers))) == 0


def test_values_beyond_float64_are_refused(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, tokens=[1, 2], scale=1e120, n_layers=3, attention_scale=0.0)
    model = run.frozen().model

    with pytest.raises(OverflowError, match="values of the frozen network are beyond the range"):
        plan(model, 3)
    with pytest.raises(UnsupportedError, match="no exact verification: values of the frozen"):
        exact_plan(model, 3)


def test_cost_is_predicted_and_long_ones_are_refused(run: Run, tmp_path: Path) -> None:
    long, _ = run_of(tmp_path / "long", n_ctx=9)
    assert exact_plan(run.frozen().model, 36).multiplications > 1e4

    with pytest.raises(LimitError, match=r"of 9 tokens and 16 paths needs about .*under a second"):
        exact_plan(long.frozen().model, 16)
    with pytest.raises(LimitError, match=r"of 3 tokens and 10,000,000,000 paths .* minutes"):
        exact_plan(run.frozen().model, 10**10)


def test_a_model_without_unembedding_bias_has_no_path_of_it(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, tokens=[1], biases=("b_U",))
    model = run.frozen().model

    with pytest.raises(ValueError, match="the model has no unembedding bias"):
        difference_modulo(replace(model, b_U=None), [(1, ())], 65521)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_block(name: str) -> None:
    """Means too: their denominator d_model is no power of two."""
    model = make_frozen(replace(SHAPES[name], length=2, layers=1))
    paths = [(path.source, path.components) for path in dense(model).paths()]
    chosen = plan(model, len(paths))

    assert exact_difference(model, paths, chosen) == 0
    exact = exact_network(model).logits
    assert abs(exact_difference(model, [], chosen)) == np.abs(exact).max()
    assert all((value * chosen.denominator).denominator == 1 for value in exact.flatten())


def test_the_denominator_of_means() -> None:
    """One for each centred edge that lies behind another: reads and the final norm, two blocks."""
    model = make_frozen(replace(SHAPES["pre"], neurons=0, layers=2))

    assert plan(model, 1).denominator % 5**3 == 0
    assert plan(model, 1).denominator % 5**4 != 0
    plain = replace(model, final=replace(model.final, centred=False))
    assert plan(plain, 1).denominator % 5**3 != 0


def test_primes_are_those_of_sympy() -> None:
    numbers = [*range(2000), *range(2**25, 2**25 + 500), 1373653, 25326001, 3215031749]

    assert [is_prime(n) for n in numbers] == [isprime(n) for n in numbers]
