"""What the test run itself promises: shapes are enforced, one thread, strict settings."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch

SHAPED = """
from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def product(left: Float[Tensor, "rows inner"], right: Float[Tensor, "inner columns"]) -> Tensor:
    return left[:, :1] @ right[:1]
"""


@pytest.mark.parametrize("package", ["otimes.numeric", "otimes.bridge"])
def test_shapes_are_enforced_in(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shaped_probe.py").write_text(SHAPED, encoding="utf-8")
    parent = importlib.import_module(package)
    monkeypatch.setattr(parent, "__path__", [*parent.__path__, str(tmp_path)])
    name = f"{package}.shaped_probe"
    try:
        module = importlib.import_module(name)

        module.product(torch.ones(2, 3), torch.ones(3, 4))
        with pytest.raises(jaxtyping.TypeCheckError, match="right"):
            module.product(torch.ones(2, 3), torch.ones(4, 3))
    finally:
        sys.modules.pop(name, None)


def test_without_the_hook_the_same_call_passes(tmp_path: Path) -> None:
    path = tmp_path / "shaped_probe.py"
    path.write_text(SHAPED, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("shaped_probe", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    module.product(torch.ones(2, 3), torch.ones(4, 3))


def test_every_loaded_module_of_the_checked_packages_went_through_the_hook() -> None:
    loaded = [
        module
        for name, module in sys.modules.items()
        if name.startswith(("otimes.numeric", "otimes.bridge"))
        and module.__file__ is not None  # a folder without __init__.py has no code to check
    ]

    unchecked = [m.__name__ for m in loaded if "jaxtyping" not in type(m.__loader__).__module__]
    assert unchecked == []


def test_torch_runs_on_the_threads_that_the_settings_say() -> None:
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])


def test_warnings_are_errors() -> None:
    import warnings

    with pytest.raises(UserWarning, match="seen"):
        warnings.warn("seen", stacklevel=1)
