"""Score terms of a run against brute force over all pairs of paths, in plain numpy."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import otimes as ox
from otimes.bridge import Run
from otimes.bridge.freezing import Frozen
from otimes.errors import InputError, NotationError, UnknownComponentError
from otimes.numeric.edges import FrozenEdge
from otimes.results import ScoreAttribution
from tests.factory import Checkpoint
from tests.kit import patterns_of, run_of, untyped, with_frozen, with_heads
from tests.oracles.score_pairs import kind, last, pairs, streams

BIASES = ("b_Q", "b_K", "b_V", "b_O", "b_U")
ALL = 10**6
BATCH = [[1, 2, 3, 4, 5], [6, 5, 4], [9, 8, 7, 6]]
HALF = {"theta": 100.0, "pairing": "half"}
LLAMA3 = {
    "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_n_ctx": 40,
}  # fmt: skip


def turning(**changes: Any) -> dict[str, Any]:
    return {"positions": "rotary", "rotary": HALF | changes}


MODELS: dict[str, dict[str, Any]] = {
    "plain": {"positions": "none", "n_layers": 3, "n_heads": 2},
    "shortformer": {"positions": "shortformer", "biases": BIASES},
    "learned": {"positions": "learned", "biases": ("b_V", "b_K")},
    "grouped": {"n_heads": 4, "n_kv_heads": 2, "biases": BIASES, "attention_scale": 0.3},
    "batch": {"tokens": BATCH, "biases": BIASES},
    "left padding": {
        "tokens": [[0, 0, 3, 4], [1, 2, 3, 4]], "mask": [[0, 0, 1, 1], [1, 1, 1, 1]],
    },
    "not causal": {"causal": False, "positions": "learned", "biases": ("b_Q",)},
    "rotary, half": turning(theta=20.0) | {"biases": BIASES, "n_heads": 4, "n_kv_heads": 2},
    "rotary, interleaved": turning(pairing="interleaved") | {"n_heads": 4, "n_kv_heads": 1},
    "rotary, partial": turning(dim=4, pairing="interleaved") | {"d_head": 6, "biases": ("b_K",)},
    "rotary, llama3": turning(scaling=LLAMA3) | {"biases": BIASES, "attention_softcap": 0.5},
    "rotary, ntk, by layer": {
        "positions": "rotary", "rotary": [None, HALF | {"scaling": {"type": "ntk", "factor": 3.0}}],
        "biases": BIASES,
    },
    "rotary, left padding": turning(scaling={"type": "linear", "factor": 2.0}) | {
        "tokens": [[1, 2, 3, 4, 5], [0, 0, 3, 4, 5]], "mask": [[1] * 5, [0, 0, 1, 1, 1]],
        "biases": BIASES,
    },
    "alibi": {"positions": "alibi", "n_heads": 6, "n_kv_heads": 2, "biases": BIASES},
}  # fmt: skip


def made(folder: Path, name: str) -> tuple[Run, Checkpoint]:
    options = {"seed": 4} | MODELS[name]
    return run_of(folder, **options)


def brute(
    run: Run, checkpoint: Checkpoint, head: tuple[int, int], query: int, key: int, batch: int = 0
) -> dict[tuple[str, str], tuple[float, str]]:
    return pairs(
        checkpoint.config,
        checkpoint.arrays,
        run.tokens.numpy(),
        patterns_of(run),
        head,
        query,
        key,
        batch,
        None if run.mask is None else run.mask.numpy(),
    )


def short(expected: dict[tuple[str, str], Any]) -> dict[Any, Any]:
    """Paths are named without their source where there is one alone on both sides."""
    sources = {path.split(" > ")[0] for pair in expected for path in pair}
    if len(sources) > 1:
        return expected
    rename = {"embed": "direct"}
    return {
        tuple(rename.get(p, p.removeprefix("embed > ")) for p in pair): value
        for pair, value in expected.items()
    }


def check(found: ScoreAttribution, expected: dict[Any, tuple[float, str]]) -> None:
    """Everything that a decomposition of all pairs says."""
    size = max(abs(value) for value, _ in expected.values())
    assert {(t.query_path, t.key_path): t.kind for t in found.terms} == {
        pair: kind for pair, (_, kind) in expected.items()
    }
    for term in found.terms:
        value = expected[term.query_path, term.key_path][0]
        assert math.isclose(term.value, value, rel_tol=1e-11, abs_tol=1e-13 * size), term
    by_kind = dict.fromkeys(("direct", "q", "k", "qk", "position"), 0.0)
    for value, name in expected.values():
        by_kind[name] += value
    assert found.by_kind == pytest.approx(by_kind, rel=1e-11, abs=1e-12 * size)
    assert found.score == sum(found.by_kind.values())
    assert found.pairs == len(expected)
    assert found.shown_sum + found.remainder == pytest.approx(found.score, abs=1e-13 * size)
    assert abs(found.remainder) < 1e-11 * size
    assert abs(found.gap) < 1e-11 * size
    sizes = [abs(term.value) for term in found.terms]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", MODELS)
def test_all_pairs_have_the_values_of_brute_force(tmp_path: Path, name: str) -> None:
    run, checkpoint = made(tmp_path, name)
    batch, length = len(run.tokens) - 1, run.tokens.shape[1]
    last_layer = checkpoint.config["n_layers"] - 1
    query = length - 1 if run.mask is None else int(run.mask[batch].nonzero().max())
    key = length - 3 if run.mask is None else int(run.mask[batch].nonzero().min())
    for head in ((0, 1), (last_layer, checkpoint.config["n_heads"] - 1)):
        found = ox.scores(run, head, query, key, top=ALL, batch=batch)

        expected = brute(run, checkpoint, head, query, key, batch)
        check(found, short(expected))
        assert found.recorded == float(run.scores(head[0])[batch, head[1], query, key])


@pytest.mark.parametrize("name", ["shortformer", "grouped", "plain"])
def test_the_contrast_of_two_keys_is_the_log_odds_of_attention(tmp_path: Path, name: str) -> None:
    run, checkpoint = made(tmp_path, name)
    head = (1, 1)

    found = ox.scores(run, "1.1", 5, 4, 1, top=ALL)

    one, other = (brute(run, checkpoint, head, 5, key) for key in (4, 1))
    expected = {pair: (one[pair][0] - other[pair][0], kind) for pair, (_, kind) in one.items()}
    check(found, short(expected))
    pattern = run.pattern(1)[0, 1, 5]
    assert found.score == pytest.approx(float(pattern[4].log() - pattern[1].log()), rel=1e-10)
    assert found.attention == (float(pattern[4]), float(pattern[1]))


def test_a_bias_of_keys_says_nothing_about_their_odds(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "shortformer")

    found = ox.scores(run, "1.1", 5, 4, 1, top=ALL)

    assert {t.value for t in found.terms if t.key_path == "bias[1.1.k]"} == {0.0}


def test_the_largest_pairs_and_the_rest_of_them(tmp_path: Path) -> None:
    run, checkpoint = made(tmp_path, "grouped")
    expected = brute(run, checkpoint, (1, 3), 8, 2)
    ranked = sorted(expected, key=lambda pair: -abs(expected[pair][0]))

    found = ox.scores(run, "1.3", -1, 2, top=7)

    assert [(t.query_path, t.key_path) for t in found.terms] == ranked[:7]
    others = sum(expected[pair][0] for pair in ranked[7:])
    assert found.remainder == pytest.approx(others, rel=1e-10)
    assert found.query == 8
    nothing = ox.scores(run, "1.3", -1, 2, top=0)
    assert nothing.terms == ()
    assert nothing.remainder == nothing.score


@pytest.mark.parametrize("name", ["plain", "shortformer", "grouped", "left padding"])
@pytest.mark.parametrize("minus", [None, 0])
def test_groups_are_the_sums_of_paths_that_end_alike(
    tmp_path: Path, name: str, minus: int | None
) -> None:
    run, checkpoint = made(tmp_path, name)
    head, batch = (checkpoint.config["n_layers"] - 1, 1), len(run.tokens) - 1
    expected = defaultdict[tuple[str, str], float](float)
    for key, sign in ((2, 1), *([] if minus is None else [(minus, -1)])):
        for (a, b), (value, _) in brute(run, checkpoint, head, 3, key, batch).items():
            expected[last(a), last(b)] += sign * value

    found = ox.scores(run, head, 3, 2, minus, top=ALL, batch=batch, enumeration_limit=1)

    assert found.grouped
    values = {(t.query_path, t.key_path): t.value for t in found.terms}
    assert values == pytest.approx(dict(expected), rel=1e-9, abs=1e-12)
    assert sum(values.values()) == pytest.approx(found.score, rel=1e-10)
    assert ox.scores(run, head, 3, 2, minus, batch=batch).by_kind == found.by_kind


def test_groups_are_named_in_the_path_language(tmp_path: Path) -> None:
    """The name of a group matches its paths and no other: the counts add up."""
    run, _ = made(tmp_path, "shortformer")
    paths = run.model.architecture.scores("1.0").query_stream.paths
    found = ox.scores(run, "1.0", 3, 2, top=ALL, enumeration_limit=1)

    names = {term.query_path for term in found.terms}

    counts = [
        paths.where(name if name.startswith("..") else f"({name}) & order=0").count
        for name in names
    ]
    assert sum(counts) == paths.count


def test_a_deep_model_is_grouped_by_itself(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, n_layers=13, n_heads=2, d_model=6, d_head=2, scale=0.3)

    found = ox.scores(run, "L12H1", -1, 0)

    assert found.head == "12.1"
    assert found.grouped
    assert found.pairs == (3**12 + 1) ** 2
    assert abs(found.gap) < 1e-12
    assert any(term.query_path == ".. > 11.0" for term in found.terms)


BAD: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "query": (("1.0", 9, 0), {}, "query position 9 is out of range: -9 to 8"),
    "key": (("1.0", 3, -10), {}, "key position -10 is out of range: -9 to 8"),
    "minus key": (("1.0", 3, 0, 9), {}, "key position 9 is out of range"),
    "no integer": (("1.0", 3.0, 0), {}, r"a query position is an integer, not 3\.0"),
    "later": (("1.0", 3, 4), {}, "key 4 comes after query 3: the model is causal"),
    "later minus": (("1.0", 3, 1, 8), {}, "key 8 comes after query 3"),
    "sequence": (("1.0", 3, 1), {"batch": 1}, "sequence 1 is out of range"),
    "top": (("1.0", 3, 1), {"top": -1}, "ask for 0 terms or more"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(tmp_path: Path, name: str) -> None:
    run, _ = made(tmp_path, "plain")
    arguments, options, match = BAD[name]

    with untyped(), pytest.raises(InputError, match=match):
        ox.scores(run, *arguments, **options)


def test_heads_that_there_are_not(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "plain")

    with pytest.raises(UnknownComponentError, match=r"no head 1\.2: layer 1 has heads 0 to 1"):
        ox.scores(run, "1.2", 1, 0)
    with pytest.raises(NotationError, match=r"scores belong to a head such as 1\.4"):
        ox.scores(run, "mlp1", 1, 0)


def test_padding_is_no_key(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "left padding")

    with pytest.raises(InputError, match=r"key 0 is padding: head 1\.0 does not attend to it"):
        ox.scores(run, "1.0", 3, 0)


def test_scores_that_overflow(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, scale=1e100)

    with pytest.raises(InputError, match=r"scores of head 1\.0 are not finite"):
        ox.scores(run, "1.0", 3, 0)


def test_what_positions_add_is_a_term_of_its_own(tmp_path: Path) -> None:
    """As ALiBi and T5 do; in the contrast of two keys it is their difference."""
    run, _ = made(tmp_path, "plain")
    length = run.tokens.shape[1]
    shift = torch.arange(2.0 * length**2, dtype=torch.float64).reshape(1, 2, length, length)
    shifted = with_frozen(
        run,
        lambda frozen: replace(
            frozen, readers=tuple(replace(reader, shift=shift) for reader in frozen.readers)
        ),
    )

    for minus, added in ((None, shift[0, 1, 5, 3]), (1, shift[0, 1, 5, 3] - shift[0, 1, 5, 1])):
        plain, found = (ox.scores(r, "1.1", 5, 3, minus, top=2) for r in (run, shifted))

        assert found.by_kind == plain.by_kind | {"position": float(added)}
        assert found.score == pytest.approx(plain.score + float(added))
        assert found.gap == pytest.approx(float(added))
        (term,) = [term for term in found.terms if term.kind == "position"]
        assert (term.query_path, term.key_path) == ("position", "position")
        assert term.value == float(added)
        assert len(found.terms) == 2


def test_a_norm_that_the_head_reads_through(tmp_path: Path) -> None:
    run, checkpoint = made(tmp_path, "plain")
    rng = np.random.default_rng(5)
    sigma, gain = rng.uniform(0.5, 2, run.tokens.shape), rng.standard_normal(10)
    edge = FrozenEdge(torch.from_numpy(1 / sigma), torch.from_numpy(gain), centred=True)
    normed = with_frozen(
        run,
        lambda frozen: replace(
            frozen, readers=tuple(replace(reader, reads=edge) for reader in frozen.readers)
        ),
    )
    arrays, config = checkpoint.arrays, checkpoint.config

    def vectors(letter: str, place: int) -> dict[str, np.ndarray]:
        found = streams(config, arrays, run.tokens.numpy(), patterns_of(run), 2)
        return {
            text: (x[0, place] - x[0, place].mean())
            / sigma[0, place]
            * gain
            @ arrays[f"blocks.2.attn.W_{letter}"][0]
            for text, (x, _) in found.items()
        }

    queries, keys = vectors("Q", 6), vectors("K", 2)
    expected = {
        (a, b): (config["attention_scale"] * q @ k, kind(a.split(" > ")[1:], b.split(" > ")[1:]))
        for a, q in queries.items()
        for b, k in keys.items()
    }

    found = ox.scores(normed, "2.0", 6, 2, top=ALL)
    grouped = ox.scores(normed, "2.0", 6, 2, top=ALL, enumeration_limit=1)

    check(replace(found, recorded=found.score), short(expected))
    assert grouped.by_kind == found.by_kind
    assert grouped.shown_sum == pytest.approx(found.score, rel=1e-10)


def broken_scale(frozen: Frozen) -> Frozen:
    return replace(frozen, readers=tuple(replace(r, scale=2 * r.scale) for r in frozen.readers))


def broken_groups(frozen: Frozen) -> Frozen:
    return replace(frozen, readers=tuple(replace(r, W_K=r.W_K.flip(0)) for r in frozen.readers))


def swapped_sides(frozen: Frozen) -> Frozen:
    def swapped(r: Any) -> Any:
        return replace(r, W_Q=r.W_K.repeat_interleave(2, 0))

    return replace(frozen, readers=tuple(map(swapped, frozen.readers)))


@pytest.mark.parametrize("change", [broken_scale, broken_groups, swapped_sides])
def test_the_gap_tells_what_is_broken(tmp_path: Path, change: Any) -> None:
    run, _ = made(tmp_path, "grouped")
    assert abs(ox.scores(run, "1.0", 5, 2).gap) < 1e-12

    assert abs(ox.scores(with_frozen(run, change), "1.0", 5, 2).gap) > 1e-3


def test_a_transposed_pattern_is_seen(tmp_path: Path) -> None:
    run, checkpoint = made(tmp_path, "grouped")
    broken = with_heads(run, 0, lambda h: replace(h, pattern=h.pattern.transpose(-1, -2)))
    expected = brute(run, checkpoint, (1, 0), 5, 2)

    found = ox.scores(broken, "1.0", 5, 2, top=ALL)

    with pytest.raises(AssertionError, match="embed > 0"):
        check(found, expected)
    assert np.isfinite(found.gap)


@pytest.mark.parametrize("name", ["shortformer", "grouped", "learned"])
def test_each_side_is_a_tree_that_adds_up(tmp_path: Path, name: str) -> None:
    """With the other side held at its sum; the leaves are the sums of brute-force pairs."""
    run, checkpoint = made(tmp_path, name)
    found = ox.scores(run, (1, 1), 4, 2, minus_key=1)
    one, other = (brute(run, checkpoint, (1, 1), 4, key) for key in (2, 1))
    sides = {
        "query": [(q, value) for (q, _), (value, _) in one.items()]
        + [(q, -value) for (q, _), (value, _) in other.items()],
        "key": [(k, value) for (_, k), (value, _) in one.items()],
        "minus_key": [(k, -value) for (_, k), (value, _) in other.items()],
    }
    for side, parts in sides.items():
        expected = defaultdict[str, float](float)
        for path, value in parts:
            expected[path] += value
        tree = found.tree(side)
        leaves = tree.split(1000)

        assert {leaf.key for leaf in leaves} == set(expected)
        for leaf in leaves:
            assert leaf.value == pytest.approx(expected[leaf.key], abs=1e-11)
        assert tree.root.value == pytest.approx(math.fsum(expected.values()), abs=1e-11)
        assert sum(leaf.value for leaf in tree.split(2)) == pytest.approx(tree.root.value)
    assert found.tree("query").root.value == pytest.approx(found.score, abs=1e-11)


def test_a_saved_score_has_no_trees(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "plain")
    found = ox.scores(run, (1, 1), 4, 2)
    found.save(tmp_path / "score.json")

    with pytest.raises(InputError, match="this score has query, key"):
        found.tree("minus_key")
    again = ScoreAttribution.load(tmp_path / "score.json")
    assert again == found
    with pytest.raises(InputError, match="a saved score has no run"):
        again.tree()
