"""``import otimes.algebra`` loads no tensors, and what judges or parses waits until it is asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = frozenset({"lark", "matplotlib", "networkx", "numpy", "sympy", "torch"})


def loaded(program: str) -> set[str]:
    """The heavy packages that a program loads in a fresh process."""
    program += "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    return HEAVY.intersection(done.stdout.split())


EXPANDED = "import otimes.algebra as a; print(a.Architecture(2, 2).logits.expand().count)"


@pytest.mark.parametrize("program", ["import otimes.algebra", EXPANDED])
def test_the_algebra_is_light(program: str) -> None:
    assert loaded(program) == set()


def test_parsing_loads_the_parser_alone() -> None:
    assert loaded("import otimes as ox; ox.parse('A[0.0] ⊗ W_OV[0.0]')") == {"lark"}


def test_the_probe_sees_what_is_loaded() -> None:
    assert "sympy" in loaded("import otimes.algebra, sympy")
