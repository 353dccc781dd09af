"""Places in an expression, and rules applied there: at one place, or everywhere.

A place is the sequence of argument numbers that leads to it, ``()`` for the whole:

>>> from otimes.algebra import Id, tensor, pattern, weight
>>> from otimes.algebra.rules import DropIdentity, MixedProduct
>>> A, W = pattern("A"), weight("W", "d_model", "d_model")
>>> stages = tensor(A, Id) @ tensor(Id, W)
>>> mixed = apply_at(MixedProduct(), stages, ())
>>> print(mixed, places(DropIdentity(), mixed))
A Id ⊗ Id W [(0,), (1,)]
>>> print(apply_at(DropIdentity(), mixed, (1,)))
A Id ⊗ W
>>> print(everywhere(DropIdentity(), mixed))
A ⊗ W
"""

from __future__ import annotations

from typing import Final

from otimes.algebra.expressions import Expr
from otimes.algebra.rules.base import Refusal, Rule
from otimes.errors import LimitError, TypeMismatchError, UnsupportedError

Place = tuple[int, ...]

MAX_APPLICATIONS: Final = 1_000_000


def at(expr: Expr, place: Place) -> Expr:
    """The expression at a place.

    Raises:
        UnsupportedError: where there is no such place, with how far it leads.
    """
    for depth, number in enumerate(place):
        if not 0 <= number < len(expr.children):
            raise UnsupportedError(
                f"no place {place}: {expr}, at {place[:depth]}, has {len(expr.children)} arguments"
            )
        expr = expr.children[number]
    return expr


def replaced(expr: Expr, place: Place, new: Expr) -> Expr:
    """The expression with another one at a place; types are checked on the way up."""
    if not place:
        return new
    at(expr, place)
    children = list(expr.children)
    children[place[0]] = replaced(children[place[0]], place[1:], new)
    return expr.with_children(*children)


def why_not_at(rule: Rule, expr: Expr, place: Place) -> str | None:
    """Why a rule does not apply at a place; None where it does."""
    if place and rule.preserves != "value":
        return f"it preserves the {rule.preserves} alone, so it holds for a whole expression"
    return rule.why_not(at(expr, place))


def apply_at(rule: Rule, expr: Expr, place: Place) -> Expr:
    """The expression with the rule applied at a place.

    Raises:
        UnsupportedError: with the rule's reason, where it does not apply.
    """
    if place and rule.preserves != "value":
        raise UnsupportedError(
            f"the rule {rule.name!r} does not apply to a part: {why_not_at(rule, expr, place)}"
        )
    return replaced(expr, place, rule.apply(at(expr, place)))


def places(rule: Rule, expr: Expr) -> list[Place]:
    """All places where the rule applies, the whole first."""
    found: list[Place] = [()] if rule.why_not(expr) is None else []
    if rule.preserves != "value":
        return found
    for number, child in enumerate(expr.children):
        found.extend((number, *place) for place in places(rule, child))
    return found


def everywhere(rule: Rule, expr: Expr) -> Expr:
    """The expression with the rule applied, from the top down, until it applies nowhere.

    Raises:
        LimitError: for a rule that never comes to an end.
    """
    if rule.preserves != "value":
        return expr if rule.why_not(expr) else rule.apply(expr)
    known = dict[Expr, Expr]()
    applications = 0

    def visit(expr: Expr) -> Expr:
        if expr in known:
            return known[expr]
        now = expr
        while True:
            # the top first: a definition is then spliced into the word that it stands in
            now = rewritten(now)
            deeper = inside(now)
            if deeper is now:
                break
            now = deeper
        known[expr] = known[now] = now
        return now

    def rewritten(expr: Expr) -> Expr:
        nonlocal applications
        while not isinstance(result := rule.attempt(expr), Refusal) and result != expr:
            applications += 1
            if applications > MAX_APPLICATIONS:
                raise LimitError(
                    f"the rule {rule.name!r} was applied {applications:,} times without an end",
                    applications,
                    MAX_APPLICATIONS,
                )
            expr = result
        return expr

    def inside(expr: Expr) -> Expr:
        children = expr.children
        new = [visit(child) for child in children]
        if all(a is b for a, b in zip(new, children, strict=True)):
            return expr
        try:
            return expr.with_children(*new)
        except TypeMismatchError:
            # a block of a row needs a known space, which an identity in its place has not
            return expr

    return visit(expr)
