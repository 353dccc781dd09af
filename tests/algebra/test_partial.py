"""Partial expansion: what is shown and what remains are the whole."""

from __future__ import annotations

import pytest

from otimes.algebra import Architecture, Sum, equivalent, partial_expansion
from otimes.errors import UnknownComponentError, UnsupportedError


@pytest.mark.parametrize(
    "architecture",
    [
        Architecture(2, 3),
        Architecture(3, (2, 0, 2)),
        Architecture(2, 2, norm="rms"),
        Architecture(2, 2, biases=True, positions="learned"),
        Architecture(1, 2, norm="rms", mlp="frozen", neurons=1, parallel=True),
        Architecture(2, 2, norm="layer", norm_placement="post"),
    ],
    ids=repr,
)
def test_shown_and_remainder_are_the_logits(architecture: Architecture) -> None:
    part = partial_expansion(architecture, heads=["0.1"])

    assert equivalent(part.whole, architecture.logits.expression, part.definitions).holds
    assert not equivalent(part.shown, architecture.logits.expression, part.definitions).holds
    assert part.derivation.check().holds
    named = set(part.definitions)
    assert named
    assert not named.intersection(part.shown.factors)
    rest = part.remainder.args if isinstance(part.remainder, Sum) else (part.remainder,)
    assert all(named.intersection(term.factors) for term in rest)


@pytest.mark.parametrize(
    "architecture",
    [
        Architecture(2, [2, 3], biases=True),
        Architecture(2, 2, norm="layer", biases=True),
        Architecture(2, 2, norm="layer", norm_placement="sandwich", biases=True),
        Architecture(2, 2, norm="layer", norm_placement="post", biases=True),
        Architecture(2, 2, mlp="frozen", neurons=2, biases=True),
        Architecture(2, 2, norm="layer", mlp="frozen", neurons=2, parallel=True, biases=True),
    ],
    ids=["b_V", "pre", "sandwich", "post", "neurons", "parallel"],
)
def test_nothing_is_shown_that_was_not_asked_for(architecture: Architecture) -> None:
    part = partial_expansion(architecture, heads=["1.1"])

    shown = {str(factor) for factor in part.shown.factors if factor.name in ("A", "S")}
    assert shown == {"A[1.1]"}
    assert equivalent(part.whole, architecture.logits.expression, part.definitions).holds
    assert part.derivation.check().holds
    assert "b_V[1.1]" in part.shown.symbols
    assert "b_V[0.0]" in part.definitions[part.remainder.symbols["c_H[0]"]].symbols


def test_neurons_are_shown_where_they_are_asked_for() -> None:
    architecture = Architecture(2, 1, mlp="frozen", neurons=2)

    one = partial_expansion(architecture, heads=["mlp0.n1"])
    layer = partial_expansion(architecture, layers=[0])
    assert {str(f) for f in one.shown.factors if f.name in ("A", "S")} == {"S[0.n1]"}
    assert [str(symbol) for symbol in one.definitions] == ["H[0]", "M[0]", "H[1]", "M[1]"]
    assert {"A[0.0]", "S[0.n0]", "S[0.n1]"} < set(layer.shown.symbols)
    assert [str(symbol) for symbol in layer.definitions] == ["H[1]", "M[1]"]


def test_one_head_may_be_named_in_any_way() -> None:
    architecture = Architecture(2, 3)
    expected = partial_expansion(architecture, heads=["1.2"]).whole

    assert partial_expansion(architecture, heads=["L1H2"]).whole == expected
    assert partial_expansion(architecture, heads="1.2").whole == expected
    assert partial_expansion(architecture, heads="L1H2").whole == expected


def test_whole_layers_are_expanded_and_the_others_have_names() -> None:
    part = partial_expansion(Architecture(3, 2), layers=[1])

    assert [str(symbol) for symbol in part.definitions] == ["H[0]", "H[2]"]
    assert str(part.shown) == (
        "Id ⊗ W_U W_E + A[1.0] ⊗ W_U W_OV[1.0] W_E + A[1.1] ⊗ W_U W_OV[1.1] W_E"
    )
    assert "where\n  H[0] = A[0.0] ⊗ W_OV[0.0] + A[0.1] ⊗ W_OV[0.1]" in str(part)


def test_with_all_heads_nothing_remains() -> None:
    architecture = Architecture(1, 2)
    part = partial_expansion(architecture, layers=[0])

    assert not part.definitions
    assert equivalent(part.remainder, 0 * part.shown).holds
    assert equivalent(part.shown, architecture.logits.expression).holds


def test_what_there_is_not_is_refused_by_name() -> None:
    architecture = Architecture(1, 2)

    with pytest.raises(UnknownComponentError, match=r"no head 0\.2: .* has 0\.0, 0\.1"):
        partial_expansion(architecture, heads=["0.2"])
    with pytest.raises(UnknownComponentError, match=r"no layer 1: .* has 1"):
        partial_expansion(architecture, layers=[1])
    with pytest.raises(UnsupportedError, match="name the heads or layers to expand"):
        partial_expansion(architecture)
