"""The command line as a user meets it: real processes, real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factory import make_checkpoint


def otimes(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "otimes.cli", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
        **more,
    )


def fails(*arguments: str) -> str:
    """Run a command that cannot be done: exit 2, one error line at the end, nothing else."""
    done = otimes(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.rstrip("\n").split("\n")[-1]
    assert last.startswith("error: "), done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    make_checkpoint(folder, seed=3, n_layers=2, biases={"b_V", "b_O", "b_U"}, positions="learned")
    return folder


# ------------------------------------------------------------------------------------------- expand


def test_the_contracts_example() -> None:
    done = otimes("expand", "--layers", "2", "--heads", "1", "--json")

    assert done.returncode == 0
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["target"] == "logits"
    assert found["count"] == "4"
    assert found["head_words"] == "4"
    assert [term["path"] for term in found["terms"]] == ["direct", "0.0", "1.0", "0.0 > 1.0"]
    last = found["terms"][-1]
    assert last["kind"] == "virtual"
    assert last["order"] == 2
    assert last["pattern"] == "A[1.0] A[0.0]"
    assert last["weight"] == "W_U W_OV[1.0] W_OV[0.0] W_E"
    assert set(last) == {"path", "kind", "order", "pattern", "weight", "latex"}


def test_expansion_in_words() -> None:
    done = otimes("expand", "--layers", "1", "--heads", "2")

    assert done.stdout.splitlines() == [
        "logits = (Id ⊗ W_U)(Id + A[0.0] ⊗ W_OV[0.0] + A[0.1] ⊗ W_OV[0.1])(Id ⊗ W_E)",
        "",
        "direct  direct  Id ⊗ W_U W_E",
        "0.0     head    A[0.0] ⊗ W_U W_OV[0.0] W_E",
        "0.1     head    A[0.1] ⊗ W_U W_OV[0.1] W_E",
        "",
        "3 terms",
        "with A (attention patterns) held at the run's values",
    ]


def test_the_row_convention_is_written_the_other_way_round() -> None:
    arguments = ("expand", "--layers", "1", "--heads", "1", "--path", "0.0")
    column, row = otimes(*arguments), otimes(*arguments, "--convention", "row")

    assert "A[0.0] ⊗ W_U W_OV[0.0] W_E" in column.stdout
    assert "A[0.0] ⊗ W_E W_OV[0.0] W_U" in row.stdout


def test_a_count_of_astronomical_size_is_exact() -> None:
    done = otimes("expand", "--layers", "100", "--heads", "100", "--count", "--json")

    assert json.loads(done.stdout)["count"] == str(101**100)


def test_a_count_longer_than_python_writes_by_itself() -> None:
    count = ("expand", "--layers", "3000", "--heads", "100", "--count")

    assert otimes(*count).stdout.replace(",", "").startswith(str(101**3000 // 10**5000)[:50])
    assert len(otimes(*count, "--json").stdout) > 6000
    assert "about 10^6012 terms" in fails("expand", "--layers", "3000", "--heads", "100")


def test_one_path_one_order_and_a_limit() -> None:
    one = otimes("expand", "--layers", "2", "--heads", "12", "--path", "0.7 > 1.4", "--json")
    order = otimes("expand", "--layers", "3", "--heads", "5", "--order", "2", "--json")
    some = otimes("expand", "--layers", "9", "--heads", "9", "--limit", "3")

    assert [term["path"] for term in json.loads(one.stdout)["terms"]] == ["0.7 > 1.4"]
    assert json.loads(order.stdout)["count"] == str(3 * 25)
    assert len(json.loads(order.stdout)["terms"]) == 75
    assert "… and 999,999,997 more" in some.stdout


def test_the_architecture_of_a_model(checkpoint: Path) -> None:
    done = otimes("expand", "--model", str(checkpoint), "--json")

    paths = [term["path"] for term in json.loads(done.stdout)["terms"]]
    assert "embed" in paths
    assert "pos > 0.0" in paths
    assert "bias[0.0] > 0.0 > 1.1" in paths


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--layers 9 --heads 9", "1,000,000,000 terms, more than the limit of 10,000"),
        ("--layers 2", "give --layers and --heads, or a model"),
        ("--layers 2 --heads x", "--heads takes a number or one for each layer"),
        ("--layers 2 --heads 1,2,3", "heads has 3 numbers for 2 layers"),
        ("--layers -1 --heads 2", "layers must be an integer of 0 or more, not -1"),
        ("--layers 2 --heads 2 --path 0.7", "no head 0.7: layer 0 has heads 0 to 1"),
        ("--layers 2 --heads 2 --path 4.0", "no head 4.0: the model has layers 0 to 1"),
        ("--layers 2 --heads 2 --path 1.0>0.1", "head 0.1 is before 1.0 and cannot read it"),
        ("--layers 2 --heads 2 --path 0.0>0.1", "head 0.1 is in the same layer as 0.0"),
        ("--layers 2 --heads 2 --path 0.0>", "a component is missing beside '>'"),
        ("--layers 2 --heads 2 --path pos>0.1", "no source 'pos' in this model"),
        ("--layers 2 --heads 2 --order -1", "Invalid value for '--order': -1 is not in the range"),
        ("--layers 2 --heads 2 --limit -1", "Invalid value for '--limit': -1 is not in the range"),
        ("--layers 2 --heads 2 --target loss", "cannot expand 'loss'"),
        ("--layers 2 --heads 2 --target scores:9.0", "no head 9.0"),
        ("--layers 2 --heads 2 --target scores:1.0 --path 1.0", "1.0 is on no path to head 1.0"),
        ("--layers 2 --heads 2 --query 0.0", "--query and --key are for scores"),
        ("--layers 2 --heads 2 --biases b_X", "unknown bias 'b_X'"),
        ("--layers 2 --heads 2 --positions abc", "unknown positions 'abc'"),
        ("--layers 2 --heads 2 --model x", "give either a model or the numbers"),
        ("--layers two --heads 2", "'two' is not a valid integer"),
    ],
)
def test_expand_refuses(arguments: str, message: str) -> None:
    assert message in fails("expand", *arguments.split(" "))


def test_an_error_in_a_path_points_at_the_character() -> None:
    shown = fails("expand", "--layers", "2", "--heads", "3", "--path", "1.2 > 0.1")

    assert "  1.2 > 0.1\n        ^\nerror: head 0.1 is before 1.2" in shown


def test_an_empty_path_is_refused() -> None:
    assert "an empty path" in fails("expand", "--layers", "1", "--heads", "1", "--path", " ")


# ------------------------------------------------------------------------------------------- verify


def test_a_certificate_as_json(checkpoint: Path) -> None:
    done = otimes("verify", str(checkpoint), "--tokens", "1,2,3", "--exact", "--json")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["holds"] is True
    assert found["tokens"] == [1, 2, 3]
    assert 0 <= found["max_abs_error"] <= found["bound"] < 1e-6 * found["largest_logit"]
    assert [check["block"] for check in found["blocks"]] == ["embed", "0.attn", "1.attn", "unembed"]
    assert all(check["max_abs_error"] <= check["bound"] for check in found["blocks"])
    assert found["exact"] == {"difference": "0", "tokens": 3}
    assert found["identity"]["holds"] is True
    assert len(found["identity"]["primes"]) == 2
    contract = {
        "holds", "paths", "method", "checked", "max_abs_error", "bound", "blocks", "scores",
        "identity", "source_max_abs_error", "source_tolerance", "frozen", "unused_parameters",
        "exact",
    }  # fmt: skip
    assert contract <= set(found)
    assert "reason" not in found


def test_the_report_names_the_terms_and_ends_with_the_verdict(checkpoint: Path) -> None:
    done = otimes("verify", str(checkpoint), "--tokens", "1,2,3")

    assert done.returncode == 0, done.stderr
    for expected in ("Terms of the logit", "all paths", "100.0%", "frozen", "HOLDS"):
        assert expected in done.stdout


def test_a_check_that_does_not_hold_exits_with_1(tmp_path: Path) -> None:
    # an engine whose heads write 0.1 % too much
    made = make_checkpoint(tmp_path, seed=1, n_layers=1, dtype="float32")
    script = (
        "import sys, torch; from otimes.numeric.frozen import FrozenHeads; import otimes.cli\n"
        "head = FrozenHeads.component\n"
        "FrozenHeads.component = lambda self, index, stream: head(self, index, stream) * 1.001\n"
        f"sys.argv = ['otimes', 'verify', {str(made.path)!r}, '--tokens', '1,2', '--json']\n"
        "otimes.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["holds"] is False
    assert "terms of 0.attn" in json.loads(done.stdout)["reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give the input as --prompt TEXT or as --tokens 1,2,3"),
        (("--tokens", ""), "no tokens: give at least one id"),
        (("--tokens", "1,x"), "place 1 is 'x'"),
        (("--tokens", "1,999"), "token id 999 at position 1 is out of range"),
        (("--tokens", "-1"), "token id -1 at position 0 is out of range"),
        (("--tokens", ",".join(["1"] * 500)), "the prompt has 500 tokens, but the model's context"),
        (("--prompt", "hello"), "this model has no tokenizer"),
        (("--prompt", "a", "--tokens", "1"), "give the input as --prompt TEXT or as --tokens"),
        (("--tokens", "1", "--top", "-1"), "Invalid value for '--top': -1 is not in the range"),
        (("--tokens", "1", "--dtype", "int8"), "'int8' is not one of"),
    ],
)
def test_verify_refuses(checkpoint: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in fails("verify", str(checkpoint), *arguments)


def test_a_model_that_is_not_there() -> None:
    shown = fails("verify", "nowhere", "--tokens", "1")

    assert "no model 'nowhere'" in shown
    assert "attn-only-2l" in shown


def test_exact_verification_of_a_long_input_is_refused_with_its_cost(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path, seed=1, n_layers=1, n_ctx=16)
    tokens = ",".join(["1"] * 9)

    shown = fails("verify", str(made.path), "--tokens", tokens, "--exact")

    assert "exact verification of 9 tokens" in shown
    assert "multiplications" in shown


# ----------------------------------------------------------------------------------------- the rest


def test_models_lists_what_ships() -> None:
    done = otimes("models", "--json")

    cards = {card["name"]: card for card in json.loads(done.stdout)["models"]}
    assert {"attn-only-1l", "attn-only-2l", "attn-only-2l-natural"} <= set(cards)
    assert all(Path(card["path"], "model.safetensors").is_file() for card in cards.values())
    assert "attn-only-2l" in otimes("models").stdout


def test_unknown_commands_and_help() -> None:
    assert "No such command 'foo'" in fails("foo")
    assert "Missing argument 'MODEL'" in fails("verify")
    for command in ((), ("expand",), ("verify",), ("models",)):
        done = otimes(*command, "--help")
        assert done.returncode == 0
        assert "Usage: " in done.stdout
    assert otimes("--version").stdout.startswith("otimes ")


def test_a_reader_that_goes_away_is_no_error() -> None:
    script = f"{sys.executable} -m otimes.cli expand --layers 5 --heads 4 | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["expand", "derive", "verify", "graph"])
def test_help_shows_examples_line_by_line(command: str) -> None:
    lines = otimes(command, "--help").stdout.splitlines()

    assert sum(line.startswith(f"  otimes {command} ") for line in lines) >= 2
    assert not any("\\b" in line or "\b" in line for line in lines)


def test_an_empty_prompt_is_refused() -> None:
    assert "the prompt is empty" in fails("verify", "attn-only-2l", "--prompt", "")


@pytest.mark.parametrize("name", ["x" * 5000, "", " "])
def test_names_that_no_file_can_have(name: str) -> None:
    assert "model" in fails("verify", name, "--tokens", "1")


def test_a_terminal_without_the_symbol() -> None:
    narrow = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = otimes("verify", "attn-only-1l", "--tokens", "0,5", env=narrow)

    assert done.returncode == 0, done.stderr
    assert "Id ? W_U W_E" in done.stdout


def test_a_full_disk_is_an_error_in_one_line() -> None:
    script = f"{sys.executable} -m otimes.cli expand --layers 1 --heads 1 > /dev/full"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 2
    assert done.stderr.startswith("error: No space left on device")
