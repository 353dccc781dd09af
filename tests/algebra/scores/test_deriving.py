"""The expansion of scores derived by rules: its end is the sum, and each step holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from otimes.algebra import (
    Architecture,
    Id,
    Product,
    Scaled,
    Sum,
    Tensor,
    equivalent,
    parse,
    tensor,
)
from otimes.algebra.derivations import check_derivation
from otimes.algebra.expressions import Expr, Factor
from otimes.algebra.kinds import inclusion
from otimes.algebra.scores import Scores, ScoreTerm
from otimes.algebra.scores.deriving import derive_pairs, derive_scores
from otimes.algebra.scores.notation import transposed
from otimes.algebra.vocabulary import ONES
from otimes.errors import LimitError, UnsupportedError
from tests.algebra.scores.models import architectures

DERIVED: dict[str, tuple[Any, str]] = {
    "first layer": ({"layers": 1, "heads": 2}, "0.1"),
    "second layer": ({"layers": 2, "heads": 2}, "1.1"),
    "a layer without heads": ({"layers": 3, "heads": (1, 0, 1)}, "2.0"),
    "two heads on a side": ({"layers": 3, "heads": 1}, "2.0"),
    "norms": ({"layers": 2, "heads": 1, "norm": "rms"}, "1.0"),
    "post-norms": ({"layers": 2, "heads": 1, "norm": "layer", "norm_placement": "post"}, "1.0"),
    "neurons": ({"layers": 2, "heads": 1, "mlp": "frozen", "neurons": 1}, "1.0"),
}


@pytest.mark.parametrize("name", DERIVED)
def test_the_end_is_the_sum_over_pairs_and_each_step_holds(name: str) -> None:
    options, head = DERIVED[name]
    scores = Architecture(**options).scores(head)

    derivation = scores.derive()

    assert derivation.check().holds
    end = derivation.end
    addends = list(end.args) if isinstance(end, Sum) else [end]
    expected = {
        tensor(transposed(t.query_pattern), t.key_pattern, t.weight)
        for t in scores.expand()
        if isinstance(t, ScoreTerm)
    }
    assert len(addends) == len(expected) == scores.expand().count
    assert set(addends) == expected


SOURCES: dict[str, tuple[Any, str]] = {
    "shortformer": ({"layers": 2, "heads": 2, "positions": "shortformer"}, "1.1"),
    "learned": ({"layers": 2, "heads": 1, "positions": "learned", "token_types": True}, "1.0"),
    "b_Q": ({"layers": 2, "heads": 1, "biases": {"b_Q"}}, "1.0"),
    "b_K alone in a layer": ({"layers": 2, "heads": 1, "biases": {"b_K[1]"}}, "1.0"),
    "stream biases": ({"layers": 2, "heads": 1, "biases": {"b_V", "b_O"}}, "1.0"),
    "everything": (
        {
            "layers": 2, "heads": (1, 2), "kv_heads": 1, "positions": "shortformer",
            "norm": "layer", "biases": {"b_Q", "b_K", "b_V", "b_O", "b_ln1"},
        },
        "1.1",
    ),
    "first layer": ({"layers": 1, "heads": 1, "positions": "shortformer", "biases": True}, "0.0"),
    "norms of embeddings": (
        {"layers": 1, "heads": 1, "norm": "layer", "embed_norm": True, "biases": True}, "0.0",
    ),
    "post-norms": (
        {"layers": 2, "heads": 1, "norm": "layer", "norm_placement": "post", "biases": True},
        "1.0",
    ),
    "sandwich, multipliers": (
        {
            "layers": 2, "heads": 1, "norm": "rms", "norm_placement": "sandwich",
            "biases": {"b_O", "b_ln1_post"}, "multipliers": {"embed", "residual"}, "mlp": "source",
        },
        "1.0",
    ),
    "neurons": (
        {"layers": 2, "heads": 1, "mlp": "frozen", "neurons": 1, "biases": {"b_in"}}, "1.0",
    ),
}  # fmt: skip


def stacked(scores: Scores, parts: list[tuple[ScoreTerm, Expr]]) -> Expr:
    """The sum of terms, each of them between the inputs that it acts on, out of all inputs."""
    sources = [*scores.query_stream.sources, *scores.key_stream.sources]
    inputs = list(dict.fromkeys(ONES if _is_constant(s.input) else s.input for s in sources))
    spaces = [vector.type.slots[-1][0] for vector in inputs]

    def taken(vector: Expr) -> Expr:
        if len(inputs) == 1:
            return Id
        number = inputs.index(ONES if _is_constant(vector) else vector)
        return tensor(Id, Id, inclusion(number, *spaces).T)

    addends = list[Expr]()
    for term, operation in parts:
        query = [Id] if not _is_constant(term.query_input) else list(constant(term.query_input, 0))
        key = [Id] if not _is_constant(term.key_input) else list(constant(term.key_input, 1))
        addends += [
            Product(taken(term.query_input).T, q.T, operation, k, taken(term.key_input))
            for q in query
            for k in key
        ]
    return Sum(*addends) if len(addends) > 1 else addends[0]


def _is_constant(vector: Expr) -> bool:
    return not isinstance(vector, Factor)


def constant(vector: Expr, slot: int) -> Iterator[Expr]:
    """The operations by which a constant of several parts is made of ones."""
    for part in vector.children:
        pattern, weight = part.children[0].children
        yield tensor(pattern, Id, weight) if slot == 0 else tensor(Id, pattern, weight)


def of_pairs(scores: Scores) -> Expr:
    terms = [term for term in scores.expand() if isinstance(term, ScoreTerm)]
    return stacked(
        scores,
        [(t, tensor(transposed(t.query_pattern), t.key_pattern, t.weight)) for t in terms],
    )


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_is_derived(name: str) -> None:
    options, head = SOURCES[name]
    scores = Architecture(**options).scores(head)

    derivation = scores.derive()

    assert derivation.check().holds
    assert equivalent(derivation.end, of_pairs(scores)).holds
    assert len(derivation.end.children) >= scores.expand().count
    for step in derivation:
        assert parse(str(step.after), derivation.symbols) == step.after


# half of the models have rotary or additive positions, or no head
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(architectures(max_layers=2, max_heads=1), st.data())
def test_random_models_are_derived(arch: Architecture, data: st.DataObject) -> None:
    heads = [(layer, 0) for layer, count in enumerate(arch.heads) if count]
    assume(heads and arch.positions in ("none", "learned", "shortformer"))
    scores = arch.scores(data.draw(st.sampled_from(heads)))
    assume(scores.expand().count <= 40)

    derivation = scores.derive()

    assert derivation.check().holds
    assert equivalent(derivation.end, of_pairs(scores)).holds


@pytest.mark.parametrize("biases", [(), ("b_Q",)])
def test_rotary_scores_are_derived_at_one_frequency(biases: tuple[str, ...]) -> None:
    scores = Architecture(2, 1, positions="rotary", norm="rms", biases=biases).scores("1.0")

    derivation = scores.derive()

    assert derivation.check().holds
    terms = [term for term in scores.expand() if isinstance(term, ScoreTerm)]
    parts = [
        (
            term,
            plane.sign * tensor(transposed(plane.query_pattern), plane.key_pattern, plane.weight),
        )
        for term in terms
        for plane in term.planes(["f"])
    ]
    assert len(derivation.end.children) == len(parts) == 4 * scores.expand().count
    assert equivalent(derivation.end, stacked(scores, parts)).holds
    for addend in derivation.end.children:
        term = addend.arg if isinstance(addend, Scaled) else addend
        assert isinstance(term, Tensor)
    assert str(derivation.start) == "q[1.0]ᵀ R[f](j−i) k[1.0]"
    assert r"R^{f}(j-i)" in derivation.latex
    for step in derivation:
        assert parse(str(step.before), derivation.symbols) == step.before
    # the sign of the fourth is what makes the offset j − i and not j + i
    flipped = [(term, -part if n % 4 == 3 else part) for n, (term, part) in enumerate(parts)]
    assert not equivalent(derivation.end, stacked(scores, flipped)).holds


@pytest.mark.parametrize("name", ["shortformer", "stream biases", "post-norms", "first layer"])
def test_all_pairs_chosen_are_the_whole(name: str) -> None:
    options, head = SOURCES[name]
    scores = Architecture(**options).scores(head)

    derivation = derive_pairs(scores.expand())

    assert derivation.check().holds
    assert equivalent(derivation.end, of_pairs(scores)).holds


def test_one_pair_becomes_its_term() -> None:
    scores = Architecture(3, 2, norm="layer").scores("2.0")

    derivation = derive_pairs(scores.expand().where("0.1", "0.0 > 1.1"))

    assert derivation.check().holds
    (term,) = scores.expand().where("0.1", "0.0 > 1.1")
    assert isinstance(term, ScoreTerm)
    assert str(derivation.end) == str(
        tensor(transposed(term.query_pattern), term.key_pattern, term.weight)
    )
    with pytest.raises(UnsupportedError, match="no pair of paths is chosen"):
        derive_pairs(scores.expand().order(9))


def test_a_chosen_rotary_pair_is_four_terms() -> None:
    scores = Architecture(2, 1, positions="rotary").scores("1.0")

    derivation = derive_pairs(scores.expand().kind("qk"))

    assert derivation.check().holds
    (term,) = scores.expand().kind("qk")
    assert isinstance(term, ScoreTerm)
    parts = [
        plane.sign * tensor(transposed(plane.query_pattern), plane.key_pattern, plane.weight)
        for plane in term.planes(["f"])
    ]
    assert equivalent(derivation.end, Sum(*parts)).holds
    assert len(derivation.end.children) == 4


def test_a_bias_that_is_forgotten_is_seen() -> None:
    scores = Architecture(2, 1, biases={"b_Q[1]"}).scores("1.0")
    terms = [term for term in scores.expand() if isinstance(term, ScoreTerm)]
    parts = [(t, tensor(transposed(t.query_pattern), t.key_pattern, t.weight)) for t in terms]

    assert equivalent(scores.derive().end, stacked(scores, parts)).holds
    without = [part for part in parts if part[0].query_path != "bias[1.0.q]"]
    assert len(without) == len(parts) - 2
    assert not equivalent(scores.derive().end, stacked(scores, without)).holds


def test_a_step_that_forgets_a_transpose_is_seen() -> None:
    derivation = Architecture(2, 1).scores("1.0").derive()
    chain = [str(expr) for expr in derivation.expressions]
    chain[-1] = chain[-1].replace("W_OV[0.0]ᵀ", "W_OV[0.0]", 1)

    held = check_derivation(chain, derivation.definitions, derivation.symbols)

    assert not held.holds
    assert held.first_bad == len(chain) - 2


@pytest.mark.parametrize("positions", ["alibi", "relative"])
def test_what_positions_add_is_refused_and_says_what_to_run(positions: str) -> None:
    message = rf"{positions} positions add B\[1\.0\] .*'otimes expand --target scores:1\.0'"

    with pytest.raises(UnsupportedError, match=message):
        Architecture(2, 1, positions=positions).scores("1.0").derive()


def test_too_many_pairs_are_refused_with_their_number() -> None:
    with pytest.raises(LimitError, match="would write out 10,000 pairs of paths, more than 400"):
        Architecture(3, 9).scores("2.0").derive()
    with pytest.raises(LimitError, match=r"324 terms, four for .* 'otimes expand --target scores"):
        derive_scores(Architecture(2, 8, positions="rotary").scores("1.0"), limit=300)
