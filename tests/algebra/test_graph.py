"""The path graph: its walks are the paths, and its edges spell their terms."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import islice
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings

from otimes.algebra import Architecture
from otimes.algebra.graph import path_graph
from otimes.algebra.graph_walks import count_walks, logit_graph, term_of, walk_of, walks
from otimes.errors import LimitError, UnknownComponentError, UnsupportedError
from tests.algebra.scores.models import EXAMPLES, architectures, model_of
from tests.oracles import scores as oracle

FORMS = pytest.mark.parametrize("stream", [False, True], ids=["pairs", "stream"])


def test_nodes_and_edges_of_two_layers() -> None:
    graph = Architecture(layers=2, heads=12).graph()

    assert list(graph)[:2] == ["embed", "0.0"]
    assert graph.nodes["1.4"] == {
        "role": "component", "kind": "head", "layer": 1, "index": 4, "block": 1,
        "pattern": "A[1.4]",
    }  # fmt: skip
    assert sorted(graph["0.3"]["1.4"]) == ["k", "q", "v"]
    assert graph["0.3"]["1.4"]["k"]["symbol"] == "W_K[1.4] W_O[0.3]"
    assert graph["embed"]["logits"]["direct"]["symbol"] == "W_U W_E"
    assert nx.is_directed_acyclic_graph(graph)
    assert not graph.has_edge("0.3", "0.4")


@settings(max_examples=60, deadline=None)
@given(architectures())
def test_walks_are_as_many_as_paths(arch: Architecture) -> None:
    count = arch.logits.expand().count
    for stream in (False, True):
        for max_neurons in (0, 9):
            graph = path_graph(arch, stream=stream, max_neurons=max_neurons)
            assert count_walks(graph) == count
            for layer, heads in enumerate(arch.heads):
                for h in range(heads):
                    scores = arch.scores((layer, h)).expand()
                    sides = [
                        count_walks(graph, target=f"{layer}.{h}", last=key) for key in ("q", "k")
                    ]
                    assert sides == [scores.query_paths.count, scores.key_paths.count]


@settings(max_examples=30, deadline=None)
@given(architectures(max_layers=2))
def test_each_walk_is_one_path(arch: Architecture) -> None:
    paths = arch.logits.expand()
    assume(paths.count < 400)
    for stream in (False, True):
        graph = path_graph(arch, stream=stream)
        found = {tuple(walk) for walk in walks(graph)}
        assert found == {tuple(walk_of(term, graph)) for term in paths}
        assert len(found) == paths.count
        assert {term_of(walk, arch) for walk in found} == set(paths)


def spelled(graph: Any, walk: list[Any], attribute: str) -> str:
    """The words of the edges of a walk, the last first, with the patterns of the nodes between."""
    words = list[str]()
    for source, target, key in reversed(walk):
        if attribute == "pattern" and "pattern" in graph.nodes[target]:
            words.append(graph.nodes[target]["pattern"])
        words.append(graph.edges[source, target, key][attribute])
    return " ".join(f"({word})" for word in words if word != "Id") or "Id"


@FORMS
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_edges_of_a_walk_spell_its_term(name: str, stream: bool) -> None:
    arch = Architecture(**EXAMPLES[name])
    model, graph = model_of(arch, seed=5), arch.graph(stream=stream)
    for term in islice(arch.logits.expand(), 200):
        walk = walk_of(term, graph)
        for attribute, expected in (("pattern", term.pattern), ("symbol", term.weight)):
            value = oracle.word(model, spelled(graph, walk, attribute))
            wanted = oracle.word(model, str(expected))
            if value is None or wanted is None:
                assert value is wanted
            else:
                np.testing.assert_allclose(value, wanted, rtol=1e-9, err_msg=repr(term))


def test_walks_of_a_collapsed_mlp_stand_for_all_its_neurons() -> None:
    arch = Architecture(2, 2, mlp="frozen", neurons=300, biases=True)
    graph = arch.graph()
    term = arch.logits.expand()["bias[mlp0.n7] > mlp0.n7 > 1.0"]

    assert "mlp0.n7" not in graph
    assert graph["embed"]["mlp0"]["direct"] == {
        "symbol": "W_in[0] W_E", "pattern": "Id", "ways": 300,
    }  # fmt: skip
    walk = walk_of(term, graph)
    assert [step[0] for step in walk] == ["bias[mlp0]", "mlp0", "1.0"]
    with pytest.raises(UnsupportedError, match="mlp0 stands for all its neurons"):
        term_of(walk, arch)


def test_deep_models_without_enumeration() -> None:
    start = time.process_time()
    arch = Architecture(100, 30)
    with pytest.raises(LimitError, match=r"13,\d{3},\d{3} edges.*take stream=True"):
        arch.graph()

    graph = arch.graph(stream=True)

    assert count_walks(graph) == 31**100
    assert count_walks(graph, "0.7", "50.1") == 31**49
    assert count_walks(graph, avoiding={f"3.{h}" for h in range(30)}) == 31**99
    assert time.process_time() - start < 20


@FORMS
def test_the_number_of_edges_is_known_beforehand(stream: bool) -> None:
    arch = Architecture(
        3, (2, 0, 3), mlp="frozen", neurons=(1, 2, 0), positions="learned", biases={"b_V", "b_U"}
    )
    edges = arch.graph(stream=stream).number_of_edges()

    assert path_graph(arch, stream=stream, limit=edges).number_of_edges() == edges
    with pytest.raises(LimitError, match=f"has {edges} edges, more than the limit of {edges - 1}"):
        path_graph(arch, stream=stream, limit=edges - 1)


def test_networkx_algorithms_answer_questions_about_paths() -> None:
    arch = Architecture(3, 2, biases={"b_V[0]"})
    simple = logit_graph(arch.graph())

    assert nx.immediate_dominators(simple, "bias[0.0]")["logits"] == "0.0"
    assert nx.has_path(simple, "embed", "logits")
    # what embed tells head 2.0 passes 0.0, 0.1, 1.0, 1.1, or goes directly
    assert simple.has_edge("embed", "2.0")
    simple.remove_edge("embed", "2.0")
    cut = nx.minimum_node_cut(simple, "embed", "2.0")
    assert cut == {"0.0", "0.1", "1.0", "1.1"}
    assert nx.dag_longest_path_length(simple, weight=None) == 4
    through = nx.subgraph_view(simple, filter_node=lambda node: node != "0.0")
    assert not nx.has_path(through, "bias[0.0]", "logits")


def test_paths_that_avoid_a_node_agree_with_the_algebra() -> None:
    arch = Architecture(3, 3, positions="learned", biases={"b_O[1]"})
    graph = arch.graph()

    avoiding = count_walks(graph, "embed", avoiding={"1.2"})

    paths = [t for t in arch.logits.expand() if t.source.name == "embed"]
    assert avoiding == sum((1, 2) not in term.heads for term in paths) == 4 * 3 * 4


def test_side_sources_reach_scores_and_never_the_logits() -> None:
    arch = Architecture(2, 1, positions="shortformer", norm="layer", biases=True)
    graph = arch.graph()

    assert {(t, k) for _, t, k in graph.out_edges("pos", keys=True)} == {
        (head, key) for head in ("0.0", "1.0") for key in ("q", "k")
    }
    assert graph["bias[1.0.q]"]["1.0"] == {"q": {"symbol": "b_Q[1.0]", "pattern": "Id", "ways": 1}}
    assert graph["bias[1.ln1]"]["1.0"]["k"]["symbol"] == "W_K[1.0] β[1.ln1]"
    assert "pos" not in logit_graph(graph)
    assert Architecture(1, 1, positions="alibi").graph().nodes["0.0"]["added"] == "B[0.0]"


def test_walks_that_are_none() -> None:
    arch = Architecture(2, 2)
    graph = arch.graph()
    cases = [
        ([], "a path's walk ends at the logits"),
        ([("embed", "1.0", "v")], "a path's walk ends at the logits"),
        (
            [("embed", "0.0", "v"), ("1.0", "logits", "direct")],
            "each step of a walk begins where the last one ended",
        ),
        ([("pos", "logits", "direct")], "no such path in Architecture"),
        ([("embed", "0.9", "v"), ("0.9", "logits", "direct")], "no such path in Architecture"),
    ]
    for walk, message in cases:
        with pytest.raises(UnknownComponentError, match=message):
            term_of(walk, arch)
    with pytest.raises(UnknownComponentError, match=r"no node '2\.0' in this graph"):
        count_walks(graph, target="2.0")
    with pytest.raises(UnknownComponentError, match=r"no node '2\.1' in this graph"):
        walk_of(Architecture(3, 2).logits.expand()["2.1"], graph)


def test_networkx_is_loaded_by_graphs_alone() -> None:
    code = (
        "import sys, otimes.algebra as a, otimes.algebra.graph, otimes.algebra.graph_walks, "
        "otimes.algebra.graph_export; assert 'networkx' not in sys.modules; "
        "a.Architecture(1, 1).graph(); assert 'networkx' in sys.modules"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
