"""Which tokens a result is about, padding in front of them, and names of many layers.

Traps 20, 22 and 24.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from click.testing import CliRunner, Result

import otimes as ox
from otimes import results
from otimes.bridge import Run
from otimes.cli import cli
from tests.bridge.loading.tiny import CONFIGS, built, tiny, tokens
from tests.bridge.module_side import Seen, head_logits, seen
from tests.bridge.test_inputs import text_model
from tests.kit import close

# 20: padding on the left

PADDING, LENGTH = 3, 8
MASK = torch.tensor([[False] * PADDING + [True] * LENGTH])
EXPRESSIONS = (
    "..",
    "embed > ..",
    ".. > 1.1",
    "0.1 > ..",
    "0.0 > 1.1",
    "mlp0 > .. > 2.1",
    "order=2",
)


def padded(name: str, mlp: str, mask: torch.Tensor | None = MASK) -> tuple[Run, Run]:
    """A prompt alone, and behind padding."""
    model, row = ox.load(tiny(name), mlp=mlp), tokens(1, LENGTH)
    behind = torch.cat([torch.full((1, PADDING), 7), row], dim=1)
    return model.run(tokens=row), model.run(tokens=behind, mask=mask)


def compare(alone: Run, behind: Run) -> None:
    expressions = EXPRESSIONS
    if alone.model.mlp == "frozen":
        expressions = tuple(e.replace("mlp0", "mlp0.n2") for e in EXPRESSIONS)
    for text in expressions:
        one, other = alone.evaluate(text), behind.evaluate(text)
        assert bool(other.isfinite().all()), text
        close(other[:, PADDING:], one, 1e-10)
    by = [
        {row.key: row.value for row in ox.attribute(run, 3, 5, by="source").rows}
        for run in (alone, behind)
    ]
    assert by[1] == pytest.approx(by[0], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_terms_behind_padding_are_those_of_the_prompt_alone(name: str) -> None:
    alone, behind = padded(name, "source")

    compare(alone, behind)
    for layer in range(alone.model.config.n_layers):
        pattern = behind.pattern(layer)
        close(pattern[..., PADDING:, PADDING:], alone.pattern(layer), 1e-12)
        # rows that may attend to nothing are 0, and nothing attends to padding
        assert float(pattern[..., :PADDING, :].abs().max()) == 0
        assert float(pattern[..., :PADDING].abs().max()) == 0
        assert bool(behind.scores(layer).isfinite().all())
    for key, other in ((6, None), (7, 5)):
        one, two = (
            ox.scores(run, "1.1", at(7), at(key), None if other is None else at(other),
                      top=5, enumeration_limit=0)
            for run, at in ((alone, int), (behind, lambda place: place + PADDING))
        )  # fmt: skip
        assert [(t.query_path, t.key_path) for t in one.terms] == [
            (t.query_path, t.key_path) for t in two.terms
        ]
        close([t.value for t in two.terms], [t.value for t in one.terms], 1e-9)
    # no path starts at padding
    places = ox.attribute(behind, 3, 5, by="source-position").rows
    at = {row.key: row.value for row in places}
    assert {key: at.get(str(key), 0.0) for key in range(PADDING)} == {0: 0.0, 1: 0.0, 2: 0.0}


@pytest.mark.parametrize("name", ["gpt2", "gptj", "mistral", "gemma3"])
def test_so_are_terms_through_neurons(name: str) -> None:
    compare(*padded(name, "frozen"))


@pytest.mark.parametrize("name", ["gpt2", "gptj", "mistral", "gemma3", "llama-dynamic"])
def test_without_its_mask_padding_is_a_prompt(name: str) -> None:
    """What the tests above would see where a mask was left out."""
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compare(*padded(name, "source", mask=None))


# 22: more than ten layers, and more than ten heads


@cache
def deep() -> tuple[Any, Seen, Run]:
    """GPT-2 of 13 layers of 12 heads, which has a head 10.11."""
    model_type, settings = CONFIGS["gpt2-untied"]
    module = built(model_type, settings | {"n_head": 12})
    ids = tokens(1, 6)
    return module, seen(module, ids), ox.load(module).run(tokens=ids)


@pytest.mark.parametrize("head", [(10, 11), (1, 1), (11, 1), (1, 11), (0, 11), (12, 10), (2, 0)])
def test_a_head_of_a_deep_module_is_that_head(head: tuple[int, int]) -> None:
    module, found, run = deep()
    name = f"{head[0]}.{head[1]}"

    expected = head_logits(module, found, *head)
    close(run.evaluate(f".. > {name}"), expected, 1e-12)
    close(run.evaluate(f".. > L{head[0]}H{head[1]}"), expected, 1e-12)
    close(run.pattern(head[0])[:, head[1]], found.patterns[head[0]][:, head[1]], 1e-12)
    rows = {row.key: row.value for row in ox.attribute(run, 3, 5, by="last-head").rows}
    assert rows[name] == pytest.approx(float(expected[0, -1, 3] - expected[0, -1, 5]), rel=1e-9)


def test_names_of_many_layers_come_back(tmp_path: Path) -> None:
    """From the path to the term and its value, from a saved result, from scores and the graph."""
    *_, run = deep()
    text = "bias[9.attn] > 10.11 > 12.1"
    term = run.paths("..")[text]
    assert (term.path, term.components) == (text, ((10, 11), (12, 1)))
    value = run.evaluate(term)
    close(run.evaluate(text), value, 1e-12)
    read = ox.parse(str(term.expression), context=run.model.architecture)
    assert read == ox.parse(str(term.expression)) == term.expression
    close(run.evaluate(read), value, 1e-11)
    text = text.replace("10.11", "L10H11")
    assert run.paths("..")[text].components == term.components
    for near in ("10.1 > 12.1", "10.11 > 12.11", "11.11 > 12.1"):
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            close(run.evaluate(f"bias[9.attn] > {near}"), value, 1e-2)

    found = ox.attribute(run, 3, 5, path="embed > 1.11 > 10.11 > .. > 12.1", top=6)
    found.save(tmp_path / "found.json")
    for result in (found, ox.Attribution.load(tmp_path / "found.json")):
        assert len(result.rows) == 6
        for row in result.rows:
            assert row.key.startswith("embed > 1.11 > 10.11 > ")
            assert run.paths(row.key).count == 1
            logits = run.evaluate(row.key, -1, [3, 5])[0, 0]
            assert row.value == pytest.approx(float(logits[0] - logits[1]), rel=1e-9)
    sides = ox.scores(run, "12.11", 5, 2, top=10**6, enumeration_limit=0)
    assert sides.head == "12.11"
    assert sum(t.value for t in sides.terms) == pytest.approx(float(run.scores(12)[0, 11, 5, 2]))
    named = {term.key_path for term in sides.terms}
    assert {f".. > {layer}.{head}" for layer in range(12) for head in range(12)} <= named

    graph = run.model.architecture.graph(stream=True)
    data = json.loads(json.dumps(nx.node_link_data(graph, edges="edges")))
    assert nx.utils.graphs_equal(nx.node_link_graph(data, edges="edges"), graph)
    for name, layer, index in (("10.11", 10, 11), ("1.11", 1, 11), ("11.1", 11, 1)):
        assert (graph.nodes[name]["layer"], graph.nodes[name]["index"]) == (layer, index)


def test_a_deep_path_on_the_command_line() -> None:
    given = ["expand", "--layers", "13", "--heads", "12", "--path", "10.11 > 12.1", "--json"]
    found = json.loads(CliRunner().invoke(cli, given, catch_exceptions=False).stdout)
    assert [(t["path"], t["pattern"]) for t in found["terms"]] == [
        ("10.11 > 12.1", "A[12.1] A[10.11]")
    ]


# 24: the tokens that were used

RESULTS = {
    name
    for name in results.__all__
    if hasattr(getattr(results, name), "to_pandas")  # the others are parts of these
}


def made_of(run: Run, batch: int) -> dict[str, Any]:
    return {
        "Certificate": ox.verify(run, primes=0),
        "Attribution": ox.attribute(run, 1, 2, 1, batch=batch),
        "ScoreAttribution": ox.scores(run, "1.0", 1, 0, batch=batch),
        "CausalEffects": ox.causal_effects(run, ["0.1"], 1, 1, batch=batch),
        "LogitShares": ox.logit_shares(run, position=1, batch=batch),
    }


@pytest.mark.parametrize("bos", [0, None])
def test_every_result_has_the_tokens_that_were_used(tmp_path: Path, bos: int | None) -> None:
    """With the token that is put in front of a text, and without one in front of ids."""
    model = text_model(tmp_path, bos)
    front = [] if bos is None else [bos]
    texts = [[*front, 1, 2], [*front, 2, 2]]
    for run, expected in (
        (model.run(["sea sun", "sun sun"]), texts),
        (model.run(tokens=[[1, 2], [2, 2]]), [[1, 2], [2, 2]]),
    ):
        for batch in (0, 1):
            found = made_of(run, batch)
            assert found.keys() == RESULTS
            for name, result in found.items():
                of = expected if name == "Certificate" else expected[batch]
                assert json.loads(json.dumps(result.tokens)) == of, name


def printed(*given: str) -> Any:
    done: Result = CliRunner().invoke(cli, [*given, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "command",
    [
        ("verify",),
        ("attribute", "--target-id", "1"),
        ("scores", "--head", "1.0", "--query", "1", "--key", "0"),
    ],
    ids=lambda command: command[0],
)
def test_so_has_every_command(tmp_path: Path, command: tuple[str, ...]) -> None:
    text_model(tmp_path, bos=0)
    name, *options = command

    assert printed(name, str(tmp_path), "--prompt", "sea sun", *options)["tokens"] == [0, 1, 2]
    assert printed(name, str(tmp_path), "--tokens", "1,2", *options)["tokens"] == [1, 2]
