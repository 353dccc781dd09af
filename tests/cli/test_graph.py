"""What ``otimes graph`` prints."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pytest
from click.testing import CliRunner, Result

from otimes.algebra import Architecture
from otimes.algebra.graph_export import from_graphml
from otimes.algebra.graph_walks import count_walks
from otimes.cli.graph import FORMATS, graph
from otimes.errors import InputError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(graph, arguments)


def test_graphml_and_json_read_back() -> None:
    expected = Architecture(2, (2, 3), biases=True).graph()
    model = ("--layers", "2", "--heads", "2,3", "--biases", "all")

    graphml = nx.parse_graphml(run(*model).stdout)
    data = json.loads(run(*model, "--format", "json").stdout)

    assert list(graphml.edges(keys=True, data=True)) == list(expected.edges(keys=True, data=True))
    found = nx.node_link_graph(data, edges="edges")
    assert nx.utils.graphs_equal(found, expected)


def test_drawings() -> None:
    model = ("--layers", "1", "--heads", "1", "--format")

    assert run(*model, "dot").stdout.startswith("digraph paths {\n")
    assert run(*model, "mermaid").stdout.startswith("flowchart LR\n")
    assert set(FORMATS) == {"graphml", "json", "dot", "mermaid"}


def test_a_deep_model_is_joined_through_the_stream(tmp_path: Path) -> None:
    file = tmp_path / "deep.graphml"

    result = run("--layers", "48", "--heads", "25", "-o", str(file))

    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.startswith("note: 2,119,801 edges between pairs of components are too")
    assert count_walks(from_graphml(file.read_text(encoding="utf-8"))) == 26**48
    forced = run("--layers", "48", "--heads", "25", "--form", "pairs")
    assert "take stream=True" in str(forced.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --layers and --heads, or a model"),
        (("--layers", "2"), "give --layers and --heads, or a model"),
        (("a", "--layers", "2"), "give either a model or the numbers"),
        (("--layers", "2", "--heads", "x"), "--heads takes a number"),
        (("--layers", "1", "--heads", "1", "-o", "/nowhere/x"), "cannot write /nowhere/x: No such"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)

    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
