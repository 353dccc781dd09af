"""Scaled rotary angles of Hugging Face configs, beside those of transformers."""

from __future__ import annotations

import math

import pytest
import torch

import otimes as ox
from otimes.bridge.loading.families import BY_MODEL_TYPE
from otimes.bridge.loading.families.scaling import settle
from otimes.bridge.loading.state import family_config
from otimes.bridge.positions import frequencies
from otimes.errors import InputError, UnsupportedError
from tests.bridge.loading.tiny import N_CTX, tiny, tokens

YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}
CASES = [
    {},
    {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.8},
    {"factor": 2.5, "mscale": 1.0},
    {"beta_fast": 16, "beta_slow": 2},
    {"truncate": False},
    {"attention_factor": 1.25},
    {"factor": None},
    {"factor": 1.0},
    {"rope_theta": 10000.0, "original_max_position_embeddings": 100},
    # both ends of the ramp on one plane
    {"beta_fast": 1e-9, "beta_slow": 1e-9},
    {"beta_fast": 1e9, "beta_slow": 1e9},
]


@pytest.mark.parametrize("top", [{}, {"original_max_position_embeddings": 512}])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_yarn_is_that_of_transformers(case, top):
    """Frequencies and the factor of cosines and sines, of 128 coordinates."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"original_max_position_embeddings": 4096} | YARN | case
    settings = {
        "hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4,
        "max_position_embeddings": 32768, **top,
    }  # fmt: skip
    theirs = LlamaConfig(**settings, rope_parameters=dict(parameters))
    wanted, factor = ROPE_INIT_FUNCTIONS["yarn"](theirs)

    mapping = {**settings, "rope_parameters": parameters}
    config, notes = family_config(BY_MODEL_TYPE["llama"], mapping, "config")

    found = frequencies(config.rotary_of(0))
    assert torch.allclose(found, wanted.double(), rtol=1e-5, atol=0)
    assert config.attention_scale == pytest.approx(128**-0.5 * factor**2, rel=1e-12)
    assert notes == []


def test_the_factor_of_the_scores_matters():
    """Left out, the first block that differs is that of the attention."""
    module = tiny("llama-yarn")
    model = ox.load(module)
    factor = 0.1 * math.log(4.0) + 1
    assert model.config.attention_scale == pytest.approx(10**-0.5 * factor**2)
    plain = ox.load(
        module.state_dict(),
        config={
            **module.config.to_dict(),
            "rope_parameters": {**module.config.rope_parameters, "attention_factor": 1.0},
        },
    )

    recorded = model.original.record(tokens())
    right, wrong = model.reference()(tokens()), plain.reference()(tokens())

    assert torch.allclose(right.streams[1], recorded.streams[1], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(wrong.streams[1], recorded.streams[1], rtol=1e-2, atol=1e-2)


def test_dynamic_angles_are_plain_within_the_context():
    """Up to the last position of it; behind, they are others in the module, and refused here."""
    module = tiny("llama-dynamic")
    model = ox.load(module)
    full = tokens(length=N_CTX)

    recorded = model.original.record(full)
    judged = model.reference()(full)

    for ours, theirs in zip(judged.streams, recorded.streams, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert model.config.rotary_of(0).scaling is None
    assert (
        "dynamic rotary angles are the plain ones for inputs within the context" in model.notes[0]
    )
    with pytest.raises(InputError, match="the model's context has 24: leave out at least 1"):
        model.run(tokens=tokens(length=N_CTX + 1))
    # one position more, and the module's own first logits change
    longer = torch.cat([full, full[:, :1]], dim=1)
    changed = model.original.record(longer).logits[:, :N_CTX]
    assert not torch.allclose(changed, recorded.logits, rtol=1e-2, atol=1e-2)


def test_what_layers_say_is_said_once():
    rotary = {"theta": 10.0, "dim": 4, "pairing": "half", "scaling": None}
    layers = [{**rotary, "note": "a note"}, None, {**rotary, "note": "a note"}]

    found, notes = settle({"rotary": layers, "attention_scale": 0.5}, "config")

    assert found == {"rotary": [rotary, None, rotary], "attention_scale": 0.5}
    assert notes == ["a note"]


def test_a_layer_that_does_not_turn_has_the_factor_1():
    layers = [{"theta": 10.0, "attention_factor": 1.2}, None]

    with pytest.raises(UnsupportedError, match="by different attention factors of yarn"):
        settle({"rotary": layers, "attention_scale": 0.5}, "config")
