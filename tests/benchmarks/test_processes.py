"""Measuring in other processes: what comes back, and what happens when one of them fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.harness import processes
from benchmarks.harness.processes import OWN, Worker, interleave

MIB = 2**20


@pytest.fixture(scope="module")
def toy() -> Iterator[Worker]:
    with Worker(OWN, "tests.benchmarks.toy_worker", "float64", 1) as worker:
        yield worker


def test_a_worker_says_what_it_has_whatever_its_libraries_print(toy: Worker):
    assert list(toy.hello["items"]) == ["large", "nothing", "broken"]
    assert toy.hello["threads"] == 1
    assert toy.hello["versions"]["toy"] == "1"


def test_peak_memory_is_that_of_the_item_and_not_of_the_one_before(toy: Worker):
    large, nothing = (toy.ask("measure", item) for item in ("large", "nothing"))

    assert large["peak"] - large["resting"] > 60 * MIB
    assert nothing["peak"] - nothing["resting"] < 30 * MIB
    assert large["note"] == "has torch.float64"


def test_an_item_that_fails_ends_the_measurement_with_its_error():
    with (
        Worker(OWN, "tests.benchmarks.toy_worker", "float32", 1) as worker,
        pytest.raises(SystemExit, match="ZeroDivisionError: division by zero"),
    ):
        worker.ask("measure", "broken")


def test_a_peer_without_an_environment_is_named():
    with pytest.raises(SystemExit, match="no environment for nobody: run `make bench`"):
        Worker("nobody", "benchmarks.peers.nobody", "float32", 1).__enter__()


@dataclass
class Scripted:
    """In place of a worker: answers with the times that it was given, and notes the order."""

    name: str
    times: list[float]
    asked: list[str]
    hello: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.hello = {"items": {self.name: 6.0}}

    def ask(self, do: str, item: str) -> dict[str, Any]:
        assert do == "measure"
        self.asked.append(item)
        wall = self.times.pop(0)
        return {"wall": wall, "cpu": 2 * wall, "peak": wall, "resting": 0.0, "note": None}


def test_workers_are_measured_in_turn_and_the_first_round_does_not_count():
    asked = list[str]()
    workers: Any = [Scripted("a", [9, 1, 3, 2], asked), Scripted("b", [9, 5, 4, 6], asked)]

    found = interleave(workers, rounds=3)

    assert asked == ["a", "b"] * 4
    assert found["a"].wall == (1, 3, 2)
    assert (found["b"].seconds, found["b"].processor_seconds) == (5, 10)
    assert (found["b"].peak, found["b"].operations) == (6, 6.0)


def test_an_item_that_is_very_slow_is_measured_once():
    asked = list[str]()
    late = processes.PATIENCE + 1
    workers: Any = [Scripted("a", [late, late], asked), Scripted("b", [1, 1, 1], asked)]

    found = interleave(workers, rounds=2)

    assert asked == ["a", "b", "a", "b", "b"]
    assert found["a"].wall == (late,)
