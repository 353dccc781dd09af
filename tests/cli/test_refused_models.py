"""Models that are not read, as the command line says it: exit 2 and one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import fails

MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": (
        {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
        "'MambaForCausalLM' (model_type 'mamba') cannot be loaded: its state-space layers are no",
    ),
    "quantised": (
        {"model_type": "llama", "quantization_config": {"quant_method": "awq"}},
        "the linear layers of 'llama' are quantised (quantization_config): dequantise the model",
    ),
    "own code": (
        {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "code.Mine"}},
        "it comes with its own code, which otimes never runs",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_is_not_read(tmp_path: Path, name: str) -> None:
    config, message = MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = tmp_path / "ran"
    (tmp_path / "code.py").write_text(f"open({str(ran)!r}, 'w').close()\n")

    said = fails("verify", str(tmp_path), "--tokens", "1,2")

    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert message in said
    assert not ran.exists()


def test_a_path_out_of_the_folder(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 1, "vocab_size": 5,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = {"weight_map": {"model.norm.weight": "../../secret.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    said = fails("attribute", str(tmp_path), "--tokens", "1,2", "--target-id", "3")

    assert "puts 'model.norm.weight' into '../../secret.safetensors': a shard is a file" in said
