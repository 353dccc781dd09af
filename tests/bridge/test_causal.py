"""Causal effects of paths against interventions in plain numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import otimes as ox
from otimes.bridge import Run, causal
from otimes.errors import InputError, LimitError, UnknownComponentError
from tests.factory import Checkpoint
from tests.kit import close, patterns_of, run_of, untyped
from tests.oracles import causal as oracle
from tests.oracles.paths import Path as OraclePath
from tests.oracles.paths import bias_in_head, enumerate_paths
from tests.oracles.score_pairs import streams

BIASES = ("b_Q", "b_K", "b_V", "b_O", "b_U")
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"positions": "none", "n_layers": 3, "n_heads": 2},
    "shortformer": {"positions": "shortformer", "biases": BIASES},
    "grouped": {
        "positions": "learned", "n_heads": 4, "n_kv_heads": 2, "biases": ("b_V", "b_O"),
        "tokens": [1, 2, 3, 4],
    },
    "left padding": {
        "tokens": [[1, 2, 3, 4, 5], [0, 0, 3, 4, 5]], "mask": [[1] * 5, [0, 0, 1, 1, 1]],
        "biases": ("b_K", "b_O"),
    },
    "not causal": {"causal": False, "positions": "learned"},
}  # fmt: skip
TARGET = [5, 2]


class Judge:
    """The interventions of the oracle on the last sequence of a run."""

    def __init__(self, run: Run, checkpoint: Checkpoint) -> None:
        self.config, self.arrays = checkpoint.config, checkpoint.arrays
        self.row = len(run.tokens) - 1
        self.real = np.ones(run.tokens.shape[1], bool)
        mask = None
        if run.mask is not None:
            mask = run.mask.numpy()
            self.real = mask[self.row]
        at = (self.config, self.arrays, run.tokens.numpy(), patterns_of(run))
        self.streams = [s[self.row].numpy() for s in run.recording().streams]
        # by the text of the path: what it writes to the last stream, where nothing takes it away
        found = streams(*at, self.config["n_layers"], mask)
        self.written = {text: stream[self.row] for text, (stream, _) in found.items()}
        self.target = np.eye(self.config["d_vocab"])[TARGET[0]]
        self.target = self.target - np.eye(self.config["d_vocab"])[TARGET[1]]

    def entry(self, path: OraclePath) -> int:
        """The first layer that reads what a path writes."""
        if path.heads:
            return path.heads[-1][0] + 1
        return int(path.source[5:-6]) + 1 if path.source.endswith(".attn]") else 0

    def output(self, path: OraclePath, position: int) -> float:
        if path.source == "bias[unembed]":
            return float(self.arrays["unembed.b_U"] @ self.target)
        at = (self.config, self.arrays, self.streams, self.real)
        return oracle.effect(*at, self.entry(path), self.written[path.text], position, self.target)

    def input(self, path: OraclePath, position: int) -> float:
        inside = bias_in_head(self.config, self.arrays, path) is not None
        if len(path.heads) <= inside:
            return self.output(path, position)
        prefix = self.written[path._replace(heads=path.heads[:-1]).text]
        at = (self.config, self.arrays, self.streams, self.real)
        return oracle.arriving_effect(*at, path.heads[-1], prefix, position, self.target)


def all_paths(run: Run, checkpoint: Checkpoint) -> tuple[list[OraclePath], list[Any]]:
    """The oracle's paths, and the terms of the run in the same order."""
    paths = enumerate_paths(checkpoint.config, checkpoint.arrays)
    terms = {term.path: term for term in run.paths("..")}
    return paths, [terms[path.text] for path in paths]


@pytest.mark.parametrize("at", ["output", "input"])
@pytest.mark.parametrize("name", MODELS)
def test_effects_are_those_of_the_intervention(tmp_path: Path, name: str, at: Any) -> None:
    run, checkpoint = run_of(tmp_path, seed=3, **MODELS[name])
    judge = Judge(run, checkpoint)
    paths, terms = all_paths(run, checkpoint)

    found = ox.causal_effects(run, terms, TARGET, -1, batch=judge.row, at=at)

    expected = [getattr(judge, at)(path, run.tokens.shape[1] - 1) for path in paths]
    close(found.causal, expected, 1e-11)
    values = {
        term.path: float(logits[judge.row, 0, 0] - logits[judge.row, 0, 1])
        for term, logits in run.terms("..", -1, TARGET)
    }
    close(found.frozen, [values[term.path] for term in terms], 1e-11)
    assert [effect.path for effect in found.effects] == [term.short_path for term in terms]
    logits = run.logits[judge.row, -1]
    assert found.original == pytest.approx(float(logits[5] - logits[2]))
    assert abs(found.gap).max() > 0.01  # frozen values are no causal effects


def test_paths_that_end_in_the_last_layer_have_the_effect_of_their_frozen_value(
    tmp_path: Path,
) -> None:
    """Nothing reads what they write but the unembedding, which is linear."""
    run, checkpoint = run_of(tmp_path, n_layers=2, biases=BIASES)
    paths, terms = all_paths(run, checkpoint)
    ending = [
        t for path, t in zip(paths, terms, strict=True) if path.heads and path.heads[-1][0] == 1
    ]

    found = ox.causal_effects(run, ending, 4)

    assert len(ending) > 9
    close(found.causal, found.frozen, 1e-12)


def test_a_model_without_layers_is_linear(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, n_layers=0, biases=("b_U",), positions="learned")

    found = ox.causal_effects(run, ["embed", "pos", "bias[unembed]"], 4, 3)

    close(found.causal, found.frozen, 1e-12)
    assert found.causal.sum() == pytest.approx(float(run.logits[0, 3, 4]))


@pytest.mark.parametrize("shift", [-1, 1])
def test_an_intervention_in_the_wrong_layer_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    run, checkpoint = run_of(tmp_path, n_layers=3, n_heads=2)
    judge = Judge(run, checkpoint)
    path = OraclePath("embed", ((1, 0),))
    assert ox.causal_effects(run, ["1.0"], TARGET).causal[0] == pytest.approx(judge.output(path, 8))
    right = causal.boundary_of
    monkeypatch.setattr(causal, "boundary_of", lambda *which: right(*which) + shift)

    wrong = ox.causal_effects(run, ["1.0"], TARGET).causal[0]

    assert wrong != pytest.approx(judge.output(path, 8), rel=1e-3)


def test_the_run_and_the_reference_stay_as_they_were(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path)
    before = run.logits.clone()

    ox.causal_effects(run, ["0.1", "1.1"], 4, at="input")

    assert torch.equal(run.logits, before)
    assert torch.equal(run.model.run(tokens=run.tokens).logits, before)
    for module in run.model.reference().modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_hooks_are_taken_off_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = run_of(tmp_path)
    unembed = run.model.reference().unembed
    monkeypatch.setattr(unembed, "W_U", None)

    with pytest.raises(AttributeError, match="NoneType"):
        ox.causal_effects(run, ["0.1"], 4)

    assert not any(module._forward_hooks for module in run.model.reference().modules())


def test_the_memory_budget_changes_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, checkpoint = run_of(tmp_path, biases=BIASES)
    _, terms = all_paths(run, checkpoint)
    at_once = ox.causal_effects(run, terms, 4)
    monkeypatch.setattr(causal, "_at_once", lambda _: 3)

    close(ox.causal_effects(run, terms, 4).causal, at_once.causal)


def test_targets(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, biases=("b_U",))
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal(13))

    one, two = (ox.causal_effects(run, ["0.1"], t).causal for t in (3, 8))
    close(ox.causal_effects(run, ["0.1"], [3, 8]).causal, one - two)
    whole = [ox.causal_effects(run, ["0.1"], t).causal[0] for t in range(13)]
    found = ox.causal_effects(run, ["0.1"], weights, 8)
    close(found.causal[0], np.array(whole) @ weights.numpy())
    assert found.target == "weighted sum of logits"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "at": ({"at": "middle"}, "at='middle': a path is taken away at 'output' or at 'input'"),
    "position": ({"position": 9}, "position 9 is out of range"),
    "sequence": ({"batch": -2}, "sequence -2 is out of range"),
    "token": ({"target": 13}, "token id 13 is out of range: 0 to 12"),
    "tokens": ({"target": [1, 2, 3]}, "a target is a token id or two, not 3"),
    "weights": ({"target": torch.zeros(4)}, "a target's weights are 13 finite numbers"),
    "text": ({"target": "sea"}, "a token id is an integer, not 'sea'"),
    "nothing": ({"target": None}, "a token id is an integer, not None"),
    "NaN": ({"target": torch.full((13,), torch.nan)}, "a target's weights are 13 finite numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(tmp_path: Path, name: str) -> None:
    run, _ = run_of(tmp_path)
    options, match = BAD[name]

    with untyped(), pytest.raises(InputError, match=match):
        ox.causal_effects(run, ["0.1"], **({"target": 1} | options))


def test_one_path_and_one_token_in_any_form(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path)
    term = run.paths("..")["0.1"]
    expected = ox.causal_effects(run, ["0.1"], 1)

    with untyped():
        for paths, target in (("0.1", np.int64(1)), (term, torch.tensor(1)), (run.paths("0.1"), 1)):
            assert ox.causal_effects(run, paths, target) == expected


def test_more_paths_than_can_be_taken_away_one_by_one(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, n_layers=10, n_heads=3)

    with pytest.raises(LimitError, match="1,048,576"):
        ox.causal_effects(run, run.paths(".."), 1)


def test_paths_that_are_not_of_the_model(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path)

    with pytest.raises(UnknownComponentError, match=r"'0\.\*' matches 3 paths, not one"):
        ox.causal_effects(run, ["0.*"], 1)
    other = next(iter(ox.Architecture(1, 1).logits.expand()))
    with pytest.raises(InputError, match="these are paths of"):
        ox.causal_effects(run, [other], 1)
