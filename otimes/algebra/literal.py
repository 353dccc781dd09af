"""Literal paths as text: ``0.7 > 1.4``, ``pos > 0.3``, ``bias[0.attn] > 1.2``, ``direct``, ``..``.

A path is written in reading order, earliest first. One that names no source matches every source
that can reach its first head; ``direct`` is every source that reaches the output through no head;
``..`` is everything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from otimes.algebra.architecture import Architecture, Head, Source, head_name
from otimes.errors import NotationError, UnknownComponentError

_HEAD = re.compile(r"L?(\d+)(?:\.|H)(\d+)")
EVERYTHING = ".."
DIRECT = "direct"


@dataclass(frozen=True)
class Selection:
    """A set of paths: ``heads`` is None for all; otherwise exactly these, from ``sources``."""

    sources: tuple[Source, ...]
    heads: tuple[Head, ...] | None


def reaches(source: Source, heads: Sequence[Head]) -> bool:
    """Whether a path can start at ``source`` and go through exactly ``heads``."""
    if source.head is not None:
        return bool(heads) and heads[0] == source.head
    return not heads or heads[0][0] >= source.entry


def write_path(source: Source | None, heads: Sequence[Head]) -> str:
    """Write a path, with its source unless that is None; ``direct`` is the path of neither."""
    parts = [source.name] if source is not None else []
    return " > ".join([*parts, *map(head_name, heads)]) or DIRECT


def parse_literal(text: str, architecture: Architecture) -> Selection:
    """Read a literal path.

    Raises:
        NotationError: pointing at the character, if it is not a path of this architecture's kind
            or its heads are out of order.
        UnknownComponentError: for a head or a source that the architecture does not have.
    """
    if not isinstance(text, str):
        raise NotationError("a path is a text such as '0.7 > 1.4'", repr(text), 0)
    pieces = _pieces(text)
    if [name for name, _ in pieces] == [EVERYTHING]:
        return Selection(architecture.sources, None)
    sources = architecture.sources
    first, position = pieces[0]
    rest = pieces
    if first == DIRECT:
        if len(pieces) > 1:
            raise NotationError(
                "'direct' is the path without a head; nothing can follow it", text, pieces[1][1]
            )
        return Selection(tuple(s for s in sources if reaches(s, ())), ())
    if _HEAD.fullmatch(first) is None:
        sources = _named_sources(first, architecture, text, position)
        rest = pieces[1:]
    heads = list[Head]()
    for name, position in rest:
        match = _HEAD.fullmatch(name)
        if match is None:
            raise NotationError(
                f"expected a head such as 0.7, not {name!r}"
                + ("; a source stands in front" if _is_source(name, architecture) else ""),
                text,
                position,
            )
        head = int(match[1]), int(match[2])
        architecture.check_head(head)
        if heads and head[0] <= heads[-1][0]:
            why = "in the same layer as" if head[0] == heads[-1][0] else "before"
            raise NotationError(
                f"head {head_name(head)} is {why} {head_name(heads[-1])} and cannot read it; "
                "a path is written earliest first",
                text,
                position,
            )
        heads.append(head)
    matching = tuple(s for s in sources if reaches(s, heads))
    if not matching and len(sources) == 1:
        source = sources[0]
        needed = (
            f"its paths begin '{source.name} > {head_name(source.head)}'"
            if source.head is not None
            else f"it is written after layer {source.entry - 1}"
        )
        raise NotationError(
            f"no such path from {source.name}: {needed}", text, rest[0][1] if rest else 0
        )
    return Selection(matching, tuple(heads))


def _pieces(text: str) -> list[tuple[str, int]]:
    if not text.strip():
        raise NotationError(
            "an empty path; write 'direct' for the path without a head, or '..' for all", text, 0
        )
    pieces, start = list[tuple[str, int]](), 0
    for piece in text.split(">"):
        name = piece.strip()
        position = start + len(piece) - len(piece.lstrip())
        if not name:
            raise NotationError("a component is missing beside '>'", text, min(start, len(text)))
        pieces.append((name, position))
        start += len(piece) + 1
    return pieces


def _is_source(name: str, architecture: Architecture) -> bool:
    return any(name in (source.name, source.kind) for source in architecture.sources)


def _named_sources(
    name: str, architecture: Architecture, text: str, position: int
) -> tuple[Source, ...]:
    found = tuple(s for s in architecture.sources if name in (s.name, s.kind))
    if found:
        return found
    kinds = dict.fromkeys(s.kind for s in architecture.sources)
    if re.fullmatch(r"[\w.\[\]]+", name) and re.match(r"embed|pos|bias|type|mlp", name):
        raise UnknownComponentError(
            f"no source {name!r} in this model; its sources are of the kinds {', '.join(kinds)}, "
            f"for example {architecture.sources[-1].name!r}",
            name,
        )
    raise NotationError(
        f"expected a head such as 0.7 or a source ({', '.join(kinds)}), not {name!r}",
        text,
        position,
    )
