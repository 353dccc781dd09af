"""Attribution against brute force: every path of a small model by plain numpy."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import otimes as ox
from otimes.errors import InputError, LimitError, NotationError
from otimes.results import Attribution
from tests.factory import Checkpoint, make_checkpoint
from tests.kit import close, untyped
from tests.oracles import paths as oracle
from tests.oracles.numpy_model import forward

BIASES = {"b_Q", "b_K", "b_V", "b_O", "b_U"}
TOKENS = [[1, 2, 3, 4], [4, 1, 0, 2]]
ROW, AT, TOKEN, OTHER = 1, 2, 3, 5


@pytest.fixture(scope="module")
def made() -> Iterator[Checkpoint]:
    with tempfile.TemporaryDirectory() as folder:
        yield make_checkpoint(
            Path(folder), seed=5, n_layers=3, n_heads=2, n_kv_heads=1, positions="learned",
            biases=BIASES,
        )  # fmt: skip


@pytest.fixture(scope="module")
def run(made: Checkpoint) -> ox.Run:
    return ox.load(made.path).run(tokens=TOKENS)


@pytest.fixture(scope="module")
def values(made: Checkpoint) -> dict[str, float]:
    """The difference of two logits that each path gives, by plain numpy."""
    tokens = np.array(TOKENS)
    patterns = forward(made.config, made.arrays, tokens).patterns
    found = {}
    for path in oracle.enumerate_paths(made.config, made.arrays):
        logits = oracle.path_logits(made.config, made.arrays, tokens, patterns, path)[ROW, AT]
        found[path.text] = float(logits[TOKEN] - logits[OTHER])
    return found


def attribute(run: ox.Run, **options: object) -> Attribution:
    return ox.attribute(run, TOKEN, OTHER, AT, batch=ROW, **options)


def names(path: str) -> list[str]:
    """The heads of a path."""
    return path.split(" > ")[1:]


def test_every_path_is_what_brute_force_gives(run: ox.Run, values: dict[str, float]) -> None:
    found = attribute(run, top=10_000)

    assert {row.key for row in found.rows} == set(values)
    close([row.value for row in found.rows], [values[row.key] for row in found.rows], 1e-11)
    sizes = [abs(row.value) for row in found.rows]
    assert sizes == sorted(sizes, reverse=True)
    close(found.total, math.fsum(values.values()), 1e-11)
    assert found.paths == len(values)
    assert abs(found.remainder) < 1e-12
    assert found.explained is not None
    assert found.explained.exact
    assert found.explained.value == pytest.approx(1)
    assert abs(found.gap) < 1e-11
    assert all(row.order == len(names(row.key)) for row in found.rows)


def test_the_largest_are_shown_and_the_rest_is_exact(run: ox.Run, values: dict[str, float]) -> None:
    found = attribute(run, top=7)
    largest = sorted(values, key=lambda path: -abs(values[path]))[:7]
    energy = sum(values[path] ** 2 for path in largest) / sum(v**2 for v in values.values())

    assert [row.key for row in found.rows] == largest
    close(found.shown + found.remainder, found.total)
    close(found.remainder, math.fsum(v for p, v in values.items() if p not in largest), 1e-11)
    assert found.explained.value == pytest.approx(energy, rel=1e-9)


def test_a_search_finds_the_same(run: ox.Run, values: dict[str, float]) -> None:
    found = attribute(run, top=7, enumeration_limit=0, expansions=10_000)

    largest = sorted(values, key=lambda path: -abs(values[path]))[:7]
    assert [row.key for row in found.rows] == largest
    assert "splits; complete" in found.method
    close(found.total, math.fsum(values.values()), 1e-11)


def test_exact_energies_prove_the_largest(run: ox.Run, values: dict[str, float]) -> None:
    """Some leaves are never split: none of their paths can be as large."""
    found = attribute(run, top=2, enumeration_limit=0, guide="exact")

    largest = sorted(values, key=lambda path: -abs(values[path]))[:2]
    assert [row.key for row in found.rows] == largest
    assert "by exact path energy" in found.method
    assert found.method.endswith("splits; complete")
    assert found.explained is not None
    energy = sum(values[path] ** 2 for path in largest) / sum(v**2 for v in values.values())
    assert found.explained.exact
    assert found.explained.value == pytest.approx(energy)


def grouped(values: dict[str, float], by: str) -> dict[str, list[float]]:
    found = defaultdict[str, list[float]](list)
    for path, value in values.items():
        source, *heads = path.split(" > ")
        key = {
            "order": str(len(heads)),
            "source": source,
            "last-head": heads[-1] if heads else "direct",
            "last-edge": " > ".join(heads[-2:] if len(heads) > 1 else [source, *heads]),
        }[by]
        found[key].append(value)
    return found


@pytest.mark.parametrize("by", ["order", "source", "last-head", "last-edge"])
@pytest.mark.parametrize("path", [None, "0.1 > ..", "(embed > .. > 2.0) | bias", "direct"])
def test_groups_are_sums_of_brute_force_paths(
    run: ox.Run, values: dict[str, float], by: str, path: str | None
) -> None:
    chosen = set(values) if path is None else {term.path for term in run.paths(path)}
    expected = grouped({p: v for p, v in values.items() if p in chosen}, by)

    found = attribute(run, by=by, path=path)

    rows = {row.key: row for row in found.rows if row.count}
    assert len(rows) == sum(1 for row in found.rows if row.count)
    assert set(rows) == set(expected)
    for key, parts in expected.items():
        assert rows[key].count == len(parts), key
        assert rows[key].value == pytest.approx(math.fsum(parts), abs=1e-11), key
    close(found.selected, math.fsum(v for p, v in values.items() if p in chosen), 1e-11)
    close(found.shown, found.selected, 1e-11)
    close(found.shown + found.remainder, found.total)
    assert found.paths == len(chosen)


def test_what_goes_through_heads_and_edges(run: ox.Run, values: dict[str, float]) -> None:
    through, edges = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for path, value in values.items():
        steps = path.split(" > ")
        for head in steps[1:]:
            through[head].append(value)
        for edge in zip(steps, [*steps[1:], "output"], strict=True):
            if edge[1] != "output" or len(steps) > 1:
                edges[" > ".join(edge)].append(value)

    for kind, expected in (("head", through), ("edge", edges)):
        found = attribute(run, through=kind)
        rows = {row.key: row for row in found.rows}
        assert set(rows) == set(expected)
        for key, parts in expected.items():
            assert rows[key].count == len(parts), key
            assert rows[key].value == pytest.approx(math.fsum(parts), abs=1e-11), key
        assert found.overlapping
    orders = attribute(run, by="order")
    total = math.fsum(row.value for row in attribute(run, through="head").rows)
    close(total, math.fsum(int(row.key) * row.value for row in orders.rows), 1e-10)
    some = attribute(run, through="head", path="0.1 > ..")
    chosen = {term.path for term in run.paths("0.1 > ..")}
    for row in some.rows:
        parts = [v for p, v in values.items() if p in chosen and row.key in names(p)]
        assert row.value == pytest.approx(math.fsum(parts), abs=1e-11)


def test_positions_of_sources_add_up(run: ox.Run) -> None:
    found = attribute(run, top=10_000, sources=True)
    whole = attribute(run, by="source-position")

    for row in found.rows:
        assert row.sources is not None
        assert len(row.sources) == 4
        assert math.fsum(row.sources) == pytest.approx(row.value, abs=1e-12)
        assert row.sources[3] == 0  # after the position that is explained
    split = np.array([row.sources for row in found.rows]).sum(0)
    close([row.value for row in whole.rows], split, 1e-11)
    close(whole.shown, whole.total)


def test_one_path_by_position_is_that_of_a_source_at_one_place(
    run: ox.Run, made: Checkpoint
) -> None:
    """What the token at one position gives: the difference to the same tensors without it."""
    found = {row.key: row for row in attribute(run, top=10_000, sources=True).rows}
    tokens, patterns = (
        np.array(TOKENS),
        forward(made.config, made.arrays, np.array(TOKENS)).patterns,
    )
    silent = dict(made.arrays)
    silent["embed.W_E"] = made.arrays["embed.W_E"].copy()
    silent["embed.W_E"][TOKENS[ROW][1]] = 0
    for path in oracle.enumerate_paths(made.config, made.arrays):
        if path.text.startswith("embed"):
            both = [
                oracle.path_logits(made.config, arrays, tokens, patterns, path)[ROW, AT]
                for arrays in (made.arrays, silent)
            ]
            lost = (both[0] - both[1])[[TOKEN, OTHER]]
            assert found[path.text].sources[1] == pytest.approx(lost[0] - lost[1], abs=1e-11)


def test_orders_choose(run: ox.Run, values: dict[str, float]) -> None:
    found = attribute(run, order=2, path="embed > ..", top=1000)

    expected = {p: v for p, v in values.items() if p.startswith("embed") and len(names(p)) == 2}
    assert {row.key for row in found.rows} == set(expected)
    assert found.path == "(embed > ..) & (order=2)"
    close(found.selected, math.fsum(expected.values()), 1e-11)
    close(found.total, math.fsum(values.values()), 1e-11)


def test_the_tree_adds_up_at_every_step(run: ox.Run, values: dict[str, float]) -> None:
    tree = attribute(run).tree()

    assert tree.root.key == ".."
    assert tree.root.count == len(values)
    for times in (0, 1, 2, 5, 200):
        leaves = tree.split(times)
        assert math.fsum(leaf.value for leaf in leaves) == pytest.approx(tree.root.value)
        assert sum(leaf.count for leaf in leaves) == len(values)
        for leaf in leaves:
            assert leaf.value == pytest.approx(
                math.fsum(values[term.path] for term in run.paths(leaf.key)), abs=1e-11
            )
    assert {leaf.key for leaf in leaves} == set(values)
    top = tree.root.children(3)
    close(sum(child.value for child in top) + tree.root.remainder(3), tree.root.value)


def test_a_chosen_set_has_a_tree_of_its_own(run: ox.Run, values: dict[str, float]) -> None:
    tree = attribute(run, path="0.1 > .. > 2.0").tree()
    chosen = {term.path for term in run.paths("0.1 > .. > 2.0")}

    assert tree.root.count == len(chosen)
    assert {leaf.key for leaf in tree.split(100)} == chosen
    close(tree.root.value, math.fsum(values[path] for path in chosen), 1e-11)


def test_targets(run: ox.Run) -> None:
    logits = run.logits[ROW, AT]
    plain = ox.attribute(run, batch=ROW, position=AT)
    mean = ox.attribute(run, TOKEN, "mean", AT - 4, batch=ROW)

    assert plain.target_id == int(logits.argmax())
    close(plain.total, float(logits.max()), 1e-11)
    close(mean.total, float(logits[TOKEN] - logits.mean()), 1e-11)
    assert mean.position == AT
    assert (mean.minus, mean.minus_id) == ("mean", None)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"target": 99}, r"token id 99 is out of range: 0 to \d+"),
        ({"target": "sea"}, r"no tokenizer"),
        ({"target": True}, r"a token id is an integer, not True"),
        ({"minus": -1}, r"token id -1 is out of range"),
        ({"position": 4}, r"position 4 is out of range: -4 to 3"),
        ({"batch": 2}, r"sequence 2 is out of range: -2 to 1"),
        ({"by": "layer"}, r"unknown grouping 'layer': by is one of path, order"),
        ({"through": "neuron"}, r"through is head or edge, not 'neuron'"),
        ({"through": "head", "by": "order"}, r"give either by or through"),
        ({"guide": "luck"}, r"guide is energy or exact, not 'luck'"),
        ({"causal": "both"}, r"causal is output or input"),
        ({"sources": True, "by": "order"}, r"sources and causal are of single paths"),
        ({"top": 0}, r"top is 1 or more, not 0"),
        ({"order": -1}, r"an order is 0 or more, not -1"),
        ({"draws": 0}, r"draws is 1 to 10000000, not 0"),
        ({"draws": "many"}, r"draws is 1 to 10000000, not 'many'"),
        ({"expansions": 0}, r"expansions is 1 or more, not 0"),
        ({"seed": 2**64}, r"seed is -\d+ to \d+, not 18446744073709551616"),
        ({"enumeration_limit": -1}, r"enumeration_limit is 0 or more, not -1"),
        ({"by": "source-position", "path": "0.1 > .."}, r"source-position is over all paths"),
        ({"through": "edge", "path": "0.1 > .."}, r"--through edge is over all paths"),
    ],
)
def test_what_cannot_be_meant(run: ox.Run, options: dict[str, object], why: str) -> None:
    with untyped(), pytest.raises(InputError, match=why):
        ox.attribute(run, **options)


def test_a_path_that_is_none_of_this_model(run: ox.Run) -> None:
    with pytest.raises(NotationError, match=r"1\.0 > 0\.0"):
        ox.attribute(run, 1, path="1.0 > 0.0")


def test_a_search_beyond_the_memory_budget(run: ox.Run) -> None:
    with pytest.raises(LimitError, match="take fewer draws= or a shorter input"):
        ox.attribute(run, 1, enumeration_limit=0, draws=10**7)


@pytest.mark.parametrize("options", [{"order": 9}, {"path": "1.1 > .. > 0.1"}])
@pytest.mark.parametrize("limit", [0, 1000])
@pytest.mark.parametrize("further", [{}, {"sources": True}, {"causal": "output"}])
def test_no_path_at_all_is_an_answer(
    run: ox.Run, options: dict[str, object], limit: int, further: dict[str, object]
) -> None:
    found = attribute(run, enumeration_limit=limit, **options, **further)

    assert (found.rows, found.selected, found.paths) == ((), 0.0, 0)
    assert found.remainder == found.total
    assert found.to_pandas().columns[0] == "path"


def test_a_model_without_layers_has_edges_of_sources_alone(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path, n_layers=0, positions="learned", biases=BIASES)
    run = ox.load(made.path).run(tokens=[1, 2])

    found = ox.attribute(run, TOKEN, by="last-edge")

    assert {row.key for row in found.rows} == {"embed", "pos", "bias[unembed]"}
    assert [row.count for row in found.rows] == [1, 1, 1]
    close(found.shown, float(run.logits[0, -1, TOKEN]), 1e-12)


def test_what_is_behind_a_soft_cap_is_no_gap(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path / "m", seed=2, logits_softcap=2.0)
    run = ox.load(made.path).run(tokens=[1, 2, 3])

    found = ox.attribute(run, TOKEN, OTHER)

    logits = run.logits[0, -1]
    assert found.capped == pytest.approx(float(logits[TOKEN] - logits[OTHER]), abs=1e-12)
    assert abs(found.capped - found.total) > 1e-3  # the cap does something here
    assert abs(found.gap) < 1e-12
    assert found.to_json()["capped"] == found.capped
    assert "behind the soft-cap of the logits" in repr(found)
    found.save(tmp_path / "a.json")
    assert Attribution.load(tmp_path / "a.json") == found


def test_padding_is_not_explained(made: Checkpoint) -> None:
    padded = ox.load(made.path).run(tokens=[[0, 0, 3, 1]], mask=[[False, False, True, True]])

    with pytest.raises(InputError, match="position 1 of sequence 0 is padding"):
        ox.attribute(padded, 1, position=1)
    alone = ox.load(made.path).run(tokens=[[3, 1]])
    found = {row.key: row.value for row in ox.attribute(padded, 1, top=1000).rows}
    for row in ox.attribute(alone, 1, top=1000).rows:
        assert found[row.key] == pytest.approx(row.value, abs=1e-11)


def test_fewer_draws_where_so_many_would_not_fit(
    run: ox.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there is room for, but not fewer than 8; what was asked for is not changed."""
    said = list[str]()
    with pytest.raises(LimitError) as error:
        ox.attribute(run, 1, enumeration_limit=0, draws=10**7)
    single = int(error.value.count) // 10**7

    def energy_of(budget: int | None, draws: int | None = None) -> float:
        if budget is not None:
            monkeypatch.setattr("otimes.bridge.attribution.MEMORY_BUDGET", budget)
        found = ox.attribute(run, 1, enumeration_limit=0, announce=said.append, draws=draws)
        assert found.shown + found.remainder == pytest.approx(found.total, rel=1e-12)
        return found.total

    asked = ((None, None), (20 * single, None), (1, None), (1, 30))
    assert len({energy_of(*one) for one in asked}) == 1
    counts = [int(line.split(" draws")[0].split()[-1]) for line in said]
    assert counts == [128, 20, 8, 30]
