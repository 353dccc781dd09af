"""``--mlp`` of the commands that take a model: MLPs as sources, or neuron by neuron."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import networkx as nx
import pytest
from click.testing import CliRunner

import otimes as ox
from otimes.cli.attention import scores
from otimes.cli.attribute import attribute
from otimes.cli.derive import derive
from otimes.cli.expand import expand
from otimes.cli.graph import graph
from otimes.cli.verify import verify
from otimes.errors import InputError
from tests.factory import make_checkpoint

INPUT = ("--tokens", "1,5,2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    make_checkpoint(
        path, n_layers=2, n_heads=2, norm="rms", d_mlp=3, activation="gelu", positions="none",
        biases={"b_out"},
    )  # fmt: skip
    return str(path)


def printed(command: click.Command, *arguments: str) -> Any:
    done = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_verify(folder: str) -> None:
    plain = printed(verify, folder, *INPUT)
    source = printed(verify, folder, *INPUT, "--mlp", "source")
    frozen = printed(verify, folder, *INPUT, "--mlp", "frozen")

    assert plain["holds"] is source["holds"] is frozen["holds"] is True
    assert plain["paths"] == source["paths"] == _paths(folder, "source")
    assert frozen["paths"] == _paths(folder, "frozen") != source["paths"]
    assert any("slopes of 2 MLPs × 3 neurons" in held for held in frozen["frozen"])
    assert any("outputs of 2 MLPs" in held for held in source["frozen"])


def _paths(folder: str, mlp: str) -> str:
    return str(ox.load(folder, mlp=mlp).architecture.logits.expand().count)


def test_attribute(folder: str) -> None:
    found = {
        mlp: printed(attribute, folder, *INPUT, "--target-id", "4", "--mlp", mlp, "--top", "100")
        for mlp in ("source", "frozen")
    }

    assert found["source"]["total"] == pytest.approx(found["frozen"]["total"], rel=1e-12)
    paths = {mlp: [term["path"] for term in found[mlp]["terms"]] for mlp in found}
    assert "mlp1" in paths["source"]
    assert not any(".n" in path for path in paths["source"])
    assert "embed > mlp1.n2" in paths["frozen"]
    assert "mlp1" not in paths["frozen"]


def test_scores(folder: str) -> None:
    at = ("--head", "1.0", "--query", "2", "--key", "1", "--top", "1000")
    source, frozen = (printed(scores, folder, *INPUT, *at, "--mlp", m) for m in _MODES)

    assert source["score"] == pytest.approx(frozen["score"], rel=1e-12)
    keys = {
        mode: {t["key_path"] for t in found["terms"]}
        for mode, found in zip(_MODES, (source, frozen), strict=True)
    }
    assert "mlp0" in keys["source"]
    assert any("mlp0.n1" in path for path in keys["frozen"])


_MODES = ("source", "frozen")


@pytest.mark.parametrize("mlp", _MODES)
def test_expand(folder: str, mlp: str) -> None:
    found = printed(expand, "--model", folder, "--mlp", mlp, "--count")

    assert found["count"] == _paths(folder, mlp)


@pytest.mark.parametrize("mlp", _MODES)
def test_derive(tmp_path: Path, mlp: str) -> None:
    make_checkpoint(tmp_path, n_layers=1, n_heads=1, d_mlp=2, positions="none", activation="relu")

    found = printed(derive, "--model", str(tmp_path), "--mlp", mlp)

    assert all(step["checked"] for step in found["steps"])
    assert ("S[0.n1]" in found["steps"][-1]["after"]) == (mlp == "frozen")
    assert ("m[0]" in found["steps"][-1]["after"]) == (mlp == "source")


@pytest.mark.parametrize("mlp", _MODES)
def test_graph(folder: str, mlp: str) -> None:
    done = CliRunner().invoke(graph, [folder, "--mlp", mlp, "--format", "json"])

    nodes = nx.node_link_graph(json.loads(done.stdout), edges="edges").nodes
    assert ("mlp1" in nodes) == (mlp == "source")
    assert ("mlp1.n2" in nodes) == (mlp == "frozen")


@pytest.mark.parametrize("command", [expand, derive, graph])
def test_a_symbolic_model_has_no_mlp_here(command: click.Command) -> None:
    arguments = ["--layers", "1", "--heads", "1", "--mlp", "frozen"]
    with pytest.raises(InputError, match="--mlp frozen is for the MLPs of a model"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_another_mode(folder: str) -> None:
    done = CliRunner().invoke(verify, [folder, *INPUT, "--mlp", "neurons"])

    assert done.exit_code == 2
    assert "'neurons' is not one of 'source', 'frozen'" in done.output


@pytest.mark.parametrize("command", [verify, attribute, scores, expand, derive, graph])
def test_the_help_says_what_it_does(command: click.Command) -> None:
    text = " ".join(CliRunner().invoke(command, ["--help"]).stdout.split())

    assert "--mlp [source|frozen]" in text
    assert "paths start at their outputs, or go through each frozen neuron" in text
