r"""Blackboard notation, read: the inverse of :mod:`otimes.algebra.printing`.

In Unicode or ASCII: ``⊗`` or ``(x)``; ``ᵀ``, ``^T`` or ``.T``; ``W_OV[1.4]``, ``W_OV[L1H4]`` or
``W_OV^{1.4}``; products side by side or with ``·``, ``*`` or ``@``; an exact number in front of a
term, ``2/3 A``; ``R(j−i)``, ``R(j-i)``; ``[W1 | W2]`` and ``[W1; W2]`` for block matrices; ``λ(M)``
or ``eig(M)`` and ``‖M‖`` or ``||M||`` around a whole expression. ``ᵀ`` binds tightest, then
products, ``⊗``, numbers and sums.

>>> from otimes.algebra import Architecture, pattern, weight
>>> A1, A2 = pattern("A1"), pattern("A2")
>>> W1, W2 = weight("W1", "d_model", "d_model"), weight("W2", "d_model", "d_model")
>>> product = parse("(A2 (x) W2)(A1 (x) W1)", context=[A1, A2, W1, W2])
>>> print(product)
(A2 ⊗ W2)(A1 ⊗ W1)
>>> parse(str(product), context=product.symbols) == product
True
>>> print(parse("W_Q^{0.1}^T W_K[L0H1]", context=Architecture(1, 2)))
W_Q[0.1]ᵀ W_K[0.1]
>>> parse("(A2 ⊗ W3)(A1 ⊗ W1)", context=[A1, A2, W1, W2])
Traceback (most recent call last):
    ...
otimes.errors.NotationError: unknown symbol 'W3': do you mean W2 or W1?
  (A2 ⊗ W3)(A1 ⊗ W1)
        ^
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from otimes.algebra.contexts import Lookup, lookup, names
from otimes.algebra.expressions import Expr, Id, Product, Scaled, Sum, Tensor, Transpose
from otimes.algebra.measures import Eigenvalues, FrobeniusNorm
from otimes.algebra.node import MAX_DEPTH
from otimes.algebra.stacked import Column, Row
from otimes.errors import LimitError, NotationError, TypeMismatchError

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

MAX_LENGTH: Final = 20_000
"""How many characters are read; they take a few seconds."""
MAX_NESTING: Final = MAX_DEPTH + 2
"""How deep brackets nest: whatever an expression prints, a label and a measure included."""
_SHALLOW: Final = 40

_GRAMMAR: Final = r"""
start: sum                  -> whole
     | LAMBDA sum RPAR      -> eigenvalues
     | NORM sum NORM        -> norm
sum: [PLUS] addend ((PLUS | MINUS) addend)*
addend: [MINUS] [NUMBER [TIMES]] tensor
tensor: product (OTIMES product)*
product: transposed (TIMES? transposed)*
transposed: atom TRANSPOSE*
?atom: NAME                 -> symbol
     | LPAR sum RPAR        -> bracket
     | LPAR TIMES transposed RPAR    -> product_of_one
     | LBRA sum (BAR sum)+ RBRA      -> row
     | LBRA sum (SEMICOLON sum)+ RBRA -> column

NAME: /R(\[\w*\])?\(\s*j\s*[-−]\s*i\s*\)|[^\W\dᵀ][^\Wᵀ]*(\[[\w.]*\]|\^\{(?!T\})[\w.]+\})?/
NUMBER: /\d+(\/\d+)?/
OTIMES.2: "⊗" | "(x)"
LAMBDA.2: /(λ|eig)\(/
TRANSPOSE: "ᵀ" | "^T" | "^{T}" | ".T"
NORM: "‖" | "||"
PLUS: "+"
MINUS: "-" | "−"
TIMES: "·" | "*" | "@"
LPAR: "("
RPAR: ")"
LBRA: "["
RBRA: "]"
BAR: "|"
SEMICOLON: ";"
%ignore /\s+/
"""


def parse(text: str, context: object = None) -> Expr:
    """Read an expression.

    Args:
        text: blackboard notation, as ``str`` writes it or as one types it.
        context: what symbols there are: an architecture, an expression (its symbols), a mapping
            from names to expressions, or symbols; None for the standard symbols of a transformer,
            ``A[1.4]``, ``W_OV[1.4]``, ``W_U`` and the like, of any layer and head.

    Raises:
        NotationError: pointing at the character, for a text that does not parse, an unknown
            symbol, and for a product, sum or tensor product whose types do not fit.
    """
    if not isinstance(text, str):
        raise NotationError("an expression is a text such as 'A ⊗ W'", repr(text), 0)
    reader = _Reader(text, lookup(context), context)
    reader.check_brackets()
    return reader.read()


@lru_cache(maxsize=1)
def _parser() -> Lark:
    from lark import Lark

    return Lark(_GRAMMAR, parser="lalr", maybe_placeholders=True)


class _Reader:
    """One text on its way to an expression."""

    def __init__(self, text: str, find: Lookup, context: object) -> None:
        self.text, self.find, self.context = text, find, context
        self.nesting = 0
        self.done = dict[int, Expr]()

    def error(self, message: str, position: int) -> NotationError:
        # one line, so that the pointer stands below its character; a long text is shown in part
        shown, below = re.sub(r"\s", " ", self.text), position
        if len(shown) > 160:
            start = max(0, position - 70)
            message = f"{message} (at character {position})"
            shown, below = f"…{shown[start : start + 140]}…", position - start + 1
        found = NotationError(message, shown, below)
        found.text, found.position = self.text, position
        return found

    def check_brackets(self) -> None:
        """Point at the bracket that has no partner, and refuse what is absurdly large."""
        if len(self.text) > MAX_LENGTH:
            raise self.error(
                f"{len(self.text):,} characters are more than the {MAX_LENGTH:,} that are read; "
                "read the terms one by one and add them as expressions",
                0,
            )
        if not self.text.strip():
            raise self.error("an empty expression", 0)
        waiting = list[tuple[str, int]]()
        for position, character in enumerate(self.text):
            if character in "([{":
                waiting.append((character, position))
                self.nesting = max(self.nesting, len(waiting))
                if len(waiting) > MAX_NESTING:
                    raise self.error(f"brackets nest more than {MAX_NESTING} deep", position)
            elif character in ")]}":
                if not waiting:
                    raise self.error(f"this {character!r} closes nothing", position)
                opened, start = waiting.pop()
                if opened + character not in ("()", "[]", "{}"):
                    raise self.error(
                        f"this {character!r} does not close the {opened!r} at character {start}",
                        position,
                    )
        if waiting:
            raise self.error(f"this {waiting[-1][0]!r} is never closed", waiting[-1][1])

    def read(self) -> Expr:
        from lark.exceptions import UnexpectedCharacters, UnexpectedToken

        try:
            tree = _parser().parse(self.text)
        except UnexpectedCharacters as unexpected:
            position = unexpected.pos_in_stream
            raise self.error(
                f"unexpected character {self.text[position]!r}", position
            ) from unexpected
        except UnexpectedToken as unexpected:
            raise self._unexpected(unexpected.token) from unexpected
        if self.nesting > _SHALLOW:
            # the innermost first, so that reading does not recurse as deep as brackets nest
            for part in tree.iter_subtrees():
                if part.data == "sum":
                    self.done[id(part)] = self._sum(part)
        inner = self._sum(_trees(tree)[0])
        if tree.data == "whole":
            return inner
        measure = Eigenvalues if tree.data == "eigenvalues" else FrobeniusNorm
        return self._build(lambda: measure(inner), [inner], [0])

    def _unexpected(self, token: Token) -> NotationError:
        if token.type == "$END":
            return self.error(
                "the expression ends where a symbol is missing", len(self.text.rstrip())
            )
        position = token.start_pos
        assert position is not None
        if token.type == "NUMBER":
            return self.error("a number stands in front of a term, as in 2 A ⊗ W", position)
        return self.error(f"unexpected {str(token)!r}", position)

    def _build(self, make: Callable[[], Expr], args: list[Expr], positions: list[int]) -> Expr:
        """Make a node; where its types do not fit, point at the argument that does not."""
        try:
            return make()
        except LimitError as problem:
            raise self.error(str(problem), positions[0]) from problem
        except TypeMismatchError as problem:
            wrong = problem.left if problem.right is None else problem.right
            at = [p for arg, p in zip(args, positions, strict=True) if arg is wrong]
            raise self.error(str(problem), (at or positions)[-1]) from problem

    def _nary(self, node: type[Sum | Product | Tensor], parts: list[tuple[Expr, int]]) -> Expr:
        if len(parts) == 1:
            return parts[0][0]
        args = [expr for expr, _ in parts]
        return self._build(lambda: node(*args), args, [position for _, position in parts])

    def _sum(self, tree: Tree[Token]) -> Expr:
        done = self.done.get(id(tree))
        if done is not None:
            return done
        plus, first, *rest = list[Any](tree.children)
        parts = [self._addend(first, negative=False)]
        for sign, addend in zip(rest[::2], rest[1::2], strict=True):
            parts.append(self._addend(addend, negative=str(sign) != "+"))
        if plus is not None and len(parts) == 1:
            return Sum(parts[0][0])
        return self._nary(Sum, parts)

    def _addend(self, tree: Any, *, negative: bool) -> tuple[Expr, int]:
        minus, number, _, tensor = tree.children
        inner, position = self._tensor(tensor), _start(tree)
        coefficient = None if number is None else self._number(number)
        if minus is not None:
            coefficient = Fraction(-1) if coefficient is None else -coefficient
        if negative and minus is not None:  # "A - -B" has two signs
            assert coefficient is not None
            inner, coefficient = self._scaled(coefficient, inner, position), Fraction(-1)
        elif negative:
            coefficient = Fraction(-1) if coefficient is None else -coefficient
        if coefficient is None:
            return inner, position
        return self._scaled(coefficient, inner, position), position

    def _scaled(self, coefficient: Fraction, inner: Expr, position: int) -> Expr:
        return self._build(lambda: Scaled(coefficient, inner), [inner], [position])

    def _number(self, token: Token) -> Fraction:
        position = token.start_pos
        assert position is not None
        if len(token) > 1000:
            raise self.error("a number of more than 1,000 digits", position)
        try:
            return Fraction(str(token))
        except ZeroDivisionError as problem:
            raise self.error("a number with the denominator 0", position) from problem

    def _tensor(self, tree: Tree[Token]) -> Expr:
        parts = [(self._product(part), _start(part)) for part in _trees(tree)]
        return self._nary(Tensor, parts)

    def _product(self, tree: Tree[Token]) -> Expr:
        parts = [(self._transposed(part), _start(part)) for part in _trees(tree)]
        return self._nary(Product, parts)

    def _transposed(self, tree: Any) -> Expr:
        atom, *marks = tree.children
        inner, position = self._atom(atom), _start(atom)
        for _ in marks:
            inner = self._build(lambda arg=inner: Transpose(arg), [inner], [position])
        return inner

    def _atom(self, tree: Any) -> Expr:
        if tree.data == "symbol":
            return self._symbol(tree.children[0])
        parts = _trees(tree)
        if tree.data == "bracket":
            return self._sum(parts[0])
        if tree.data == "product_of_one":
            return Product(self._transposed(parts[0]))
        args = [self._sum(part) for part in parts]
        node = Row if tree.data == "row" else Column
        return self._build(lambda: node(*args), args, [_start(part) for part in parts])

    def _symbol(self, token: Token) -> Expr:
        typed, position = str(token), token.start_pos
        assert position is not None
        if typed == "Id":
            return Id
        name = re.sub(r"\^\{(.*)\}$", r"[\1]", typed)
        name = re.sub(r"\(\s*j.*i\s*\)$", "(j−i)", name)
        short = re.sub(r"\[L(\d+)H(\d+)\]$", r"[\1.\2]", name)
        for spelling in (name, short):
            found = self.find(spelling)
            if found is not None:
                return found
        raise self.error(f"unknown symbol {typed!r}{self._instead(name)}", position)

    def _instead(self, name: str) -> str:
        known = list(names(self.context))
        if not known:
            return (
                "; without a context the standard symbols are known, such as A[1.4] or W_U"
                if self.context is None
                else "; the context has no symbols"
            )
        close = get_close_matches(name, known[:5000], n=2, cutoff=0.5)
        if close:
            return f": do you mean {' or '.join(close)}?"
        few = ", ".join(known[:6])
        return f"; known are {few}{', …' if len(known) > 6 else ''}"


def _trees(tree: Any) -> list[Any]:
    """The children that are trees; tokens are punctuation."""
    return [child for child in tree.children if hasattr(child, "children")]


def _start(tree: Any) -> int:
    """Where a tree begins in the text."""
    while True:
        first = next(child for child in tree.children if child is not None)
        if not hasattr(first, "children"):
            return int(first.start_pos)
        tree = first
