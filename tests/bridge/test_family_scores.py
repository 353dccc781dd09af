"""Scores of normed, turned, shifted and capped heads as sums over pairs of paths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import otimes as ox
from otimes.bridge import Run
from otimes.bridge.freezing import Frozen
from otimes.errors import InputError
from otimes.numeric.score_sides import side_model, side_target
from tests.bridge.test_families import FAMILIES, TWO_LAYERS, made
from tests.kit import close, run_of, with_frozen
from tests.oracles import transformer

ALL = 10**6
SCORED = (
    "layer norm", "post-norms", "sandwich norms", "embed norm", "rotary, partial and interleaved",
    "rotary by layer", "alibi, six heads", "attention soft-cap", "windows", "q and k norms",
    "q and k norms, layer", "q and k norms, all heads", "shortformer behind a norm",
    "parallel, one norm", "multipliers and post-norms", "everything",
)  # fmt: skip
CASES = [
    (name, mlp)
    for name in SCORED
    for mlp in (("source", "frozen") if FAMILIES[name].get("d_mlp") else ("source",))
]


@pytest.mark.parametrize(("name", "mlp"), CASES)
def test_pairs_add_up_to_the_recorded_score(tmp_path: Path, name: str, mlp: str) -> None:
    """Each by itself, and grouped; on both sequences, one with padding on the left."""
    run, checkpoint = made(tmp_path, name, mlp, **TWO_LAYERS.get(name, {}))
    config = checkpoint.config
    expected = transformer.forward(config, checkpoint.arrays, run.tokens, run.mask)["scores"]
    layer = config["n_layers"] - 1

    for batch, query, key in ((0, 4, 3), (1, 2, 2)):
        for head in (0, config["n_heads"] - 1):
            found = ox.scores(run, (layer, head), query, key, top=ALL, batch=batch)
            grouped = ox.scores(
                run, (layer, head), query, key, top=ALL, batch=batch, enumeration_limit=0
            )
            score = expected[layer][batch, head, query, key]
            size = 1e-10 * float(np.abs(expected[layer]).max())
            for one in (found, grouped):
                assert one.score == pytest.approx(score, abs=size)
                assert sum(term.value for term in one.terms) == pytest.approx(score, abs=size)
                assert one.by_kind == pytest.approx(found.by_kind, abs=size)
            by_kind = dict.fromkeys(found.by_kind, 0.0)
            for term in found.terms:
                by_kind[term.kind] += term.value
            assert found.by_kind == pytest.approx(by_kind, abs=size)
            assert found.pairs == len(found.terms)


def test_the_contrast_of_two_keys_is_of_turned_keys(tmp_path: Path) -> None:
    """The odds of the attention to two keys, where a key bias has something to say."""
    run, _ = made(tmp_path, "rotary, half", "source")

    found = ox.scores(run, "1.1", 4, 3, 2, top=ALL)

    pattern = run.pattern(1)[0, 1, 4]
    assert found.score == pytest.approx(float(pattern[3].log() - pattern[2].log()), rel=1e-9)
    turned = [term.value for term in found.terms if term.key_path == "bias[1.1.k]"]
    assert max(map(abs, turned)) > 1e-3


def test_keys_outside_the_window_are_refused(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "windows", "source")

    with pytest.raises(InputError, match=r"key 1 is outside the window of 2 positions that head 0"):
        ox.scores(run, "0.1", 4, 1)
    assert abs(ox.scores(run, "1.1", 4, 1).gap) < 1e-12


def test_what_a_score_holds_fixed_is_said(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "sandwich norms", "frozen")

    held = ox.scores(run, "1.0", 4, 3).frozen

    assert held == (
        "attention patterns of the layers before 1, as the run recorded them",
        "scales of the norms up to the scores, as the run recorded them",
        "slopes of the MLPs before layer 1, as the run recorded them",
    )


@pytest.mark.parametrize("query", [True, False])
def test_a_score_is_linear_in_one_side(tmp_path: Path, query: bool) -> None:
    """Read back through rotation and norm, the other side's sum is a target of this one."""
    run, _ = made(tmp_path, "q and k norms, layer", "source")
    frozen = run.frozen()
    model, reader = frozen.model.sequence(0), frozen.readers[1].sequence(0)
    places = {True: 4, False: 2}
    sides, vectors = dict[bool, Any](), dict[bool, torch.Tensor]()
    for one, place in places.items():
        side = sides[one] = side_model(model, reader, query=one, head=1, boundary=1)
        read = side.read(side.forward()[-1])
        joined = side.unembedded()
        made_of = (read if joined is None else read + side.direction(joined)) @ side.W_U + side.b_U
        vectors[one] = reader.behind(one, 1, made_of[:, [place]], [place])[0, 0]
    other = reader.scale * vectors[not query]
    back = reader.behind_adjoint(query, 1, other[None, None], [places[query]])[0, 0]

    target = side_target(sides[query], places[query], back)

    read = sides[query].read(sides[query].forward()[-1])[0, places[query]]
    joined = sides[query].unembedded()
    if joined is not None:
        read = read + sides[query].direction(joined)[0, places[query]]
    close(read @ target.direction + target.bias, run.scores(1)[0, 1, 4, 2], 1e-11)


def _turned(run: Run, **changes: Any) -> Run:
    def changed(frozen: Frozen) -> Frozen:
        readers = tuple(
            replace(r, rotation=replace(r.rotation, **changes))
            for r in frozen.readers
            if r.rotation is not None
        )
        return replace(frozen, readers=readers)

    return with_frozen(run, changed)


def test_a_wrong_pairing_shows_in_the_gap(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, positions="rotary", rotary={"theta": 100.0, "pairing": "half"})
    assert abs(ox.scores(run, "1.0", 4, 1).gap) < 1e-12

    assert abs(ox.scores(_turned(run, pairing="interleaved"), "1.0", 4, 1).gap) > 1e-3
