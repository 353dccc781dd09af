"""A folder that tests of loading begin with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.bridge.loading.tiny import tiny


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A tiny Llama as transformers saves it."""
    tiny("llama", torch.float32).save_pretrained(tmp_path)
    return tmp_path
