"""The README's Python example runs, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)

    exec(example, {})

    shown = capsys.readouterr().out
    assert "A[1.3] A[0.0] ⊗ W_U W_OV[1.3] W_OV[0.0] W_E" in shown
    assert "torch.Size([1, 28, 1024])" in shown
    assert "attn-only-2l: holds" in shown


def test_what_it_links_to_is_there() -> None:
    root = Path(__file__).parent.parent
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", README) if not t.startswith("http")]

    assert targets
    assert [target for target in targets if not (root / target).exists()] == []
