"""Scores as they are written, with symbols bound to tensors, are the recorded ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import otimes as ox
from otimes.algebra import Factor, weight
from otimes.algebra.kinds import diagonal
from otimes.algebra.scores import ScoreTerm
from otimes.bridge import Run
from otimes.errors import UnknownComponentError
from tests.bridge.loading.tiny import CONFIGS, tiny, tokens
from tests.bridge.test_families import FAMILIES, TWO_LAYERS, made
from tests.bridge.test_family_scores import SCORED
from tests.kit import close
from tests.oracles import transformer

COUPLED: dict[str, Any] = {"norm": "layer", "qk_norm": "all", "n_heads": 4, "n_kv_heads": 2}
NATIVE = [*SCORED, "rotary, half", "rotary, partial", "rotary, llama3"]


def heads(run: Run, layer: int) -> list[tuple[int, int]]:
    return [(layer, head) for head in (0, run.model.config.n_heads - 1)]


def check(run: Run, head: tuple[int, int], expected: np.ndarray, most: int = 700) -> None:
    """The unexpanded scores, and the sum over all pairs of paths where there are not too many."""
    scores = run.model.architecture.scores(head)
    close(run.binding.score(scores), expected, 1e-12)
    pairs = scores.expand()
    assert pairs.count <= most
    values = [run.binding.score(term) for term in pairs]
    close(sum(values[1:], values[0]), expected, 1e-11)


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("mlp", ["source", "frozen"])
def test_a_native_models_scores_are_those_of_plain_numpy(
    tmp_path: Path, name: str, mlp: str
) -> None:
    options: dict[str, Any] = {"n_layers": 2}
    if FAMILIES[name].get("d_mlp"):
        options["d_mlp"] = 1
    elif mlp == "frozen":
        return
    run, checkpoint = made(tmp_path, name, mlp, **options | TWO_LAYERS.get(name, {}))
    expected = transformer.forward(checkpoint.config, checkpoint.arrays, run.tokens, run.mask)

    for layer in (0, 1):
        number, index = heads(run, layer)[-1]
        check(run, (number, index), expected["scores"][layer][:, index], 4000)


def test_a_norm_over_all_heads_with_its_mean(tmp_path: Path) -> None:
    """A LayerNorm over all heads: the queries of one head depend on the matrices of all."""
    run, checkpoint = made(tmp_path, "rotary, half", "source", **COUPLED)
    expected = transformer.forward(checkpoint.config, checkpoint.arrays, run.tokens, run.mask)

    assert "W_Q[1]ᵀ Γ[1.3.q_norm]ᵀ" in str(run.model.architecture.scores("1.3").form)
    for head in range(4):
        check(run, (0, head), expected["scores"][0][:, head])
    check(run, (1, 3), expected["scores"][1][:, 3])


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "gpt2-untied"])
def test_the_formulas_of_every_family_have_the_models_values(name: str) -> None:
    run = ox.load(tiny(name)).run(tokens=tokens(1, 7))
    architecture = run.model.architecture

    close(run.evaluate(architecture.logits.expression), run.uncapped_logits, 1e-12)
    for layer in range(run.model.config.n_layers):
        for head in heads(run, layer):
            recorded = run.scores(layer)[:, head[1]]
            close(run.binding.score(architecture.scores(head)), recorded, 1e-12)
    check(run, (1, 1), run.scores(1)[:, 1].numpy())


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "olmo2", "granite", "gptj"])
def test_a_term_has_the_value_that_its_attribution_says(name: str) -> None:
    run = ox.load(tiny(name)).run(tokens=tokens(1, 7))
    found = ox.scores(run, "1.1", 5, 2, top=10**6)
    pairs = run.model.architecture.scores("1.1").expand()

    assert found.pairs == len(found.terms) == pairs.count
    own = {(term.query_path, term.key_path): run.binding.score(term)[0, 5, 2] for term in pairs}
    for term in found.terms:
        value = float(own[term.query_path, term.key_path])
        assert value == pytest.approx(term.value, rel=1e-10, abs=1e-12 * abs(found.score))


TURNING = ("rotary, half", "rotary, interleaved", "rotary, partial",
           "rotary, partial and interleaved", "q and k norms, layer")  # fmt: skip


@pytest.mark.parametrize("name", TURNING)
def test_the_planes_of_a_term_add_up_to_it(tmp_path: Path, name: str) -> None:
    run, _ = made(tmp_path, name, "source")
    config, pairs = run.model.config, run.model.architecture.scores("1.1").expand()
    rotary = config.rotary_of(1)
    assert rotary is not None
    planes, partial = [str(f) for f in range(rotary.dim // 2)], rotary.dim < config.d_head

    for term in pairs.terms()[::7]:
        assert isinstance(term, ScoreTerm)
        with pytest.raises(UnknownComponentError, match=r"P\[f\] is no symbol .* planes are 0 to"):
            run.binding.score(term, term.planes(["f"])[0])
        parts = term.planes(planes, partial=partial)
        values = [run.binding.score(term, part) for part in parts]
        whole = run.binding.score(term)
        close(sum(values[1:], values[0]), whole, 1e-12)
        if partial:  # the coordinates that do not turn are part of it
            assert float(values[-1].abs().max()) > 1e-6


def broken(run: Run, **changes: Any) -> Run:
    """The same run, but its binding's rotation or recorded scales are others."""
    binding = run.binding
    if "scales" in changes:
        binding.recording = replace(binding.recording, scales=changes["scales"])
    if "pairing" in changes:
        right = binding.rotation

        def rotation(layer: int):
            return replace(right(layer), pairing=changes["pairing"])

        binding.rotation = rotation
    return run


def test_a_wrong_pairing_and_exchanged_scales_are_seen() -> None:
    run = ox.load(tiny("qwen3")).run(tokens=tokens(1, 7))
    scores, recorded = run.model.architecture.scores("1.1"), run.scores(1)[:, 1]
    assert float((run.binding.score(scores) - recorded).abs().max()) < 1e-12

    broken(run, pairing="interleaved")
    assert float((run.binding.score(scores) - recorded).abs().max()) > 1e-3
    del run.binding.rotation
    scales = dict(run.recording().scales)
    scales["1.k_norm"] = scales["1.k_norm"].flip(1)  # those of the other KV head
    broken(run, scales=scales)
    assert float((run.binding.score(scores) - recorded).abs().max()) > 1e-3


SYMBOLS: dict[str, tuple[str, Factor, Any]] = {
    "gain of each head": (
        "head", weight("Γ", "d_head", "d_head", label="1.q_norm"),
        lambda w: np.diag(w["blocks.1.attn.q_norm.w"]),
    ),
    "gain of one key head": (
        "all", weight("Γ", "d_head", "d_head", label="1.kv1.k_norm"),
        lambda w: np.diag(w["blocks.1.attn.k_norm.w"][1]),
    ),
    "gain of a head that all are centred with": (
        "coupled", weight("Γ", "d_head", "d_heads", label="1.2.q_norm"),
        lambda w: (np.diag(w["blocks.1.attn.q_norm.w"].reshape(-1))
                   @ (np.eye(16) - np.ones((16, 16)) / 16))[8:12],
    ),
    "keys of all heads": (
        "coupled", weight("W_K", "d_kv_heads", "d_model", label="0"),
        lambda w: np.vstack([w["blocks.0.attn.W_K"][n].T for n in range(2)]),
    ),
    "biases of all heads": (
        "coupled", weight("b_Q", "d_heads", "1", label="0"),
        lambda w: w["blocks.0.attn.b_Q"].reshape(-1, 1),
    ),
    "a form": (
        "head", weight("W_QK", "d_model", "d_model", label="1.3"),
        lambda w: w["blocks.1.attn.W_Q"][3] @ w["blocks.1.attn.W_K"][1].T,
    ),
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "head": COUPLED | {"norm": "rms", "qk_norm": "head"},
    "all": COUPLED | {"norm": "rms"},
    "coupled": COUPLED,
}


@pytest.mark.parametrize("name", SYMBOLS)
def test_symbols_of_norms_of_queries_and_keys(tmp_path: Path, name: str) -> None:
    options, symbol, expected = SYMBOLS[name]
    run, checkpoint = made(tmp_path, "rms norm", "source", **OPTIONS[options], d_head=4)

    close(run.binding.matrix(symbol), expected(checkpoint.arrays), 1e-14)


def test_scales_of_queries_and_keys(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "rms norm", "source", **OPTIONS["head"])
    scales = run.recording().scales

    for label, expected in (
        ("1.3.q_norm", scales["1.q_norm"][:, 3]),
        ("0.kv1.k_norm", scales["0.k_norm"][:, 1]),
    ):
        found = run.binding.matrix(diagonal("D", label=label))
        close(found, torch.diag_embed(expected), 1e-15)


@pytest.mark.parametrize(
    ("options", "symbol", "message"),
    [
        ("head", diagonal("D", label="1.q_norm"), "D[1.q_norm] is no symbol of this model"),
        ("all", diagonal("D", label="1.3.q_norm"), "D[1.3.q_norm] is no symbol of this model"),
        ("head", diagonal("D", label="1.4.q_norm"), "no head 1.4: layer 1 has heads 0 to 3"),
        ("head", diagonal("D", label="1.kv2.k_norm"), "layer 1 has kv0 to kv1"),
        ("head", diagonal("D", label="1.kv1.q_norm"), "D[1.kv1.q_norm] is no symbol"),
        ("all", weight("Γ", "d_head", "d_heads", label="1.2.q_norm"), "is no symbol of this mod"),
        ("all", weight("W_Q", "d_heads", "d_model", label="1"), "W_Q[1] is no symbol of this mod"),
    ],
)
def test_symbols_that_other_norms_have(
    tmp_path: Path, options: str, symbol: Factor, message: str
) -> None:
    run, _ = made(tmp_path, "rms norm", "source", **OPTIONS[options])

    with pytest.raises(UnknownComponentError, match=re.escape(message)):
        run.binding.matrix(symbol)


def test_what_a_model_does_not_add_or_turn(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "rotary by layer", "source")

    with pytest.raises(UnknownComponentError, match=r"R\(j−i\) is no symbol of layer 1: its quer"):
        run.binding.rotation(1)
    with pytest.raises(UnknownComponentError, match=r"B\[0\.1\] is no symbol of this model"):
        run.binding.shift(0, 1)
