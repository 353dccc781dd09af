r"""Path graphs as files: GraphML and node-link JSON, which read back, DOT and Mermaid, to be drawn.

Names and attributes may hold any text, also that of somebody else. In DOT and Mermaid it is
written such that it is shown as text: nodes get names of their own, and what the format gives a
meaning is escaped. Control characters, which XML cannot hold and a terminal obeys, are written as
``\u0000``, and so are marks that change the direction of text.

>>> from otimes.algebra import Architecture
>>> graph = Architecture(layers=1, heads=1).graph()
>>> print(to_mermaid(graph))
flowchart LR
  n0(["embed"])
  n1["0.0"]
  n2(["logits"])
  n0 -->|"q, k, v"| n1
  n0 --> n2
  n1 --> n2
>>> list(from_json(to_json(graph))) == list(graph)
True
"""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Any, Final

from otimes.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    import networkx as nx

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MERMAID_PLAIN: Final = frozenset(" ._,:+-=()[]/")
_COLORS: Final = {"q": "#b2182b", "k": "#2166ac", "v": "#1b7837"}
_SHAPES: Final = {"source": "ellipse", "output": "ellipse", "stream": "plaintext"}


def to_graphml(graph: nx.MultiDiGraph[str]) -> str:
    """GraphML, which ``networkx.read_graphml`` reads as the same graph, keyed edges included.

    The format does not say that a graph may have several edges between two nodes: networkx answers
    with a multigraph where it finds some, as between a source and any head. For a model without
    heads it takes ``force_multigraph=True``, which ``from_graphml`` always passes.
    """
    import networkx as nx

    return "\n".join(nx.generate_graphml(_visible_graph(graph)))


def from_graphml(text: str) -> nx.MultiDiGraph[str]:
    """Read what ``to_graphml`` wrote.

    Raises:
        InputError: if it is not the GraphML of a directed graph.
    """
    import xml.etree.ElementTree as ET

    import networkx as nx

    try:
        return _directed(nx.parse_graphml(text, force_multigraph=True))
    except (ET.ParseError, nx.NetworkXError, KeyError, ValueError) as error:
        raise InputError(f"this is no GraphML of a path graph: {error}") from error


def to_json(graph: nx.MultiDiGraph[str]) -> str:
    """Node-link JSON; ``networkx.node_link_graph(json.loads(text), edges="edges")`` reads it."""
    data: dict[str, Any] = {
        "directed": True,
        "multigraph": True,
        "graph": dict(graph.graph),
        "nodes": [{"id": node, **attributes} for node, attributes in graph.nodes(data=True)],
        "edges": [
            {**attributes, "source": source, "target": target, "key": key}
            for source, target, key, attributes in graph.edges(keys=True, data=True)
        ],
    }
    return json.dumps(data, ensure_ascii=False, indent=1)


def from_json(text: str) -> nx.MultiDiGraph[str]:
    """Read what ``to_json`` wrote.

    Raises:
        InputError: if it is not the node-link JSON of a directed graph.
    """
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    try:
        data = json.loads(text)
        graph.graph.update(data["graph"])
        for node in data["nodes"]:
            graph.add_node(node.pop("id"), **node)
        for edge in data["edges"]:
            graph.add_edge(edge.pop("source"), edge.pop("target"), edge.pop("key"), **edge)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"this is no node-link JSON of a path graph: {error!r}") from error
    return graph


def to_dot(graph: nx.MultiDiGraph[str]) -> str:
    """DOT, for Graphviz: one edge for each key, labelled with its virtual weight."""
    ids = {node: f"n{number}" for number, node in enumerate(graph)}
    lines = ["digraph paths {", "  rankdir=LR;", '  node [fontname="sans-serif"];']
    for node, data in graph.nodes(data=True):
        shape = _SHAPES.get(data.get("role", ""), "box")
        lines.append(f"  {ids[node]} [label={_dot(node)}, shape={shape}];")
    for source, target, key, data in graph.edges(keys=True, data=True):
        label = _dot(f"{key}: {data.get('symbol', '')}")
        color = _COLORS.get(key, "#555555")
        lines.append(f'  {ids[source]} -> {ids[target]} [label={label}, color="{color}"];')
    return "\n".join([*lines, "}"])


def to_mermaid(graph: nx.MultiDiGraph[str]) -> str:
    """A Mermaid flowchart: one arrow for each pair of nodes, labelled with its keys.

    Mermaid draws 500 arrows unless its ``maxEdges`` is set higher.
    """
    ids = {node: f"n{number}" for number, node in enumerate(graph)}
    lines = ["flowchart LR"]
    for node, data in graph.nodes(data=True):
        left, right = ("[", "]") if data.get("role") == "component" else ("([", "])")
        lines.append(f'  {ids[node]}{left}"{_mermaid(node)}"{right}')
    arrows: dict[tuple[str, str], list[str]] = {}
    for source, target, key in graph.edges(keys=True):
        arrows.setdefault((source, target), []).append(key)
    for (source, target), keys in arrows.items():
        label = "" if keys == ["direct"] else f'|"{_mermaid(", ".join(map(str, keys)))}"|'
        lines.append(f"  {ids[source]} -->{label} {ids[target]}")
    return "\n".join(lines)


FORMATS: Final[dict[str, Callable[[nx.MultiDiGraph[str]], str]]] = {
    "graphml": to_graphml,
    "json": to_json,
    "dot": to_dot,
    "mermaid": to_mermaid,
}


def write_graph(graph: nx.MultiDiGraph[str], format_: str) -> str:
    """The graph as text in a format, ``graphml``, ``json``, ``dot`` or ``mermaid``.

    Raises:
        UnsupportedError: for any other.
    """
    if format_ not in FORMATS:
        raise UnsupportedError(f"unknown graph format {format_!r}; known are {', '.join(FORMATS)}")
    return FORMATS[format_](graph)


def visible(text: str) -> str:
    """The text with control characters and marks of direction written out as numbers."""
    return "".join(f"\\u{ord(c):04x}" if unicodedata.category(c) in _HIDDEN else c for c in text)


def _dot(text: str) -> str:
    """A quoted label: backslashes and quotes escaped, and entities, which Graphviz would read."""
    shown = visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
    return f'"{shown}"'


def _mermaid(text: str) -> str:
    """A text between quotes: all other ASCII punctuation as Mermaid's entities, ``#35;``."""
    return "".join(
        c if c.isalnum() or c in _MERMAID_PLAIN or not c.isascii() else f"#{ord(c)};"
        for c in visible(text)
    )


def _visible_graph(graph: nx.MultiDiGraph[str]) -> nx.MultiDiGraph[str]:
    """The graph with every text as XML can hold it; the graph itself where all can be held."""
    texts = [*graph.graph.values(), *graph]
    texts += [value for _, data in graph.nodes(data=True) for value in data.values()]
    texts += [value for *_, data in graph.edges(data=True) for value in data.values()]
    if all(_shown(value) is value for value in texts):
        return graph
    shown: nx.MultiDiGraph[str] = graph.__class__()
    shown.graph.update({key: _shown(value) for key, value in graph.graph.items()})
    for node, data in graph.nodes(data=True):
        shown.add_node(_shown(node), **{key: _shown(value) for key, value in data.items()})
    for source, target, key, data in graph.edges(keys=True, data=True):
        own = {name: _shown(value) for name, value in data.items()}
        shown.add_edge(_shown(source), _shown(target), key, **own)
    return shown


def _shown(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    escaped = visible(value)
    return value if escaped == value else escaped


def _directed(graph: Any) -> nx.MultiDiGraph[str]:
    import networkx as nx

    if not isinstance(graph, nx.MultiDiGraph):
        raise InputError("a path graph is directed, and this graph is not")
    return graph
