"""The grammar of path expressions, the reader that makes trees, and what it says of mistakes."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from otimes.algebra.paths import syntax
from otimes.errors import LimitError, NotationError

if TYPE_CHECKING:
    from collections.abc import Callable

GRAMMAR = r"""
?start: union

union: intersection ("|" intersection)*
intersection: negation ("&" negation)*
?negation: NOT negation -> complement
    | sequence
sequence: repetition (">" repetition)*

?repetition: primary
    | repetition "?" -> optional
    | repetition "{" INTEGER "}" -> exactly
    | repetition "{" INTEGER "," INTEGER "}" -> between

?primary: "(" union ")"
    | member
    | ANYTHING -> anything
    | ORDER -> order
    | set

set: BRACE member ("," member)* "}" -> included
    | BRACE "^" member ("," member)* "}" -> excluded

member: HEADS -> heads
    | STAR -> star
    | WORD -> word

NOT: "!"
BRACE: "{"
ANYTHING: ".."
STAR: "*"
HEADS.2: /([0-9]+|\*)\.([0-9]+|\*)/
ORDER.2: /order\s*=\s*[0-9]+/
INTEGER: /[0-9]+/
WORD: /[A-Za-z_]\w*(\.[A-Za-z_]\w*)?(\[[^\[\]]*\])?/

%ignore /\s+/
"""
MAX_REPEATS = 20
"""Repetitions of repetitions of …"""

_HEAD = re.compile(r"L([0-9]+)H([0-9]+)")
_MLP = re.compile(r"mlp([0-9]+)(?:\.n([0-9]+))?")
_MISSING = {">": "a component", "|": "an alternative", "&": "an expression", "!": "an expression"}
_SOURCE = re.compile(r"embed|pos|type|mlp|bias(\[.*\])?")
_MEMBERS = "0.7, 0.*, *.3 or mlp3.n17"


class _Rejected(Exception):  # noqa: N818 - it never leaves this module
    """What the grammar allows and the language does not."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


def read(text: str) -> syntax.Node:
    """The tree of a text whose brackets are balanced.

    Raises:
        NotationError: pointing at the character.
        LimitError: for repetitions nested too deeply.
    """
    try:
        return _parser()(text)
    except UnexpectedCharacters as error:
        position = error.pos_in_stream
        raise NotationError(
            f"{text[position]!r} is not part of a path expression", text, position
        ) from None
    except UnexpectedToken as error:
        message, position = _explained(text, error)
        raise NotationError(message, text, position) from None
    except _Rejected as error:
        raise NotationError(str(error), text, error.position) from None


@v_args(inline=True)
class _Reader(Transformer[Token, syntax.Node]):
    """Builds the tree while the text is read: without recursion, at any depth."""

    def union(self, *options: syntax.Node) -> syntax.Node:
        return syntax.union(options)

    def intersection(self, *options: syntax.Node) -> syntax.Node:
        return syntax.intersection(options)

    def complement(self, sign: Token, item: syntax.Node) -> syntax.Node:
        return syntax.complement(item, _at(sign))

    def sequence(self, *items: syntax.Node) -> syntax.Node:
        return syntax.sequence(items)

    def optional(self, item: syntax.Node) -> syntax.Node:
        return syntax.repeat(_shallow(item), 0, 1)

    def exactly(self, item: syntax.Node, count: Token) -> syntax.Node:
        return syntax.repeat(_shallow(item), int(count), int(count))

    def between(self, item: syntax.Node, least: Token, most: Token) -> syntax.Node:
        if int(least) > int(most):
            raise _Rejected(f"from {least} to {most} is no range", _at(least))
        return syntax.repeat(_shallow(item), int(least), int(most))

    def anything(self, token: Token) -> syntax.Node:
        return syntax.Anything(_at(token))

    def order(self, token: Token) -> syntax.Node:
        return syntax.Order(int(token.partition("=")[2]), _at(token))

    def included(self, brace: Token, *members: syntax.Node) -> syntax.Node:
        return syntax.one_of(_members(members), excluded=False, position=_at(brace))

    def excluded(self, brace: Token, *members: syntax.Node) -> syntax.Node:
        return syntax.one_of(_members(members), excluded=True, position=_at(brace))

    def heads(self, token: Token) -> syntax.Node:
        numbers = [None if n == "*" else int(n) for n in token.split(".")]
        return syntax.Heads(numbers[0], numbers[1], _at(token))

    def star(self, token: Token) -> syntax.Node:
        return syntax.AnyComponent(_at(token))

    def word(self, token: Token) -> syntax.Node:
        return _word(str(token), _at(token))


@cache
def _parser() -> Callable[[str], syntax.Node]:
    # with a transformer the parser answers with what that makes, not with a tree of its own
    parse = Lark(GRAMMAR, parser="lalr", transformer=_Reader()).parse
    return cast("Callable[[str], syntax.Node]", parse)


def _at(token: Token) -> int:
    return token.start_pos or 0


def _shallow(item: syntax.Node) -> syntax.Node:
    """Refuse repetitions of repetitions of … that no one could read."""
    depth, inner = 0, item
    while isinstance(inner, syntax.Repeat):
        depth, inner = depth + 1, inner.item
    if depth >= MAX_REPEATS:
        raise LimitError(
            f"repetitions are nested more than {MAX_REPEATS} deep", depth + 1, MAX_REPEATS
        )
    return item


def _members(nodes: tuple[syntax.Node, ...]) -> tuple[syntax.Member, ...]:
    found = list[syntax.Member]()
    for node in nodes:
        if not isinstance(node, syntax.Member):
            raise _Rejected(
                f"a set lists single components such as {_MEMBERS}, not {str(node)!r}; "
                "sources are combined with '|'",
                node.position,
            )
        found.append(node)
    return tuple(found)


def _word(name: str, position: int) -> syntax.Node:
    if name == "direct":
        return syntax.Direct(position)
    if match := _HEAD.fullmatch(name):
        return syntax.Heads(int(match[1]), int(match[2]), position)
    if match := _MLP.fullmatch(name):
        return syntax.Mlp(int(match[1]), int(match[2]) if match[2] else None, position)
    if _SOURCE.fullmatch(name):
        return syntax.SourceName(_bias(name), position)
    raise _Rejected(
        f"expected a head such as 0.7 or a source such as embed, not {name!r}", position
    )


def _bias(name: str) -> str:
    """``bias[ L1H4 ]`` as ``bias[1.4]``: each name in one way."""
    kind, bracket, rest = name.partition("[")
    inner = rest.rstrip("]").strip()
    if match := _HEAD.fullmatch(inner):
        inner = f"{int(match[1])}.{int(match[2])}"
    return f"{kind}[{inner}]" if bracket else kind


def _explained(text: str, error: UnexpectedToken) -> tuple[str, int]:
    """Why a token cannot stand where it stands, and where that is."""
    token, expected = error.token, error.expected
    ends = token.type == "$END"
    position = len(text.rstrip()) if ends else (token.start_pos or 0)
    shown = "the end" if ends else repr(str(token))
    before = text[:position].rstrip()[-1:]
    inside = text.rfind("{", 0, position) > text.rfind("}", 0, position)
    if inside and not expected & {"HEADS", "STAR"} and expected & {"INTEGER", "RBRACE"} == expected:
        return f"a repetition is x?, x{{2}} or x{{1,3}}, not with {shown}", position
    if inside:
        if token.type == "RBRACE" and before in ("{", "^"):
            return "an empty set; '*' is any component", position
        return f"a set lists single components such as {_MEMBERS}, not {shown}", position
    if "HEADS" not in expected:
        if str(token) == "!":
            return "an operator is missing in front of '!': '|' or '&'", position
        return (
            f"an operator is missing in front of {shown}: '>' joins, '|' and '&' combine",
            position,
        )
    if token.type == "INTEGER":
        return f"{token} is no component; a head is LAYER.HEAD, such as {token}.0", position
    if str(token) == "!":
        return "'!' stands in front of a whole sequence; for a part of it write (!x)", position
    if before in _MISSING and before:
        return f"{_MISSING[before]} is missing beside '{before}'", position
    if token.type == "RPAR":
        return "empty parentheses; the path without a component is 'direct'", position
    if str(token) in _MISSING:
        return f"{_MISSING[str(token)]} is missing beside '{token}'", position
    return f"nothing to repeat in front of {shown}", position
