"""Types of products and sums: what fits, what an open slot becomes."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otimes.algebra.types import OPEN, Slot, Type, compose, direct_sum, summands, unify

spaces = st.sampled_from(["pos", "d_model", "d_head", "vocab", "1"])
slots: st.SearchStrategy[Slot] = st.none() | st.tuples(spaces, spaces)
types = st.just(OPEN) | st.lists(slots, min_size=1, max_size=3).map(lambda s: Type(tuple(s)))

HEAD = Type.of(("pos", "pos"), ("d_model", "d_model"))
UNEMBED = Type.of(None, ("vocab", "d_model"))


@given(types)
def test_an_identity_composes_with_anything(a: Type) -> None:
    assert compose(OPEN, a) == compose(a, OPEN) == a


@given(types, types, types)
def test_composition_is_associative(a: Type, b: Type, c: Type) -> None:
    left, right = compose(a, b), compose(b, c)
    one = compose(left, c) if left is not None else None
    other = compose(a, right) if right is not None else None
    # where both orders say something they say the same
    if one is not None and other is not None:
        assert one == other


@given(types, types)
def test_a_sum_has_one_type_in_either_order(a: Type, b: Type) -> None:
    assert unify(a, b) == unify(b, a)


@given(types)
def test_a_type_is_that_of_its_sum_with_itself(a: Type) -> None:
    assert unify(a, a) == a


@given(types, types)
def test_transposing_exchanges_the_factors(a: Type, b: Type) -> None:
    whole, flipped = compose(a, b), compose(b.transposed, a.transposed)

    assert flipped == (None if whole is None else whole.transposed)
    assert a.transposed.transposed == a


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (UNEMBED, HEAD, Type.of(("pos", "pos"), ("vocab", "d_model"))),
        (HEAD, UNEMBED, None),
        (HEAD, Type.of(("d_model", "d_model")), None),
        (HEAD, Type.of(("pos", "1"), ("d_model", "1")), Type.of(("pos", "1"), ("d_model", "1"))),
    ],
)
def test_products(a: Type, b: Type, expected: Type | None) -> None:
    assert compose(a, b) == expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (OPEN, HEAD, HEAD),
        (HEAD, HEAD, HEAD),
        (Type.of(None, None), HEAD, HEAD),
        (OPEN, UNEMBED, None),  # the identity is square, W_U is not
        (Type.of(None), Type.of(("vocab", "d_model")), None),
        (HEAD, Type.of(("pos", "pos"), ("vocab", "d_model")), None),
        (HEAD, Type.of(("pos", "pos")), None),
    ],
)
def test_sums(a: Type, b: Type, expected: Type | None) -> None:
    assert unify(a, b) == expected


def test_a_type_prints_both_sides() -> None:
    assert repr(HEAD) == "pos ⊗ d_model <- pos ⊗ d_model"
    assert repr(UNEMBED) == "any ⊗ vocab <- any ⊗ d_model"
    assert repr(OPEN) == "any <- the same"


def test_a_type_is_hashable_and_pickles() -> None:
    assert pickle.loads(pickle.dumps(HEAD)) == HEAD
    assert len({HEAD, Type.of(("pos", "pos"), ("d_model", "d_model"))}) == 1


def test_direct_sums() -> None:
    assert list(summands(direct_sum("d_head", "vocab"))) == ["d_head", "vocab"]
    assert list(summands("d_head")) == ["d_head"]
