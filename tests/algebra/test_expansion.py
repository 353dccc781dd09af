"""The sum over paths: counted, iterated, named, found; and literal paths with their errors."""

from __future__ import annotations

import pickle
import sys
import tracemalloc
from itertools import islice
from math import comb, prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otimes.algebra import Architecture, PathSum, PathTerm, Product
from otimes.algebra.expansion import DEFAULT_LIMIT
from otimes.errors import LimitError, NotationError, UnknownComponentError

heads = st.lists(st.integers(0, 4), max_size=5).map(tuple)
biases = st.sets(st.sampled_from(["b_Q", "b_K", "b_V", "b_O", "b_U"]))
architectures = st.builds(
    lambda heads, positions, biases: Architecture(
        len(heads), heads, positions=positions, biases=biases
    ),
    heads,
    st.sampled_from(["none", "learned", "shortformer"]),
    biases,
)


def test_two_layers_of_twelve_heads() -> None:
    paths = Architecture(2, 12).logits.expand()

    assert paths.count == 1 + 24 + 144 == len(paths) == len(list(paths))
    assert paths.order_counts == (1, 24, 144)
    assert paths.head_words == 169


@given(heads)
def test_one_source_has_a_product_of_choices(sizes: tuple[int, ...]) -> None:
    assert Architecture(len(sizes), sizes).logits.expand().count == prod(1 + n for n in sizes)


@given(st.integers(0, 30), st.integers(0, 30))
def test_orders_are_binomial(layers: int, number: int) -> None:
    counts = Architecture(layers, number).logits.expand().order_counts

    assert counts == tuple(comb(layers, k) * number**k for k in range(layers + 1))


@settings(max_examples=60)
@given(architectures)
def test_counted_is_iterated_is_closed_form(arch: Architecture) -> None:
    paths = arch.logits.expand()
    closed = 0
    for source in arch.sources:
        later = arch.heads[source.entry :]
        closed += prod(1 + n for n in later)
    assert paths.count == closed
    if paths.count > 4000:
        return
    found = list(paths)
    assert len({term.path for term in found}) == len(found) == closed
    assert (
        tuple(sum(term.order == k for term in found) for k in range(arch.layers + 1))
        == paths.order_counts
    )
    assert [t.order for t in found] == sorted(t.order for t in found)
    assert len({t.heads for t in found}) == paths.head_words
    assert all(paths.contains(term) for term in found)


@settings(max_examples=40)
@given(architectures, st.integers(-1, 6))
def test_one_order_is_a_part_of_the_whole(arch: Architecture, order: int) -> None:
    paths = arch.logits.expand()
    if paths.count > 1500:
        return
    part = paths.order(order)
    expected = [term.path for term in paths if term.order == order]

    assert [term.path for term in part] == expected
    assert part.count == len(expected)
    assert bool(part) == bool(expected)
    assert sorted(term.path for term in part.depth_first()) == sorted(expected)
    assert part.head_words == len({term.heads for term in part}) or not arch.sources


@settings(max_examples=40)
@given(architectures)
def test_depth_first_is_a_permutation_that_shares_prefixes(arch: Architecture) -> None:
    paths = arch.logits.expand()
    if paths.count > 1500:
        return
    walked = [(term.source.name, *term.heads) for term in paths.depth_first()]

    assert sorted(map(str, walked)) == sorted(str((t.source.name, *t.heads)) for t in paths)
    there, stack = set(walked), list[Any]()
    for path in walked:
        while stack and path[: len(stack[-1])] != stack[-1]:
            stack.pop()
        prefixes = (path[:length] for length in range(len(path) - 1, 0, -1))
        longest = next((prefix for prefix in prefixes if prefix in there), None)
        # the longest prefix was the last thing left on the stack
        assert (stack[-1] if stack else None) == longest
        stack.append(path)


@settings(max_examples=30)
@given(architectures)
def test_a_path_finds_its_term(arch: Architecture) -> None:
    paths = arch.logits.expand()

    for term in islice(paths, 200):
        assert paths[term.path] == term
        assert eval(repr(term), {"Architecture": Architecture}) == term
        assert pickle.loads(pickle.dumps(term)) == term
        assert hash(pickle.loads(pickle.dumps(term))) == hash(term)
        if len(arch.sources) == 1:
            assert paths[term.short_path] == term


def test_terms_say_what_they_are() -> None:
    paths = Architecture(2, 1).logits.expand()
    direct, first, last, virtual = paths

    assert [t.path for t in paths] == ["embed", "embed > 0.0", "embed > 1.0", "embed > 0.0 > 1.0"]
    assert [t.short_path for t in paths] == ["direct", "0.0", "1.0", "0.0 > 1.0"]
    assert [t.kind for t in paths] == ["direct", "head", "head", "virtual"]
    assert [t.order for t in paths] == [0, 1, 1, 2]
    assert str(virtual.pattern) == "A[1.0] A[0.0]"
    assert str(virtual.weight) == "W_U W_OV[1.0] W_OV[0.0] W_E"
    assert str(virtual) == str(virtual.operator) == str(virtual.expression)
    assert str(direct.pattern) == "Id"
    assert str(first) == "A[0.0] ⊗ W_U W_OV[0.0] W_E"
    assert last.latex == r"A^{1.0} \otimes W_{U} W_{OV}^{1.0} W_{E}"


def test_constants_enter_where_their_head_moves_them() -> None:
    arch = Architecture(2, 1, biases=["b_V", "b_O", "b_U"])
    shown = {term.path: str(term.expression) for term in arch.logits.expand()}

    assert shown["bias[0.0] > 0.0 > 1.0"] == (
        "(A[1.0] A[0.0] ⊗ W_U W_OV[1.0] W_O[0.0] b_V[0.0]) ones"
    )
    assert shown["bias[0.0] > 0.0"] == "(A[0.0] ⊗ W_U W_O[0.0] b_V[0.0]) ones"
    assert shown["bias[1.attn]"] == "(Id ⊗ W_U b_O[1]) ones"
    assert shown["bias[unembed]"] == "(Id ⊗ b_U) ones"
    assert shown["embed"] == "(Id ⊗ W_U W_E) t"


def test_ten_to_the_two_hundred_paths_are_counted_and_begun() -> None:
    paths = Architecture(100, 100).logits.expand()

    assert paths.count == 101**100
    assert [term.path for term in islice(paths, 3)] == ["embed", "embed > 0.0", "embed > 0.1"]
    assert next(islice(paths.order(100), 1)).order == 100
    assert next(paths.order(100).depth_first()).order == 100
    with pytest.raises(LimitError, match=r"about 10\^200 \(exactly \d+\) paths are more than len"):
        len(paths)
    with pytest.raises(LimitError, match="more than the limit of 10,000; ask for") as caught:
        paths.terms()
    assert (caught.value.count, caught.value.limit) == (101**100, DEFAULT_LIMIT)


def test_counts_beyond_what_python_writes_are_shown_by_magnitude() -> None:
    paths = Architecture(5000, 100).logits.expand()

    with pytest.raises(LimitError, match=r"about 10\^10021 terms"):
        paths.terms()
    assert str(paths).startswith("a sum over about 10^10021 paths")
    assert paths.count > sys.maxsize


def test_the_limit_of_terms() -> None:
    paths = Architecture(2, 12).logits.expand()

    assert len(paths.terms(169)) == 169
    with pytest.raises(LimitError, match="this sum has 169 terms, more than the limit of 168"):
        paths.terms(168)


def test_iteration_takes_constant_memory() -> None:
    paths = Architecture(12, 12).logits.expand().order(5)

    def peak(number: int) -> int:
        tracemalloc.start()
        for term in islice(paths, number):
            term.path  # noqa: B018
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(2000)  # the symbols of all heads are made once
    few, many = peak(2000), peak(50_000)

    assert many < few + 50_000


SPELT = {
    "plain": Architecture(3, 2),
    "different layers": Architecture(3, (3, 2, 4), positions="learned", token_types=True),
    "biases": Architecture(3, 2, biases=True),
    "parallel neurons": Architecture(2, 2, mlp="frozen", neurons=2, parallel=True),
    "multiplied logits": Architecture(3, 2, multipliers={"logits", "embed"}),
    "pre-norm": Architecture(2, 2, norm="layer", biases=True),
    "post-norm": Architecture(2, 2, norm="rms", norm_placement="post"),
}


@pytest.mark.parametrize("where", ["..", "order=2 | 1.* > 2.0", "(0.0 > 1.0 | 0.1 > 1.1) > .."])
@pytest.mark.parametrize("name", SPELT)
def test_words_made_while_iterating_are_those_of_the_path_alone(name: str, where: str) -> None:
    arch = SPELT[name]
    terms = list(arch.logits.expand().where(where if arch.layers > 2 else ".. > 1.1"))

    assert terms
    for term in terms:
        alone = PathTerm(arch, term.source, term.components)
        for found, expected in ((term.pattern, alone.pattern), (term.weight, alone.weight)):
            assert found == expected
            assert hash(found) == hash(expected)
            assert found.type == expected.type
            if isinstance(found, Product):
                built = Product(*found.args)
                assert (found, found.type, found.depth) == (built, built.type, built.depth)


def test_a_word_is_immutable() -> None:
    term = list(Architecture(2, 2).logits.expand())[-1]

    assert isinstance(term.weight, Product)
    with pytest.raises(AttributeError, match="Product is immutable; 'args' cannot be set"):
        term.weight.args = ()
    with pytest.raises(AttributeError, match="Product is immutable; 'type' cannot be deleted"):
        del term.weight.type


# literal paths --------------------------------------------------------------------------------

PLAIN = Architecture(13, 12)
FULL = Architecture(3, (2, 3, 2), positions="learned", biases=True)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("direct", ["embed"]),
        ("embed", ["embed"]),
        ("0.7", ["embed > 0.7"]),
        ("L0H7", ["embed > 0.7"]),
        ("0.7>1.4", ["embed > 0.7 > 1.4"]),
        ("  0.7  >  1.4  ", ["embed > 0.7 > 1.4"]),
        ("embed > 10.11 > 12.0", ["embed > 10.11 > 12.0"]),
    ],
)
def test_literal_paths(path: str, expected: list[str]) -> None:
    assert [term.path for term in PLAIN.logits.expand().where(path)] == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("0.1", ["embed > 0.1", "pos > 0.1", "bias[0.1] > 0.1"]),
        ("1.2", ["embed > 1.2", "pos > 1.2", "bias[0.attn] > 1.2", "bias[1.2] > 1.2"]),
        ("pos > 1.2", ["pos > 1.2"]),
        ("bias > 1.2", ["bias[0.attn] > 1.2", "bias[1.2] > 1.2"]),
        ("bias[0.1] > 0.1 > 2.0", ["bias[0.1] > 0.1 > 2.0"]),
        (
            "direct",
            ["embed", "pos", "bias[0.attn]", "bias[1.attn]", "bias[2.attn]", "bias[unembed]"],
        ),
        ("bias[unembed]", ["bias[unembed]"]),
    ],
)
def test_literal_paths_with_sources(path: str, expected: list[str]) -> None:
    found = FULL.logits.expand().where(path)

    assert sorted(term.path for term in found) == sorted(expected)
    assert found.count == len(expected)


def test_everything() -> None:
    assert FULL.logits.expand().where("..").count == FULL.logits.expand().count


@pytest.mark.parametrize(
    ("path", "position", "message"),
    [
        ("", 0, "an empty path; write 'direct'"),
        ("0.7 > ", 5, "a component is missing beside '>'"),
        ("> 0.7", 0, "a component is missing beside '>'"),
        ("1.4 > 0.7", 6, r"head 0\.7 is before 1\.4 and cannot read it"),
        ("1.4 > 1.5", 6, r"head 1\.5 is in the same layer as 1\.4"),
        ("direct > 1.4", 9, "'direct' is the path without a head; nothing can follow it"),
        ("0.7 > embed", 6, "embed is a source; a source stands in front of a path"),
        ("0.7 > x", 6, "expected a head such as 0.7 or a source such as embed, not 'x'"),
        ("frog", 0, "expected a head such as 0.7 or a source such as embed, not 'frog'"),
        ("0.7 1.4", 4, r"an operator is missing in front of '1\.4'"),
    ],
)
def test_literal_errors_point_at_the_character(path: str, position: int, message: str) -> None:
    with pytest.raises(NotationError, match=message) as caught:
        PLAIN.logits.expand().where(path)

    assert caught.value.position == position
    assert str(caught.value).endswith(f"\n  {path}\n  {' ' * position}^")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("13.0", r"no head 13\.0: the model has layers 0 to 12"),
        ("0.12", r"no head 0\.12: layer 0 has heads 0 to 11"),
        ("bias > 0.1", "no source 'bias' in this model; its sources are of the kinds embed"),
        ("mlp3 > 4.0", "no component mlp3: the MLPs of this model are absent"),
    ],
)
def test_what_the_model_does_not_have(path: str, message: str) -> None:
    with pytest.raises(UnknownComponentError, match=message):
        PLAIN.logits.expand().where(path)


@pytest.mark.parametrize("path", ["bias[0.1]", "bias[1.attn] > 0.1", "bias[unembed] > 0.1"])
def test_sources_that_cannot_be_read_there_have_no_path(path: str) -> None:
    assert FULL.logits.expand().where(path).is_empty


def test_one_path_or_an_error() -> None:
    paths = FULL.logits.expand()

    with pytest.raises(UnknownComponentError, match=r"'0\.1' matches 3 paths, not one .*name its"):
        paths["0.1"]
    with pytest.raises(UnknownComponentError, match=r"matches .* paths, not one"):
        PLAIN.logits.expand()[".."]
    with pytest.raises(UnknownComponentError, match=r"'0\.7' matches .* paths, not one"):
        PLAIN.logits.expand().order(2)["0.7"]
    assert PLAIN.logits.expand().order(1)["0.7"].path == "embed > 0.7"


@settings(max_examples=200)
@given(st.text(max_size=20))
def test_any_text_is_a_path_or_a_named_error(text: str) -> None:
    position = 0
    try:
        FULL.language.compile(text)
    except NotationError as error:
        position = error.position
    except UnknownComponentError:
        pass

    assert 0 <= position <= len(text)


def test_sums_and_terms_are_values() -> None:
    assert PathSum(FULL) == FULL.logits.expand()
    assert pickle.loads(pickle.dumps(PathSum(FULL))).count == PathSum(FULL).count
    a, b = Architecture(2, 2).logits.expand()["0.1"], Architecture(3, 2).logits.expand()["0.1"]
    assert a != b
    assert a != "embed > 0.1"
    assert not Architecture(2, 2).logits.expand().contains(b)
    arch = Architecture(2, 2)
    wrong = PathTerm(arch, arch.sources[0], ((1, 0), (0, 0)))
    absent = PathTerm(arch, arch.sources[0], ((0, 2),))
    assert not arch.logits.expand().contains(wrong)
    assert not arch.logits.expand().contains(absent)


@pytest.mark.parametrize(
    "arch", [Architecture(1, 2), Architecture(2, 1), Architecture(1, 1, norm="rms")], ids=repr
)
def test_the_derivation_ends_in_the_sum_over_paths(arch: Architecture) -> None:
    from otimes.algebra import Sum, equivalent

    derivation = arch.logits.derive()
    paths = Sum(*(term.expression for term in arch.logits.expand()))

    assert equivalent(derivation.steps[-1].after, paths).holds
    assert not equivalent(derivation.steps[-1].after, Sum(*paths.args[:-1])).holds
