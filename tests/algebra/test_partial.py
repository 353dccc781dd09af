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
