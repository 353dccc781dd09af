"""Literal paths as text: ``0.7 > 1.4``, ``pos > 0.3``, ``bias[0.attn] > 1.2``, ``direct``, ``..``.

A path is written in reading order, earliest first. One that names no source matches every source
that can reach its first component; ``direct`` is every source that reaches the output through no
component; ``..`` is everything. Where MLPs are frozen a neuron is a component, ``mlp3.n17``; where
they are not, ``mlp3`` is a source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from otimes.algebra.architecture import Architecture, Component, Head, Neuron, Source
from otimes.algebra.terms import DIRECT
from otimes.algebra.vocabulary import component_name
from otimes.errors import NotationError, UnknownComponentError

_HEAD = re.compile(r"L?(\d+)(?:\.|H)(\d+)")
_NEURON = re.compile(r"mlp(\d+)\.n(\d+)")
EVERYTHING = ".."


@dataclass(frozen=True)
class Selection:
    """A set of paths: ``components`` is None for all; otherwise exactly these, from ``sources``."""

    sources: tuple[Source, ...]
    components: tuple[Component, ...] | None

    @property
    def heads(self) -> tuple[Head, ...] | None:
        """The attention heads among the components."""
        if self.components is None:
            return None
        return tuple(c for c in self.components if not isinstance(c, Neuron))


def reaches(source: Source, components: Sequence[Component], arch: Architecture) -> bool:
    """Whether a path can start at ``source`` and go through exactly ``components``."""
    if source.component is not None:
        return bool(components) and components[0] == source.component
    if not components:
        return True
    return source.joins == "stream" and arch.words.block_of(components[0]) >= source.entry


def write_path(source: Source | None, components: Sequence[Component]) -> str:
    """Write a path, with its source unless that is None; ``direct`` is the path of neither."""
    parts = [source.name] if source is not None else []
    return " > ".join([*parts, *map(component_name, components)]) or DIRECT


def component(text: str) -> Component | None:
    """Read ``0.7``, ``L0H7`` or ``mlp3.n17``; None for anything else."""
    if match := _HEAD.fullmatch(text):
        return int(match[1]), int(match[2])
    if match := _NEURON.fullmatch(text):
        return Neuron(int(match[1]), int(match[2]))
    return None


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
        return Selection(tuple(s for s in sources if reaches(s, (), architecture)), ())
    if component(first) is None:
        sources = _named_sources(first, architecture, text, position)
        rest = pieces[1:]
    components = _components(rest, architecture, text)
    matching = tuple(s for s in sources if reaches(s, components, architecture))
    if not matching and len(sources) == 1:
        raise NotationError(
            f"no such path from {sources[0].name}: {_needs(sources[0], architecture)}",
            text,
            rest[0][1] if rest else 0,
        )
    return Selection(matching, tuple(components))


def _components(
    pieces: list[tuple[str, int]], architecture: Architecture, text: str
) -> list[Component]:
    found = list[Component]()
    for name, position in pieces:
        part = component(name)
        if part is None:
            raise NotationError(
                f"expected a head such as 0.7, not {name!r}"
                + ("; a source stands in front" if _is_source(name, architecture) else ""),
                text,
                position,
            )
        if isinstance(part, Neuron):
            architecture.check_neuron(part)
        else:
            architecture.check_head(part)
        if found:
            _check_order(found[-1], part, architecture, text, position)
        found.append(part)
    return found


def _check_order(
    earlier: Component, later: Component, arch: Architecture, text: str, position: int
) -> None:
    blocks = arch.words.block_of(earlier), arch.words.block_of(later)
    if blocks[0] < blocks[1]:
        return
    what = "neuron" if isinstance(later, Neuron) else "head"
    if blocks[0] > blocks[1]:
        why = "before"
    else:
        why = "in the same layer as" if arch.mlp is None else "in the same block as"
    raise NotationError(
        f"{what} {component_name(later)} is {why} {component_name(earlier)} and cannot read it; "
        "a path is written earliest first",
        text,
        position,
    )


def _needs(source: Source, arch: Architecture) -> str:
    if source.component is not None:
        return f"its paths begin '{source.name} > {component_name(source.component)}'"
    if source.joins != "stream":
        return "it is added to the logits directly, through no component"
    return f"it is written after layer {arch.blocks[source.entry - 1].layer}" + (
        "" if arch.mlp is None else f" or in it, by block {source.entry - 1}"
    )


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
    if re.fullmatch(r"mlp\d+", name) and architecture.mlp == "frozen":
        raise NotationError(
            f"{name} is frozen: name one of its neurons, such as {name}.n0", text, position
        )
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
