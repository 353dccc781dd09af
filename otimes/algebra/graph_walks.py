"""Walks of the path graph: counted without enumeration, and matched with the terms of the sum.

A path to the logits is a walk from a source over ``v`` and ``direct`` edges. The graph has no
cycles, so walks are counted by one pass over its nodes, whatever their number:

>>> from otimes.algebra import Architecture
>>> from otimes.algebra.graph import path_graph
>>> arch = Architecture(layers=30, heads=20)
>>> graph = path_graph(arch, stream=True)
>>> count_walks(graph) == arch.logits.expand().count == 21**30
True
>>> count_walks(graph, avoiding={"0.7"}) == 20 * 21**29
True
>>> small = Architecture(layers=2, heads=2)
>>> walk_of(small.logits.expand()["0.1 > 1.0"], path_graph(small))
[('embed', '0.1', 'v'), ('0.1', '1.0', 'v'), ('1.0', 'logits', 'direct')]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from otimes.algebra.architecture import Architecture, Component, Neuron
from otimes.algebra.graph import LOGITS
from otimes.algebra.graph_words import DIRECT, V
from otimes.algebra.literal import component
from otimes.algebra.terms import PathTerm
from otimes.algebra.vocabulary import component_name
from otimes.errors import UnknownComponentError, UnsupportedError

if TYPE_CHECKING:
    import networkx as nx

Step = tuple[str, str, str]
"""(from, to, key)."""

CARRYING: Final = frozenset({V, DIRECT})
"""The keys of edges that carry information to the logits."""


def logit_graph(graph: nx.MultiDiGraph[str]) -> nx.DiGraph[str]:
    """The ``v`` and ``direct`` edges alone: the simple graph that path algorithms take.

    Nodes that no path to the logits goes through, such as ``b_Q``, are left out.
    """
    import networkx as nx

    simple: nx.DiGraph[str] = nx.DiGraph(**graph.graph)
    simple.add_nodes_from(graph.nodes(data=True))
    simple.add_edges_from(
        (source, target, {**data, "key": key})
        for source, target, key, data in graph.edges(keys=True, data=True)
        if key in CARRYING
    )
    useful = nx.ancestors(simple, LOGITS) | {LOGITS}
    simple.remove_nodes_from([node for node in graph if node not in useful])
    return simple


def count_walks(
    graph: nx.MultiDiGraph[str],
    source: str | None = None,
    target: str = LOGITS,
    *,
    avoiding: Collection[str] = (),
    last: str | None = None,
) -> int:
    """The number of walks over ``v`` and ``direct`` edges, exactly, by one pass over the nodes.

    Args:
        graph: the graph of paths.
        source: where walks start; at any source by default.
        target: where they end.
        avoiding: nodes that they do not go through.
        last: the key of the last edge, such as ``q`` for the query side of a head's scores;
            by default ``v`` or ``direct``.

    Raises:
        UnknownComponentError: for a node that the graph does not have.
    """
    import networkx as nx

    for node in (target, *(() if source is None else (source,)), *avoiding):
        _need(graph, node)
    starts = set(_with(graph, "role", "source") if source is None else [source])
    found = dict[str, int]()
    for node in nx.topological_sort(graph):
        if node in avoiding:
            continue
        wanted = CARRYING if last is None or node != target else {last}
        number = int(node in starts)
        for before, _, key, ways in graph.in_edges(node, keys=True, data="ways"):
            if key in wanted:
                number += found.get(before, 0) * ways
        if node == target:
            return number
        found[node] = number
    return 0


def walks(
    graph: nx.MultiDiGraph[str], source: str | None = None, target: str = LOGITS
) -> Iterator[list[Step]]:
    """All walks over ``v`` and ``direct`` edges, one by one, depth first."""
    _need(graph, target)
    starts = _with(graph, "role", "source") if source is None else [source]
    for start in starts:
        _need(graph, start)
        waiting: list[tuple[str, list[Step]]] = [(start, [])]
        while waiting:
            node, walk = waiting.pop()
            if node == target:
                yield walk
                continue
            steps = [
                (node, after, key)
                for _, after, key in graph.out_edges(node, keys=True)
                if key in CARRYING
            ]
            waiting.extend((step[1], [*walk, step]) for step in reversed(steps))


def walk_of(term: PathTerm, graph: nx.MultiDiGraph[str]) -> list[Step]:
    """The walk of a path: where neurons are one node, that of all paths through its neurons.

    Raises:
        UnknownComponentError: if the graph is one of another model.
    """
    nodes = [term.source.name, *map(component_name, term.components), LOGITS]
    nodes = [name if name in graph else _collapsed(name) for name in nodes]
    if graph.graph["form"] == "stream":
        nodes = _through_states(nodes, graph)
    steps = list[Step]()
    for before, after in pairwise(nodes):
        _need(graph, before)
        _need(graph, after)
        key = V if graph.nodes[after]["kind"] == "head" else DIRECT
        if not graph.has_edge(before, after, key):
            raise UnknownComponentError(
                f"no edge from {before} to {after} in this graph", term.path
            )
        steps.append((before, after, key))
    return steps


def term_of(walk: Sequence[Step], arch: Architecture) -> PathTerm:
    """The path of a walk.

    Raises:
        UnsupportedError: if the walk goes through a node that stands for several neurons.
        UnknownComponentError: if it is no walk of this model from a source to the logits.
    """
    if not walk or walk[-1][1] != LOGITS:
        raise UnknownComponentError("a path's walk ends at the logits", str(walk))
    if any(before[1] != after[0] for before, after in pairwise(walk)):
        raise UnknownComponentError(
            "each step of a walk begins where the last one ended", str(walk)
        )
    first, *middle = [step[0] for step in walk]
    found = list[Component]()
    for node in middle:
        own = component(node)
        if own is not None:
            found.append(own)
        elif not node.startswith("x["):
            raise UnsupportedError(
                f"{node} stands for all its neurons, so this walk is that of many paths; make the "
                "graph with a larger max_neurons"
            )
    source = next((s for s in arch.sources if s.name == first), None)
    term = None if source is None else PathTerm(arch, source, tuple(found))
    if term is None or not arch.logits.expand().contains(term):
        raise UnknownComponentError(f"no such path in {arch!r}", str(walk))
    return term


def _collapsed(name: str) -> str:
    """The node that stands for a neuron, or for the constant inside it, among others."""
    inside = name.startswith("bias[")
    own = component(name.removeprefix("bias[").removesuffix("]"))
    if not isinstance(own, Neuron):
        return name
    return f"bias[mlp{own.layer}]" if inside else f"mlp{own.layer}"


def _through_states(nodes: list[str], graph: nx.MultiDiGraph[str]) -> list[str]:
    """Put the states of the stream between the nodes of a path."""
    states = _with(graph, "kind", "stream")
    number = {state: place for place, state in enumerate(states)}
    steps = [nodes[0]]
    for after in nodes[1:]:
        if not graph.has_node(steps[-1]) or graph.has_edge(steps[-1], after):
            steps.append(after)
            continue
        reached = [node for node in graph.successors(steps[-1]) if node in number]
        first = number[reached[0]] if reached else len(states)
        block = graph.nodes[after].get("block", len(states) - 1) if after in graph else first
        steps += [*states[first : block + 1], after]
    return steps


def _with(graph: nx.MultiDiGraph[str], attribute: str, value: str) -> list[str]:
    return [node for node in graph if graph.nodes[node].get(attribute) == value]


def _need(graph: nx.MultiDiGraph[str], node: str) -> None:
    if node not in graph:
        raise UnknownComponentError(f"no node {node!r} in this graph", node)
