"""Random expressions keep their exact value under every rule, and have one normal form."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import otimes.algebra.rules as all_rules
from otimes.algebra import (
    Expr,
    apply_at,
    check_step,
    equivalent,
    everywhere,
    normal_form,
    places,
    polynomial,
)
from otimes.algebra.rules import Collapse, Cycle, MixedProduct, Rotate, Rule, Substitute
from otimes.algebra.types import unify
from otimes.errors import TypeMismatchError
from tests.algebra.judge import Judge
from tests.algebra.rule_expressions import ROTATION, rule_expressions

# rules that take arguments have properties of their own below
PLAIN = [
    getattr(all_rules, name)()
    for name in all_rules.__all__
    if isinstance(kind := getattr(all_rules, name), type)
    and issubclass(kind, Rule)
    and kind not in (Rule, Substitute, Collapse, Cycle, Rotate)
]
# these undo one another or regroup, so a random walk with them alone would not end
NORMALISING = [
    rule
    for rule in PLAIN
    if type(rule).__name__
    in {
        "MixedProduct", "Distribute", "DropIdentity", "Flatten", "PullScalar", "LikeTerms",
        "TransposeProduct", "TransposeTensor", "TransposeLinear", "ExpandOV", "ExpandQK",
        "ExpandHead", "ExpandNorm", "Concatenate", "CancelRotation",
    }
]  # fmt: skip


def rewritten(rule: Rule, expr: Expr, place: tuple[int, ...]) -> Expr:
    """The expression with the rule applied; itself where a block would lose its space."""
    try:
        return apply_at(rule, expr, place)
    except TypeMismatchError:
        assert not _known_spaces(expr)
        return expr


@pytest.mark.parametrize("rule", PLAIN, ids=lambda rule: type(rule).__name__)
@settings(max_examples=12)
@given(expr=rule_expressions())
def test_a_rule_keeps_the_exact_value_wherever_it_applies(rule: Rule, expr: Expr) -> None:
    for place in places(rule, expr)[:3]:
        after = rewritten(rule, expr, place)

        assert unify(expr.type, after.type) is not None
        assert check_step(expr, after)


@settings(max_examples=50)
@given(expr=rule_expressions(depth=4), seed=st.integers(0, 2**32))
def test_the_normal_form_is_that_of_all_that_rules_reach(expr: Expr, seed: int) -> None:
    walk = random.Random(seed)
    before, now = normal_form(expr), expr

    for _ in range(8):
        choices = [(rule, place) for rule in PLAIN for place in places(rule, now)]
        if not choices:
            break
        rule, place = walk.choice(choices)
        now = rewritten(rule, now, place)

    assert normal_form(now) == before
    assert equivalent(now, expr).method == "normal form"


@settings(max_examples=60)
@given(expr=rule_expressions(depth=4))
def test_the_normal_form_is_idempotent_and_keeps_the_value(expr: Expr) -> None:
    form = normal_form(expr)

    assert normal_form(form) == form
    assert polynomial(form) == polynomial(expr)
    assert check_step(expr, form)


@settings(max_examples=25)
@given(expr=rule_expressions(), seed=st.integers(0, 2**32))
def test_normalising_rules_in_any_order_end_at_the_same_polynomial(expr: Expr, seed: int) -> None:
    order = list(NORMALISING)
    random.Random(seed).shuffle(order)
    now = expr
    for _ in range(12):
        before = now
        for rule in order:
            now = everywhere(rule, now)
        if now == before:
            break

    assert all(not places(rule, now) for rule in order) or not _known_spaces(now)
    assert polynomial(now) == polynomial(expr)


def _known_spaces(expr: Expr) -> bool:
    """Whether no block of a row or column stops a rule inside it."""
    return not any(type(node).__name__ in ("Row", "Column") for node in _nodes(expr))


def _nodes(expr: Expr) -> list[Expr]:
    return [expr, *(node for child in expr.children for node in _nodes(child))]


@settings(max_examples=15)
@given(expr=rule_expressions(depth=2))
def test_equal_polynomials_are_equal_matrices_of_symbols(expr: Expr) -> None:
    assert Judge().agree(expr, normal_form(expr))


@settings(max_examples=60)
@given(expr=rule_expressions())
def test_twice_an_expression_is_another_one_unless_it_is_zero(expr: Expr) -> None:
    found = equivalent(expr, 2 * expr)

    assert found.holds == (not polynomial(expr).terms)
    assert (found.counterexample is None) == found.holds


@settings(max_examples=40)
@given(expr=rule_expressions())
def test_a_rotation_changes_the_weights_and_not_the_value(expr: Expr) -> None:
    rule = Rotate(ROTATION)
    if rule.why_not(expr) is None:
        assert check_step(expr, rule.apply(expr))


def test_the_properties_see_a_wrong_rule() -> None:
    """A mixed product that composes the first slot in the wrong order is caught by the walk."""
    from otimes.algebra import Tensor, pattern, tensor, weight

    right = MixedProduct().apply(
        tensor(pattern("A1"), weight("W", "d_model", "d_model"))
        @ tensor(pattern("A2"), weight("W", "d_model", "d_model"))
    )
    assert isinstance(right, Tensor)
    wrong = tensor(right.args[0].with_children(*right.args[0].children[::-1]), right.args[1])

    assert normal_form(wrong) != normal_form(right)
    assert not check_step(wrong, right)
