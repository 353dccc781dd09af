"""Deep and wide models: counts without enumeration, limits in time, listings that are lazy."""

from __future__ import annotations

import time
from itertools import islice
from math import comb

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from otimes.algebra import Architecture
from otimes.algebra.paths import (
    depth_first,
    difference,
    head_word_counts,
    in_order,
    intersection,
    is_contained,
    operations,
    overlap,
    parse_path,
    union,
)
from otimes.errors import LimitError, NotationError

LARGE = Architecture(100, 100)


def seconds(started: float) -> float:
    return time.process_time() - started


def test_a_hundred_layers_of_a_hundred_heads_are_counted() -> None:
    started = time.process_time()
    automaton = LARGE.language.compile("0.7 > .. > 50.1")

    assert automaton.count == 101**49
    assert automaton.order_counts[2:51] == tuple(comb(49, k) * 100**k for k in range(49))
    assert LARGE.language.everything.count == 101**100
    assert sum(head_word_counts(automaton)) == 101**49
    assert seconds(started) < 0.9


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("order=2", comb(100, 2) * 100**2),
        ("!order=2", 101**100 - comb(100, 2) * 100**2),
        ("*{0,2}", 1 + 100 * 100 + comb(100, 2) * 100**2),
        (".. > *.3 > ..", 101**100 - 100**100),
        (".. & !(.. > *.3 > ..)", 100**100),
        ("{^*.0,*.1}{100}", 98**100),
        (".. > 99.*", 101**99 * 100),
        ("(.. > 40.1 > ..) & (.. > 60.2 > ..)", 101**98),
        ("40.1 > .. > 60.2 | 60.2 > .. > 40.1", 101**19),
    ],
)
def test_counts_known_in_closed_form(text: str, count: int) -> None:
    assert LARGE.language.compile(text).count == count


def test_eight_paths_of_order_three_by_their_numbers() -> None:
    """13^12 paths, and what one asks of them."""
    language = Architecture(12, 12).language

    assert language.everything.count == 13**12
    assert language.compile("order=3").count == comb(12, 3) * 12**3
    assert language.compile("0.1 > .. > 11.3").order_counts[:4] == (0, 0, 1, 10 * 12)


@st.composite
def long_expressions(draw: st.DrawFn) -> str:
    """Twenty parts, of every kind, joined and combined at random."""
    parts = list[str]()
    for _ in range(20):
        layer, head = draw(st.integers(0, 99)), draw(st.integers(0, 99))
        kinds = [f"{layer}.{head}", f"{layer}.*", f"*.{head}", "*", "..", "..", "*{1,3}"]
        kinds += [f"{{{layer}.{head},*.{head}}}", f"{{^{layer}.*}}", f"*.{head}?"]
        parts.append(draw(st.sampled_from(kinds)))
    text = parts[0]
    for part in parts[1:]:
        text += draw(st.sampled_from([" > ", " > ", " > ", " | ", " & ", " & !", " | !"])) + part
    return text


@st.composite
def wildcards(draw: st.DrawFn, arch: Architecture) -> str:
    """Twenty wildcards in a row: many ways to go through one path."""
    layer, head = st.integers(0, arch.layers - 1), st.integers(0, arch.heads[0] - 1)
    parts = list[str]()
    for _ in range(20):
        own, other = f"*.{draw(head)}", f"{draw(layer)}.*"
        kinds = ["*", "..", "..", own, other, "*?", f"{own}?", f"{other}?", f"{own}{{1,3}}"]
        parts.append(draw(st.sampled_from([*kinds, "*{1,3}", f"{{^{other}}}", f"{{^{own}}}"])))
    return " > ".join(parts)


@st.composite
def combinations(draw: st.DrawFn, arch: Architecture, parts: int = 20) -> str:
    """Twenty wildcards under operators of every kind, nested at random."""
    if parts == 1:
        layer, head = draw(st.integers(0, arch.layers - 1)), draw(st.integers(0, arch.heads[0] - 1))
        kinds = [f"*.{head}", f"{layer}.*", "..", "..", "*", "*?", f"*.{head}{{0,2}}"]
        return draw(st.sampled_from(kinds))
    first = draw(st.integers(1, parts - 1))
    left, right = draw(combinations(arch, first)), draw(combinations(arch, parts - first))
    forms = ["({} > {})"] * 3 + ["({} | {})", "({} & {})", "((!{}) > {})", "(({}){{0,3}} > {})"]
    return draw(st.sampled_from(forms)).format(left, right)


SHAPES = [(2, 2), (4, 4), (12, 12)]


@seed(20)
@given(st.sampled_from(SHAPES), st.data())
@settings(max_examples=40, deadline=None, database=None)
def test_containment_of_long_expressions_takes_a_second(
    shape: tuple[int, int], data: st.DataObject
) -> None:
    arch = Architecture(*shape)
    one, two = data.draw(
        st.one_of(*(st.tuples(s, s) for s in (wildcards(arch), combinations(arch))))
    )
    started = time.process_time()
    left, right = arch.language.compile(one), arch.language.compile(two)
    contained, meet = is_contained(left, right), overlap(left, right)

    assert seconds(started) < 1
    assert contained == (difference(left, right).count == 0)
    assert meet == (intersection(left, right).count > 0)


@seed(20)
@given(long_expressions(), long_expressions())
@settings(max_examples=12, deadline=None, database=None)
def test_containment_in_a_deep_model_takes_a_second(one: str, two: str) -> None:
    language = LARGE.language
    started = time.process_time()
    try:
        left, right = language.compile(one), language.compile(two)
    except NotationError:
        return  # two named heads met in the wrong order
    contained = is_contained(left, right)

    assert seconds(started) < 1
    assert contained == (difference(left, right).count == 0)


@pytest.mark.parametrize(
    ("text", "states"),
    [
        (".. > *? > .. > *.1? > ..", 101),
        ("*? > *{1,3} > .. > *?", 200),
        (".. > *.1 > *? > .. > *.1? > .. > *.2", 300),
    ],
)
def test_what_adds_nothing_beside_an_ellipsis_costs_nothing(text: str, states: int) -> None:
    assert LARGE.language.compile(text).size <= states


def test_a_search_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = (LARGE.language.compile(f".. > *.3 > *{{{n}}}") for n in (2, 3))
    both = union(left, right)
    monkeypatch.setattr(operations, "MAX_STATES", 500)

    with pytest.raises(
        LimitError, match=r"combination of two sets of paths needs more than .* 501"
    ):
        is_contained(left, both)


BLOW_UPS = {
    ".. > *.3 > *{20}": r"needs more than 50,000 automaton states.*by block \d+ of 100.*\*\{20\}",
    "((*.1 > *.2 | *.3){1,50} > (.. > *.4){3,20}){2,30}": "a repetition inside a repetition grew",
    "(!(.. > *.1 > *{1,9})){1,9}": "a repetition inside a repetition grew",
    "((*.1 | *.2){1,40} > (*.2 | *.3){1,40} > (*.1|*.3){1,40}){1,40}": "inside a repetition grew",
    " & ".join(f"(.. > *.{index} > ..)" for index in range(17)): "ask for a smaller set of paths",
    " & ".join(f"!(.. > *.{n} > *{{{n}}})" for n in range(2, 10)): r"a repetition grew, '\*\{9\}'",
    " | ".join(f"(*.{n}{{1,9}} > *.{n + 1}{{1,9}}){{1,9}}" for n in range(40)): "inside a repet",
}


@pytest.mark.parametrize(("text", "message"), BLOW_UPS.items())
def test_what_would_blow_up_is_refused_in_time(text: str, message: str) -> None:
    started = time.process_time()

    with pytest.raises(LimitError, match=message) as caught:
        LARGE.language.compile(text)
    assert seconds(started) < 3
    assert caught.value.count > caught.value.limit
    assert str(parse_path(text))[:40] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("((((.. > 0.*){1,50}){1,50}){1,50}){1,50}", 100),
        ("((*{1,9}){1,9}){1,9}", 101**100 - 1),
        (" | ".join(f"{n}.{h} > {n + 5}.{h}" for n in range(80) for h in range(40)), 3200),
        (" > ".join(["*.1?"] * 100), 2**100),
        (" | ".join(f"{n}.{h}" for n in range(90) for h in range(100)), 9000),
        ("((.. > (*{2} > *){2} > *?){0,3} > *.9) & order=7", comb(100, 7) * 100**6),
    ],
)
def test_what_only_looks_large_is_compiled(text: str, count: int) -> None:
    started = time.process_time()

    assert LARGE.language.compile(text).count == count
    assert seconds(started) < 8


@pytest.mark.parametrize("text", ["0.7 > .. > 50.1", "..", "{^*.1}{40,50} > 99.1", "order=60"])
def test_the_first_paths_of_endless_sets_come_at_once(text: str) -> None:
    automaton = LARGE.language.compile(text)
    started = time.process_time()
    first, deep = list(islice(in_order(automaton), 500)), list(islice(depth_first(automaton), 500))

    assert seconds(started) < 4
    assert len(set(first)) == len(set(deep)) == 500
    assert all(automaton.accepts(*path) for path in first + deep)


def test_thousands_of_neurons_are_one_class() -> None:
    arch = Architecture(4, 12, mlp="frozen", neurons=3072)
    automaton = arch.language.compile(".. > mlp1.n17 > 2.3 > .. > mlp3")

    assert automaton.count == (13 * 3073 * 13) * (3073 * 13) * 3072
    assert automaton.size < 30
    tables = automaton.tables()
    # block 3 is the MLP of layer 1, block 7 that of layer 3
    assert [n for n, k in enumerate(tables.member[3]) if k >= 0] == [17]
    assert set(tables.member[7]) == {0}
    assert {len(row) for row in tables.move[7]} == {1}
