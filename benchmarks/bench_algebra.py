"""The expansion of a transformer, side by side with SymPy and DisCoPy in one run.

The same sum, five layers of four heads, ``Π_l (Id + Σ_h A[l.h] ⊗ W[l.h])``, has 5^5 = 3,125 terms:

- otimes iterates all terms and builds the pattern word and the weight word of each;
- SymPy expands a ``MatMul`` of ``MatAdd`` of ``KroneckerProduct``;
- DisCoPy distributes the composition of five formal sums of diagrams.

What is timed begins with the description of the model (for otimes a new ``Architecture``) and ends
with all terms in hand. That the three agree is checked term by term first. Then: how many terms of
a larger model are iterated in a second, with and without their paths, and how much memory that
takes. A ratio says more than a time: all three run in turn, several times, in one process.

    python benchmarks/bench_algebra.py            # prints
    python benchmarks/bench_algebra.py --write    # and renews benchmarks/results/algebra.md

Exit status 1 means that a target was missed; a profile is then part of the report.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import io
import platform
import pstats
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import sympy
from sympy.core.cache import clear_cache

from otimes.algebra import Architecture, Expr, PathTerm, Product

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the imports of a peer warn
    from discopy.monoidal import Box, Diagram, Sum, Ty

LAYERS, HEADS = 5, 4
TERMS = (1 + HEADS) ** LAYERS
RESULTS = Path(__file__).parent / "results" / "algebra.md"

Words = tuple[tuple[str, ...], tuple[str, ...]]
"""The names of a term's patterns and weights, the later head first."""


@dataclass(frozen=True)
class Target:
    what: str
    measured: float
    needed: float
    unit: str = ""
    at_most: bool = False

    @property
    def met(self) -> bool:
        if self.at_most:
            return self.measured <= self.needed
        return self.measured >= self.needed

    @property
    def row(self) -> str:
        measured = f"{self.measured:,.{0 if self.measured > 10 else 2}f}{self.unit}"
        needed = f"{'at most ' if self.at_most else ''}{self.needed:,.0f}{self.unit}"
        return f"| {self.what} | {measured} | {needed} | {'met' if self.met else 'MISSED'} |"


# the three contestants -------------------------------------------------------------------------


def otimes_terms() -> Iterator[tuple[Expr, Expr]]:
    return ((t.pattern, t.weight) for t in Architecture(LAYERS, HEADS).logits.expand())


def otimes_iterates() -> int:
    return sum(1 for _ in otimes_terms())


def sympy_terms() -> Any:
    positions, width = 3, 4  # sizes do not matter to the time: nothing is made explicit
    blocks = list[Any]()
    for layer in reversed(range(LAYERS)):
        heads = [
            sympy.KroneckerProduct(
                sympy.MatrixSymbol(f"A[{layer}.{head}]", positions, positions),
                sympy.MatrixSymbol(f"W[{layer}.{head}]", width, width),
            )
            for head in range(HEADS)
        ]
        blocks.append(sympy.MatAdd(sympy.Identity(positions * width), *heads))
    return sympy.MatMul(*blocks).expand()


def discopy_terms() -> Any:
    pos, stream = Ty("pos"), Ty("d_model")
    whole = None
    for layer in range(LAYERS):
        heads = [
            Box(f"A[{layer}.{head}]", pos, pos) @ Box(f"W[{layer}.{head}]", stream, stream)
            for head in range(HEADS)
        ]
        block = Sum([Diagram.id(pos @ stream), *heads], pos @ stream, pos @ stream)
        whole = block if whole is None else whole >> block
    return whole


# do they agree? --------------------------------------------------------------------------------


def factors(expr: Expr) -> tuple[str, ...]:
    args = expr.args if isinstance(expr, Product) else (expr,)
    names = [str(arg) for arg in args]
    return tuple(name for name in names if name not in ("Id", "W_U", "W_E"))


def of_otimes() -> set[Words]:
    return {
        (factors(p), tuple(name.replace("W_OV", "W") for name in factors(w)))
        for p, w in otimes_terms()
    }


def of_sympy() -> set[Words]:
    found = set[Words]()
    for term in sympy_terms().args:
        parts = term.args if isinstance(term, sympy.MatMul) else (term,)
        heads = [part.args for part in parts if isinstance(part, sympy.KroneckerProduct)]
        found.add((tuple(a.name for a, _ in heads), tuple(w.name for _, w in heads)))
    return found


def of_discopy() -> set[Words]:
    found = set[Words]()
    for term in discopy_terms().terms:
        names = [box.name for box in term.boxes][::-1]
        found.add(
            (
                tuple(name for name in names if name[0] == "A"),
                tuple(name for name in names if name[0] == "W"),
            )
        )
    return found


# timing ----------------------------------------------------------------------------------------


def seconds(function: Callable[[], object]) -> float:
    """The processor's seconds of one run, which pays for no garbage of the run before and finds
    nothing in a cache. A machine that is busy elsewhere adds nothing to them."""
    clear_cache()
    gc.collect()
    started = time.process_time()
    kept = function()
    elapsed = time.process_time() - started
    del kept
    return elapsed


def consume(terms: Iterator[PathTerm], *, with_paths: bool) -> None:
    if with_paths:
        for term in terms:
            term.path  # noqa: B018
    else:
        for _ in terms:
            pass


def large(number: int) -> Iterator[PathTerm]:
    """The first terms of 12 layers of 12 heads, past the short ones."""
    return islice(iter(Architecture(12, 12).logits.expand().order(5)), number)


def rate(number: int, *, with_paths: bool) -> float:
    return number / seconds(lambda: consume(large(number), with_paths=with_paths))


def peak_bytes(number: int) -> int:
    tracemalloc.start()
    consume(large(number), with_paths=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def profile() -> str:
    profiler = cProfile.Profile()
    profiler.runcall(otimes_iterates)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(12)
    # addresses of files say nothing elsewhere
    here = str(Path(__file__).parent.parent)
    lines = [line.replace(here, "") for line in text.getvalue().splitlines()]
    return "\n".join(line for line in lines if line.strip())


def measure(rounds: int) -> tuple[list[Target], list[str]]:
    agreement = of_otimes(), of_sympy(), of_discopy()
    assert agreement[0] == agreement[1] == agreement[2], "the three sums differ"
    assert len(agreement[0]) == TERMS
    times: dict[str, list[float]] = {"otimes": [], "SymPy": [], "DisCoPy": []}
    for _ in range(rounds):
        times["SymPy"].append(seconds(sympy_terms))
        times["DisCoPy"] += [seconds(discopy_terms) for _ in range(3)]
        times["otimes"] += [seconds(otimes_iterates) for _ in range(9)]
    middle = {name: median(values) for name, values in times.items()}
    number = 300_000
    with_paths = median(rate(number, with_paths=True) for _ in range(rounds))
    without = median(rate(number, with_paths=False) for _ in range(rounds))
    memory = peak_bytes(30_000), peak_bytes(300_000)
    targets = [
        Target("SymPy's expand / otimes", middle["SymPy"] / middle["otimes"], 500, "×"),
        Target("DisCoPy's distribution / otimes", middle["DisCoPy"] / middle["otimes"], 25, "×"),
        Target("terms a second with their paths", with_paths, 300_000),
        Target("terms a second without", without, 1_000_000),
        Target("peak memory of 300,000 terms / of 30,000", memory[1] / memory[0], 2, at_most=True),
    ]
    notes = [
        f"{name}: {1e3 * middle[name]:,.1f} ms for {TERMS:,} terms (median of {len(values)}; "
        f"{1e3 * min(values):,.1f} to {1e3 * max(values):,.1f})"
        for name, values in times.items()
    ]
    kib = memory[1] / 1024
    notes.append(f"peak memory of iterating 300,000 terms with their paths: {kib:,.0f} KiB")
    return targets, notes


def report(targets: list[Target], notes: list[str]) -> str:
    peers = [f"{name} {version(name)}" for name in ("sympy", "discopy")]
    versions = ", ".join([f"Python {platform.python_version()}", *peers])
    text = [
        "# Expansion, side by side",
        "",
        f"Made by `python benchmarks/bench_algebra.py --write` with {versions}: one process,",
        "one core, in turn, processor time.",
        "",
        f"The same sum in all three: {LAYERS} layers of {HEADS} heads, {TERMS:,} terms; they were",
        "compared term by term before anything was timed. otimes starts from a new `Architecture`",
        "and builds each term's pattern word and weight word (as products of typed factors, whose",
        "hash is made when first asked for); SymPy's cache is empty. Rates are",
        "those of the first 300,000 fifth-order terms of 12 layers of 12 heads. Rates depend on",
        "the machine, and ratios too: runs on one machine gave 388 to 610 times SymPy and 27 to 40",
        "times DisCoPy.",
        "",
        "| | measured | target | |",
        "| --- | --- | --- | --- |",
        *(target.row for target in targets),
        "",
        *(f"- {note}" for note in notes),
    ]
    if not all(t.met for t in targets):
        text += ["", "Where the time goes:", "", "```", profile(), "```"]
    return "\n".join(text) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="renew the page of results")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    targets, notes = measure(options.rounds)
    text = report(targets, notes)
    print(text)
    if options.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(text, encoding="utf-8")
    return 0 if all(t.met for t in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
