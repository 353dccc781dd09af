"""Path expressions as text: errors point at the character and say why; canonical printing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otimes.algebra import Architecture
from otimes.algebra.paths import parse_path
from otimes.errors import LimitError, NotationError, OtimesError, UnknownComponentError
from tests.algebra.paths.models import architecture, model
from tests.oracles import path_language as oracle

# `^` in the second line stands under the character that the error points at
SYNTAX = {
    ("", "^"): "an empty path; write 'direct' for the path without a head, or '..' for all",
    ("   ", "^"): "an empty path",
    ("0.7 >", "     ^"): "a component is missing beside '>'",
    ("> 0.7", "^"): "a component is missing beside '>'",
    ("0.7 > > 1.4", "      ^"): "a component is missing beside '>'",
    ("0.7 | ", "     ^"): "an alternative is missing beside '|'",
    ("0.7 & & 1.4", "      ^"): "an expression is missing beside '&'",
    ("!", " ^"): "an expression is missing beside '!'",
    ("0.7 1.4", "    ^"): "an operator is missing in front of '1.4': '>' joins, '|' and '&'",
    ("0.7 ! 1.4", "    ^"): "an operator is missing in front of '!': '|' or '&'",
    ("0.7 > !1.4", "      ^"): "'!' stands in front of a whole sequence; for a part of it write",
    ("(0.7", "^"): "'(' is never closed",
    ("0.7 | (1.4 > (0.1)", "      ^"): "'(' is never closed",
    ("0.7)", "   ^"): "')' closes nothing",
    ("(0.7}", "    ^"): "'}' cannot close the '(' at character 1",
    ("bias[0.7", "    ^"): "'[' is never closed",
    ("()", " ^"): "empty parentheses; the path without a component is 'direct'",
    ("{}", " ^"): "an empty set; '*' is any component",
    ("{0.7 > 1.4}", "     ^"): "such as 0.7, 0.*, *.3 or mlp3.n17, not '>'",
    ("{0.7, ..}", "      ^"): "a set lists single components such as",
    ("{embed}", " ^"): "not 'embed'; sources are combined with '|'",
    ("0.7{}", "    ^"): "a repetition is x?, x{2} or x{1,3}, not with '}'",
    ("0.7{1,2,3}", "       ^"): "a repetition is x?, x{2} or x{1,3}, not with ','",
    ("0.7{3,1}", "    ^"): "from 3 to 1 is no range",
    ("?", "^"): "nothing to repeat in front of '?'",
    ("3 > 1.4", "^"): "3 is no component; a head is LAYER.HEAD, such as 3.0",
    ("0.7 > $", "      ^"): "'$' is not part of a path expression",
    ("0.-1", "^"): "0 is no component",
    ("0.7 > head", "      ^"): "expected a head such as 0.7 or a source such as embed, not 'head'",
    ("order=", "     ^"): "'=' is not part of a path expression",
    ("0.12345678901", "  ^"): "a number of 11 digits",
}  # fmt: skip

MEANING = {
    ("0.7 > 0.3", "      ^"): "head 0.3 is in the same layer as 0.7 and cannot read it; a path is",
    ("1.4 > 0.7", "      ^"): "head 0.7 is before 1.4 and cannot read it; a path is written earlie",
    (".. | (embed > 1.4) > 0.7", "                     ^"): "head 0.7 is before 1.4",
    ("L1H4 > {0.7}", "       ^"): "head 0.7 is before 1.4",
    ("0.7 > 0.7", "      ^"): "head 0.7 is in the same layer as 0.7",
    ("2.1", "^"): "no head 2.1: the model has layers 0 to 1",
    ("0.7 > 1.12", "      ^"): "no head 1.12: layer 1 has heads 0 to 11",
    ("5.*", "^"): "no layer 5: the model has layers 0 to 1",
    ("0.1 | {1.1,*.12}", "           ^"): "no head *.12: no layer has more than 12 heads",
    ("pos > 0.7", "^"): "no source 'pos' in this model; its sources are of the kinds embed, for",
    ("!bias[0.7]", " ^"): "no source 'bias[0.7]' in this model",
    ("0.7 > embed", "      ^"): "embed is a source; a source stands in front of a path, once",
    ("embed{2}", "^"): "embed is a source; a source stands in front of a path, once",
    ("0.7? > embed", "       ^"): "embed is a source; a source stands in front of a path, once",
    ("direct > 0.7", "         ^"): "'direct' is the path without a head; nothing can follow it",
    ("embed > direct", "        ^"): "'direct' is the path without a head; nothing can be joined",
    ("0.7 > mlp0", "      ^"): "no component mlp0: the MLPs of this model are absent",
    ("mlp0.n3", "^"): "no component mlp0.n3: the MLPs of this model are absent",
}  # fmt: skip


def raised(text: str, arch: Architecture | None = None) -> NotationError:
    with pytest.raises(NotationError) as caught:
        parse_path(text) if arch is None else arch.language.compile(text)
    return caught.value


@pytest.mark.parametrize(("where", "message"), SYNTAX.items())
def test_what_is_no_expression_is_pointed_at(where: tuple[str, str], message: str) -> None:
    text, pointer = where
    error = raised(text)

    assert message in str(error)
    assert str(error).splitlines()[1:] == [f"  {text}", f"  {pointer}"]
    assert error.position == pointer.index("^")


@pytest.mark.parametrize(("where", "message"), MEANING.items())
def test_what_a_model_has_not_is_pointed_at(where: tuple[str, str], message: str) -> None:
    text, pointer = where
    error = raised(text, Architecture(2, 12))

    assert message in str(error)
    assert str(error).splitlines()[1:] == [f"  {text}", f"  {pointer}"]


def test_unknown_components_are_both_kinds_of_error() -> None:
    error = raised("0.7 > 2.1", Architecture(2, 12))

    assert isinstance(error, UnknownComponentError)
    assert (error.name, error.text, error.position) == ("2.1", "0.7 > 2.1", 6)


def test_an_mlp_that_is_a_source_is_no_component() -> None:
    arch = Architecture(2, 2, mlp="source")

    assert 'a source stands in front of a path, once; mlp="frozen" makes' in str(
        raised("0.1 > mlp1", arch)
    )
    for text in ("{0.1,mlp1}", "{mlp1}", "{mlp1,mlp1}", "0.1 > {mlp1}", "{mlp1} > 1.0", "{^mlp1}"):
        error = raised(text, arch)
        assert "the MLPs of this model are sources, and a set lists components; the" in str(error)
        assert error.position == text.index("mlp1")
    assert arch.language.compile("(mlp0 | mlp1) > ..").count == 4
    assert arch.language.compile("mlp0 > 1.1").count == 1


def test_neurons_that_cannot_follow() -> None:
    arch = Architecture(2, 2, mlp="frozen", neurons=2)

    assert arch.language.compile("{mlp1}") == arch.language.compile("mlp1")
    assert str(parse_path("{mlp1} > {1.0}")) == "{mlp1} > 1.0"
    assert "neuron mlp0.n1 is before 1.0" in str(raised("1.0 > mlp0.n1", arch))
    assert "head 0.1 is before mlp0.n1" in str(raised("mlp0.n1 > 0.1", arch))
    assert "no neuron mlp1.n2: layer 1 has neurons n0 to n1" in str(raised("mlp1.n2", arch))
    parallel = Architecture(2, 2, mlp="frozen", neurons=2, parallel=True)
    assert "in the same block as 0.1" in str(raised("0.1 > mlp0.n1", parallel))


@pytest.mark.parametrize(
    "text", ["1.4 > .. > 0.7", "{1.4,1.5} > 0.7", "1.4? > 0.3 & 1.*", "0.7{2}", "*{3}", "order=3"]
)
def test_other_empty_sets_have_count_0(text: str) -> None:
    assert Architecture(2, 12).language.compile(text).count == 0


@given(st.lists(st.sampled_from(["0.0", "1.1", "2.0", "3.0", "4.1", "..", "*"]), min_size=1))
@settings(max_examples=150, deadline=None)
def test_named_heads_out_of_order_are_refused_and_nothing_else(parts: list[str]) -> None:
    text = " > ".join(parts)
    if oracle.out_of_order(text, model("deep")):
        assert "cannot read it" in str(raised(text, architecture("deep")))
    else:
        architecture("deep").language.compile(text)


@given(
    st.text(st.sampled_from(list("01.*> |&!?{},^()[]LHmlp3n=order embdiats\n\t\0é²٣")), max_size=25)
)
@settings(max_examples=400, deadline=None)
def test_any_text_is_read_or_refused_with_a_position(text: str) -> None:
    try:
        printed, error = str(parse_path(text)), None
    except NotationError as refused:
        printed, error = "", refused

    if error is None:
        assert str(parse_path(printed)) == printed
    else:
        assert 0 <= error.position <= len(error.text)
        assert str(error).endswith(" " * error.position + "^")


CANONICAL = {
    "L0H7>L1H4": "0.7 > 1.4",
    "((0.7)) > (1.4 > 2.0)": "0.7 > 1.4 > 2.0",
    "1.4|0.7|1.4": "0.7 | 1.4",
    "0.10 | 0.9 | 10.2 | 9.2": "0.9 | 0.10 | 9.2 | 10.2",
    "{1.4, 0.7,0.7}": "{0.7,1.4}",
    "{^ 0.7 }": "{^0.7}",
    "{0.7}": "0.7",
    "!!0.7": "0.7",
    "!(0.7)": "!0.7",
    "!0.7 > 1.4": "!0.7 > 1.4",
    "(!0.7) > 1.4": "(!0.7) > 1.4",
    "(0.7 > 1.4)?": "(0.7 > 1.4)?",
    "0.7{0,1}": "0.7?",
    "0.7{1}": "0.7",
    "0.7{2,2}": "0.7{2}",
    "0.7{2}{3}": "(0.7{2}){3}",
    "..>..>0.7": ".. > 0.7",
    "(1.4 | 2.0) & 0.7": "0.7 & (1.4 | 2.0)",
    "(0.7 & 1.4) | 2.0": "0.7 & 1.4 | 2.0",
    "order = 2": "order=2",
    "bias[ L1H4 ] > ..": "bias[1.4] > ..",
    "mlp3.n17 > *.*": "mlp3.n17 > *.*",
}


@pytest.mark.parametrize(("text", "printed"), CANONICAL.items())
def test_the_canonical_text(text: str, printed: str) -> None:
    assert str(parse_path(text)) == printed
    assert str(parse_path(printed)) == printed
    assert repr(parse_path(text)) == f"parse_path({printed!r})"


def test_equal_expressions_are_equal_and_hash_alike() -> None:
    one, two = parse_path("0.7 | L1H4"), parse_path("(1.4)|(0.7)")

    assert one == two
    assert hash(one) == hash(two)
    assert one != parse_path("0.7 | 1.5")


def test_heads_of_13_layers_of_13_heads_round_trip() -> None:
    language = Architecture(13, 13).language
    for layer in range(13):
        for head in range(13):
            name = f"{layer}.{head}"
            automaton = language.compile(name)

            assert str(parse_path(name)) == name
            assert automaton.accepts(0, ((layer, head),))
            assert automaton.count == 1


def test_a_text_of_several_lines_is_one_line_in_the_error() -> None:
    error = raised("0.7 >\n\t$")

    assert str(error).splitlines()[1:] == ["  0.7 >  $", "         ^"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(" * 60 + "0.1" + ")" * 60, r"brackets are nested more than 50 deep at character 51"),
        ("0.1" + "{2}" * 60, r"repetitions are nested more than 20 deep"),
        ("0.1 | " * 20_000 + "0.1", r"a path expression of 120,003 characters"),
    ],
)
def test_what_no_one_writes_is_refused(text: str, message: str) -> None:
    with pytest.raises(LimitError, match=re.escape(message)):
        parse_path(text)


def test_a_thousand_signs_in_a_row_are_no_recursion() -> None:
    assert str(parse_path("!" * 10_001 + "0.1")) == "!0.1"
    assert str(parse_path("0.1" + "?" * 10_000)) == "0.1?"


def test_a_path_is_a_text() -> None:
    with pytest.raises(NotationError, match=r"a path is a text such as '0\.7 > 1\.4'"):
        parse_path(7)


def test_errors_are_errors_of_otimes() -> None:
    assert isinstance(raised("0.7 >"), OtimesError)
