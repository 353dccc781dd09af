"""``config.json``: what is read, what is refused, and with which words."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otimes.bridge.loading import Config
from otimes.errors import CheckpointError

# the example of the format's description
SHIPPED: dict[str, Any] = {
    "format": "otimes", "version": 1, "n_layers": 2, "n_heads": 8, "n_kv_heads": 8, "d_model": 128,
    "d_head": 32, "d_mlp": None, "n_ctx": 128, "d_vocab": 1024, "bos_token_id": 0,
    "positions": "shortformer", "norm": None, "activation": None, "causal": True,
    "attention_scale": 0.17677669529663687, "eps": None, "rotary": None,
}  # fmt: skip
OPTIONAL = (
    "n_kv_heads", "d_mlp", "bos_token_id", "norm", "activation", "causal", "eps", "rotary",
)  # fmt: skip
MISSING = object()


def changed(**changes: object) -> dict[str, object]:
    return {k: v for k, v in (SHIPPED | changes).items() if v is not MISSING}


def test_the_fields_are_the_keys():
    config = Config.parse(SHIPPED)
    for key, value in SHIPPED.items():
        if key not in ("format", "version"):
            assert getattr(config, key) == value


def test_to_json_gives_the_same_object_in_the_same_order():
    written = Config.parse(SHIPPED).to_json()
    assert json.dumps(written) == json.dumps(SHIPPED)


def test_parse_does_not_change_its_input():
    mapping = changed(n_kv_heads=MISSING)
    before = dict(mapping)
    Config.parse(mapping)
    assert mapping == before


def test_defaults_of_optional_keys():
    config = Config.parse({k: v for k, v in SHIPPED.items() if k not in OPTIONAL})
    assert config.n_kv_heads == 8
    assert config.causal is True
    assert (config.d_mlp, config.bos_token_id, config.norm) == (None, None, None)
    assert (config.activation, config.eps, config.rotary) == (None, None, None)


@pytest.mark.parametrize("positions", ["none", "learned", "shortformer", "alibi"])
def test_positions_without_settings(positions: str):
    assert Config.parse(changed(positions=positions)).positions == positions


def test_no_layers_and_one_of_everything():
    config = Config.parse(
        changed(n_layers=0, n_heads=1, n_kv_heads=1, d_model=1, d_head=1, n_ctx=1, d_vocab=1)
    )
    assert config.n_layers == 0


def test_an_integer_scale_becomes_a_float():
    scale = Config.parse(changed(attention_scale=1)).attention_scale
    assert (scale, type(scale)) == (1.0, float)


def test_frozen():
    with pytest.raises(AttributeError, match="cannot assign"):
        Config.parse(SHIPPED).n_layers = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": MISSING}, r'c\.json has no format, not "format": "otimes": a native'),
        ({"format": "gguf"}, r"c\.json has format 'gguf', not"),
        ({"format": None}, r"has format None, not"),
        ({"version": MISSING}, r"has no version; this otimes knows version 1: install a newer"),
        ({"version": 2}, r"has version 2; this otimes knows version 1: install a newer otimes or"),
        ({"version": "1"}, r"has version '1'; this otimes knows"),
        ({"version": True}, r"has version True; this otimes knows"),
        ({"version": [1]}, r"has version \[1\]; this otimes knows"),
        # a later version may have other keys: the version is what must be said
        ({"version": 2, "n_experts": 4}, r"has version 2; this otimes knows version 1"),
        (
            {"n_head": 8},
            r"c\.json has the unknown key 'n_head' \(did you mean 'n_heads'\?\): remove",
        ),
        ({"Zebra": 8}, r"has the unknown key 'Zebra': remove or correct it; known are n_layers, "),
        ({"d_model": MISSING, "n_ctx": MISSING}, r"c\.json lacks d_model, n_ctx: add what is"),
        ({"attention_scale": MISSING}, r"c\.json lacks attention_scale: add"),
        ({"n_layers": -1}, r"n_layers must be an integer from 0 to 10,000, not -1: correct it"),
        ({"n_layers": 10**9}, r"n_layers must be an integer from 0 to 10,000, not 1000000000"),
        ({"n_layers": 2.0}, r"n_layers must be an integer from 0 to 10,000, not 2\.0"),
        ({"n_layers": True}, r"n_layers must be an integer from 0 to 10,000, not True"),
        ({"n_layers": "2"}, r"n_layers must be an integer from 0 to 10,000, not '2'"),
        ({"n_layers": None}, r"n_layers must be an integer from 0 to 10,000, not None"),
        ({"n_heads": 0}, r"n_heads must be an integer from 1 to 65,536, not 0"),
        ({"n_kv_heads": 0}, r"n_kv_heads must be an integer from 1 to 65,536, not 0"),
        ({"n_kv_heads": None}, r"n_kv_heads must be an integer from 1 to 65,536, not None"),
        ({"n_kv_heads": 3}, r"n_heads 8 is not a multiple of n_kv_heads 3, but each KV head"),
        ({"n_kv_heads": 16}, r"n_heads 8 is not a multiple of n_kv_heads 16"),
        ({"d_model": 0}, r"d_model must be an integer from 1 to 1,048,576, not 0"),
        ({"d_model": 2**40}, r"d_model must be an integer from 1 to 1,048,576, not 1099511627776"),
        ({"d_head": -4}, r"d_head must be an integer from 1 to"),
        ({"n_ctx": []}, r"n_ctx must be an integer from 1 to 16,777,216, not \[\]"),
        (
            {"d_vocab": 10**5000},
            r"d_vocab must be .*, not a number of thousands of digits: correct",
        ),
        ({"d_mlp": 0}, r"d_mlp must be an integer from 1 to"),
        ({"d_mlp": "4x"}, r"d_mlp must be an integer from 1 to 16,777,216, not '4x'"),
        ({"bos_token_id": 1024}, r"bos_token_id must be null or a token id from 0 to 1,023"),
        ({"bos_token_id": -1}, r"bos_token_id must be .* not -1"),
        ({"bos_token_id": False}, r"bos_token_id must be .* not False"),
        ({"positions": None}, r"positions must be one of none, learned, .* alibi, not None"),
        ({"positions": "sinusoid"}, r"positions must be one of none, .*, not 'sinusoid': correct"),
        ({"norm": "batch"}, r"norm must be null or one of layer, rms, not 'batch'"),
        ({"norm": False}, r"norm must be null or one of layer, rms, not False"),
        (
            {"activation": 3},
            r"activation must be null or one of relu, gelu, gelu_tanh, silu, not 3",
        ),
        ({"activation": "swish"}, r"activation must be null or one of relu, .*, not 'swish'"),
        ({"causal": 1}, r"causal must be true or false, not 1"),
        ({"causal": None}, r"causal must be true or false, not None"),
        ({"attention_scale": None}, r"attention_scale must be a finite number, not None"),
        ({"attention_scale": True}, r"attention_scale must be a finite number, not True"),
        ({"attention_scale": math.nan}, r"attention_scale must be a finite number, not nan"),
        ({"attention_scale": -math.inf}, r"attention_scale must be a finite number, not -inf"),
        ({"attention_scale": 10**400}, r"attention_scale must be a finite number, not 10000"),
        ({"eps": 0}, r"eps must be null or a positive number, not 0"),
        ({"eps": math.nan}, r"eps must be null or a positive number, not nan"),
        ({"eps": "1e-5"}, r"eps must be null or a positive number, not '1e-5'"),
        ({"rotary": 10_000}, r"rotary is set, but positions is 'shortformer': set rotary"),
        ({"rotary": {"base": 1e4}}, r"rotary is set, but positions is 'shortformer': set rotary"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, object], message: str):
    with pytest.raises(CheckpointError, match=message) as caught:
        Config.parse(changed(**changes), where="c.json")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_settings_without_effect_are_read():
    config = Config.parse(changed(eps=1e-5, activation="gelu"))
    assert (config.eps, config.activation) == (1e-5, "gelu")


def config_or_message(mapping: dict[str, object]) -> Config | str:
    try:
        return Config.parse(mapping)
    except CheckpointError as error:
        return str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(
    st.dictionaries(
        st.sampled_from([f.name for f in dataclasses.fields(Config)]) | st.text(max_size=8),
        JSON,
        max_size=4,
    )
)
def test_whatever_the_values_the_answer_is_a_config_or_an_error_of_ours(changes: dict[str, object]):
    outcome = config_or_message(SHIPPED | changes)
    if isinstance(outcome, str):
        assert outcome.isprintable()
    else:
        assert Config.parse(outcome.to_json()) == outcome
