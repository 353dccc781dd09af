"""The numeric engine beside Hugging Face's GPT-2 and TransformerLens, at GPT-2's shape.

    python -m benchmarks.bench_engine             # measures and prints
    python -m benchmarks.bench_engine --write     # and renews docs/benchmarks.md and the figures

``make bench`` makes the peers' environments first. Exit status 1 means that a target was missed; a
profile is then part of the page. What is measured is in ``own/`` and ``peers/``, the targets in
``harness/targets.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path

from benchmarks.harness.processes import OWN, ROOT, Worker, interleave
from benchmarks.harness.report import Results, Setting, page
from benchmarks.harness.targets import TARGETS

MODULES = {
    OWN: "benchmarks.own.engine",
    "transformers": "benchmarks.peers.gpt2_forward",
    "transformer_lens": "benchmarks.peers.lens",
}
PAGE = ROOT / "docs" / "benchmarks.md"
FIGURES = ROOT / "benchmarks" / "results" / "engine.json"


def processor() -> str:
    """The processor's name and the number of its cores."""
    name = platform.machine()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {os.cpu_count()} cores"


def measure(dtype: str, threads: int, rounds: int) -> tuple[Setting, dict[str, str]]:
    """All items of one setting, in turn; and the versions of what ran."""
    print(f"{dtype}, {threads} threads", file=sys.stderr)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(environment, module, dtype, threads))
            for environment, module in MODULES.items()
        ]
        samples = interleave(workers, rounds)
        missed = [t.own for t in TARGETS if t.own in samples and not t.met(samples)]
        setting = Setting(
            dtype,
            threads,
            samples,
            {item: workers[0].ask("profile", item) for item in dict.fromkeys(missed)},
        )
        versions = {k: v for worker in workers for k, v in worker.hello["versions"].items()}
        return setting, versions


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="renew the page and the figures")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    options = parser.parse_args()
    load = os.getloadavg()[0]
    measured = [
        measure(dtype, threads, options.rounds)
        for dtype, threads in product(options.dtypes, options.threads)
    ]
    versions = {name: number for _, found in measured for name, number in found.items()}
    settings = [setting for setting, _ in measured]
    results = Results(options.rounds, load, processor(), versions, settings)
    text = page(results)
    print(text)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
        FIGURES.write_text(json.dumps(results.to_json(), indent=1) + "\n", encoding="utf-8")
    return 1 if any(setting.profiles for setting in settings) else 0


if __name__ == "__main__":
    sys.exit(main())
