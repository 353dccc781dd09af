"""Start the processes that are measured, and measure them in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = Path(__file__).resolve().parents[1] / ".envs"
OWN = "otimes"
PATIENCE = 30
"""Seconds."""


def python_of(environment: str) -> Path:
    """The interpreter of a peer's environment, or this one for otimes itself."""
    if environment == OWN:
        return Path(sys.executable)
    python = ENVIRONMENTS / environment / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"error: there is no environment for {environment}: run `make bench`")
    return python


@dataclass(frozen=True)
class Samples:
    """All rounds of one item, the warm-up left out; seconds and bytes."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]
    peak: float
    resting: float
    operations: float | None = None
    note: str | None = None

    @property
    def seconds(self) -> float:
        """The median time on the wall clock."""
        return median(self.wall)

    @property
    def processor_seconds(self) -> float:
        """The median time of the processor, all threads added up."""
        return median(self.cpu)


@dataclass
class Worker:
    """A process that holds a module's items in a dtype, with a fixed number of threads."""

    environment: str
    module: str
    dtype: str
    threads: int
    hello: dict[str, Any] = field(init=False)
    _process: subprocess.Popen[str] = field(init=False)
    _errors: IO[bytes] = field(init=False)

    def __enter__(self) -> Self:
        number = str(self.threads)
        fixed = {
            "OMP_NUM_THREADS": number,
            "MKL_NUM_THREADS": number,
            "OPENBLAS_NUM_THREADS": number,
            # a process that waits for its turn must not keep a core busy
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
        }
        command = [str(python_of(self.environment)), "-m", self.module]
        self._errors = TemporaryFile()
        self._process = subprocess.Popen(
            [*command, "--dtype", self.dtype, "--threads", number],
            cwd=ROOT,
            env={**os.environ, **fixed},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self.hello = self._answer()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.terminate()
        self._process.wait()
        self._errors.close()

    def ask(self, do: str, item: str) -> Any:
        """Have an item measured or profiled."""
        assert self._process.stdin
        print(json.dumps({"do": do, "item": item}), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            told = self._errors.read().decode(errors="replace").strip().splitlines()[-5:]
            raise SystemExit(f"error: {self.module} ended without an answer:\n" + "\n".join(told))
        return json.loads(line)


def interleave(workers: Sequence[Worker], rounds: int) -> dict[str, Samples]:
    """Measure every item once a round, all workers in turn; the first round warms up.

    An item that took longer than ``PATIENCE`` to warm up is measured once.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    slow = set[str]()
    for turn in range(rounds + 1):
        for worker, item in _items(workers):
            if turn > 1 and item in slow:
                continue
            answer = worker.ask("measure", item)
            if turn:
                found.setdefault(item, []).append(answer)
            elif answer["wall"] > PATIENCE:
                slow.add(item)
    operations = {item: worker.hello["items"][item] for worker, item in _items(workers)}
    return {
        item: Samples(
            wall=tuple(answer["wall"] for answer in answers),
            cpu=tuple(answer["cpu"] for answer in answers),
            peak=max(answer["peak"] for answer in answers),
            resting=median(answer["resting"] for answer in answers),
            operations=operations[item],
            note=answers[-1]["note"],
        )
        for item, answers in found.items()
    }


def _items(workers: Sequence[Worker]) -> Iterable[tuple[Worker, str]]:
    return ((worker, item) for worker in workers for item in worker.hello["items"])
