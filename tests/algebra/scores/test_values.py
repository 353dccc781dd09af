"""Each printed score term has the value of its pair of paths, and together they are the scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings

from otimes.algebra import Architecture
from otimes.algebra.scores import PositionTerm
from tests.algebra.scores.models import EXAMPLES, ROTARY, architectures, model_of
from tests.oracles import scores as oracle

RTOL = 1e-9


def heads(arch: Architecture) -> list[tuple[int, int]]:
    return [(layer, h) for layer, count in enumerate(arch.heads) for h in range(count)]


def check_head(arch: Architecture, model: oracle.Model, head: tuple[int, int]) -> int:
    """Compare every term and the sum; the number of terms."""
    expected = oracle.scores(model, *head)
    size = abs(expected).max()
    total, number = np.zeros_like(expected), 0
    for term in arch.scores(head).expand():
        number += 1
        if isinstance(term, PositionTerm):
            total += model[str(term)]
            continue
        texts = str(term.query_input), str(term.key_input)
        if term.is_rotary:
            planes = range(model.rotary[0] // 2)
            parts = term.planes([str(f) for f in planes], partial=model.rotary[0] < oracle.D_HEAD)
            value = sum(oracle.term(model, str(part), *texts) for part in parts)
        else:
            value = oracle.term(model, str(term.operator), *texts)
        value = value / np.sqrt(oracle.D_HEAD)
        alone = oracle.pair_scores(model, *head, term.query.path, term.key.path)
        np.testing.assert_allclose(value, alone, rtol=RTOL, atol=RTOL * size, err_msg=repr(term))
        total += value
    np.testing.assert_allclose(
        total, expected, rtol=RTOL, atol=RTOL * size, err_msg=f"{arch} {head}"
    )
    return number


@pytest.mark.parametrize("name", EXAMPLES)
def test_terms_have_the_value_of_their_paths_and_add_up_to_the_scores(name: str) -> None:
    arch = Architecture(**EXAMPLES[name])
    model = model_of(arch, seed=1)
    for head in heads(arch):
        assert check_head(arch, model, head) == arch.scores(head).expand().count


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_factored_formula_has_the_value_of_the_scores(name: str) -> None:
    """As it is printed, with its symbol for what the head reads."""
    arch = Architecture(**EXAMPLES[name])
    model = model_of(arch, seed=1)
    for layer, head in heads(arch):
        scores = arch.scores((layer, head))
        x = oracle.read(model, oracle.stream(model, layer), layer, "attn")
        if arch.positions == "shortformer":
            x = x + model["p"] @ model["W_pos"].T
        model.drawn[f"x[{layer}]" if scores.reads is None else f"x[{layer}.read]"] = x
        product, _, added = scores.formula().removeprefix("1/√d_head · ").partition(" + B[")
        value = oracle.word(model, product)
        assert value is not None
        value = value / np.sqrt(oracle.D_HEAD) + (model[f"B[{added}"] if added else 0)

        expected = oracle.scores(model, layer, head)
        np.testing.assert_allclose(value, expected, rtol=RTOL, atol=RTOL * abs(expected).max())


@pytest.mark.parametrize("name", ROTARY)
def test_the_rotary_closed_form_adds_up_to_the_rotated_scores(name: str) -> None:
    settings_ = dict(ROTARY[name])
    rotary = settings_.pop("rotary")
    arch = Architecture(2, 2, positions="rotary", **settings_)
    model = model_of(arch, seed=2, rotary=rotary)
    for head in heads(arch):
        check_head(arch, model, head)


@settings(max_examples=25, deadline=None)
@given(architectures(max_layers=2))
def test_terms_add_up_for_any_architecture(arch: Architecture) -> None:
    assume(heads(arch))
    head = heads(arch)[-1]
    assume(arch.scores(head).expand().count < 300)

    check_head(arch, model_of(arch, seed=3, rotary=(4, "half")), head)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("grouped", "W_QK[1.3]", "W_QK[1.2]"),
        ("plain", "W_OV[0.1]ᵀ", "W_OV[0.1]"),
        ("plain", "A[0.1] ⊗ Id", "Id ⊗ A[0.1]"),
        ("pre", "Γ[1.ln1]ᵀ", "Γ[1.ln1]"),
        ("post", "D[0.ln1] A[0.1]", "A[0.1]"),
    ],
)
def test_a_damaged_term_is_seen(name: str, old: str, new: str) -> None:
    arch = Architecture(**EXAMPLES[name])
    model = model_of(arch, seed=1)
    head = heads(arch)[-1]
    term = arch.scores(head).expand()["embed > 0.1", "embed"]
    damaged = str(term.operator).replace(old, new)

    value = oracle.term(model, damaged, str(term.query_input), str(term.key_input))

    assert damaged != str(term.operator)
    expected = oracle.pair_scores(model, *head, term.query.path, term.key.path)
    assert not np.allclose(value / np.sqrt(oracle.D_HEAD), expected)


def test_the_quarter_turn_has_the_sign_of_a_rotation_forwards() -> None:
    model = oracle.Model(heads=(1,), kv_heads=(1,), rotary=(oracle.D_HEAD, "half"))
    unit = np.eye(oracle.D_HEAD)[model.pair(1)[0]]
    turned = oracle.rotated(model, np.tile(unit, (2, 1)))[1]

    forwards = np.cos(oracle.theta(1)) * unit + np.sin(oracle.theta(1)) * model["J[1]"] @ unit

    np.testing.assert_allclose(turned, forwards, rtol=1e-12)
