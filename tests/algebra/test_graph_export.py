"""Path graphs as files: they read back, and text of others stays text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings

from otimes.algebra import Architecture
from otimes.algebra.graph import path_graph
from otimes.algebra.graph_export import (
    from_graphml,
    from_json,
    to_dot,
    to_graphml,
    to_json,
    to_mermaid,
    write_graph,
)
from otimes.errors import InputError, UnsupportedError
from tests.algebra.scores.models import architectures

HOSTILE = '<script>"\\N\\"; x -> y [] #35; &lt; `%%{init}%%`\n\0\u202e evil'


def equal(left: nx.MultiDiGraph, right: nx.MultiDiGraph) -> bool:
    # both orders of nodes and edges, all keys and attributes, and their types
    return (
        repr(list(left.nodes(data=True))) == repr(list(right.nodes(data=True)))
        and repr(list(left.edges(keys=True, data=True)))
        == repr(list(right.edges(keys=True, data=True)))
        and left.graph == right.graph
    )


@settings(max_examples=40, deadline=None)
@given(architectures())
def test_json_and_graphml_read_back_as_the_same_graph(arch: Architecture) -> None:
    for graph in (path_graph(arch), path_graph(arch, stream=True, max_neurons=1)):
        data = json.loads(to_json(graph))
        foreign = nx.node_link_graph(data, edges="edges")
        assert equal(foreign, graph)
        assert equal(from_json(to_json(graph)), graph)

        # a model with a head has parallel edges, and needs no word about it
        forced = {} if any(arch.heads) else {"force_multigraph": True}
        read = nx.parse_graphml(to_graphml(graph), **forced)
        assert isinstance(read, nx.MultiDiGraph)
        assert nx.utils.graphs_equal(read, from_graphml(to_graphml(graph)))
        assert dict(read.nodes(data=True)) == dict(graph.nodes(data=True))
        assert list(read.edges(keys=True, data=True)) == list(graph.edges(keys=True, data=True))


@pytest.mark.parametrize("stream", [False, True])
def test_a_file_is_read_as_the_same_multigraph(tmp_path: Path, stream: bool) -> None:
    graph = path_graph(Architecture(1, 1), stream=stream)
    file = tmp_path / "paths.graphml"
    file.write_text(to_graphml(graph), encoding="utf-8")

    read = nx.read_graphml(file)

    assert isinstance(read, nx.MultiDiGraph)
    assert list(read.edges(keys=True, data=True)) == list(graph.edges(keys=True, data=True))
    assert dict(read.nodes(data=True)) == dict(graph.nodes(data=True))
    assert {name: read.graph[name] for name in graph.graph} == graph.graph


def test_without_heads_networkx_has_to_be_told_that_edges_are_keyed() -> None:
    graph = path_graph(Architecture(1, 0, mlp="frozen", neurons=2))
    text = to_graphml(graph)

    assert not nx.parse_graphml(text).is_multigraph()
    assert list(nx.parse_graphml(text, force_multigraph=True).edges) == list(graph.edges)
    assert list(from_graphml(text).edges) == list(graph.edges)


def test_an_attribute_that_is_lost_is_seen() -> None:
    graph = Architecture(1, 1).graph()
    damaged = from_json(to_json(graph))
    assert equal(damaged, graph)

    damaged["embed"]["0.0"]["q"]["ways"] = "1"

    assert not equal(damaged, graph)


def hostile_graph() -> nx.MultiDiGraph:
    graph = nx.MultiDiGraph(name=HOSTILE)
    graph.add_node(HOSTILE, role="component", kind=HOSTILE)
    graph.add_node("logits", role="output")
    graph.add_edge(HOSTILE, "logits", "v", symbol=HOSTILE)
    return graph


def test_hostile_text_in_dot_is_one_quoted_label() -> None:
    text = to_dot(hostile_graph())

    lines = text.splitlines()
    assert len(lines) == 7
    shown = (
        '<script>\\"\\\\N\\\\\\"; x -> y [] #35; &amp;lt; `%%{init}%%`'
        "\\\\u000a\\\\u0000\\\\u202e evil"
    )
    assert lines[3] == f'  n0 [label="{shown}", shape=box];'
    assert lines[5].startswith(f'  n0 -> n1 [label="v: {shown}", color=')
    # outside of quoted strings there is nothing of it
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    assert "script" not in bare
    assert "evil" not in bare


def test_hostile_text_in_mermaid_is_one_quoted_label() -> None:
    text = to_mermaid(hostile_graph())

    lines = text.splitlines()
    assert lines[0] == "flowchart LR"
    assert len(lines) == 4
    assert lines[1] == (
        '  n0["#60;script#62;#34;#92;N#92;#34;#59; x -#62; y [] #35;35#59; #38;lt#59; '
        '#96;#37;#37;#123;init#125;#37;#37;#96;#92;u000a#92;u0000#92;u202e evil"]'
    )


def test_hostile_text_in_graphml_and_json_reads_back() -> None:
    graph = hostile_graph()

    assert equal(from_json(to_json(graph)), graph)
    read = from_graphml(to_graphml(graph))
    shown = HOSTILE.replace("\n", "\\u000a").replace("\0", "\\u0000").replace("\u202e", "\\u202e")
    assert list(read.edges(keys=True, data=True)) == [(shown, "logits", "v", {"symbol": shown})]
    assert read.nodes[shown]["kind"] == shown


def test_two_layers_in_dot_and_mermaid() -> None:
    graph = Architecture(2, 1).graph()

    dot, mermaid = to_dot(graph), to_mermaid(graph)

    assert dot.count("->") == graph.number_of_edges() == 12
    assert '  n1 -> n2 [label="k: W_K[1.0] W_O[0.0]", color="#2166ac"];' in dot.splitlines()
    assert '  n1 -->|"q, k, v"| n2' in mermaid.splitlines()
    assert '  n1["0.0"]' in mermaid.splitlines()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"nodes": []}', '{"graph": {}, "nodes": [{}], "edges": []}']
)
def test_json_that_is_no_graph(text: str) -> None:
    with pytest.raises(InputError, match="this is no node-link JSON of a path graph"):
        from_json(text)


UNDIRECTED = "<graphml xmlns='http://graphml.graphdrawing.org/xmlns'>{}</graphml>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no GraphML of a path graph"),
        ("<graph", "no GraphML of a path graph"),
        (UNDIRECTED.format("<graph edgedefault='undirected'/>"), "a path graph is directed"),
    ],
)
def test_graphml_that_is_none(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_graphml(text)


def test_unknown_formats() -> None:
    with pytest.raises(UnsupportedError, match="unknown graph format 'svg'; known are graphml"):
        write_graph(Architecture(1, 1).graph(), "svg")
