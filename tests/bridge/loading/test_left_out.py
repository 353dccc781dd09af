"""A config that leaves a key out, or has null there, is read as transformers reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otimes.bridge.loading.config import Config
from otimes.bridge.loading.families import BY_MODEL_TYPE
from otimes.bridge.loading.state import family_config
from otimes.errors import OtimesError
from tests.bridge.loading.tiny import CONFIGS


def read(mapping: dict[str, Any]) -> Config | str:
    """The config that otimes makes of it, or its refusal."""
    try:
        return family_config(BY_MODEL_TYPE[mapping["model_type"]], mapping, "config")[0]
    except OtimesError as error:
        return str(error)


def whole(mapping: dict[str, Any]) -> dict[str, Any] | None:
    """The config with what transformers fills in; None: it does not take it."""
    from transformers import AutoConfig

    settings = {key: value for key, value in mapping.items() if key != "model_type"}
    try:
        found = AutoConfig.for_model(mapping["model_type"], **settings)
    except Exception:  # noqa: BLE001 - of many kinds
        return None
    return {**found.to_dict(), "model_type": mapping["model_type"]}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONFIGS)
def test_each_key(name):
    model_type, settings = CONFIGS[name]
    named = {**settings, "model_type": model_type}
    filled = whole(named)
    assert filled is not None
    compared = 0
    for base in (named, filled):
        for key in sorted(base.keys() - {"model_type"}):
            left = {other: value for other, value in base.items() if other != key}
            for changed in (left, {**left, key: None}):
                # a config is changed by the class that reads it
                mapping = json.loads(json.dumps(changed))
                theirs = whole(json.loads(json.dumps(changed)))
                if theirs is None:
                    continue
                assert read(mapping) == read(theirs), (key, key in changed)
                compared += isinstance(read(mapping), Config)
    assert compared > 30
