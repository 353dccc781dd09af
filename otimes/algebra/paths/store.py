"""The store of regular expressions: each different one once, with what is known of it.

Expressions are numbers. Of each it is known whether it has the empty word, how many components its
words have at least, the last block before which one of them can begin, and which of the patterns
make a difference to it. What a path expression costs to compile is counted here and limited.
"""

from __future__ import annotations

from collections.abc import Sequence

from otimes.errors import LimitError

LIMIT = 250_000
"""Parts of expressions that may be gone through for a single path expression: about a second."""
UNBOUNDED = -1
"""The upper end of a repetition that no path of the model can exceed."""


Lengths = tuple[int, int]
"""How many components a run of any components has: the least and the most."""


def is_endless(item: int | Lengths) -> bool:
    """Whether an item is a run without an upper end."""
    return isinstance(item, tuple) and item[1] == UNBOUNDED


class Store:
    """Expressions over the components of a model with ``depth`` blocks."""

    def __init__(self, depth: int, latest: Sequence[int], subject: str) -> None:
        """Prepare an empty store.

        Args:
            depth: the number of blocks.
            latest: for each pattern the last block with a component that it matches, or -1.
            subject: what an error names: the path expression that is compiled.
        """
        self.depth, self.subject = depth, subject
        self._latest = latest
        self._ids = dict[tuple[str, tuple[int, ...]], int]()
        self._kinds = list[str]()
        self._parts = list[tuple[int, ...]]()
        self.nullable = list[bool]()
        """For each expression, whether it has the empty word."""
        self.last = list[int]()
        """For each expression, the last block before which it may still be begun."""
        self._soonest = list[int]()  # the same for the first alternative that cannot wait
        self._fewest = list[int]()  # how many components every word of it has at least
        self._matters = list[int]()  # the bits of signatures that make a difference
        self._runs = list[Lengths | None]()  # the lengths of what takes any components
        self._work = 0
        self.nothing = self._store("nothing", (), nullable=False)
        self.empty = self._store("empty", (), nullable=True)
        self.anything = self._store("anything", (), nullable=True)
        self.one = self._store("one", (), nullable=False)
        """Any one component."""

    def shape(self, expression: int) -> tuple[str, tuple[int, ...]]:
        """The kind of an expression and what it is made of: expressions, or numbers."""
        return self._kinds[expression], self._parts[expression]

    def has_empty(self, expression: int) -> bool:
        """Whether an expression has the empty word."""
        return self.nullable[expression]

    def _store(self, kind: str, parts: tuple[int, ...], *, nullable: bool) -> int:
        found = self._ids.get((kind, parts))
        if found is None:
            found = self._ids[kind, parts] = len(self._kinds)
            self._kinds.append(kind)
            self._parts.append(parts)
            self.nullable.append(nullable)
            fewest = 0 if nullable else self._fewest_of(kind, parts)
            self._fewest.append(fewest)
            self.last.append(self.depth if nullable else self._last_of(kind, parts))
            self._soonest.append(
                min(self.last[part] for part in parts) if kind == "either" else self.last[-1]
            )
            self._matters.append(self._mask_of(kind, parts))
            self._runs.append(self._run_of(kind, parts))
            self._spend(1 + len(parts) // 4)
        return found

    def _fewest_of(self, kind: str, parts: tuple[int, ...]) -> int:
        """How many components a word of an expression has at least."""
        match kind:
            case "order":
                return parts[0]
            case "join":
                return sum(self._fewest[part] for part in parts)
            case "either":
                return min(self._fewest[part] for part in parts)
            case "both":
                return max(self._fewest[part] for part in parts)
            case "repeated":
                return self._fewest[parts[0]] * parts[1]
            case _:  # without the empty word there is one component at least
                return 1

    def _last_of(self, kind: str, parts: tuple[int, ...]) -> int:
        """The last block before which a word of an expression can begin, -1 for none."""
        match kind:
            case "nothing":
                return -1
            case "atom":
                return self._latest[parts[0]]
            case "join":
                last = self.depth
                for part in reversed(parts):
                    last = min(self.last[part], last - self._fewest[part])
                return last
            case "either":  # it can wait for its last part
                return max(self.last[part] for part in parts)
            case "both":
                return min(self.last[part] for part in parts)
            case "repeated":
                return self.last[parts[0]] - (parts[1] - 1) * self._fewest[parts[0]]
            case _:
                return self.depth - self._fewest_of(kind, parts)

    def _mask_of(self, kind: str, parts: tuple[int, ...]) -> int:
        """The bits of a signature that make a difference."""
        match kind:
            case "nothing" | "empty" | "anything" | "one":
                return 0
            case "atom":
                return 2 << parts[0]
            case "order":
                return 1
            case "repeated":
                return self._matters[parts[0]]
            case _:
                matters = 0
                for part in parts:
                    matters |= self._matters[part]
                return matters

    def _run_of(self, kind: str, parts: tuple[int, ...]) -> Lengths | None:
        """The lengths of an expression that takes any components; None for others."""
        match kind:
            case "one":
                return 1, 1
            case "empty":
                return 0, 0
            case "anything":
                return 0, UNBOUNDED
            case "repeated" if parts[0] == self.one:
                return parts[1], parts[2]
            case "either" if parts == (self.empty, self.one):
                return 0, 1
            case _:
                return None

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > LIMIT:
            raise LimitError(
                f"{self.subject} grows beyond {LIMIT:,} parts when it is compiled",
                self._work,
                LIMIT,
            )
