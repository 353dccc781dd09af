"""A judge that is wrong itself: how scores become patterns and position ids are checked."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import pytest
import torch

import otimes as ox
from otimes.models.reference import attention, module
from tests.factory import make_checkpoint

TOKENS = [[0, 0, 3, 1, 2], [4, 2, 1, 0, 3]]
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)


def judged_by(
    monkeypatch: pytest.MonkeyPatch, folder: Path, old: str, new: str, positions: str
) -> ox.Certificate:
    """Verify with a reference module in whose forward pass one text is replaced."""
    found = [c for c in (attention.Attention, module.Reference) if old in source_of(c)]
    assert [source_of(c).count(old) for c in found] == [1]
    broken = dict(vars(module if found == [module.Reference] else attention))
    exec(source_of(found[0]).replace(old, new), broken)
    monkeypatch.setattr(found[0], "forward", broken["forward"])
    made = make_checkpoint(folder, seed=2, n_layers=2, positions=positions, n_ctx=8)
    model = ox.load(made.path)
    return ox.verify(model.run(tokens=TOKENS, mask=MASK))


def source_of(part: type) -> str:
    return textwrap.dedent(inspect.getsource(part.forward))


@pytest.mark.parametrize("positions", ["learned", "shortformer"])
@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("torch.softmax(capped", "torch.softmax(3 * capped", "patterns of 0.0"),
        (".tril()", "", "patterns of 0.0"),
        ("real[:, None, None, :]", "torch.ones_like(real)[:, None, None, :]", "patterns of 0.0"),
        ("(real.cumsum(-1) - 1).clamp(min=0)", "real.long().cumsum(-1) * 0", "position ids"),
        (
            "(real.cumsum(-1) - 1).clamp(min=0)",
            "torch.arange(tokens.shape[1]).expand(tokens.shape)",
            "position ids",
        ),
    ],
)
def test_is_caught_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str, named: str, positions: str
) -> None:
    certificate = judged_by(monkeypatch, tmp_path, old, new, positions)

    assert not certificate.holds
    assert named in " ".join(certificate.reasons)


@pytest.mark.parametrize("positions", ["learned", "shortformer"])
def test_the_same_judge_unbroken_holds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, positions: str
) -> None:
    certificate = judged_by(monkeypatch, tmp_path, ".tril()", ".tril()", positions)

    assert certificate.holds, certificate.reasons
