"""Causal effects on models with norms, MLPs and rotation, against the reference module itself.

The module is made to do what the intervention says, by hooks: what one head or neuron writes is
exchanged for what it writes when its layer reads the changed stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import otimes as ox
from otimes.bridge import Run, causal
from otimes.bridge.binding import numbered
from otimes.models.reference.module import Block
from otimes.numeric.paths import PrefixStack, boundary_of, carried
from tests.bridge.test_families import made
from tests.kit import close

FAMILIES = {
    "layer norm": "source", "post-norms": "frozen", "sandwich norms": "frozen",
    "output norms": "source", "parallel, one norm, sandwich": "frozen", "everything": "frozen",
    "multipliers and post-norms": "frozen", "rotary, partial": "source", "windows": "source",
    "alibi, six heads": "source", "attention soft-cap": "source", "logits soft-cap": "source",
    "q and k norms, layer": "source", "q and k norms, all heads": "source",
    "shortformer behind a norm": "source", "gated silu": "frozen",
}  # fmt: skip
ROW, AT, TARGET = 0, 4, [3, 5]
CHANGES = {"everything": {"n_layers": 2, "windows": [3, None]}}


class Judge:
    """The reference module on one sequence, with an intervention."""

    def __init__(self, run: Run) -> None:
        self.run, self.reference = run, run.model.reference()
        self.tokens = run.tokens[ROW : ROW + 1]
        assert run.mask is not None
        self.mask = run.mask[ROW : ROW + 1]
        self.model = run.frozen().model.sequence(ROW)
        self.stack = PrefixStack(self.model)
        self.streams = [stream[ROW : ROW + 1] for stream in run.recording().streams]
        logits = run.uncapped_logits[ROW, AT]
        self.before = float(logits[TARGET[0]] - logits[TARGET[1]])

    def effect(self, module: Any, change: Callable[[Any], Any]) -> float:
        """How much smaller the target is when what a module returns is changed."""
        handle = module.register_forward_hook(lambda _, __, output: change(output))
        try:
            logits = self.reference(self.tokens, self.mask).uncapped_logits[0, AT]
        finally:
            handle.remove()
        return self.before - float(logits[TARGET[0]] - logits[TARGET[1]])

    def output(self, term: ox.PathTerm) -> float:
        source, components = numbered(term)
        stream = self.stack.stream(source, components)
        assert stream is not None
        place = boundary_of(self.model, source, components)
        return self.effect(self.reference.points[place], lambda x: x - stream)

    def input(self, term: ox.PathTerm) -> float:
        source, components = numbered(term)
        number, index = components[-1]
        prefix = self.stack.stream(source, components[:-1])
        assert prefix is not None
        begun = boundary_of(self.model, source, components[:-1])
        changed = self.streams[number] - carried(self.model, prefix, begun, number)
        block = self.reference.blocks[self.run.model.architecture.blocks[number].layer]
        assert isinstance(block, Block)
        heads = self.model.blocks[number].heads
        if index < heads:
            old, new = (self.head(block, x, index) for x in (self.streams[number], changed))
            return self.effect(
                block.attn, lambda made: replace(made, written=made.written + new - old)
            )
        old, new = (self.neuron(block, x, index - heads) for x in (self.streams[number], changed))
        return self.effect(block.mlp, lambda fired: replace(fired, output=fired.output + new - old))

    def head(self, block: Block, x: Tensor, index: int) -> Tensor:
        """What one head writes: the module with the other heads' outputs cut off."""
        reads = x if block.post or block.ln1 is None else block.ln1(x)[0]
        attention, kept = block.attn, block.attn.W_O.data
        attention.W_O.data = torch.zeros_like(kept)
        attention.W_O.data[index] = kept[index]
        positions = self.run.positions[ROW : ROW + 1]
        vectors = None
        if self.run.model.config.positions == "shortformer":
            vectors = self.reference.pos_embed.W_pos[positions]
        try:
            made = attention(reads, vectors, positions, self.run.allowed[ROW][None, None])
        finally:
            attention.W_O.data = kept
        return made.written  # b_O is in both

    def neuron(self, block: Block, x: Tensor, index: int) -> Tensor:
        mlp, norm = block.mlp, block.ln1 if block.parallel == "shared" else block.ln2
        assert mlp is not None
        reads = x if block.post or norm is None else norm(x)[0]
        fired = mlp(reads).neurons[..., index]
        return fired[..., None] * mlp.W_out[index]


def chosen(run: Run) -> list[ox.PathTerm]:
    """Paths through components that end in every block, and do not begin inside their last."""
    terms = [
        term
        for term in run.paths("..").depth_first()
        if len(term.components) > (term.source.component is not None)
    ]
    last = {term.components[-1]: term for term in terms}
    first = {term.components[-1]: term for term in reversed(terms)}
    return [*last.values(), *first.values()]


@pytest.mark.parametrize("at", ["output", "input"])
@pytest.mark.parametrize("name", FAMILIES)
def test_effects_are_those_of_the_module(tmp_path: Path, name: str, at: Any) -> None:
    run, _ = made(tmp_path, name, FAMILIES[name], **CHANGES.get(name, {}))
    judge, terms = Judge(run), chosen(run)

    found = ox.causal_effects(run, terms, TARGET, AT, batch=ROW, at=at)

    close(found.causal, [getattr(judge, at)(term) for term in terms], 1e-10)
    values = [
        float(value[ROW, 0, 0] - value[ROW, 0, 1])
        for value in (run.evaluate(term, AT, TARGET) for term in terms)
    ]
    close(found.frozen, values, 1e-10)
    assert found.original == pytest.approx(judge.before, rel=1e-12)


def test_the_scale_of_a_norm_is_recomputed(tmp_path: Path, monkeypatch: Any) -> None:
    run, _ = made(tmp_path, "sandwich norms", "frozen")
    judge, terms = Judge(run), chosen(run)
    expected = [judge.input(term) for term in terms]

    def frozen_norm(*given: Any) -> Tensor:
        _, branch, _, change, _ = given
        return branch.writes.apply(change)

    monkeypatch.setattr(causal, "change_behind", frozen_norm)
    found = ox.causal_effects(run, terms, TARGET, AT, batch=ROW, at="input")

    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        close(found.causal, expected, 1e-6)


def test_attributions_have_effects_beside_their_values(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "post-norms", "frozen")

    found = ox.attribute(run, *TARGET, AT, top=4, causal="input", batch=ROW)

    terms = [run.paths("..")[row.key] for row in found.rows]
    effects = ox.causal_effects(run, terms, TARGET, AT, batch=ROW, at="input")
    close([row.causal for row in found.rows], effects.causal, 1e-10)
