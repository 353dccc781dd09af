"""The expansion of scores derived by rules: its end is the sum, and each step holds."""

from __future__ import annotations

from typing import Any

import pytest

from otimes.algebra import Architecture, Sum, tensor
from otimes.algebra.derivations import check_derivation
from otimes.algebra.scores import ScoreTerm
from otimes.algebra.scores.notation import transposed
from otimes.errors import LimitError, UnsupportedError

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


def test_a_step_that_forgets_a_transpose_is_seen() -> None:
    derivation = Architecture(2, 1).scores("1.0").derive()
    chain = [str(expr) for expr in derivation.expressions]
    chain[-1] = chain[-1].replace("W_OV[0.0]ᵀ", "W_OV[0.0]", 1)

    held = check_derivation(chain, derivation.definitions, derivation.symbols)

    assert not held.holds
    assert held.first_bad == len(chain) - 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"biases": {"b_Q"}}, r"there are also bias\[1\.0\.q\]"),
        ({"positions": "learned"}, "there are also pos;"),
        ({"positions": "rotary"}, "there are also rotary positions"),
    ],
)
def test_other_sources_are_refused(options: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Architecture(2, 1, **options).scores("1.0").derive()


def test_too_many_pairs_are_refused_with_their_number() -> None:
    with pytest.raises(LimitError, match="would write out 10,000 pairs of paths, more than 400"):
        Architecture(3, 9).scores("2.0").derive()
