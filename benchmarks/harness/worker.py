"""One process that holds what is measured, and runs it when asked.

It runs in the environment of a peer or in that of otimes, so it needs torch and nothing else. A
request is a line ``{"do": "measure", "item": NAME}`` on stdin, its answer a line on stdout. Since a
process waits in between, several can be measured in turn.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_RESET_PEAK = "5"  # proc(5), clear_refs: the peak becomes what is resident now
_SHOWN = 8


@dataclass(frozen=True)
class Item:
    """A piece of work.

    ``operations`` is how many floating-point operations it takes, where that is known; ``judge``
    says of its result what a reader of the figures must know, outside of what is timed.
    """

    work: Callable[[], Any]
    operations: float | None = None
    judge: Callable[[Any], str | None] | None = None


def serve(build: Callable[[torch.dtype], Mapping[str, Item]], versions: Mapping[str, str]) -> None:
    """Build the items for the dtype and threads of the command line, and answer until stdin ends.

    The first answer says what there is. An item's first run warms up and is the caller's to drop.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=("float32", "float64"), required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    # what a library prints must not come between the answers
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        items = build(getattr(torch, options.dtype))
        hello = {
            "items": {name: item.operations for name, item in items.items()},
            "threads": torch.get_num_threads(),
            "versions": {
                "Python": platform.python_version(),
                "torch": torch.__version__,
                **versions,
            },
        }
        print(json.dumps(hello), file=answers)
        for line in sys.stdin:
            request = json.loads(line)
            item = items[request["item"]]
            answer = profile(item) if request["do"] == "profile" else measure(item)
            print(json.dumps(answer), file=answers)


def measure(item: Item) -> dict[str, Any]:
    """Seconds of wall clock and of processor, bytes of memory before and at the peak, the note."""
    gc.collect()
    _give_back()
    resting = _reset_peak()
    wall, cpu = time.perf_counter(), time.process_time()
    kept = item.work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = _peak()
    note = None if item.judge is None else item.judge(kept)
    return {"wall": wall, "cpu": cpu, "peak": peak, "resting": resting, "note": note}


def profile(item: Item) -> list[tuple[str, int, float]]:
    """The operations that take longest by themselves: name, calls, share of the time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        item.work()
    found = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in found)
    return [(event.key, event.count, event.self_cpu_time_total / total) for event in found[:_SHOWN]]


def _give_back() -> None:
    """Hand freed memory back to the system, or the next item would use it unseen."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> float:
    """Forget the peak so far where the system can do that, and return what is resident now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    return _peak()


def _peak() -> float:
    """The largest resident size so far, in bytes, from the system's own account of the process."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM"):
                return 1024.0 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
