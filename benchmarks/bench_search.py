"""Guided search for the largest paths: energy, value and norm, beside full enumeration.

Run it with ``make bench`` or ``python benchmarks/bench_search.py [MODEL]``. On several prompts the
true largest 100 paths of one target (the top logit minus the second at the last position) are found
by splitting the whole tree; then each guide searches, energies with several seeds, and every run is
reported: the leaf expansions after which all of the true largest paths were found, and how many
were found within 150. Nothing here depends on the speed of the machine.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import torch

import otimes as ox
from otimes.models import folder
from otimes.numeric.energy import SignedEnergies
from otimes.numeric.functionals import Target
from otimes.numeric.nodes import Node
from otimes.numeric.search import Search, by_value, guide_of
from otimes.numeric.tree import PathTree

TOP, WITHIN, LIMIT = 100, 150, 2000
PROMPTS, SEEDS, DRAWS, LENGTH = 6, 10, 128, 24
FOLDER = Path(__file__).parent
DEFAULT = FOLDER / "models" / "attn-only-4l"


def prompts(model: ox.Model) -> list[list[int]]:
    """Windows of the validation text, apart from one another, each behind the first token."""
    text = folder("validation.txt").read_text(encoding="utf-8")
    ids = model.tokenizer.encode(text[:60_000])
    step = len(ids) // PROMPTS
    length = min(LENGTH, model.config.n_ctx) - 1
    return [[0, *ids[start * step : start * step + length]] for start in range(PROMPTS)]


def tree_of(model: ox.Model, ids: list[int]) -> tuple[PathTree, tuple[int, int]]:
    """The tree of the top logit minus the second at the last position, and the two token ids."""
    run = model.run(tokens=ids)
    first, second = run.logits[0, -1].topk(2).indices.tolist()
    frozen = run.frozen().model.sequence(0)
    weights = torch.zeros(frozen.W_U.shape[1], dtype=frozen.dtype)
    weights[first], weights[second] = 1, -1
    return PathTree(frozen, Target.logit(frozen, len(ids) - 1, weights)), (first, second)


def enumerate_all(tree: PathTree) -> tuple[list[Node], float]:
    """The largest paths and the energy of all of them: the whole tree, split to its end."""
    one = Search(tree, by_value, TOP, 10_000_000)
    while one.step(64):
        pass
    return list(one.found), one.energy_seen


def follow(tree: PathTree, guide: str, seed: int, truth: set[tuple[int, ...]]) -> dict[str, object]:
    """One search, until all of the true largest paths are found or the limit is reached."""
    one = Search(tree, guide_of(guide, tree, DRAWS, seed), TOP, LIMIT)
    within, explained = 0, None
    while len(truth) > (hits := len(truth & {node.id for node in one.found})) and one.step():
        if one.expansions == WITHIN:
            within = len(truth & {node.id for node in one.found})
            explained = sum(node.value**2 for node in one.found)
    done = hits == len(truth)
    if one.expansions < WITHIN or explained is None:
        within, explained = hits, sum(node.value**2 for node in one.found)
    return {
        "guide": guide, "seed": seed, "expansions": one.expansions if done else None,
        "within": within, "energy": explained,
    }  # fmt: skip


def measure(model: ox.Model) -> list[dict[str, object]]:
    """All runs on all prompts."""
    rows = list[dict[str, object]]()
    for number, ids in enumerate(prompts(model)):
        tree, target = tree_of(model, ids)
        found, energy = enumerate_all(tree)
        truth = {node.id for node in found}
        estimate = SignedEnergies(tree, DRAWS, root_alone=True).explained(found)
        share = sum(node.value**2 for node in found) / energy
        for guide in ("energy", "value", "norm"):
            for seed in range(SEEDS if guide == "energy" else 1):
                run = follow(tree, guide, seed, truth)
                run["explained"] = run.pop("energy") / energy
                rows.append({
                    "prompt": number, "paths": tree.root.count, "target": target,
                    "true_explained": share,
                    "estimated_explained": [estimate.low, estimate.value, estimate.high], **run,
                })  # fmt: skip
        print(f"prompt {number}: {rows[-1]}", file=sys.stderr)
    return rows


def summary(rows: list[dict[str, object]], name: str, length: int) -> str:
    """A table of guides, and one line for every run."""
    setting = (
        f"`{name}`, {length} tokens, {rows[0]['paths']} paths, {PROMPTS} prompts of the validation "
        f"text, top logit minus the second at the last position, {DRAWS} draws, {SEEDS} seeds for "
        "energies (the other guides know no chance)."
    )
    columns = (
        f"*expansions*: split leaves until all of the true largest {TOP} paths were found; a run "
        f"that had not found all after {LIMIT} counts as larger than all others. *within*: how "
        f"many of them were found within {WITHIN}. *explained*: the share of the energy of all "
        "paths that the paths shown then hold, exact."
    )
    head = (
        "| guide | runs | expansions: median | smallest | largest | within: median | smallest "
        "| explained: median |"
    )
    lines = [
        "# Guided search for the largest paths", "", setting, "", columns, "", head,
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for guide in ("energy", "value", "norm"):
        runs = [row for row in rows if row["guide"] == guide]
        needed = sorted(float("inf") if r["expansions"] is None else r["expansions"] for r in runs)
        within = [row["within"] for row in runs]
        explained = statistics.median(row["explained"] for row in runs)
        middle = statistics.median(needed)
        shown = [
            f"{n:.0f}" if n <= LIMIT else f"> {LIMIT}" for n in (middle, needed[0], needed[-1])
        ]
        lines.append(
            f"| {guide} | {len(runs)} | {' | '.join(shown)} | {statistics.median(within):.0f} | "
            f"{min(within)} | {explained:.1%} |"
        )
    head = (
        "| prompt | guide | seed | expansions | within | explained | explained by the true "
        f"{TOP} | estimated (95 %) |"
    )
    rule = "| ---: | --- | ---: | ---: | ---: | ---: | ---: | --- |"
    lines += ["", "Every run:", "", head, rule]
    for row in rows:
        low, value, high = row["estimated_explained"]
        needed = f"> {LIMIT}" if row["expansions"] is None else row["expansions"]
        lines.append(
            f"| {row['prompt']} | {row['guide']} | {row['seed']} | {needed} | {row['within']} | "
            f"{row['explained']:.1%} | {row['true_explained']:.1%} | "
            f"{value:.1%} ({low:.1%} to {high:.1%}) |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Print the table, and write it and all runs to benchmarks/results."""
    torch.set_num_threads(1)
    chosen = sys.argv[1] if len(sys.argv) > 1 else str(DEFAULT)
    model = ox.load(chosen)
    rows = measure(model)
    text = summary(rows, Path(chosen).name, len(prompts(model)[0]))
    out = FOLDER / "results"
    out.mkdir(exist_ok=True)
    (out / "search.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (out / "search.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
