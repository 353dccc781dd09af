"""Faults that an outside reading of the path language and the scores found."""

from __future__ import annotations

import time
from itertools import islice

import pytest

from otimes.algebra import Architecture
from otimes.errors import NotationError


def test_repetitions_nested_through_sequences_do_not_take_exponential_time() -> None:
    text = "0.1"
    for _ in range(30):
        text = f"({text} > ..){{1,2}}"
    started = time.process_time()

    assert Architecture(4, 2).language.compile(text).count > 0
    assert time.process_time() - started < 5


def test_a_path_through_more_heads_than_python_has_frames() -> None:
    paths = Architecture(1200, 1).logits.expand().order(1100)

    (term,) = islice(paths, 1)
    assert term.order == 1100
    assert term.heads[:2] == ((0, 0), (1, 0))


def test_the_count_of_scores_of_a_deep_model_is_quick() -> None:
    started = time.process_time()

    scores = Architecture(400, 100).scores("399.3").expand()
    assert scores.count == 101**399 * 101**399
    assert scores.kind_counts["direct"] == 1
    assert scores.kind_counts["q"] == scores.kind_counts["k"] == 101**399 - 1
    assert time.process_time() - started < 5


def test_what_does_not_print_is_escaped_in_errors_and_the_caret_still_fits() -> None:
    with pytest.raises(NotationError) as caught:
        Architecture(2, 8).logits.expand().where("0.7 > \u202e1.4")

    shown = str(caught.value).splitlines()
    assert "\u202e" not in str(caught.value)
    assert shown[1] == "  0.7 > \\u202e1.4"
    assert shown[2].index("^") == shown[1].index("\\u202e")


@pytest.mark.parametrize("text", ["٣.1", "0.７", "0.1 > ١.0"])  # noqa: RUF001 - that is the point
def test_digits_of_other_scripts_are_no_heads(text: str) -> None:
    with pytest.raises(NotationError):
        Architecture(8, 8).logits.expand().where(text)


def test_the_repr_of_a_norm_without_a_final_one() -> None:
    arch = Architecture(1, 1, norm="rms", final_norm=False)

    assert eval(repr(arch)) == arch
    assert not eval(repr(arch)).final_norm
