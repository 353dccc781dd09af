"""Models and inputs at the edge: a certificate that holds, one that does not, or a named error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otimes.bridge import verify
from otimes.errors import OtimesError, UnsupportedError
from otimes.results import Certificate
from tests.kit import run_of

BIASES = ("b_Q", "b_K", "b_V", "b_O", "b_U")
DTYPES = ("float64", "float32")
LIMITS = (4096, 0)


def certificate(folder: Path, options: dict[str, Any], **how: Any) -> Certificate:
    run, _ = run_of(folder, **options)
    found = verify(run, **how)
    json.dumps(found.to_json(), allow_nan=False)  # also infinities can be printed
    assert repr(found).startswith("Certificate for ")
    found.save(folder / "certificate")
    assert Certificate.load(folder / "certificate") == found
    return found


HOLDS = {
    "no layers": {"n_layers": 0},
    "no layers, all sources": {"n_layers": 0, "biases": BIASES, "positions": "learned"},
    "one token": {"tokens": [3]},
    "scale 0": {"attention_scale": 0.0, "biases": BIASES},
    "negative scale": {"attention_scale": -2.0},
    "scale 1e6": {"attention_scale": 1e6},
    "scale 1e30": {"attention_scale": 1e30},
    "scale 1e-300": {"attention_scale": 1e-300},
    "zero weights": {"scale": 0.0, "biases": BIASES},
    "tiny weights": {"scale": 1e-20, "biases": BIASES},
    "one KV head": {"n_heads": 4, "n_kv_heads": 1, "biases": BIASES},
    "one token of vocabulary": {"d_vocab": 1, "biases": BIASES},
    "all sizes 1": {"n_heads": 1, "d_model": 1, "d_head": 1, "n_ctx": 1, "d_vocab": 1},
    "batch of three lengths": {"tokens": [[1, 2, 3], [4], [5, 6]], "biases": BIASES},
    "not causal": {"causal": False, "tokens": [[1, 2, 3], [4], [5, 6]], "biases": BIASES},
    "wide": {"n_layers": 1, "n_heads": 1, "d_model": 70, "d_head": 33, "d_vocab": 3},
}


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 4096), ("float32", 4096), ("float64", 0)])
@pytest.mark.parametrize("name", HOLDS)
def test_holds(tmp_path: Path, name: str, dtype: str, limit: int) -> None:
    found = certificate(tmp_path, HOLDS[name], dtype=dtype, enumeration_limit=limit)

    assert found.holds, found
    assert 0 <= found.max_abs_error <= found.bound
    share = 1e-6 if dtype == "float64" else 1e-2
    assert found.bound <= share * found.largest_logit or found.largest_logit == 0


@pytest.mark.parametrize("name", [name for name in HOLDS if "scale" not in name])
def test_the_exact_difference_is_zero(tmp_path: Path, name: str) -> None:
    tokens = [0] if HOLDS[name].get("d_vocab") == 1 else [1, 2, 0]
    options = {"tokens": tokens} | HOLDS[name]

    found = certificate(tmp_path, options, exact=True)

    assert found.holds, found
    assert found.exact is not None
    assert found.exact.difference == "0"


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_weights_hold_in_float64(tmp_path: Path, dtype: str) -> None:
    found = certificate(tmp_path, {"scale": 1e10, "biases": BIASES}, dtype=dtype)

    assert found.holds == (dtype == "float64"), found
    if not found.holds:
        (reason,) = found.reasons
        assert reason.startswith("scores of layer 0: the model's forward pass overflows in float32")


OVERFLOWS = {
    "scale 1e308": ({"attention_scale": 1e308}, "scores of layer 0"),
    "weights 1e60": ({"scale": 1e60}, "scores of layer 1"),
    "weights 1e100": ({"scale": 1e100}, "scores of layer 0"),
    "weights 1e120, four layers": ({"scale": 1e120, "n_layers": 4}, "scores of layer 0"),
    "weights 1e300": ({"scale": 1e300}, "scores of layer 0"),
    "weights 1e300, no layers": ({"scale": 1e300, "n_layers": 0}, "block unembed"),
}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", OVERFLOWS)
def test_an_overflow_is_the_one_reason(tmp_path: Path, name: str, limit: int) -> None:
    options, place = OVERFLOWS[name]

    found = certificate(tmp_path, options, enumeration_limit=limit)

    assert not found.holds
    assert found.reasons == (
        f"{place}: the model's forward pass overflows in float64: nothing can be checked",
    )


@pytest.mark.parametrize("name", [name for name in OVERFLOWS if "layers" not in name])
def test_an_overflow_has_no_exact_difference(tmp_path: Path, name: str) -> None:
    options, _ = OVERFLOWS[name]
    run, _ = run_of(tmp_path, tokens=[1, 2, 3], **options)

    with pytest.raises(UnsupportedError, match="no exact verification: values of the frozen netw"):
        verify(run, exact=True)


@pytest.mark.parametrize("scale", [1e-60, 1e-120, 1e-145, 1e-160, 1e-310])
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_underflow(tmp_path: Path, scale: float, dtype: str) -> None:
    """Where underflows are as large as the logits, the bound says nothing, and so it says."""
    found = certificate(tmp_path, {"scale": scale, "n_layers": 1}, dtype=dtype)

    assert found.max_abs_error <= found.bound
    if not found.holds:
        (reason,) = found.reasons
        assert "says nothing" in reason
    else:
        assert found.bound <= 1e-6 * found.largest_logit or found.largest_logit == 0


def test_every_bad_request_is_an_error_of_otimes(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path)

    for ask in (
        lambda: verify(run, dtype="int8"),
        lambda: verify(run, exact=True),
        lambda: run.evaluate("0.9"),
        lambda: run.evaluate("0.0 >"),
        lambda: run.model.run(tokens=[99]),
    ):
        with pytest.raises(OtimesError, match=r"\w{4}"):
            ask()
