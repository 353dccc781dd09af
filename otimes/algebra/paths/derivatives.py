r"""Regular expressions over components, and what is left of one after a component.

The derivative ``∂_c r`` of an expression is the set of words ``w`` such that ``c w`` is in ``r``
(Brzozowski 1964, *Derivatives of regular expressions*). It exists for complements and intersections
as for the rest:

- ``∂_c(r s) = (∂_c r) s``, and ``∂_c s`` besides where ``r`` has the empty word;
- ``∂_c(r | s) = ∂_c r | ∂_c s``, the same for ``&``, and ``∂_c(!r) = !(∂_c r)``;
- ``∂_c(r{m,n}) = (∂_c r) r{m-1,n-1}``.

Expressions are numbers: each different one is stored once, in a normal form (unions and
intersections are sets), so that the derivatives of one expression are finitely many. What a
component does depends only on which patterns match it, its *signature* (:class:`.grid.Classes`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from otimes.algebra.paths.grid import bits
from otimes.algebra.paths.store import UNBOUNDED, Lengths, Store, is_endless


class Expressions(Store):
    """Expressions over the components of a model with ``depth`` blocks."""

    def __init__(
        self, depth: int, latest: Sequence[int], subject: str, universal: Container[int] = ()
    ) -> None:
        """Prepare an empty store.

        Args:
            depth: the number of blocks.
            latest: for each pattern the last block with a component that it matches, or -1.
            subject: what an error names: the path expression that is compiled.
            universal: the patterns that match every component.
        """
        super().__init__(depth, latest, subject)
        self._universal = universal
        self._derived = dict[tuple[int, int], int]()
        self._alternatives = dict[int, tuple[dict[int, list[int]], list[int]]]()
        self._joined = dict[tuple[int, ...], int]()
        self._ends = dict[int, frozenset[int]]()
        self.some = self.join((self.one, self.anything))
        """Any components, one at least."""

    def atom(self, pattern: int) -> int:
        """One component that the pattern of this number matches."""
        if pattern in self._universal:
            return self.one
        return self._store("atom", (pattern,), nullable=False)

    def order(self, heads: int) -> int:
        """Sub-paths with exactly this many heads."""
        if heads > self.depth:
            return self.nothing
        return self._store("order", (heads,), nullable=heads == 0)

    def join(self, parts: Iterable[int]) -> int:
        """The words of the parts, one after another."""
        flat = list[int]()
        for part in parts:
            if part == self.nothing:
                return self.nothing
            flat += self._parts[part] if self._kinds[part] == "join" else (part,)
        asked = tuple(flat)
        found = self._joined.get(asked)
        if found is None:
            found = self._joined[asked] = self._join(flat)
        return found

    def _join(self, pieces: list[int]) -> int:
        self._spend(1 + len(pieces) // 4)  # quicker than what is done to the parts of a union
        flat = self._gathered(pieces) if len(pieces) > 1 else pieces
        if self.nothing in flat:  # more components than there are blocks
            return self.nothing
        if len(flat) < 2:
            return flat[0] if flat else self.empty
        nullable = all(self.nullable[part] for part in flat)
        return self._possible(self._store("join", tuple(flat), nullable=nullable))

    def _gathered(self, pieces: list[int]) -> list[int]:
        """A sequence in which neighbours such as ``.. > *? > * > ..`` are one, ``* > ..``.

        Beside ``..`` what has the empty word adds nothing: ``.. > x?`` and ``x? > ..`` are ``..``.
        """
        found = list[int | Lengths]()
        for piece in pieces:
            run = self._runs[piece]
            if run is None:
                if not (self.nullable[piece] and found and is_endless(found[-1])):
                    found.append(piece)
                continue
            while found and (
                isinstance(found[-1], tuple) or (is_endless(run) and self.nullable[found[-1]])
            ):
                before = found.pop()
                if isinstance(before, tuple):
                    run = self._together(before, run)
            found.append(run)
        return [part for item in found for part in self._written(item)]

    def _together(self, one: Lengths, two: Lengths) -> Lengths:
        most = one[1] + two[1]
        endless = UNBOUNDED in (one[1], two[1]) or most >= self.depth
        return one[0] + two[0], UNBOUNDED if endless else most

    def _written(self, item: int | Lengths) -> tuple[int, ...]:
        """A piece, or a run of any components as pieces: those that must be come first."""
        if isinstance(item, int):
            return (item,)
        least, most = item
        if most != UNBOUNDED:
            run = self.repeated(self.one, least, most)
            return () if run == self.empty else (run,)
        return (self.repeated(self.one, least, least), self.anything)[not least :]

    def either(self, parts: Iterable[int]) -> int:
        """The words of any part."""
        flat = self._flat("either", parts)
        flat.discard(self.nothing)
        bound = min((self._bound(part) for part in flat), default=self.depth + 1)
        if bound <= self.depth:
            # all words of a length have those that must be longer
            flat = {
                part for part in flat if self._fewest[part] < bound or self._bound(part) == bound
            }
            if bound == 0 or (bound == 1 and any(self.nullable[part] for part in flat)):
                return self.anything
        flat = self._widest(flat)
        if len(flat) < 2:
            return flat.pop() if flat else self.nothing
        nullable = any(self.nullable[part] for part in flat)
        return self._store("either", tuple(sorted(flat)), nullable=nullable)

    def _widest(self, options: set[int]) -> set[int]:
        """The options without those that end as one that begins with ``..`` goes on.

        ``.. > y`` has all words of ``x > y``, whatever x is. Without this a sequence with several
        ``..`` would keep a memory of all of them at once.
        """
        endings = dict[int, int]()
        for option in options:
            parts = self._parts[option]
            if self._kinds[option] == "join" and parts[0] == self.anything:
                endings[self.join(parts[1:])] = option
        if not endings:
            return options
        return {
            option
            for option in options
            if endings.keys().isdisjoint(ends := self._endings(option))
            or all(endings[end] == option for end in endings.keys() & ends)
        }

    def _endings(self, expression: int) -> frozenset[int]:
        """The expression and, of a sequence, what is left after each of its first parts."""
        found = self._ends.get(expression)
        if found is None:
            parts = self._parts[expression] if self._kinds[expression] == "join" else ()
            rest = [self.join(parts[number:]) for number in range(1, len(parts))]
            found = self._ends[expression] = frozenset((expression, *rest))
        return found

    def both(self, parts: Iterable[int]) -> int:
        """The words that all parts have."""
        flat = self._flat("both", parts)
        if self.nothing in flat:
            return self.nothing
        # that words have a number of components at least is said once, and only where it is news
        bounds = {part: bound for part in flat if (bound := self._bound(part)) <= self.depth}
        if bounds:
            flat -= bounds.keys()
            longest = max(bounds, key=bounds.__getitem__)
            if bounds[longest] > max((self._fewest[part] for part in flat), default=-1):
                flat.add(longest)
        if len(flat) < 2:
            return flat.pop() if flat else self.anything
        nullable = all(self.nullable[part] for part in flat)
        return self._possible(self._store("both", tuple(sorted(flat)), nullable=nullable))

    def _bound(self, part: int) -> int:
        """The n of ``*{n} > ..``, all words of n components and more; beyond depth for others."""
        if part == self.anything:
            return 0
        parts = self._parts[part]
        if self._kinds[part] == "join" and parts[1:] == (self.anything,):
            run = self._runs[parts[0]]
            if run is not None:
                return run[0]
        return self.depth + 1

    def _possible(self, part: int) -> int:
        return part if self.last[part] >= 0 else self.nothing

    def _flat(self, kind: str, parts: Iterable[int]) -> set[int]:
        flat = set[int]()
        for part in parts:
            inner = self._parts[part] if self._kinds[part] == kind else (part,)
            self._spend(len(inner))
            flat.update(inner)
        return flat

    def other(self, part: int) -> int:
        """The words that a part does not have."""
        if part == self.nothing:
            return self.anything
        if part == self.anything:
            return self.nothing
        if part in (self.empty, self.some):
            return self.some if part == self.empty else self.empty
        if self._kinds[part] == "other":
            return self._parts[part][0]
        return self._store("other", (part,), nullable=not self.nullable[part])

    def repeated(self, part: int, least: int, most: int) -> int:
        """From ``least`` to ``most`` words of a part, one after another."""
        if self.nullable[part]:
            least = 0
        elif least > self.depth:
            return self.nothing  # no path has so many components
        if most >= self.depth:
            most = UNBOUNDED
        if most == 0 or part == self.empty:
            return self.empty
        if part == self.nothing:
            return self.nothing if least else self.empty
        if part == self.anything or (least, most) == (1, 1):
            return part
        if (least, most) == (0, 1):
            return self.either((self.empty, part))
        if self._kinds[part] == "repeated":
            inner, fewest, largest = self._parts[part]
            # k times p to q are k p to k q; one repetition, if no number is left out between two k
            if largest == UNBOUNDED:
                whole = fewest <= 1 or least >= 1
            else:
                whole = least == most or fewest - 1 <= least * (largest - fewest)
            if whole:
                top = self.depth if UNBOUNDED in (most, largest) else most * largest
                return self.repeated(inner, least * fewest, top)
        return self._store("repeated", (part, least, most), nullable=least == 0)

    def derivative(self, expression: int, signature: int) -> int:
        """What may follow a component of this signature."""
        signature &= self._matters[expression]
        asked = expression, signature
        found = self._derived.get(asked)
        if found is None:
            found = self._derived[asked] = self._derive(expression, signature)
            self._spend(1)
        return found

    def possible(self, expression: int, block: int) -> int:
        """The expression without alternatives that cannot be begun behind a block any more."""
        if self._soonest[expression] > block:
            return expression
        if self.last[expression] <= block:
            return self.nothing
        options = self._parts[expression]
        left = [option for option in options if self.last[option] > block]
        # one by one, thousands of alternatives would be gone through for each block
        return self.either(left) if len(left) <= len(options) / 2 else expression

    def _derive(self, expression: int, signature: int) -> int:
        parts = self._parts[expression]
        match self._kinds[expression]:
            case "atom":
                return self.empty if signature >> (parts[0] + 1) & 1 else self.nothing
            case "anything":
                return self.anything
            case "one":
                return self.empty
            case "order":
                if not signature & 1:  # a neuron
                    return expression
                return self.order(parts[0] - 1) if parts[0] else self.nothing
            case "join":
                return self._derive_join(parts, signature)
            case "either":
                return self._derive_either(expression, signature)
            case "both":
                return self.both([self.derivative(part, signature) for part in parts])
            case "other":
                return self.other(self.derivative(parts[0], signature))
            case "repeated":
                part, least, most = parts
                fewer = self.depth if most == UNBOUNDED else most - 1
                rest = self.repeated(part, max(least - 1, 0), fewer)
                return self.join((self.derivative(part, signature), rest))
            case _:  # nothing, and the empty word
                return self.nothing

    def _derive_join(self, parts: tuple[int, ...], signature: int) -> int:
        found = list[int]()
        for number, part in enumerate(parts):
            first = self.derivative(part, signature)
            if first != self.nothing:
                found.append(self.join((first, *parts[number + 1 :])))
            if not self.nullable[part]:
                break
        return self.either(found)

    def _derive_either(self, expression: int, signature: int) -> int:
        by_pattern, others = self._options(expression)
        found = [self.derivative(part, signature) for part in others]
        # of thousands of alternatives only those are looked at that begin with a matching pattern
        for pattern in bits(signature >> 1):
            found += by_pattern.get(pattern, ())
        return self.either(found)

    def _options(self, expression: int) -> tuple[dict[int, list[int]], list[int]]:
        """What follows the first component of alternatives, by its pattern; and the others."""
        known = self._alternatives.get(expression)
        if known is None:
            by_pattern, others = dict[int, list[int]](), list[int]()
            for part in self._parts[expression]:
                first, *rest = self._parts[part] if self._kinds[part] == "join" else (part,)
                if self._kinds[first] == "atom":
                    by_pattern.setdefault(self._parts[first][0], []).append(self.join(rest))
                else:
                    others.append(part)
            known = self._alternatives[expression] = by_pattern, others
        return known
