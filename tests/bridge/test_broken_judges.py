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
    methods = (attention.Attention, "weigh"), (module.Reference, "forward")
    found = [method for method in methods if old in source_of(*method)]
    assert [source_of(*method).count(old) for method in found] == [1]
    part, name = found[0]
    broken = dict(vars(module if part is module.Reference else attention))
    exec(source_of(part, name).replace(old, new), broken)
    monkeypatch.setattr(part, name, broken[name])
    made = make_checkpoint(folder, seed=2, n_layers=2, positions=positions, n_ctx=8)
    model = ox.load(made.path)
    return ox.verify(model.run(tokens=TOKENS, mask=MASK))


def source_of(part: type, name: str) -> str:
    return textwrap.dedent(inspect.getsource(getattr(part, name)))


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
