"""The fields of ``config.json`` that models with norms, MLPs and other positions have."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from otimes.bridge.loading import Config
from otimes.bridge.loading.families import BY_MODEL_TYPE
from otimes.bridge.loading.state import family_config
from otimes.errors import CheckpointError
from tests.bridge.loading.test_config import SHIPPED, changed

LLAMA3 = {
    "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_n_ctx": 8192,
}  # fmt: skip
FULL: dict[str, Any] = SHIPPED | {
    "n_kv_heads": 2, "d_mlp": 512, "positions": "rotary", "norm": "rms", "activation": "silu",
    "causal": False, "eps": 1e-6, "norm_placement": "sandwich", "final_norm": False,
    "embed_norm": True, "qk_norm": "head", "parallel": "shared", "embed_multiplier": 12.0,
    "residual_multiplier": 0.22, "logits_multiplier": 0.125, "attention_softcap": 50.0,
    "logits_softcap": 30.0, "windows": [None, 16], "tied": True, "n_token_types": 2,
    "rotary": [{"theta": 1e6, "dim": 16, "pairing": "interleaved", "scaling": LLAMA3}, None],
}  # fmt: skip


def test_every_field_has_a_value_of_its_own_in_the_full_example():
    plain = Config.parse(SHIPPED)
    full = Config.parse(FULL)
    kept = {"n_layers", "n_heads", "d_model", "d_head", "n_ctx", "d_vocab", "bos_token_id",
            "attention_scale", "final_norm"}  # fmt: skip
    for field in dataclasses.fields(Config):
        assert (getattr(full, field.name) == getattr(plain, field.name)) == (field.name in kept)


def test_the_full_example_is_written_as_it_was_read():
    assert Config.parse(FULL).to_json() == FULL
    assert json.dumps(Config.parse(FULL).to_json()) == json.dumps(
        {key: FULL[key] for key in Config.parse(FULL).to_json()}
    )


def test_a_file_without_later_fields_has_their_defaults():
    config = Config.parse(
        SHIPPED | {"norm": "layer", "eps": 1e-5, "d_mlp": 8, "activation": "gelu"}
    )
    assert (config.norm_placement, config.final_norm, config.embed_norm) == ("pre", True, False)
    assert (config.qk_norm, config.parallel, config.windows) == (None, False, None)
    assert (config.attention_softcap, config.logits_softcap, config.tied) == (None, None, False)
    assert (config.embed_multiplier, config.residual_multiplier) == (None, None)
    assert (config.logits_multiplier, config.n_token_types) == (None, None)


@pytest.mark.parametrize(
    ("norm", "placement", "final"),
    [
        (None, "pre", False), ("rms", "pre", True), ("layer", "sandwich", True),
        ("rms", "output", True), ("layer", "post", False),
    ],
)  # fmt: skip
def test_the_final_norm_is_where_norms_are_unless_they_are_post(
    norm: str | None, placement: str, final: bool
):
    given = changed(norm=norm, norm_placement=placement, eps=1e-5)
    config = Config.parse(given)
    assert config.final_norm is final
    assert "final_norm" not in config.to_json()
    if norm is not None:
        other = Config.parse(given | {"final_norm": not final})
        assert (other.final_norm, other.to_json()["final_norm"]) == (not final, not final)


def test_what_layers_share_and_what_they_have_of_their_own():
    config = Config.parse(FULL)
    assert [config.window_of(layer) for layer in range(2)] == [None, 16]
    first = config.rotary_of(0)
    assert first is not None
    assert (first.theta, first.dim, first.pairing) == (1e6, 16, "interleaved")
    assert config.rotary_of(1) is None
    shared = Config.parse(FULL | {"rotary": {"theta": 1e4, "pairing": "half"}, "windows": None})
    assert shared.rotary_of(0) == shared.rotary_of(1)
    assert shared.rotary_of(0).dim == 32  # all of d_head
    assert shared.window_of(1) is None


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"type": "linear", "factor": 4.0},
        {"type": "ntk", "factor": 2.5},
        LLAMA3,
        {"type": "factors", "factors": [1.0, 1.5, 2.0, 4.0]},
    ],
)
def test_each_scaling_is_written_as_it_was_read(scaling: dict[str, Any] | None):
    rotary = {"theta": 5e5, "dim": 8, "pairing": "half", "scaling": scaling}
    given = changed(positions="rotary", rotary=rotary)
    assert Config.parse(given).to_json()["rotary"] == rotary


TURNS = {"positions": "rotary"}
GOOD = {"theta": 1e4, "pairing": "half"}
FOUR = GOOD | {"dim": 4}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (TURNS, r"c\.json: positions is 'rotary', but rotary is null: say how, for example"),
        (TURNS | {"rotary": "half"}, r"c\.json: rotary must be null or an object such as .* not '"),
        (TURNS | {"rotary": {"base": 1e4}}, r"c\.json: rotary has the unknown key 'base'"),
        (TURNS | {"rotary": {"theta": 1e4}}, r"c\.json: rotary lacks pairing: add"),
        (TURNS | {"rotary": {"pairing": "half"}}, r"c\.json: rotary lacks theta: add"),
        (TURNS | {"rotary": GOOD | {"theta": 0}}, r"rotary: theta must be a positive number, not "),
        (
            TURNS | {"rotary": GOOD | {"pairing": "neox"}},
            r"pairing must be one of half, interleaved, not 'neox'",
        ),
        (TURNS | {"rotary": GOOD | {"dim": 34}}, r"dim must be null or an integer from 1 to 32, n"),
        (TURNS | {"rotary": GOOD | {"dim": 7}}, r"rotary: 7 coordinates cannot turn in pairs: set"),
        (TURNS | {"rotary": [GOOD]}, r"c\.json: rotary has 1 entries, not 2: an object, or one or"),
        (TURNS | {"rotary": [GOOD, 3]}, r"c\.json: rotary\[1\] must be null or an object such as"),
        (TURNS | {"rotary": GOOD | {"scaling": 2}}, r"rotary: scaling must be null or an object s"),
        (
            TURNS | {"rotary": GOOD | {"scaling": {"type": "yarn", "factor": 2}}},
            r"rotary: scaling: type must be one of linear, ntk, llama3, factors, not 'yarn'",
        ),
        (TURNS | {"rotary": GOOD | {"scaling": {"factor": 2}}}, r"rotary: scaling lacks type: add"),
        (
            TURNS | {"rotary": GOOD | {"scaling": {"type": "linear", "rope_type": "x"}}},
            r"rotary: scaling has the unknown key 'rope_type'",
        ),
        (
            TURNS | {"rotary": GOOD | {"scaling": {"type": "linear", "factors": [1]}}},
            r"rotary: scaling has the unknown key 'factors' \(did you mean 'factor'\?\)",
        ),
        (
            TURNS | {"rotary": GOOD | {"scaling": LLAMA3 | {"low_freq_factor": 4}}},
            r"low_freq_factor 4\.0 is not below high_freq_factor 4\.0: correct one",
        ),
        (
            TURNS | {"rotary": GOOD | {"dim": 2, "scaling": {"type": "ntk", "factor": 2}}},
            r"ntk scaling changes no frequency of 2 coordinates: set scaling to null",
        ),
        (
            TURNS | {"rotary": FOUR | {"scaling": {"type": "factors", "factors": [1]}}},
            r"factors has 1 entries, not 2: a list of 2 positive numbers, one for each frequency",
        ),
        (
            TURNS | {"rotary": FOUR | {"scaling": {"type": "factors", "factors": [1, 0]}}},
            r"factors must be a list of 2 positive numbers, .* not \[1, 0\]",
        ),
        ({"norm": "rms"}, r"c\.json: norm is 'rms', but eps is null: give the number that is adde"),
        ({"norm_placement": "post"}, r"norm_placement is 'post', but norm is null: say which norm"),
        ({"norm_placement": "peri"}, r"norm_placement must be one of pre, post, sandwich, output,"),
        ({"norm_placement": None}, r"norm_placement must be one of pre, .*, not None"),
        ({"final_norm": True}, r"final_norm is True, but norm is null: say which norm"),
        ({"embed_norm": True}, r"embed_norm is True, but norm is null: say which norm"),
        ({"qk_norm": "head"}, r"qk_norm is 'head', but norm is null: say which norm"),
        ({"qk_norm": "layer"}, r"qk_norm must be null or one of head, all, not 'layer'"),
        ({"embed_norm": 1}, r"embed_norm must be true or false, not 1"),
        ({"final_norm": None}, r"final_norm must be true or false, not None"),
        ({"d_mlp": 64}, r"d_mlp is 64, but activation is null: give one of relu, gelu, gelu_tanh"),
        ({"parallel": True}, r"parallel is True, but d_mlp is null: a parallel block has an MLP"),
        ({"parallel": "both"}, r"parallel must be true, false or \"shared\", not 'both'"),
        (
            {"parallel": True, "d_mlp": 4, "activation": "relu", "norm": "rms", "eps": 1e-5,
             "norm_placement": "post"},
            r"parallel blocks with post-norms are no known architecture",
        ),
        ({"embed_multiplier": math.inf}, r"embed_multiplier must be null or a finite number, not "),
        ({"residual_multiplier": "2"}, r"residual_multiplier must be null or a finite number"),
        ({"logits_multiplier": True}, r"logits_multiplier must be null or a finite number, not Tr"),
        ({"attention_softcap": 0}, r"attention_softcap must be null or a positive number, not 0"),
        ({"logits_softcap": -1}, r"logits_softcap must be null or a positive number, not -1"),
        ({"windows": 16}, r"windows must be null or a list with an integer of 1 or more, or null,"),
        ({"windows": [4]}, r"windows has 1 entries, not 2: null or a list"),
        ({"windows": [4, 0]}, r"windows must be null or a list with .*, not \[4, 0\]"),
        ({"windows": [4, True]}, r"windows must be null or a list with .*, not \[4, True\]"),
        ({"tied": "yes"}, r"tied must be true or false, not 'yes'"),
        ({"n_token_types": 0}, r"n_token_types must be an integer from 1 to 65,536, not 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_later_fields_is_said(changes: dict[str, object], message: str):
    with pytest.raises(CheckpointError, match=message) as caught:
        Config.parse(changed(**changes), where="c.json")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["mistral", "phi3", "qwen2", "qwen3", "gemma2", "gemma3_text"])
def test_more_layers_than_any_model_has_are_refused_at_once(name: str) -> None:
    """Before a list with an entry for each of them is made."""
    mapping = {"model_type": name, "num_hidden_layers": 10**12}

    with pytest.raises(CheckpointError, match="num_hidden_layers must be an integer from 1 to"):
        family_config(BY_MODEL_TYPE[name], mapping, "config.json")
