"""Random expressions against a brute-force set of paths, on every kind of small model."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from otimes.algebra.paths import (
    Automaton,
    depth_first,
    difference,
    example,
    head_word_counts,
    in_order,
    intersection,
    is_contained,
    overlap,
    parse_path,
    union,
)
from otimes.algebra.vocabulary import component_name
from otimes.errors import NotationError
from tests.algebra.paths.models import (
    NAMES,
    all_paths,
    architecture,
    expressions,
    model,
    repetitions,
)
from tests.oracles import path_language as oracle

SETTINGS = settings(
    max_examples=70,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def compiled(text: str, name: str) -> Automaton:
    """The set of paths; examples whose named heads cannot follow one another are passed over."""
    try:
        return architecture(name).language.compile(text)
    except NotationError as error:
        assume("cannot read it" not in str(error))
        raise


def named(automaton: Automaton, listing=in_order) -> list[oracle.Path]:
    sources = automaton.grid.sources
    return [
        oracle.Path(sources[source].name, tuple(map(component_name, components)))
        for source, components in listing(automaton)
    ]


@given(NAMES, st.data())
@SETTINGS
def test_an_expression_matches_what_brute_force_finds(name: str, data: st.DataObject) -> None:
    text = data.draw(expressions(name))
    automaton = compiled(text, name)
    expected = oracle.matching(text, model(name))

    assert named(automaton) == expected
    assert automaton.count == len(expected)
    assert automaton.is_empty == (not expected)
    assert bool(automaton) == bool(expected)
    orders = [sum(map(oracle.is_head, path.components)) for path in expected]
    assert list(automaton.order_counts) == [
        orders.count(k) for k in range(len(automaton.order_counts))
    ]
    first = example(automaton)
    assert (first is None) == (not expected)
    if first is not None:
        assert named(automaton, lambda _: [first]) == expected[:1]


@given(st.sampled_from(["deep", "plain", "frozen"]), st.data())
@settings(SETTINGS, max_examples=150)
def test_repetitions_of_repetitions(name: str, data: st.DataObject) -> None:
    text = data.draw(repetitions(name))

    assert named(compiled(text, name)) == oracle.matching(text, model(name))


@pytest.mark.parametrize("count", range(8))
def test_repetitions_as_long_as_the_model_is_deep(count: int) -> None:
    """Five blocks: the longest path has five components."""
    for text in (
        f"*{{{count}}}", f"*{{0,{count}}}", f"(*?){{{count}}}", f"(*{{2}}){{0,{count}}}",
        f"(*{{2,3}}){{0,{count}}}", f"(*{{1,{count + 1}}}){{2}}", f".. > (0.* > ..){{0,{count}}}",
        f"0.0{{0}} > *{{0,{count}}}", f"0.0{{0}} > *{{{count}}}",
    ):  # fmt: skip
        assert named(compiled(text, "deep")) == oracle.matching(text, model("deep")), text


@given(NAMES, st.data())
@SETTINGS
def test_membership_is_that_of_the_set(name: str, data: st.DataObject) -> None:
    automaton = compiled(data.draw(expressions(name)), name)
    everything = architecture(name).language.everything
    found = set(in_order(automaton))

    for path in in_order(everything):
        assert automaton.accepts(*path) == (path in found)


@given(NAMES, st.data())
@SETTINGS
def test_head_words_are_the_different_sequences_of_heads(name: str, data: st.DataObject) -> None:
    text = data.draw(expressions(name))
    automaton = compiled(text, name)
    words = {
        tuple(filter(oracle.is_head, path.components))
        for path in oracle.matching(text, model(name))
    }
    found = head_word_counts(automaton)

    assert sum(found) == len(words)
    assert all(number == sum(len(w) == k for w in words) for k, number in enumerate(found))


@pytest.mark.parametrize(
    "text",
    [
        "bias > ..", "bias[0.attn] > ..", "bias[1.0] > .. | bias[0.attn] > 1.0 > ..", "!embed & ..",
        "bias[0.1] > .. | pos > 1.0", "bias[0.0] > .. > 2.1 | bias[0.attn] > .. > 2.*",
        "order=1 & bias > .. | pos > 0.1 > 2.0", "bias[1.0] > 1.0 | bias[2.0] > 2.0",
    ],
)  # fmt: skip
def test_head_words_where_sources_enter_late(text: str) -> None:
    words = {path.components for path in oracle.matching(text, model("sources"))}
    found = head_word_counts(architecture("sources").language.compile(text))

    assert found == tuple(sum(len(word) == k for word in words) for k in range(4))


@pytest.mark.parametrize(
    "text", ["0.0 > 1.1 | 0.2 > 1.1 | 0.1 > 1.* | 0.3", "{0.1,0.3} > 1.0 | {0.0,0.2} > 1.*"]
)
def test_heads_are_listed_in_sequence_where_classes_interleave(text: str) -> None:
    found = compiled(text, "wide")

    assert named(found) == oracle.matching(text, model("wide"))
    walked = named(found, depth_first)
    assert walked == sorted(walked, key=lambda path: path.components)


@given(NAMES, st.data())
@SETTINGS
def test_depth_first_each_path_follows_its_longest_prefix(name: str, data: st.DataObject) -> None:
    automaton = compiled(data.draw(expressions(name)), name)
    order = data.draw(st.sampled_from([None, 0, 1, 2]))
    found = named(automaton, lambda a: depth_first(a, order))

    assert len(set(found)) == len(found)
    assert set(found) == set(
        named(automaton, lambda a: in_order(a, None if order is None else [order]))
    )
    # what is still open when a path comes: prefixes of it, and nothing that is closed comes again
    closed, stack = set[oracle.Path](), list[oracle.Path]()
    for path in found:
        while stack and not (
            stack[-1].source == path.source
            and path.components[: len(stack[-1].components)] == stack[-1].components
        ):
            closed.add(stack.pop())
        prefixes = {
            oracle.Path(path.source, path.components[:n]) for n in range(len(path.components))
        }
        assert not prefixes & closed
        stack.append(path)


@given(NAMES, st.data())
@SETTINGS
def test_two_sets_combine_as_sets(name: str, data: st.DataObject) -> None:
    texts = [data.draw(expressions(name, 3)) for _ in range(2)]
    left, right = (compiled(text, name) for text in texts)
    one, two = (set(named(automaton)) for automaton in (left, right))

    assert set(named(union(left, right))) == one | two
    assert set(named(intersection(left, right))) == one & two
    assert set(named(difference(left, right))) == one - two
    assert is_contained(left, right) == (one <= two)
    assert overlap(left, right) == (not one.isdisjoint(two))
    assert (left == right) == (one == two)


@given(NAMES, st.data())
@SETTINGS
def test_the_signs_mean_the_operations(name: str, data: st.DataObject) -> None:
    a, b = (data.draw(expressions(name, 3)) for _ in range(2))
    left, right = compiled(a, name), compiled(b, name)
    everything = compiled("..", name)

    assert compiled(f"({a}) | ({b})", name) == union(left, right)
    assert compiled(f"({a}) & ({b})", name) == intersection(left, right)
    assert compiled(f"!({a})", name) == difference(everything, left)
    assert compiled(f"!(({a}) | ({b}))", name) == compiled(f"!({a}) & !({b})", name)
    assert compiled(f"!(({a}) & ({b}))", name) == compiled(f"!({a}) | !({b})", name)
    assert compiled(f"!!({a})", name) == left
    assert compiled(f"({a}) & !({a})", name).is_empty


@given(NAMES, st.data())
@SETTINGS
def test_what_is_printed_parses_to_the_same_set(name: str, data: st.DataObject) -> None:
    text = data.draw(expressions(name))
    printed = str(parse_path(text))

    assert str(parse_path(printed)) == printed
    assert parse_path(printed) == parse_path(text)
    assert compiled(printed, name) == compiled(text, name)


@given(NAMES, st.data())
@SETTINGS
def test_the_automaton_is_minimal(name: str, data: st.DataObject) -> None:
    """As many states at each boundary as there are different things that can follow."""
    text = data.draw(expressions(name, 3))
    automaton, small = compiled(text, name), model(name)
    accepted = {(path.source, path.components) for path in oracle.matching(text, small)}
    futures: list[set[frozenset[tuple[str, ...]]]] = [set() for _ in automaton.boundaries]
    starts = {source.name: source for source in small.sources}
    for path in all_paths(name):
        source = starts[path.source]
        inside = int(source.inside is not None)
        for boundary in range(source.entry, len(futures)):
            before = [c for c in path.components[inside:] if small.block(c) < boundary]
            prefix = path.components[: inside + len(before)]
            follow = frozenset(
                components[len(prefix) :]
                for name_, components in accepted
                if name_ == path.source
                and components[: len(prefix)] == prefix
                and all(small.block(c) >= boundary for c in components[len(prefix) :])
            )
            futures[boundary].add(follow)

    assert [len(states) for states in automaton.boundaries] == [
        len(different - {frozenset()}) for different in futures
    ]


def test_the_comparison_can_fail() -> None:
    """The oracle tells apart expressions that differ in one path."""
    small = model("plain")

    assert oracle.matching("0.1 > .. > 3.0", small) != oracle.matching("0.1 > 3.0", small)
    assert oracle.matching("!0.1", small) == [p for p in small.paths() if p.components != ("0.1",)]
