"""The path language by brute force: each path of a small model is tried against an expression.

An expression is read by a recursive descent of its own, and matched by trying every way to cut a
path in pieces: exponential, and plainly what the language's definition says. It knows no
automata, and nothing of otimes.

A model is a list of blocks, each a list of component names in order (``0.1``, ``mlp0.n2``), and a
list of sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple


class Source(NamedTuple):
    """A source: it can be read from block ``entry`` on; ``inside`` is its first component."""

    name: str
    kind: str
    entry: int
    inside: str | None = None


class Path(NamedTuple):
    """A source's name and the names of the components, earliest first."""

    source: str
    components: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """Blocks of component names, and sources; an ``entry`` behind all blocks: read by none."""

    blocks: tuple[tuple[str, ...], ...]
    sources: tuple[Source, ...]

    def paths(self) -> list[Path]:
        """Every path, in the sequence of :meth:`rank`."""
        found = list[Path]()
        for source in self.sources:
            first = () if source.inside is None else (source.inside,)
            found += [Path(source.name, first + rest) for rest in self._ways(source.entry)]
        return sorted(found, key=self.rank)

    def _ways(self, block: int) -> Iterator[tuple[str, ...]]:
        if block >= len(self.blocks):
            yield ()
            return
        for rest in self._ways(block + 1):
            yield rest
            for component in self.blocks[block]:
                yield (component, *rest)

    def block(self, component: str) -> int:
        """The block that a component stands in."""
        return next(n for n, block in enumerate(self.blocks) if component in block)

    def rank(self, path: Path) -> tuple[Any, ...]:
        """Where a path stands: by order, source, number of neurons, blocks, components."""
        source = next(n for n, s in enumerate(self.sources) if s.name == path.source)
        later = path.components[int(self.sources[source].inside is not None) :]
        numbers = [(self.block(c), is_head(c), self.blocks[self.block(c)].index(c)) for c in later]
        heads = [block for block, head, _ in numbers if head]
        neurons = [block for block, head, _ in numbers if not head]
        order = sum(map(is_head, path.components))
        return order, source, len(neurons), heads, neurons, [index for *_, index in numbers]


def is_head(component: str) -> bool:
    """Whether a component is an attention head."""
    return not component.startswith("mlp")


def matching(text: str, model: Model) -> list[Path]:
    """The paths that an expression matches, in the sequence of :meth:`Model.rank`."""
    return [path for path in model.paths() if matches(text, path, model)]


def matches(text: str, path: Path, model: Model) -> bool:
    """Whether an expression matches one path."""
    tree = _Reader(text).whole()
    source = next(s for s in model.sources if s.name == path.source)
    return _Matcher(model).front(tree, source, path.components)


def out_of_order(text: str, model: Model) -> bool:
    """Whether two named components are joined directly that cannot follow one another."""
    return _out_of_order(_Reader(text).whole(), model)


Tree = tuple[Any, ...]

_TOKEN = re.compile(
    r"\s*(order=\d+|[*\d]+\.[*\d]+|\.\.|\*|\d+|[A-Za-z]\w*(?:\.n\d+)?(?:\[[^\]]*\])?|.)"
)


class _Reader:
    """``("or", …)``, ``("and", …)``, ``("not", x)``, ``("then", …)``, ``("times", x, m, n)``, …"""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        assert token, "the expression ends too early"
        assert wanted in ("", token), f"{wanted!r} expected, not {token!r}"
        self.at += 1
        return token

    def whole(self) -> Tree:
        tree = self.either()
        assert not self.peek(), f"{self.peek()!r} is left over"
        return tree

    def _joined(self, kind: str, sign: str, part: Any) -> Tree:
        parts = [part()]
        while self.peek() == sign:
            self.take()
            parts.append(part())
        return parts[0] if len(parts) == 1 else (kind, *parts)

    def either(self) -> Tree:
        return self._joined("or", "|", self.both)

    def both(self) -> Tree:
        return self._joined("and", "&", self.other)

    def other(self) -> Tree:
        if self.peek() == "!":
            self.take()
            return ("not", self.other())
        return self._joined("then", ">", self.repeated)

    def repeated(self) -> Tree:
        tree = self.single()
        while self.peek() in ("?", "{"):
            if self.take() == "?":
                tree = ("times", tree, 0, 1)
                continue
            least = most = int(self.take())
            if self.peek() == ",":
                self.take()
                most = int(self.take())
            self.take("}")
            tree = ("times", tree, least, most)
        return tree

    def single(self) -> Tree:
        token = self.take()
        if token == "(":
            tree = self.either()
            self.take(")")
            return tree
        if token == "{":
            excluded = self.peek() == "^"
            if excluded:
                self.take()
            members = [self.single()]
            while self.peek() == ",":
                self.take()
                members.append(self.single())
            self.take("}")
            return ("set", excluded, members)
        if token.startswith("order="):
            return ("order", int(token[6:]))
        return ("name", re.sub(r"^L(\d+)H(\d+)$", r"\1.\2", token))


class _Matcher:
    def __init__(self, model: Model) -> None:
        self.model = model

    def _is_source(self, tree: Tree) -> bool:
        return tree[0] == "name" and any(tree[1] in (s.name, s.kind) for s in self.model.sources)

    def front(self, tree: Tree, source: Source, word: tuple[str, ...]) -> bool:
        """Whether a tree at the front of a path matches a source with these components."""
        kind = tree[0]
        if self._is_source(tree):
            return not word and tree[1] in (source.name, source.kind)
        if kind == "or":
            return any(self.front(part, source, word) for part in tree[1:])
        if kind == "and":
            return all(self.front(part, source, word) for part in tree[1:])
        if kind == "not":
            return not self.front(tree[1], source, word)
        if kind == "then":
            rest = tree[2] if len(tree) == 3 else ("then", *tree[2:])
            return any(
                self.front(tree[1], source, word[:cut]) and self.later(rest, word[cut:])
                for cut in range(len(word) + 1)
            )
        if kind == "times":
            _, part, least, most = tree
            if least == 0 and not word:
                return True
            if most == 0:
                return False
            rest = ("times", part, max(least - 1, 0), most - 1)
            return any(
                self.front(part, source, word[:cut])
                and ((cut == len(word) and least <= 1) or self.later(rest, word[cut:]))
                for cut in range(len(word) + 1)
            )
        return self.later(tree, word)

    def later(self, tree: Tree, word: tuple[str, ...]) -> bool:
        """Whether a tree behind the front matches these components."""
        kind = tree[0]
        if kind == "or":
            return any(self.later(part, word) for part in tree[1:])
        if kind == "and":
            return all(self.later(part, word) for part in tree[1:])
        if kind == "not":
            return not self.later(tree[1], word)
        if kind == "order":
            return sum(map(is_head, word)) == tree[1]
        if kind == "then":
            rest = tree[2] if len(tree) == 3 else ("then", *tree[2:])
            return any(
                self.later(tree[1], word[:cut]) and self.later(rest, word[cut:])
                for cut in range(len(word) + 1)
            )
        if kind == "times":
            return any(self._times(tree[1], word, n) for n in range(tree[2], tree[3] + 1))
        if kind == "set":
            hit = len(word) == 1 and any(self.later(member, word) for member in tree[2])
            return len(word) == 1 and hit != tree[1]
        return _name(tree[1], word)

    def _times(self, part: Tree, word: tuple[str, ...], times: int) -> bool:
        if times == 0:
            return not word
        return any(
            self.later(part, word[:cut]) and self._times(part, word[cut:], times - 1)
            for cut in range(len(word) + 1)
        )


def _name(name: str, word: tuple[str, ...]) -> bool:
    if name == "..":
        return True
    if name == "direct":
        return not word
    if len(word) != 1:
        return False
    if name == "*":
        return True
    component = word[0]
    if name.startswith("mlp"):
        return component == name or component.startswith(f"{name}.n")
    if not is_head(component):
        return False
    return all(
        wanted in ("*", own)
        for wanted, own in zip(name.split("."), component.split("."), strict=True)
    )


def _out_of_order(tree: Tree, model: Model) -> bool:
    if tree[0] == "then":
        names = [_named(part, model) for part in tree[1:]]
        for one, two in pairwise(names):
            if one and two and model.block(one) >= model.block(two):
                return True
    parts = [part for part in tree[1:] if isinstance(part, tuple)]
    return any(_out_of_order(part, model) for part in parts)


def _named(tree: Tree, model: Model) -> str:
    known = tree[0] == "name" and any(tree[1] in block for block in model.blocks)
    return tree[1] if known else ""
