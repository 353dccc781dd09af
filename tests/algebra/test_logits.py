"""The unexpanded logits: nested for models that one reads, flat for deep ones."""

from __future__ import annotations

import time

import pytest

from otimes.algebra import Architecture, equivalent, logits, parse
from otimes.algebra.checking import counterexample
from otimes.errors import LimitError

SEVERAL_SOURCES = [
    Architecture(2, 2, biases=True),
    Architecture(2, (1, 0), positions="learned", biases=["b_O[0]"]),
    Architecture(2, 1, norm="layer", biases=True),
    Architecture(2, 1, norm="layer", norm_placement="post", biases=True),
    Architecture(2, 1, norm="rms", norm_placement="sandwich", mlp="source"),
    Architecture(1, 1, norm="layer", mlp="frozen", neurons=1, biases=True),
    Architecture(2, 1, mlp="source", parallel=True, positions="learned", biases=True),
]


@pytest.mark.parametrize("architecture", SEVERAL_SOURCES, ids=repr)
def test_the_flat_sum_has_the_value_of_the_nested_one(
    architecture: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nested = architecture.logits.expression
    monkeypatch.setattr(logits, "NESTED_LAYERS", -1)
    flat = logits.Logits(architecture).expression

    assert flat != nested
    assert counterexample(flat, nested) is None  # exact evaluation, which shares no normal form
    assert equivalent(flat, nested).holds


@pytest.mark.parametrize(
    "architecture",
    [
        Architecture(100, 2, norm="layer", biases=True),
        Architecture(100, 2, norm="layer", mlp="source", positions="learned", biases=True),
        Architecture(74, 1, biases=True),
    ],
    ids=["norms", "mlps and positions", "biases alone"],
)
def test_a_deep_model_with_biases_has_logits(architecture: Architecture) -> None:
    start = time.perf_counter()
    expression = architecture.logits.expression

    assert expression.depth < 12
    assert str(expression).startswith("(Id ⊗ W_U)")
    assert repr(expression)
    assert architecture.logits.latex
    assert architecture.logits.expand().count > 2**74
    assert time.perf_counter() - start < 20


def test_the_deepest_nested_logits_can_be_read_again() -> None:
    nested = Architecture(logits.NESTED_LAYERS, 1, mlp="source", norm="layer", biases=True)
    expression = nested.logits.expression

    assert eval(repr(expression), vars(logits) | _constructors()) == expression
    assert parse(str(expression), expression) == expression


def test_a_derivation_of_a_deep_model_names_its_layers() -> None:
    sparse = Architecture(40, (1, *[0] * 39), biases=True)

    with pytest.raises(LimitError, match=r"40 layers .* 24.*expand\(\)"):
        sparse.logits.derive()


def _constructors() -> dict[str, object]:
    import otimes.algebra

    return {name: getattr(otimes.algebra, name) for name in otimes.algebra.__all__}
