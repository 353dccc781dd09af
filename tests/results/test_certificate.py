"""The certificate as a report, as JSON, as a table and as a file."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from otimes.errors import InputError
from otimes.results import BlockCheck, Certificate, Check, ExactCheck, Identity, SourceError

GOOD = Certificate(
    model="small",
    tokens=((0, 5, 3),),
    dtype="float64",
    paths=13**12,
    method="enumerated",
    checked=("logits: 1 × 3 positions × 7 tokens", "scores: 2 heads, 8 score terms"),
    blocks=(BlockCheck(1e-16, 2e-16, True, "embed"), BlockCheck(2e-16, 3e-15, True, "0.attn")),
    terms=(BlockCheck(0.0, 2e-16, True, "embed"),),
    scores=Check(1e-16, 5e-15, holds=True),
    patterns=Check(1e-17, 3e-15, holds=True),
    logits=Check(3e-16, 4e-14, holds=True),
    analysis="absolute values",
    measured=Check(3e-16, 5e-16, holds=True),
    largest_logit=12.25,
    vacuous_above=1e-6,
    frozen=("attention patterns of 1 layers × 2 heads",),
    unused_parameters=("extra.tensor",),
    identity=Identity(True, (1048573, 2097143), 3),
    exact=ExactCheck("0", 3),
    reasons=(),
)
BAD = replace(
    GOOD,
    tokens=((0, 5), (1, 2)),
    blocks=(BlockCheck(float("inf"), 2e-16, False, "embed"),),
    logits=Check(1.0, float("inf"), holds=False),
    analysis="measured deviations",
    measured=None,
    identity=Identity(False, (1048573,), 3),
    exact=ExactCheck("-3/8", 2),
    unused_parameters=(),
    reasons=("block embed: off", "exact: the rational difference is -3/8, not 0"),
)


JUDGED = replace(
    GOOD,
    source="LlamaForCausalLM",
    source_blocks=(
        BlockCheck(1e-7, 2e-2, True, "0.attn output"), BlockCheck(0.0, 1e-15, True, "0.attn"),
    ),
    source_errors=(SourceError("float64", 1e-5, 1e-3), SourceError("bfloat16", 2.0, 1.5)),
)  # fmt: skip


def test_what_the_original_module_says() -> None:
    assert JUDGED.source_error == SourceError("float64", 1e-5, 1e-3)
    assert JUDGED.source_error.holds
    assert not JUDGED.source_errors[1].holds
    assert GOOD.source_error is None
    lines = repr(JUDGED).splitlines()
    assert "original 0.attn output    1.00e-07 ≤  2.00e-02" in lines
    assert "original logits in float64: 1.00e-05, tolerance 1.00e-03" in lines
    assert "original logits in bfloat16: 2.00e+00, tolerance 1.50e+00  <- exceeded" in lines
    found = JUDGED.to_json()
    assert (found["source_max_abs_error"], found["source_tolerance"]) == (1e-5, 1e-3)
    assert found["source"] == "LlamaForCausalLM"
    assert found["source_blocks"][0] == {
        "block": "0.attn output", "max_abs_error": 1e-7, "bound": 2e-2,
    }  # fmt: skip
    assert found["source_errors"][1]["dtype"] == "bfloat16"
    plain = GOOD.to_json()
    assert (plain["source"], plain["source_max_abs_error"], plain["source_tolerance"]) == (
        None, None, None,
    )  # fmt: skip
    assert list(JUDGED.to_pandas().query("side == 'original'").block) == ["0.attn output", "0.attn"]


def test_what_holds() -> None:
    assert GOOD.holds
    assert not BAD.holds
    assert (GOOD.max_abs_error, GOOD.bound) == (3e-16, 4e-14)
    assert GOOD.exact is not None
    assert GOOD.exact.holds
    assert BAD.exact is not None
    assert not BAD.exact.holds


def test_the_report_of_what_holds() -> None:
    assert repr(GOOD) == (
        "Certificate for small: holds\n"
        "============================\n"
        "23,298,085,122,481 paths, enumerated, in float64\n"
        "checked  logits: 1 × 3 positions × 7 tokens\n"
        "checked  scores: 2 heads, 8 score terms\n"
        "frozen   attention patterns of 1 layers × 2 heads\n"
        "\n"
        "                             error       bound\n"
        "block embed               1.00e-16 ≤  2.00e-16\n"
        "block 0.attn              2.00e-16 ≤  3.00e-15\n"
        "terms embed               0.00e+00 ≤  2.00e-16\n"
        "scores                    1.00e-16 ≤  5.00e-15\n"
        "patterns                  1.00e-17 ≤  3.00e-15\n"
        "logits                    3.00e-16 ≤  4.00e-14\n"
        "logits, measured          3.00e-16 ≤  5.00e-16\n"
        "bound    on logits by absolute values\n"
        "the largest logit is 12.25\n"
        "identity holds modulo 1048573, 2097143; a false pass is at most 4e-12 likely\n"
        "exact    difference 0 over 3 tokens, in rational arithmetic\n"
        "unused   extra.tensor"
    )


def test_the_report_of_what_does_not_hold() -> None:
    lines = repr(BAD).splitlines()

    assert lines[0] == "Certificate for small: DOES NOT HOLD"
    assert "block embed                    inf ≤  2.00e-16  <- exceeded" in lines
    assert "identity DOES NOT HOLD modulo 1048573; a false pass is at most 3e-06 likely" in lines
    assert "exact    difference -3/8 over 2 tokens, in rational arithmetic" in lines
    assert lines[-2:] == [
        "reason   block embed: off",
        "reason   exact: the rational difference is -3/8, not 0",
    ]


def test_json_has_the_keys_of_the_contract() -> None:
    contract = {
        "holds", "paths", "method", "checked", "max_abs_error", "bound", "blocks", "scores",
        "patterns", "identity", "source_max_abs_error", "source_tolerance", "frozen",
        "unused_parameters", "exact",
    }  # fmt: skip
    more = {"model", "tokens", "dtype", "largest_logit", "terms", "analysis", "measured"}
    more |= {"source", "source_blocks", "source_errors"}

    found = json.loads(json.dumps(GOOD.to_json(), allow_nan=False))

    assert set(found) == contract | more
    assert set(BAD.to_json()) == contract | more | {"reason"}
    assert found["holds"] is True
    assert found["paths"] == "23298085122481"
    assert found["tokens"] == [0, 5, 3]
    assert found["blocks"][1] == {"block": "0.attn", "max_abs_error": 2e-16, "bound": 3e-15}
    assert found["scores"] == {"max_abs_error": 1e-16, "bound": 5e-15}
    assert found["exact"] == {"difference": "0", "tokens": 3}
    assert found["identity"] == {
        "holds": True, "primes": [1048573, 2097143], "degree": 3,
        "false_pass": pytest.approx(9 / 1048573 / 2097143),
    }  # fmt: skip
    assert found["analysis"] == "absolute values"
    assert found["measured"] == {"max_abs_error": 3e-16, "bound": 5e-16}
    assert BAD.to_json()["measured"] is None
    assert replace(GOOD, identity=None).to_json()["identity"] is None


def test_json_of_what_does_not_hold() -> None:
    """JSON has no infinity, so what is not finite is null."""
    found = json.loads(json.dumps(BAD.to_json(), allow_nan=False))

    assert found["holds"] is False
    assert found["reason"] == "block embed: off; exact: the rational difference is -3/8, not 0"
    assert found["tokens"] == [[0, 5], [1, 2]]
    assert found["blocks"] == [{"block": "embed", "max_abs_error": None, "bound": 2e-16}]
    assert found["bound"] is None


def test_no_exact_check_is_null() -> None:
    assert replace(GOOD, exact=None).to_json()["exact"] is None
    assert "rational" not in repr(replace(GOOD, exact=None))


@pytest.mark.parametrize(
    "certificate", [GOOD, BAD, replace(GOOD, exact=None, identity=None, paths=101**100)]
)
def test_a_saved_one_is_read_back(certificate: Certificate, tmp_path: Path) -> None:
    certificate.save(tmp_path / "c.json")

    found = Certificate.load(str(tmp_path / "c.json"))

    assert found == certificate
    assert repr(found) == repr(certificate)
    json.loads((tmp_path / "c.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)


def test_a_table() -> None:
    table = BAD.to_pandas()

    assert table.columns.tolist() == ["side", "block", "max_abs_error", "bound", "holds"]
    assert table[["side", "block"]].to_numpy().tolist() == [
        ["judge", "embed"], ["terms", "embed"], ["sum", "scores"], ["judge", "patterns"],
        ["sum", "logits"],
    ]  # fmt: skip
    assert table["holds"].tolist() == [False, True, True, True, False]
    assert table["bound"].tolist() == [2e-16, 2e-16, 5e-15, 3e-15, float("inf")]


def saved(tmp_path: Path) -> dict:
    GOOD.save(tmp_path / "good.json")
    return json.loads((tmp_path / "good.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [field.name for field in fields(Certificate)])
def test_every_missing_field_is_named(tmp_path: Path, name: str) -> None:
    content = saved(tmp_path)
    del content[name]
    (tmp_path / "bad.json").write_text(json.dumps(content), encoding="utf-8")

    with pytest.raises(InputError, match=rf"bad\.json is no saved certificate: it has no '{name}'"):
        Certificate.load(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model", 3, "model is 3, not of the type str"),
        ("paths", "4", "paths is '4', not of the type int"),
        ("paths", True, "paths is True, not of the type int"),
        ("tokens", 7, "tokens is 7, not of the type list"),
        ("tokens", [[1.5]], "tokens is 1.5, not of the type int"),
        ("tokens", [3], "not iterable"),
        ("reasons", "none", "reasons is 'none', not of the type list"),
        ("frozen", [1], "frozen is 1, not of the type str"),
        ("scores", None, "expected an object, not NoneType"),
        ("scores", {"bound": 1.0, "holds": True}, "it has no 'max_abs_error'"),
        ("blocks", [3], "expected an object, not int"),
        (
            "identity",
            {"holds": True, "primes": [1.5], "degree": 2},
            "primes is 1.5, not of the type int",
        ),
        ("exact", [], "expected an object, not list"),
        ("largest_logit", "big", "largest_logit is 'big', not of the type float"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, name: str, value: object, message: str) -> None:
    content = {**saved(tmp_path), name: value}
    (tmp_path / "bad.json").write_text(json.dumps(content), encoding="utf-8")

    with pytest.raises(InputError, match=message):
        Certificate.load(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"[1, 2]", "expected an object, not list"),
        (b"\xff\xfe", "can't decode byte"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_files_that_are_no_certificate(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.json").write_bytes(content)

    with pytest.raises(InputError, match=f"no saved certificate: .*{message}"):
        Certificate.load(tmp_path / "bad.json")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json is no saved certificate: .*No such file"):
        Certificate.load(tmp_path / "none.json")
