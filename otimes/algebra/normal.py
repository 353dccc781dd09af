"""The normal form: a noncommutative polynomial, one word for each slot.

Distributing everything, expanding definitions and applying the mixed-product property leaves a sum
of monomials ``c · (word ⊗ word)``. Symbols of several slots (the tokens ``t``, an undefined
operator) stand between such words, since they commute with no slot. Letters are factors or their
transposes; ``RᵀR`` of a rotation and ``ιᵢᵀιⱼ`` of a direct sum cancel, diagonals commute. Two
expressions that the rules can turn into one another have one normal form, whatever the order.

>>> from otimes.algebra import Id, pattern, tensor, weight
>>> A1, A2 = pattern("A1"), pattern("A2")
>>> W1, W2 = weight("W1", "d_model", "d_model"), weight("W2", "d_model", "d_model")
>>> print(normal_form((Id + tensor(A2, W2)) @ (Id + tensor(A1, W1))))
Id + A1 ⊗ W1 + A2 ⊗ W2 + A2 A1 ⊗ W2 W1
>>> print(normal_form((A2 @ A1).T - 2 * A1.T @ A2.T))
-A1ᵀ A2ᵀ
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final, NamedTuple, final

from otimes.algebra.definitions import NONE, Definitions, definition
from otimes.algebra.expressions import (
    Expr,
    Factor,
    Id,
    Identity,
    Product,
    Scaled,
    Sum,
    Tensor,
    Transpose,
    weight,
)
from otimes.algebra.kinds import inclusion
from otimes.algebra.stacked import Column, Row
from otimes.algebra.types import Type, summands
from otimes.errors import LimitError, UnsupportedError

MAX_MONOMIALS: Final = 100_000


class Letter(NamedTuple):
    """A factor, or its transpose."""

    factor: Factor
    transposed: bool = False


Word = tuple[Letter, ...]
Words = tuple[Word, ...]
"""One word for each slot."""


class Monomial(NamedTuple):
    """Words with symbols of several slots between them: ``words[0] symbols[0] words[1] …``."""

    words: tuple[Words, ...]
    symbols: tuple[Letter, ...] = ()


Terms = dict[Monomial, Fraction]
_IDENTITY: Final = Monomial(())


@final
@dataclass(frozen=True, eq=False)
class Polynomial:
    """A normal form: monomials with nonzero coefficients, and the type of the map."""

    type: Type
    terms: Mapping[Monomial, Fraction]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    @property
    def expression(self) -> Expr:
        """The polynomial written out, in a fixed order of its terms."""
        ordered = sorted(self.terms.items(), key=lambda item: _rank(item[0]))
        parts = [_scaled(c, _written(monomial)) for monomial, c in ordered]
        if not parts:
            return zero(self.type)
        return parts[0] if len(parts) == 1 else Sum(*parts)

    def minus(self, other: Polynomial) -> Polynomial:
        """The difference of two polynomials of one type."""
        left, right = self.terms.items(), other.terms.items()
        difference = _collect([*left, *((m, -c) for m, c in right)])
        return Polynomial(self.type, MappingProxyType(difference))

    def __str__(self) -> str:
        return str(self.expression)


def normal_form(expr: Expr, definitions: Definitions = NONE) -> Expr:
    """The expression written in its normal form; the same for all that the rules reach from it."""
    return polynomial(expr, definitions).expression


def polynomial(
    expr: Expr, definitions: Definitions = NONE, type_: Type | None = None
) -> Polynomial:
    """The normal form of a map as a polynomial.

    Args:
        expr: the map.
        definitions: of symbols, beside the built-in ones; all are expanded.
        type_: its type where the context knows more of it than the expression says.

    Raises:
        UnsupportedError: for a spectrum or a norm, which is not a map.
        LimitError: if there would be more than 100,000 monomials.
    """
    whole = expr.type if type_ is None else type_
    if not expr.type.is_map:
        raise UnsupportedError(
            f"{expr} is {expr.type}; only maps have a normal form, so take that of what is measured"
        )
    slots = 1 if whole.slots is None else len(whole.slots)
    normaliser = _Normaliser(slots, definitions)
    found = normaliser.terms(expr)
    # the identity is one monomial, whatever the number of slots that it stands for
    terms = {_IDENTITY if m == normaliser.one else m: c for m, c in found.items()}
    return Polynomial(whole, MappingProxyType(terms))


class _Normaliser:
    """Normal forms of maps of one number of slots."""

    def __init__(self, slots: int, definitions: Definitions) -> None:
        self.definitions = definitions
        self.one = Monomial((((),) * slots,))
        self._known = dict[Expr, Terms]()

    def terms(self, expr: Expr) -> Terms:
        known = self._known.get(expr)
        if known is None:
            known = self._known[expr] = self._terms(expr)
            if len(known) > MAX_MONOMIALS:
                raise LimitError(
                    f"the normal form has more than {MAX_MONOMIALS:,} monomials; compare parts of "
                    "the expression, or evaluate it on a model",
                    len(known),
                    MAX_MONOMIALS,
                )
        return known

    def _terms(self, expr: Expr) -> Terms:
        match expr:
            case Identity():
                return {self.one: Fraction(1)}
            case Factor():
                meaning = definition(expr, self.definitions)
                return self._letter(expr) if meaning is None else self.terms(meaning)
            case Scaled():
                return _collect((m, expr.coefficient * c) for m, c in self.terms(expr.arg).items())
            case Transpose():
                return _collect((_transposed(m), c) for m, c in self.terms(expr.arg).items())
            case Sum():
                return _collect(item for arg in expr.args for item in self.terms(arg).items())
            case Product():
                whole = {self.one: Fraction(1)}
                for arg in expr.args:
                    whole = self._times(whole, self.terms(arg))
                return whole
            case Tensor():
                return self._tensor(expr)
            case Row() | Column():
                return self._stack(expr)
            case _:
                raise UnsupportedError(f"no normal form for a {type(expr).__name__}")

    def _letter(self, factor: Factor) -> Terms:
        letter = Letter(factor)
        if len(factor.type.slots or ()) == 1:
            return {Monomial((((letter,),),)): Fraction(1)}
        return {Monomial(self.one.words * 2, (letter,)): Fraction(1)}

    def _times(self, left: Terms, right: Terms) -> Terms:
        if len(left) * len(right) > MAX_MONOMIALS:
            count = len(left) * len(right)
            raise LimitError(
                f"the normal form has about {count:,} monomials, more than {MAX_MONOMIALS:,}; "
                "compare parts of the expression, or evaluate it on a model",
                count,
                MAX_MONOMIALS,
            )
        products = ((_joined(a, b), c * d) for a, c in left.items() for b, d in right.items())
        return _collect((monomial, c) for monomial, c in products if monomial is not None)

    def _tensor(self, expr: Tensor) -> Terms:
        inner = _Normaliser(1, self.definitions)
        whole: list[tuple[Words, Fraction]] = [((), Fraction(1))]
        for arg in expr.args:
            # the one slot of an argument has words alone: symbols of several slots do not fit
            words = [(m.words[0][0], c) for m, c in inner.terms(arg).items()]
            whole = [((*ws, w), c * d) for ws, c in whole for w, d in words]
        return _collect((Monomial((words,)), c) for words, c in whole)

    def _stack(self, expr: Row | Column) -> Terms:
        # a column is Σ (Id ⊗ ι_i) block_i, a row its mirror image
        side = 1 if isinstance(expr, Row) else 0
        ends = [(arg.type.slots or (None,))[-1] for arg in expr.args]
        parts = [summands(slot[side]) for slot in ends if slot is not None]
        flat = [part for group in parts for part in group]
        found = list[tuple[Monomial, Fraction]]()
        start = 0
        for arg, group in zip(expr.args, parts, strict=True):
            for offset in range(len(group)):
                take = self._ending(inclusion(start + offset, *flat), transposed=bool(side))
                # a block that is itself stacked is taken apart by its own inclusions
                block = self.terms(arg)
                if len(group) > 1:
                    own = self._ending(inclusion(offset, *group), transposed=not side)
                    block = self._times(block, own) if side else self._times(own, block)
                found.extend(
                    (self._times(block, take) if side else self._times(take, block)).items()
                )
            start += len(group)
        return _collect(found)

    def _ending(self, factor: Factor, *, transposed: bool) -> Terms:
        before = ((),) * (len(self.one.words[0]) - 1)
        return {Monomial(((*before, (Letter(factor, transposed),)),)): Fraction(1)}


def _collect(items: Iterable[tuple[Monomial, Fraction]]) -> Terms:
    terms = Terms()
    for monomial, c in items:
        terms[monomial] = terms.get(monomial, Fraction(0)) + c
    return {monomial: c for monomial, c in terms.items() if c}


def _transposed(monomial: Monomial) -> Monomial:
    words = (tuple(map(_turned, ws)) for ws in monomial.words[::-1])
    return Monomial(tuple(words), tuple(map(_flip, monomial.symbols[::-1])))


def _turned(word: Word) -> Word:
    """The transpose of a word; letter by letter, since diagonals keep their order by name."""
    turned: Word = ()
    for letter in reversed(word):
        turned = _word(turned, (_flip(letter),)) or ()
    return turned


def _flip(letter: Letter) -> Letter:
    if letter.factor.kind == "diagonal":
        return letter
    return Letter(letter.factor, not letter.transposed)


def _joined(left: Monomial, right: Monomial) -> Monomial | None:
    """The product of two monomials, or None where it is zero."""
    middle = list[Word]()
    for a, b in zip(left.words[-1], right.words[0], strict=True):
        word = _word(a, b)
        if word is None:
            return None
        middle.append(word)
    words = (*left.words[:-1], tuple(middle), *right.words[1:])
    return Monomial(words, left.symbols + right.symbols)


def _word(left: Word, right: Word) -> Word | None:
    """Two words written as one, with what cancels between them; None where it is zero."""
    if not left or not right or not right[0].factor.kind:
        return left + right
    word = list(left)
    for letter in right:
        kind, before = letter.factor.kind, word[-1] if word else None
        if before is None or not kind or before.factor.kind != kind:
            word.append(letter)
        elif kind == "diagonal":
            at = len(word)
            while at and word[at - 1].factor.kind == kind and _name(word[at - 1]) > _name(letter):
                at -= 1
            word.insert(at, letter)
        elif kind == "rotation" and before == (letter.factor, not letter.transposed):
            word.pop()
        elif kind == "inclusion" and before.transposed and not letter.transposed:
            if before.factor is not letter.factor:
                return None
            word.pop()
        else:
            word.append(letter)
    return tuple(word)


def _name(letter: Letter) -> tuple[str, str, bool]:
    return (letter.factor.name, letter.factor.label, letter.transposed)


def _rank(monomial: Monomial) -> tuple[object, ...]:
    """Short words first, then by name: the order in which normal forms are written."""
    letters = [_name(letter) for ws in monomial.words for word in ws for letter in word]
    shape = [[len(word) for word in ws] for ws in monomial.words]
    names = [_name(symbol) for symbol in monomial.symbols]
    # last, for two factors of one name
    factors = [repr(letter.factor) for ws in monomial.words for word in ws for letter in word]
    factors += [repr(symbol.factor) for symbol in monomial.symbols]
    return len(letters), shape, letters, names, factors


def _written(monomial: Monomial) -> Expr:
    parts = list[Expr]()
    for k, ws in enumerate(monomial.words):
        words = [_word_expr(word) for word in ws]
        if any(word is not Id for word in words):
            parts.append(words[0] if len(words) == 1 else Tensor(*words))
        if k < len(monomial.symbols):
            parts.append(_letter_expr(monomial.symbols[k]))
    if not parts:
        return Id
    return parts[0] if len(parts) == 1 else Product(*parts)


def _word_expr(word: Word) -> Expr:
    letters = [_letter_expr(letter) for letter in word]
    if not letters:
        return Id
    return letters[0] if len(letters) == 1 else Product(*letters)


def _letter_expr(letter: Letter) -> Expr:
    return Transpose(letter.factor) if letter.transposed else letter.factor


def _scaled(coefficient: Fraction, expr: Expr) -> Expr:
    return expr if coefficient == 1 else Scaled(coefficient, expr)


def zero(type_: Type) -> Expr:
    """``0 Id`` where the type allows it, else zero times a map ``O`` of the type."""
    slots = type_.slots or ()
    parts = [Id if slot is None or slot[0] == slot[1] else weight("O", *slot) for slot in slots]
    if all(part is Id for part in parts):
        return Scaled(0, Id)
    return Scaled(0, parts[0] if len(parts) == 1 else Tensor(*parts))
