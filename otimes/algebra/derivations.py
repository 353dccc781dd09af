"""Derivations: chains of expressions, each made from the one before by applying rules.

No step is written down: a step is what the rules do. Every step can be checked exactly, on explicit
matrices (:mod:`otimes.algebra.checking`), and so can a chain that somebody else wrote.

>>> from otimes.algebra import Id, pattern, tensor, weight
>>> from otimes.algebra.kinds import head
>>> from otimes.algebra.rules import DropIdentity, ExpandHead, FoldOV, MixedProduct
>>> derivation = (
...     Derivation(head("1.0"))
...     .everywhere(ExpandHead())
...     .everywhere(MixedProduct(), DropIdentity())
...     .everywhere(FoldOV())
... )
>>> print(derivation)
  h[1.0]
= (Id ⊗ W_O[1.0])(A[1.0] ⊗ Id)(Id ⊗ W_V[1.0])    (definition of h)
= A[1.0] ⊗ W_O[1.0] W_V[1.0]                     (mixed product, identity)
= A[1.0] ⊗ W_OV[1.0]                             (the OV circuit)
>>> derivation.check().holds
True

The first wrong step of a chain is named, with matrices that show it:

>>> A, B = pattern("A"), pattern("B")
>>> print(check_derivation([(A @ B).T, B.T @ A.T, A.T @ B.T]))
step 2 of 2 does not hold
Bᵀ Aᵀ ≠ Aᵀ Bᵀ: entry [0, 0] is -12 on the left and -4 on the right, where
  B = [-2 -2; 3 0]
  A = [3 -2; -1 1]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final, final

from otimes.algebra.checking import Checker, Counterexample
from otimes.algebra.definitions import NONE, Definitions, checked
from otimes.algebra.expressions import Expr, Factor
from otimes.algebra.node import named
from otimes.algebra.places import Place, apply_at, at, everywhere, replaced, why_not_at
from otimes.algebra.rules.base import Preserves, Rule
from otimes.errors import (
    InputError,
    LimitError,
    NotationError,
    OtimesError,
    TypeMismatchError,
    UnsupportedError,
)

_WEAKEST_FIRST: Final[tuple[Preserves, ...]] = ("spectrum", "gauge", "value")


@final
@dataclass(frozen=True)
class Step:
    """``before`` became ``after`` by ``rules``, in this order."""

    rules: tuple[Rule, ...]
    before: Expr
    after: Expr

    @property
    def rule(self) -> str:
        """The names of the rules."""
        return ", ".join(rule.name for rule in self.rules)

    @property
    def preserves(self) -> Preserves:
        """What the step leaves the same: the weakest of what its rules do."""
        kept: set[Preserves] = {rule.preserves for rule in self.rules}
        return next(preserves for preserves in _WEAKEST_FIRST if preserves in kept)


@final
@dataclass(frozen=True)
class DerivationCheck:
    """Whether all steps of a chain hold.

    ``first_bad`` is the number of the first step that does not, counted from 0, and
    ``counterexample`` the matrices that show it; ``reason`` stands where its sides do not even
    compare or do not parse. ``checked`` tells for each step whether it holds.
    """

    checked: tuple[bool, ...]
    counterexample: Counterexample | None = None
    reason: str | None = None

    @property
    def holds(self) -> bool:
        """Whether every step holds."""
        return all(self.checked)

    @property
    def first_bad(self) -> int | None:
        """The number of the first step that does not hold."""
        return None if self.holds else self.checked.index(False)

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        steps = len(self.checked)
        if self.first_bad is None:
            return f"all {steps} steps hold"
        shown = self.counterexample or self.reason
        return f"step {self.first_bad + 1} of {steps} does not hold\n{shown}"


@dataclass(frozen=True)
class Derivation:
    """A start, and steps that rules made from it.

    ``definitions`` are those of symbols that appear, beside the built-in ones.
    """

    start: Expr
    definitions: Definitions = field(default_factory=lambda: NONE, hash=False)
    steps: tuple[Step, ...] = ()

    @property
    def end(self) -> Expr:
        """The last expression."""
        return self.steps[-1].after if self.steps else self.start

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The start and what each step led to."""
        return (self.start, *(step.after for step in self.steps))

    def apply(self, rule: Rule, place: Place = ()) -> Derivation:
        """Apply a rule at a place of the last expression.

        Raises:
            UnsupportedError: with the rule's reason, where it does not apply.
        """
        return self._with((rule,), apply_at(rule, self.end, place))

    def everywhere(self, *rules: Rule, within: Iterable[Place] = ((),)) -> Derivation:
        """Apply rules wherever they apply, in turn until none does, as one step.

        Args:
            rules: the rules; the first must apply.
            within: the places inside which they are applied; by default the whole.

        Raises:
            UnsupportedError: where the first of them applies nowhere.
        """
        return self._everywhere(rules, within, None)

    def _everywhere(
        self, rules: tuple[Rule, ...], within: Iterable[Place], first: Expr | None
    ) -> Derivation:
        after = self.end
        fired = set[Rule]()
        for place in within:
            part = at(after, place)
            once = everywhere(rules[0], part) if first is None else first
            if once == part:
                why = why_not_at(rules[0], part, ())
                raise UnsupportedError(
                    f"the rule {rules[0].name!r}, {rules[0].identity}, applies nowhere in {part}: "
                    f"{why}"
                )
            fired.add(rules[0])
            after = replaced(after, place, _until_stable(rules, once, fired))
        return self._with(tuple(rule for rule in rules if rule in fired), after)

    def where_possible(self, *rules: Rule) -> Derivation:
        """As :meth:`everywhere`, and the derivation itself where the first applies nowhere."""
        once = everywhere(rules[0], self.end)
        return self if once == self.end else self._everywhere(rules, [()], once)

    def check(self) -> DerivationCheck:
        """Check every step exactly, on explicit matrices."""
        return self._check

    @cached_property
    def _check(self) -> DerivationCheck:
        return check_derivation(self.expressions, self.definitions)

    def to_json(self) -> dict[str, object]:
        """Steps as ``rule``, ``before``, ``after`` and ``checked``; LaTeX, and what symbols are."""
        steps = zip(self.steps, self.check().checked, strict=True)
        rows = [
            {
                "rule": step.rule,
                "before": str(step.before),
                "after": str(step.after),
                "checked": held,
            }
            for step, held in steps
        ]
        symbols = {name: repr(symbol) for name, symbol in self.symbols.items()}
        return {"steps": rows, "latex": self.latex, "symbols": symbols}

    @property
    def symbols(self) -> dict[str, Factor]:
        """All factors by name: the context in which each of its expressions parses back."""
        return named(factor for expr in self.expressions for factor in expr.factors)

    @property
    def markdown(self) -> str:
        """A numbered list, with each expression as displayed mathematics."""
        from otimes.algebra.showing import markdown

        return markdown(self)

    @property
    def latex(self) -> str:
        """An ``align*`` environment (of the package amsmath), one line for each step."""
        from otimes.algebra.showing import align

        return align(self)

    def _repr_latex_(self) -> str:
        return self.latex

    def _repr_markdown_(self) -> str:
        return self.markdown

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __str__(self) -> str:
        from otimes.algebra.showing import plain

        return plain(self)

    def _with(self, rules: tuple[Rule, ...], after: Expr) -> Derivation:
        definitions = dict(self.definitions)
        for rule in rules:
            definitions.update(rule.definitions)
        return Derivation(self.start, definitions, (*self.steps, Step(rules, self.end, after)))


def _until_stable(rules: tuple[Rule, ...], expr: Expr, fired: set[Rule]) -> Expr:
    """Apply rules in turn until none changes anything; ``fired`` takes those that did."""
    while True:
        before = expr
        for rule in (*rules[1:], rules[0]):
            now = everywhere(rule, expr)
            if now != expr:
                fired.add(rule)
            expr = now
        if expr == before:
            return expr


def _read(step: Expr | str, context: object) -> Expr | OtimesError:
    """A step, or the error that says why its text is none."""
    if isinstance(step, Expr):
        return step
    from otimes.algebra.parsing import parse

    try:
        return parse(step, context)
    except (NotationError, LimitError) as error:
        return error


def check_derivation(
    steps: Derivation | Iterable[Expr | str],
    definitions: Definitions = NONE,
    context: object = None,
) -> DerivationCheck:
    """Check a chain of expressions: each must have exactly the value of the one before.

    Args:
        steps: a derivation, or the expressions of a chain, from wherever they come; texts are
            parsed.
        definitions: of symbols, beside the built-in ones such as ``W_OV = W_O W_V``.
        context: what symbols the texts have, as for :func:`~otimes.algebra.parsing.parse`.

    Returns:
        ``.holds``, ``.first_bad``, and a counterexample for that step: explicit small matrices, or
        the reason why a text is no expression.

    Raises:
        InputError: for a chain without any expression, or what is no chain.
        LimitError: with the number of the step, where one is not decided: its sides agree on small
            matrices, and those that would decide are too large.
    """
    if isinstance(steps, Derivation):
        return steps.check()
    if isinstance(steps, Expr | str) or not isinstance(steps, Iterable):
        raise InputError(
            f"a chain is a list of expressions or texts, or a Derivation, not {steps!r}"
        )
    chain = [_read(step, context) for step in steps]
    if not chain:
        raise InputError("there is nothing to check: the chain has no expression")
    if len(chain) == 1 and isinstance(chain[0], OtimesError):
        raise chain[0]
    checked(definitions)
    checker = Checker(definitions)
    held = list[bool]()
    found: Counterexample | None = None
    reason: str | None = None
    for number, (before, after) in enumerate(pairwise(chain), 1):
        unread = next((str(side) for side in (before, after) if isinstance(side, Exception)), None)
        good, why = False, unread
        if isinstance(before, Expr) and isinstance(after, Expr):
            try:
                good = checker.holds(before, after)
            except TypeMismatchError as error:
                why = str(error)
            except LimitError as error:
                raise LimitError(
                    f"step {number} of {len(chain) - 1} is not decided: {error}",
                    error.count,
                    error.limit,
                ) from None
            if not good and why is None and all(held):
                found = checker.counterexample(before, after)
        if not good and all(held):
            reason = why
        held.append(good)
    return DerivationCheck(tuple(held), found, reason)
