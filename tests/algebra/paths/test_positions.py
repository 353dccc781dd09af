"""Sets of positions against derivatives, and how long large models take."""

from __future__ import annotations

import random
import time
from math import comb

import pytest

from otimes.algebra import Architecture
from otimes.algebra.paths import (
    Automaton,
    difference,
    intersection,
    is_contained,
    language,
    overlap,
)
from otimes.algebra.paths.positions import MAX_POSITIONS, Positions
from otimes.errors import LimitError

LARGE = Architecture(100, 100)
MODELS = [
    Architecture(3, 2),
    Architecture(6, 3),
    Architecture(3, 2, mlp="frozen", neurons=3, biases=["b_O"]),
    Architecture(40, 4),
]


def wildcards(rng: random.Random, arch: Architecture, indices: int, length: int = 20) -> str:
    """Wildcards in a row, with few different indices: many ways to go through one path."""
    parts = list[str]()
    for _ in range(length):
        own, layer = f"*.{rng.randrange(indices)}", f"{rng.randrange(arch.layers)}.*"
        kinds = ["*", "..", "..", own, layer, "*?", f"{own}?", f"{layer}?", f"{own}{{1,3}}"]
        kinds += ["*{1,3}", f"{{^{layer}}}", f"{{^{own}}}", f"({own} > * | {layer}){{0,2}}"]
        parts.append(rng.choice(kinds))
    return " > ".join(parts)


def by_derivatives(arch: Architecture, text: str, monkeypatch: pytest.MonkeyPatch) -> Automaton:
    with monkeypatch.context() as patch:
        patch.setattr(language, "has_positions", lambda *_: False)
        return arch.language.compile(text)


@pytest.mark.parametrize("arch", MODELS, ids=repr)
def test_positions_and_derivatives_are_the_same_sets(
    arch: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    for _ in range(30):
        text = wildcards(rng, arch, 2, rng.randrange(1, 9))
        if arch.biases:
            text = f"({text}) | embed > {text} | bias > *"
        assert arch.language.compile(text) == by_derivatives(arch, text, monkeypatch), text


def test_a_position_too_many_left_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    arch, text = Architecture(6, 3), ".. > *.0 > *? > *.1 > .."
    true = by_derivatives(arch, text, monkeypatch)
    step = Positions.derivative

    def one_less(self: Positions, positions: int, signature: int) -> int:
        found = step(self, positions, signature)
        return found & (found - 1) or found

    monkeypatch.setattr(Positions, "derivative", one_less)

    assert arch.language.compile(text) != true


@pytest.mark.parametrize(
    ("text", "count"),
    [
        # more positions than are unrolled: derivatives
        (
            f"*.1{{{MAX_POSITIONS // 2}}} | *.2{{{MAX_POSITIONS // 2}}} | *.3",
            2 * comb(100, 64) + 100,
        ),
        ("(*.1 | *.2){0,100}", 3**100),
        ("*.1{0,100} > *.1{0,100}", 2**100),
    ],
)
def test_many_positions(text: str, count: int) -> None:
    assert LARGE.language.compile(text).count == count


def test_all_memories_of_eight_components_are_taken() -> None:
    """512 states before each block, and the paths known without an automaton."""
    started = time.process_time()
    automaton = LARGE.language.compile(".. > *.3 > *{8}")

    # the ninth head from the end has the index 3
    assert automaton.count == sum(comb(100, n) * 100 ** (n - 1) for n in range(9, 101))
    assert time.process_time() - started < 4


# found among many random expressions as those that take longest
TO_ZERO = (
    "* > .. > *? > *.0? > *.1 > *.0? > *? > *{1,3} > *.0 > *.0{1,3} > *? > {^*.0} > {^*.1} > *? > "
    "{^*.0} > *.0? > *.1? > *.0{1,3} > *{1,3} > *.0{1,3}"
)
TO_ONE = (
    "{^*.1} > * > *? > *.0{1,3} > .. > {^*.0} > * > *{1,3} > *.0 > *.1{1,3} > *? > *? > *{1,3} > "
    "*{1,3} > *{1,3} > *.0{1,3} > *.1{1,3} > {^*.0} > *.0 > *.1"
)
TO_ANY = (
    "*? > *.1{1,3} > *? > *{1,3} > *.0? > *{1,3} > *.0? > * > {^*.1} > *.0? > *.1{1,3} > *{1,3} > "
    "*.1 > *.1{1,3} > {^*.0} > *.0 > *.0? > *.1? > * > *?"
)
LAYERS = (
    ".. > 92.*? > {^*.21} > {^*.30} > *{1,3} > *.48 > {^*.0} > {^81.*} > * > *.0 > {^86.*} > "
    "52.*? > .. > *.0{1,3} > .. > * > .. > *{1,3} > {^9.*} > {^78.*}"
)


@pytest.mark.parametrize(("one", "two"), [(TO_ZERO, TO_ANY), (TO_ONE, LAYERS)])
def test_the_worst_of_many_pairs(one: str, two: str) -> None:
    started = time.process_time()
    left, right = LARGE.language.compile(one), LARGE.language.compile(two)
    contained, meet, equal = is_contained(left, right), overlap(left, right), left == right
    counts = left.count, right.count
    taken = time.process_time() - started

    assert taken < 3
    assert (contained, meet, equal) == (False, True, False)
    assert min(counts) > 0


@pytest.mark.parametrize("indices", [2, 100])
def test_questions_of_random_pairs_in_a_large_model(indices: int) -> None:
    rng = random.Random(indices)
    for number in range(4):
        texts = [wildcards(rng, LARGE, indices) for _ in range(2)]
        started = time.process_time()
        try:
            left, right = map(LARGE.language.compile, texts)
            contained, meet = is_contained(left, right), overlap(left, right)
        except LimitError:
            assert time.process_time() - started < 3
            continue
        assert time.process_time() - started < 3, texts
        if number < 2 and left.size * right.size < 10**5:
            assert contained == difference(left, right).is_empty
            assert meet == (not intersection(left, right).is_empty)
