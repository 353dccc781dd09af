"""``import otimes`` is quick and loads nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = frozenset({
    "altair", "bokeh", "matplotlib", "networkx", "pandas", "plotly", "seaborn", "sympy", "torch",
    "transformers",
})  # fmt: skip
SECONDS = 0.5


def probe(statement: str) -> tuple[set[str], float]:
    """The heavy packages that the statement loads in a fresh process, and the seconds it takes."""
    program = (
        "import json, sys, time\n"
        "started = time.perf_counter()\n"
        f"{statement}\n"
        "seconds = time.perf_counter() - started\n"
        "print(json.dumps([sorted({name.partition('.')[0] for name in sys.modules}), seconds]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    )
    loaded, seconds = json.loads(done.stdout)
    return HEAVY.intersection(loaded), seconds


def test_import_otimes_loads_nothing_heavy() -> None:
    loaded, _ = probe("import otimes")

    assert loaded == set()


def test_import_otimes_takes_well_under_a_second() -> None:
    # the best of three: a busy machine only ever adds
    assert min(probe("import otimes")[1] for _ in range(3)) < SECONDS


@pytest.mark.parametrize("heavy", ["networkx", "sympy"])
def test_the_probe_sees_a_heavy_import(heavy: str) -> None:
    loaded, _ = probe(f"import otimes, {heavy}")

    assert heavy in loaded


def test_the_probe_sees_a_slow_import() -> None:
    _, seconds = probe(f"import otimes, time; time.sleep({SECONDS})")

    assert seconds >= SECONDS
