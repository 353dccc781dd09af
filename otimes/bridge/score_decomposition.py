"""Attention scores of a run as sums over pairs of paths."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.algebra import PathSum
from otimes.algebra.scores import KINDS, ReadStream, Scores
from otimes.algebra.scores.terms import kind_of
from otimes.algebra.vocabulary import component_name, head_name
from otimes.bridge.binding import numbered
from otimes.bridge.indices import check_count, index_of
from otimes.bridge.run import Run
from otimes.bridge.trees import AttributionTree
from otimes.errors import InputError
from otimes.numeric.frozen import FrozenModel
from otimes.numeric.paths import path_logits
from otimes.numeric.score_sides import (
    LastPart,
    by_moved,
    largest_pairs,
    last_parts,
    side_model,
    side_target,
)
from otimes.numeric.scores import FrozenReader
from otimes.numeric.tree import PathTree
from otimes.results.scores import ScoreAttribution, ScoreShare

ENUMERATION_LIMIT = 4096
"""More paths than this on a side are grouped by their last component."""

_POSITION = "position"


def scores(
    run: Run,
    head: str | tuple[int, int],
    query: int,
    key: int,
    minus_key: int | None = None,
    *,
    top: int = 20,
    batch: int = 0,
    enumeration_limit: int = ENUMERATION_LIMIT,
) -> ScoreAttribution:
    """Split an attention score into its pairs of a query path and a key path, exactly.

    ``S[i, j] = scale Σ_a Σ_b q_a[i] · k_b[j]`` over the paths to the head's queries and those to
    its keys, their biases and positions among them ("A Mathematical Framework for Transformer
    Circuits", Elhage et al. 2021, "Path Expansion of Attention Scores QK Circuit"). The sums by
    kind cost one pass, whatever the number of paths.

    Args:
        run: a recorded run.
        head: ``1.4``, ``L1H4`` or (1, 4).
        query: the position of the query, from 0 or from the end.
        key: the position of the key.
        minus_key: the position of a key whose score is taken away: the terms then explain
            ``log A[i, j] − log A[i, j']``, the log-odds of the attention to the two keys.
        top: how many terms to show.
        batch: which sequence of the run.
        enumeration_limit: with more paths than this on a side, a side of a term is the sum over
            all paths that end with the same component, such as ``.. > 0.3``.

    Raises:
        NotationError, UnknownComponentError: for a head that the model does not have.
        InputError: for positions or a sequence that the run does not have, for keys that the
            query cannot attend to, and where the run is not finite.
    """
    config = run.model.config
    asked = run.model.architecture.scores(head, scale=config.attention_scale)
    sequence = index_of("sequence", batch, len(run.tokens))
    length = run.tokens.shape[1]
    at = index_of("query position", query, length)
    keys = [index_of("key position", key, length)]
    if minus_key is not None:
        keys.append(index_of("key position", minus_key, length))
    check_count("top", top, 0)
    check_count("enumeration_limit", enumeration_limit, 0)
    layer, number = asked.head
    for one in keys:
        _check_attended(run, asked, sequence, at, one)
    recorded = run.scores(layer)[sequence, number, at, keys]
    if not bool(torch.isfinite(run.stream(layer)).all() & torch.isfinite(recorded).all()):
        raise InputError(
            f"the scores of head {head_name(asked.head)} are not finite: the model's forward pass "
            "overflows on this input"
        )
    frozen = run.frozen()
    reader, model = frozen.readers[layer].sequence(sequence), frozen.model.sequence(sequence)
    sides = [
        _Side(
            stream,
            side_model(model, reader, query=query, head=number, boundary=len(stream.blocks)),
            reader,
            query=query,
            head=number,
        )
        for stream, query in ((asked.query_stream, True), (asked.key_stream, False))
    ]
    grouped = any(side.stream.paths.count > enumeration_limit for side in sides)
    several = any(len(side.stream.sources) > 1 for side in sides)
    last = [sides[0].last([at]), sides[1].last(keys)]
    shift = None if reader.shift is None else reader.shift[0, number, at, keys]
    by_kind = _by_kind(last, reader.scale, 0.0 if shift is None else float(_contrast(shift)))
    if not grouped:
        last = [sides[0].paths([at], several=several), sides[1].paths(keys, several=several)]
    sums = [part.vectors.sum(0) for part in last]
    terms = _largest(last, reader.scale, top)
    if shift is not None:
        terms.append(ScoreShare(_POSITION, _POSITION, _POSITION, by_kind[_POSITION]))
        terms = sorted(terms, key=lambda term: -abs(term.value))[:top]
    return ScoreAttribution(
        model=run.model.name,
        tokens=tuple(run.tokens[sequence].tolist()),
        texts=tuple(map(run.model.tokenizer.token_text, run.tokens[sequence].tolist())),
        head=head_name(asked.head),
        query=at,
        key=keys[0],
        minus_key=keys[1] if len(keys) > 1 else None,
        score=sum(by_kind.values()),
        by_kind=by_kind,
        terms=tuple(terms),
        pairs=asked.expand().count,
        grouped=grouped,
        recorded=float(_contrast(recorded)),
        attention=tuple(run.pattern(layer)[sequence, number, at, keys].tolist()),
        frozen=_held_fixed(run, layer),
        grow={
            "query": lambda: sides[0].tree(at, reader.scale * sums[1]),
            "key": lambda: sides[1].tree(keys[0], reader.scale * sums[0]),
            **({"minus_key": lambda: sides[1].tree(keys[1], -reader.scale * sums[0])}
               if minus_key is not None else {}),
        },
    )  # fmt: skip


@dataclass(frozen=True)
class _Parts:
    """The parts of one side: their names, whether a head is on them, their vectors."""

    names: list[str]
    moved: list[bool]
    vectors: Float[Tensor, "part d_head"]


@dataclass(frozen=True)
class _Side:
    """One side of a head: its symbols and its frozen model, whose sources are numbered alike."""

    stream: ReadStream
    model: FrozenModel
    reader: FrozenReader
    query: bool
    head: int

    def __post_init__(self) -> None:
        assert len(self.stream.sources) == len(self.model.sources)

    def last(self, positions: list[int]) -> _Parts:
        """The sums over all paths that end alike."""
        parts, vectors = last_parts(self.model, positions)
        names = [self._name(part) for part in parts]
        return _Parts(names, [part.moved for part in parts], self._read(vectors, positions))

    def _read(
        self, vectors: Float[Tensor, "part at d_head"], positions: list[int]
    ) -> Float[Tensor, "part d_head"]:
        """The queries or keys of what the side's model made, of two keys their difference."""
        # behind takes [..., batch, at, d_head]
        behind = self.reader.behind(self.query, self.head, vectors[:, None], positions)
        return _contrast(behind[:, 0], 1)

    def _name(self, part: LastPart) -> str:
        if part.source is not None:
            return self.stream.sources[part.source].name
        assert part.block is not None
        if part.component is not None:
            grid = self.stream.language.grid
            return f".. > {component_name(grid.component(part.block, part.component))}"
        neurons = f".. > mlp{self.stream.blocks[part.block].layer}"
        return f"({neurons}) & {'!' if part.moved else ''}order=0"

    def paths(self, positions: list[int], *, several: bool) -> _Parts:
        """Each path by itself; named without its source where there is one alone."""
        paths: PathSum = self.stream.paths
        terms = list(paths.depth_first())
        values = path_logits(self.model, map(numbered, terms), positions)
        vectors = torch.cat(list(values))  # [path, at, d_head]
        return _Parts(
            [term.path if several else term.short_path for term in terms],
            [term.order > 0 for term in terms],
            self._read(vectors, positions),
        )

    def tree(self, position: int, other: Float[Tensor, " d_head"]) -> AttributionTree:
        """The side's paths as a tree, the other side held fixed at its sum, times the scale."""
        read = self.reader.behind_adjoint(self.query, self.head, other[None, None], [position])
        target = side_target(self.model, position, read[0, 0])
        return AttributionTree(self.stream, PathTree(self.model, target))


def _held_fixed(run: Run, layer: int) -> tuple[str, ...]:
    """What stands still on the way to a layer's scores."""
    config, held = run.model.config, list[str]()
    if layer:
        held.append(f"attention patterns of the layers before {layer}")
    if run.model.weights.norms or config.qk_norm is not None:
        held.append("scales of the norms up to the scores")
    if layer and config.d_mlp is not None:
        of = "outputs" if run.model.mlp == "source" else "slopes"
        held.append(f"{of} of the MLPs before layer {layer}")
    recorded = (f"{what}, as the run recorded them" for what in held)
    return (*recorded, *run.model.weights.upcast)


def _contrast(values: Tensor, axis: int = 0) -> Tensor:
    """Of one key its value, of two the first less the second."""
    first = values.select(axis, 0)
    return first if values.shape[axis] == 1 else first - values.select(axis, 1)


def _by_kind(sides: list[_Parts], scale: float, shift: float) -> dict[str, float]:
    queries, keys = (by_moved(side.vectors, side.moved) for side in sides)
    found = dict.fromkeys(KINDS, 0.0)
    for i, query in enumerate(queries):
        for j, key in enumerate(keys):
            found[kind_of(i, j)] = scale * float(query @ key)
    found[_POSITION] = shift
    return found


def _largest(sides: list[_Parts], scale: float, top: int) -> list[ScoreShare]:
    queries, keys = sides
    values, on_query, on_key = largest_pairs(scale * queries.vectors, keys.vectors, top)
    return [
        ScoreShare(
            queries.names[i],
            keys.names[j],
            kind_of(int(queries.moved[i]), int(keys.moved[j])),
            value,
        )
        for value, i, j in zip(values.tolist(), on_query.tolist(), on_key.tolist(), strict=True)
    ]


def _check_attended(run: Run, asked: Scores, sequence: int, query: int, key: int) -> None:
    """Refuse a score that is masked: the model computes it and makes no use of it."""
    layer = asked.head[0]
    if bool(run.attended(layer)[sequence, query, key]):
        return
    name = head_name(asked.head)
    if run.mask is not None and not bool(run.mask[sequence, key]):
        raise InputError(f"key {key} is padding: head {name} does not attend to it")
    if bool(run.allowed[sequence, query, key]):
        window = run.model.config.window_of(layer)
        raise InputError(
            f"key {key} is outside the window of {window} positions that head {name} attends to "
            f"from query {query}; choose a nearer key"
        )
    raise InputError(
        f"key {key} comes after query {query}: the model is causal, so head {name} does not attend "
        f"to it there; choose a key from 0 to {query}"
    )
