"""The graph of paths: sources, components and the logits, joined by virtual weights.

The graph is a ``networkx.MultiDiGraph``. An edge's key says what it enters: ``q``, ``k`` and
``v`` the queries, keys and values of a head, ``direct`` a neuron or the logits. The paths to the
logits are the walks from a source to ``logits`` over ``v`` and ``direct`` edges; a walk whose last
edge is a ``q`` or ``k`` edge is one side of a term of that head's scores.

>>> from otimes.algebra import Architecture
>>> graph = path_graph(Architecture(layers=2, heads=1))
>>> for source, target, key, symbol in graph.edges(keys=True, data="symbol"):
...     print(f"{source:6} {key:7} {target:7} {symbol}")
embed  q       0.0     W_Q[0.0] W_E
embed  k       0.0     W_K[0.0] W_E
embed  v       0.0     W_V[0.0] W_E
embed  q       1.0     W_Q[1.0] W_E
embed  k       1.0     W_K[1.0] W_E
embed  v       1.0     W_V[1.0] W_E
embed  direct  logits  W_U W_E
0.0    q       1.0     W_Q[1.0] W_O[0.0]
0.0    k       1.0     W_K[1.0] W_O[0.0]
0.0    v       1.0     W_V[1.0] W_O[0.0]
0.0    direct  logits  W_U W_O[0.0]
1.0    direct  logits  W_U W_O[1.0]

The number of edges grows with the square of the number of components. With ``stream=True`` the
stream itself stands between them, ``x[0]``, ``x[1]``, …, and it grows linearly; walks correspond to
paths all the same. Walks are never enumerated; see :mod:`otimes.algebra.graph_walks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otimes.algebra.architecture import Architecture, Component, Neuron, Source
from otimes.algebra.graph_words import DIRECT, INPUTS, SIDES, EdgeWords, Key, V, side_sources
from otimes.algebra.layout import Block, Word
from otimes.algebra.scores.factored import ADDITIVE
from otimes.algebra.scores.terms import additive
from otimes.algebra.vocabulary import W_POS, Head, component_name, of_norm
from otimes.errors import LimitError

if TYPE_CHECKING:
    import networkx as nx

LOGITS: Final = "logits"
MAX_NEURONS: Final = 64
"""Frozen MLPs of more neurons are one node each."""
MAX_EDGES: Final = 500_000


@dataclass(frozen=True)
class _Writer:
    """A node that writes to the stream: its word there, and the first block that can read it."""

    name: str
    word: Word
    entry: int


@dataclass(frozen=True)
class _Reader:
    """A node that reads the stream before a block; ``ways`` is how many neurons it stands for."""

    name: str
    words: tuple[tuple[Key, Word], ...]
    ways: int = 1


def path_graph(
    arch: Architecture,
    *,
    stream: bool = False,
    max_neurons: int = MAX_NEURONS,
    limit: int = MAX_EDGES,
) -> nx.MultiDiGraph[str]:
    """The graph of paths of an architecture.

    Nodes have ``kind`` (``embed``, ``pos``, ``type``, ``mlp``, ``bias``, ``head``, ``neuron``,
    ``neurons``, ``stream``, ``logits``) and ``role`` (``source``, ``component``, ``stream``,
    ``output``); components have ``layer``, ``index`` and ``pattern``, their own symbol over
    positions. Edges have ``symbol``, the virtual weight, ``pattern``, the scales of the norms on
    it, and ``ways``, for how many edges it stands. All are texts and integers, for any file format.

    Args:
        arch: the model.
        stream: whether the stream's states are nodes; then components are joined through them.
        max_neurons: frozen MLPs of more neurons are one node, ``mlp3``.
        limit: the largest number of edges to make.

    Raises:
        LimitError: for more edges; it says how many there are and what to ask instead.
    """
    import networkx as nx

    builder = _Builder(arch, max_neurons, nx.MultiDiGraph())
    edges = builder.edges_through_stream() if stream else builder.edges_of_pairs()
    if edges > limit:
        instead = (
            "raise the limit or collapse neurons by max_neurons="
            if stream
            else "take stream=True, where components are joined through the stream"
        )
        raise LimitError(
            f"this graph has {edges:,} edges, more than the limit of {limit:,}; {instead}",
            edges,
            limit,
        )
    builder.graph.graph.update(
        name="paths", architecture=repr(arch), form="stream" if stream else "pairs"
    )
    builder.build(stream)
    return builder.graph


class _Builder:
    def __init__(self, arch: Architecture, max_neurons: int, graph: nx.MultiDiGraph[str]) -> None:
        self.arch, self.max_neurons, self.graph = arch, max_neurons, graph
        self.words = EdgeWords(arch)

    def collapsed(self, block: Block) -> bool:
        """Whether the neurons of a block are one node."""
        return block.neurons > self.max_neurons

    # sizes, before anything is made -----------------------------------------------------------

    def _parts(self, block: Block) -> tuple[int, int]:
        """The number of nodes of a block, and of the edges into them from one writer."""
        neurons = 1 if self.collapsed(block) else block.neurons
        return block.heads + neurons, 3 * block.heads + neurons

    def edges_of_pairs(self) -> int:
        """How many edges there are between pairs of nodes; a few for side sources not counted."""
        writers, edges = 0, 0
        entries = [s.entry for s in self.arch.sources if _writes(s)]
        for number, block in enumerate(self.arch.blocks):
            nodes, into = self._parts(block)
            edges += (writers + sum(entry <= number for entry in entries)) * into
            writers += nodes
        return edges + writers + len(self.arch.sources)

    def edges_through_stream(self) -> int:
        """How many edges there are with the stream's states as nodes."""
        each = [sum(self._parts(block)) + 1 for block in self.arch.blocks]
        return sum(each) + len(self.arch.sources) + 1

    # nodes and edges --------------------------------------------------------------------------

    def build(self, stream: bool) -> None:
        sources = [_Writer(s.name, self.words.source(s), s.entry) for s in self._written()]
        self._nodes(stream)
        if stream:
            self._through_stream(sources)
        else:
            self._pairs(sources)
        for source in self.arch.sources:
            if source.component is not None:
                self._constant(source.component)
            elif source.joins != "stream":
                word = self.words.source(source).then(self.words.output(source.joins))
                self._edge(source.name, LOGITS, DIRECT, word)
        for block in self.arch.blocks:
            for head in _heads(block):
                self._sides(head)

    def _written(self) -> list[Source]:
        return [source for source in self.arch.sources if _writes(source)]

    def _nodes(self, stream: bool) -> None:
        by_entry: dict[int, list[Source]] = {}
        for source in self.arch.sources:
            # a constant inside a component comes before what else its block writes
            entry = source.entry - 1 if source.component is not None else source.entry
            by_entry.setdefault(entry, []).append(source)
        for number in range(len(self.arch.blocks) + 1):
            for source in by_entry.get(number, ()):
                self._source(source)
            if stream:
                self.graph.add_node(self.state(number), kind="stream", role="stream", block=number)
            if number < len(self.arch.blocks):
                self._components(number)
        self.graph.add_node(LOGITS, kind="logits", role="output")

    def _source(self, source: Source) -> None:
        component = source.component
        if isinstance(component, Neuron):
            block = self.arch.blocks[self.arch.words.block_of(component)]
            if self.collapsed(block):
                # one node for the constants of all neurons
                self.graph.add_node(f"bias[mlp{component.layer}]", kind="bias", role="source")
                return
        self.graph.add_node(source.name, kind=source.kind, role="source")

    def _components(self, number: int) -> None:
        block = self.arch.blocks[number]
        at: dict[str, Any] = {"role": "component", "layer": block.layer, "block": number}
        for head in _heads(block):
            name = component_name(head)
            own: dict[str, Any] = {"kind": "head", "index": head[1], "pattern": f"A[{name}]"}
            if self.arch.positions in ADDITIVE:
                own["added"] = str(additive(head))
            self.graph.add_node(name, **at, **own)
        if self.collapsed(block):
            name = f"mlp{block.layer}"
            self.graph.add_node(
                name, **at, kind="neurons", pattern=f"S[{block.layer}]", neurons=block.neurons
            )
            return
        for neuron in _neurons(block):
            label = component_name(neuron)
            pattern = f"S[{label.removeprefix('mlp')}]"
            self.graph.add_node(label, **at, kind="neuron", index=neuron.number, pattern=pattern)

    def state(self, number: int) -> str:
        """The stream before a block: ``x[1]`` before layer 1, ``x[1.mid]`` before its MLP."""
        blocks = self.arch.blocks
        if number == len(blocks):
            return f"x[{self.arch.layers}]"
        layer = blocks[number].layer
        second = number > 0 and blocks[number - 1].layer == layer
        return f"x[{layer}.mid]" if second else f"x[{layer}]"

    def _readers(self, block: Block) -> Iterator[_Reader]:
        for head in _heads(block):
            words: list[tuple[Key, Word]] = [(key, self.words.reads(head, key)) for key in INPUTS]
            yield _Reader(component_name(head), tuple(words))
        if self.collapsed(block):
            word = self.words.mlp_reads(block)
            yield _Reader(f"mlp{block.layer}", ((DIRECT, word),), block.neurons)
            return
        for neuron in _neurons(block):
            word = self.words.reads(neuron, DIRECT)
            yield _Reader(component_name(neuron), ((DIRECT, word),))

    def _writers(self, number: int) -> Iterator[_Writer]:
        block = self.arch.blocks[number]
        for head in _heads(block):
            yield _Writer(component_name(head), self.words.writes(head), number + 1)
        if self.collapsed(block):
            yield _Writer(f"mlp{block.layer}", self.words.mlp_writes(block), number + 1)
            return
        for neuron in _neurons(block):
            yield _Writer(component_name(neuron), self.words.writes(neuron), number + 1)

    def _pairs(self, sources: list[_Writer]) -> None:
        blocks = self.arch.blocks
        writers = [*sources]
        for number in range(len(blocks)):
            writers.extend(self._writers(number))
        readers = [list(self._readers(block)) for block in blocks]
        for writer in writers:
            for number in range(writer.entry, len(blocks)):
                carried = writer.word.then(self.words.skips(writer.entry, number))
                for reader in readers[number]:
                    for key, word in reader.words:
                        self._edge(writer.name, reader.name, key, carried.then(word), reader.ways)
            word = self.words.between(
                writer.word, self.words.output("stream"), writer.entry, len(blocks)
            )
            self._edge(writer.name, LOGITS, DIRECT, word)

    def _through_stream(self, sources: list[_Writer]) -> None:
        for source in sources:
            self._edge(source.name, self.state(source.entry), DIRECT, source.word)
        for number, block in enumerate(self.arch.blocks):
            here, after = self.state(number), self.state(number + 1)
            self._edge(here, after, DIRECT, block.skip)
            for reader in self._readers(block):
                for key, word in reader.words:
                    self._edge(here, reader.name, key, word, reader.ways)
            for writer in self._writers(number):
                self._edge(writer.name, after, DIRECT, writer.word)
        last = self.state(len(self.arch.blocks))
        self._edge(last, LOGITS, DIRECT, self.words.output("stream"))

    def _constant(self, component: Component) -> None:
        """The edge from a constant inside a component to it."""
        word = self.words.inside(component)
        name = component_name(component)
        if not isinstance(component, Neuron):
            self._edge(f"bias[{name}]", name, V, word)
            return
        block = self.arch.blocks[self.arch.words.block_of(component)]
        if not self.collapsed(block):
            self._edge(f"bias[{name}]", name, DIRECT, word)
        elif component.number == 0:
            layer = f"mlp{component.layer}"
            self.graph.add_edge(
                f"bias[{layer}]",
                layer,
                DIRECT,
                symbol=f"b_in[{component.layer}]",
                pattern="Id",
                ways=block.neurons,
            )

    def _sides(self, head: Head) -> None:
        """What queries and keys read beside the stream; no path to the logits comes from it."""
        positions, norm = side_sources(self.arch, head[0])
        name = component_name(head)
        for key, bias in SIDES:
            into = self.words.projection(head, key)
            if positions:
                self.graph.add_node("pos", kind="pos", role="source")
                self._edge("pos", name, key, Word((), (W_POS,)).then(into))
            if norm is not None:
                self.graph.add_node(f"bias[{norm}]", kind="bias", role="source")
                self._edge(f"bias[{norm}]", name, key, Word((), (of_norm("β", norm),)).then(into))
            if f"{bias}[{head[0]}]" in self.arch.biases:
                source = f"bias[{name}.{key}]"
                self.graph.add_node(source, kind="bias", role="source")
                self._edge(source, name, key, self.words.bias(head, key))

    def _edge(self, source: str, target: str, key: Key, word: Word, ways: int = 1) -> None:
        symbol, pattern = self.words.text(word.weight), self.words.text(word.pattern)
        self.graph.add_edge(source, target, key, symbol=symbol, pattern=pattern, ways=ways)


def _writes(source: Source) -> bool:
    """Whether a source writes to the stream by itself."""
    return source.component is None and source.joins == "stream"


def _heads(block: Block) -> Iterator[Head]:
    return ((block.layer, index) for index in range(block.heads))


def _neurons(block: Block) -> Iterator[Neuron]:
    return (Neuron(block.layer, index) for index in range(block.neurons))
