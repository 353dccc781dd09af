"""Derivations of chosen paths: products of heads become terms."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from otimes.algebra import Architecture, Sum, equivalent
from otimes.algebra.paper import derive_paths
from otimes.cli.derive import derive
from otimes.errors import LimitError, UnsupportedError


def test_a_virtual_head_from_two_heads() -> None:
    paths = Architecture(2, 12).logits.expand().where("0.7 > 1.4")
    derivation = derive_paths(paths)

    assert str(derivation.start) == "(Id ⊗ W_U) h[1.4] h[0.7] (Id ⊗ W_E)"
    assert str(derivation.end) == "A[1.4] A[0.7] ⊗ W_U W_OV[1.4] W_OV[0.7] W_E"
    assert derivation.end == paths["0.7 > 1.4"].operator
    assert derivation.check().holds


def test_a_set_of_paths_ends_in_their_terms() -> None:
    paths = Architecture(3, 2).logits.expand().where("0.1 > ..")
    derivation = derive_paths(paths)

    assert derivation.check().holds
    assert equivalent(derivation.end, Sum(*(term.operator for term in paths))).holds
    assert str(derivation.end).count("⊗") == paths.count == 9


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(LimitError, match="would write out 9 paths, more than 3"):
        derive_paths(Architecture(2, 2).logits.expand(), limit=3)
    for arch in (Architecture(1, 1, biases=True), Architecture(1, 1, norm="rms")):
        with pytest.raises(UnsupportedError, match="derive the whole, or expand the paths"):
            derive_paths(arch.logits.expand())
    with pytest.raises(UnsupportedError, match="chosen paths are derived where there are some"):
        derive_paths(Architecture(1, 1).logits.expand().order(5))


def test_the_command_takes_path_and_order() -> None:
    arguments = ["--layers", "3", "--heads", "2", "--path", "0.1 > ..", "--order", "2", "--json"]
    done = CliRunner().invoke(derive, arguments)

    found = json.loads(done.stdout)
    assert done.exit_code == 0
    assert all(step["checked"] for step in found["steps"])
    assert found["steps"][-1]["after"].count("A[0.1]") == 4
    arguments = ["--layers", "2", "--heads", "2", "--path", "..", "--target", "scores:1.0"]
    done = CliRunner().invoke(derive, [*arguments, "--order", "2", "--json"])
    found = json.loads(done.stdout)
    assert all(step["checked"] for step in found["steps"])
    assert found["steps"][-1]["after"].count("W_QK[1.0]") == 4
    assert found["notes"] == [
        "all of it is multiplied by the scale 1/√d_head",
        "A (attention patterns) held at the run's values",
    ]
    with pytest.raises(UnsupportedError, match="cannot derive 'loss'"):
        CliRunner().invoke(derive, [*arguments[:-1], "loss"], catch_exceptions=False)
