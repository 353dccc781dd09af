"""Path expressions as text; errors point at the character.

Repetition binds tightest, then ``>``, ``!``, ``&``, ``|``:

>>> for text in ("!0.7 > .. & order=2 | direct", "(0.7 | 1.4) > 2.1?"):
...     print(parse_path(text).root)
!0.7 > .. & order=2 | direct
(0.7 | 1.4) > 2.1?
>>> parse_path("0.7 > > 1.4")
Traceback (most recent call last):
    ...
otimes.errors.NotationError: a component is missing beside '>'
  0.7 > > 1.4
        ^
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from otimes.algebra.paths import syntax
from otimes.errors import LimitError, NotationError

MAX_LENGTH = 100_000
"""Characters of an expression."""
MAX_NESTING = 50
"""Depth of brackets in one another."""
MAX_DIGITS = 9
"""Digits of a number: no model and no repetition is that large, and int() has a limit too."""

_CLOSES = {")": "(", "}": "{", "]": "["}


@dataclass(frozen=True)
class PathExpression:
    """A path expression: the text it was read from, and its tree.

    ``str`` prints it canonically; expressions are equal when their trees are.
    """

    text: str
    root: syntax.Node

    def __str__(self) -> str:
        return str(self.root)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PathExpression) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"parse_path({str(self)!r})"


def parse_path(text: str) -> PathExpression:
    """Read a path expression; whether a model has what it names is checked when it is compiled.

    Raises:
        NotationError: pointing at the character, if it is no path expression.
        LimitError: if it is too long or nested too deeply.
    """
    if not isinstance(text, str):
        raise NotationError("a path is a text such as '0.7 > 1.4'", repr(text), 0)
    if not text.strip():
        raise NotationError(
            "an empty path; write 'direct' for the path without a head, or '..' for all", text, 0
        )
    text = re.sub(r"\s", " ", text)  # an error shows one line, with positions as they were
    _check_size(text)
    _check_brackets(text)
    # the parsing library is loaded when the first expression is read
    from otimes.algebra.paths.reader import read

    return PathExpression(text, read(text))


def _check_size(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise LimitError(
            f"a path expression of {len(text):,} characters; at most {MAX_LENGTH:,} are read",
            len(text),
            MAX_LENGTH,
        )
    for number in re.finditer(rf"\d{{{MAX_DIGITS + 1},}}", text):
        raise NotationError(f"a number of {len(number[0])} digits", text, number.start())


def _check_brackets(text: str) -> None:
    """Before the parser: it would point at where it gave up, not at the bracket without partner."""
    opened = list[int]()
    for position, character in enumerate(text):
        if character in "({[":
            opened.append(position)
            if len(opened) > MAX_NESTING:
                raise LimitError(
                    f"brackets are nested more than {MAX_NESTING} deep at character {position + 1}",
                    len(opened),
                    MAX_NESTING,
                )
        elif character in _CLOSES:
            if not opened:
                raise NotationError(f"'{character}' closes nothing", text, position)
            if text[opened[-1]] != _CLOSES[character]:
                raise NotationError(
                    f"'{character}' cannot close the '{text[opened[-1]]}' at character "
                    f"{opened[-1] + 1}",
                    text,
                    position,
                )
            opened.pop()
    if opened:
        raise NotationError(f"'{text[opened[-1]]}' is never closed", text, opened[-1])
