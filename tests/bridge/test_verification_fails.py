"""The certificate can fail: whatever is broken, it does not hold, and it names what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from otimes.bridge import Run, verification, verify
from otimes.errors import UnknownComponentError
from otimes.numeric import paths as numeric_paths
from otimes.numeric.frozen import FrozenHeads, Moved, Stream
from otimes.numeric.paths import PrefixStack, Readout
from tests.kit import (
    ALL_KINDS,
    reasons,
    run_of,
    with_frozen,
    with_heads,
    with_model,
    with_source,
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_of(tmp_path, **ALL_KINDS)[0]


def test_the_unbroken_run_holds(run: Run) -> None:
    assert verify(run, exact=True).holds
    assert verify(run, dtype="float32").holds
    assert verify(with_frozen(run, lambda frozen: frozen)).holds


@dataclass(frozen=True)
class OneHeadWrong(FrozenHeads):
    """Its matrices are right, but one head multiplies by others."""

    wrong: int = 0
    how: str = "transposed"

    def component(self, index: int, stream: Stream) -> Stream:
        if index != self.wrong:
            return super().component(index, stream)
        return self._wrongly_moved(stream) @ self.W_O[index]

    def moved(self, stream: Stream) -> Moved:
        found = super().moved(stream)
        found[..., self.wrong, :] = self._wrongly_moved(stream)
        return found

    def _wrongly_moved(self, stream: Stream) -> Stream:
        kv = self.wrong // self.group
        W_V, pattern = self.W_V[kv], self.pattern[:, self.wrong]
        if self.how == "transposed":
            W_V = W_V.T
        elif self.how == "neighbour":
            W_V = self.W_V[(kv + 1) % len(self.W_V)]
        elif self.how == "scaled":
            W_V = W_V * (1 + 1e-9)
        else:
            assert self.how == "pattern transposed"
            pattern = pattern.mT
        return pattern @ stream @ W_V

    @staticmethod
    def of(how: str):
        return lambda b: OneHeadWrong(b.pattern, b.W_V, b.W_O, b.b_V, wrong=2, how=how)


@pytest.fixture
def square(tmp_path: Path) -> Run:
    """Matrices that can be transposed."""
    return run_of(
        tmp_path, n_heads=4, n_kv_heads=2, d_model=4, d_head=4, biases=ALL_KINDS["biases"], n_ctx=4
    )[0]


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("how", ["transposed", "neighbour", "scaled", "pattern transposed"])
def test_a_head_of_the_engine(square: Run, layer: int, how: str) -> None:
    broken = with_heads(square, layer, OneHeadWrong.of(how))

    found = reasons(broken)
    by_order = reasons(broken, enumeration_limit=0)

    assert f"terms of {layer}.attn: they are not what their matrices give" in found
    named = found.partition("rounding explains")[2].splitlines()[0].partition("): ")[2]
    assert named
    assert all(path.endswith(f"{layer}.2") for path in named.removesuffix(", …").split(", "))
    assert by_order.splitlines()[0].endswith(f"): {layer}.2")


@pytest.mark.parametrize("name", ["W_V", "W_O"])
def test_a_transposed_matrix_in_the_frozen_model(square: Run, name: str) -> None:
    broken = with_heads(square, 1, lambda b: replace(b, **{name: getattr(b, name).mT}))

    assert "block 1.attn: the model's output is not its input plus the components" in reasons(
        broken
    )


def test_a_transposed_unembedding(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, d_model=6, d_vocab=6)

    found = reasons(with_model(run, lambda model: replace(model, W_U=model.W_U.T)))

    assert "block unembed: the model's output is not" in found


@pytest.mark.parametrize("name", ["W_Q", "W_K"])
def test_transposed_query_and_key_matrices(square: Run, name: str) -> None:
    def changed(frozen):
        reader = frozen.readers[1]
        return replace(
            frozen,
            readers=(frozen.readers[0], replace(reader, **{name: getattr(reader, name).mT})),
        )

    found = reasons(with_frozen(square, changed))

    assert "scores of 1.0, 1.1, 1.2, …: the score terms do not add up" in found
    assert "\n" not in found


def test_a_forgotten_attention_scale(run: Run) -> None:
    def changed(frozen):
        first, second = frozen.readers
        return replace(frozen, readers=(first, replace(second, scale=1.0)))

    found = reasons(with_frozen(run, changed))

    assert found.startswith("scores of 1.0, 1.1, 1.2, …: the score terms do not add up")
    assert "\n" not in found


def test_forgotten_shortformer_positions(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, positions="shortformer")

    def changed(frozen):
        return replace(
            frozen, readers=tuple(replace(reader, positions=None) for reader in frozen.readers)
        )

    assert "scores of 0.0, 0.1, 0.2, …" in reasons(with_frozen(run, changed))


@pytest.mark.parametrize("name", ["b_Q", "b_K"])
def test_a_missed_bias_of_scores(run: Run, name: str) -> None:
    def changed(frozen):
        first, second = frozen.readers
        return replace(frozen, readers=(replace(first, **{name: None}), second))

    assert "scores of 0.0, 0.1, 0.2, …" in reasons(with_frozen(run, changed))


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("embed", "block embed"),
        ("pos", "block embed"),
        ("bias[0.attn]", "block 0.attn"),
        ("bias[1.attn]", "block 1.attn"),
    ],
)
def test_a_missed_source(run: Run, name: str, named: str) -> None:
    found = reasons(with_source(run, name, torch.zeros_like))

    assert f"{named}: the model's output is not its input plus the components" in found


def test_a_missed_value_bias(run: Run) -> None:
    broken = with_heads(run, 1, lambda b: replace(b, b_V=torch.zeros_like(b.b_V)))

    assert "block 1.attn: the model's output is not its input" in reasons(broken)


def test_a_value_bias_in_one_head_alone(run: Run) -> None:
    @dataclass(frozen=True)
    class Shortcut(FrozenHeads):
        """Rows that do not sum to 1 make this wrong; here it is one head that has none."""

        def component_constant(self, index: int) -> Stream:
            found = super().component_constant(index)
            return found * 0 if index == 3 else found

        def constant(self) -> Moved:
            found = super().constant()
            found[..., 3, :] = 0
            return found

    broken = with_heads(run, 1, lambda b: Shortcut(b.pattern, b.W_V, b.W_O, b.b_V))

    assert "terms of 1.attn: they are not what their matrices give" in reasons(broken)
    assert "): bias[1.3] > 1.3\n" in reasons(broken) + "\n"
    assert "): 1.3\n" in reasons(broken, enumeration_limit=0) + "\n"


def test_a_missed_unembedding_bias(run: Run) -> None:
    broken = with_model(run, lambda model: replace(model, b_U=torch.zeros_like(model.b_U)))

    assert "block unembed: the model's output is not its input" in reasons(broken)


@pytest.mark.parametrize("name", ["blocks.0.attn.b_V", "blocks.1.attn.b_O", "unembed.b_U"])
def test_weights_without_a_bias_that_the_symbols_have(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = run.model.weights
    kept = {key: tensor for key, tensor in weights.tensors().items() if key != name}
    monkeypatch.setattr(type(weights), "tensors", lambda _: kept)

    with pytest.raises(UnknownComponentError, match=f"the checkpoint has no tensor '{name}'"):
        verify(run)


@pytest.mark.parametrize("head", [0, 3])
def test_a_pattern_that_is_not_the_recorded_one(run: Run, head: int) -> None:
    def changed(block: FrozenHeads) -> FrozenHeads:
        pattern = block.pattern.clone()
        pattern[0, head, 3, 1] += 1e-10
        return replace(block, pattern=pattern)

    assert "block 0.attn: the model's output is not its input plus the components at the " in (
        reasons(with_heads(run, 0, changed))
    )


# the judge


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("embed.W_E", "block embed"),
        ("pos_embed.W_pos", "block embed"),
        ("blocks.0.attn.W_Q", "scores of 0."),
        ("blocks.1.attn.W_K", "scores of 1."),
        ("blocks.0.attn.b_Q", "scores of 0."),
        ("blocks.1.attn.b_K", "scores of 1."),
        ("blocks.0.attn.W_V", "block 0.attn"),
        ("blocks.1.attn.b_V", "block 1.attn"),
        ("blocks.1.attn.W_O", "block 1.attn"),
        ("blocks.1.attn.b_O", "block 1.attn"),
        ("unembed.W_U", "block unembed"),
        ("unembed.b_U", "block unembed"),
    ],
)
def test_a_perturbed_weight_of_the_reference(run: Run, name: str, named: str) -> None:
    """One number of one tensor, by 1e-9."""
    weight = run.model.reference().state_dict()[name]
    place = run.tokens[0, 1] if name == "embed.W_E" else 0
    weight[place].view(-1)[0] += 1e-9

    found = reasons(run.model.run(tokens=run.tokens))

    assert found.startswith(named), found


def test_a_perturbed_scale_of_the_reference(run: Run) -> None:
    run.model.reference().blocks[1].attn.scale *= 1 + 1e-9

    assert "scores of 1.0, 1.1, 1.2, …" in reasons(run.model.run(tokens=run.tokens))


# one term alone


def test_twice_the_bound_in_one_terms_value_at_one_logit(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bound = "embed > 0.1 > 1.2", verify(run).bound
    term = run.model.architecture.logits.expand()[path]
    number = run.model.architecture.sources.index(term.source), term.heads
    right = Readout.logits
    streams = PrefixStack(run.frozen().model)
    wanted = streams.stream(*number)

    def wrong(self: Readout, stream: Stream | None, model) -> torch.Tensor:
        found = right(self, stream, model)
        if stream is not None and torch.equal(stream, wanted):
            found = found.clone()
            found[0, 2, 5] += 2.01 * bound
        return found

    monkeypatch.setattr(Readout, "logits", wrong)

    found = reasons(run)

    assert found.startswith("terms of unembed: they are not what their matrices give")
    assert found.splitlines()[0].endswith(f"): {path}")


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("embed", "embed"),
        ("pos > 0.3", "0.attn"),
        ("embed > 0.1 > 1.2", "1.attn"),
        ("bias[0.attn]", "0.attn"),
        ("bias[1.2] > 1.2", "1.attn"),
    ],
)
def test_a_change_inside_one_term(
    run: Run, path: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    term = run.model.architecture.logits.expand()[path]
    number = run.model.architecture.sources.index(term.source), term.heads
    right = numeric_paths.PrefixStack.stream

    def wrong(self, source, heads):
        found = right(self, source, heads)
        return found + 1e-11 if (source, heads) == number else found

    monkeypatch.setattr(PrefixStack, "stream", wrong)

    assert f"terms of {step}: they are not what their matrices give" in reasons(run)
    assert f"): {path}\n" in reasons(run) + "\n"


# the audit


def test_a_tensor_that_is_used_twice(run: Run) -> None:
    def changed(frozen):
        frozen.used["blocks.0.attn.W_V"] += 1
        return frozen

    assert reasons(with_frozen(run, changed)) == (
        "parameters not used exactly once: blocks.0.attn.W_V"
    )


def test_a_tensor_that_is_not_used(run: Run) -> None:
    def changed(frozen):
        del frozen.used["unembed.b_U"]
        return frozen

    assert reasons(with_frozen(run, changed)) == "parameters not used exactly once: unembed.b_U"


def test_a_tensor_that_the_model_does_not_have(run: Run) -> None:
    def changed(frozen):
        frozen.used["blocks.0.attn.b_X"] += 1
        return frozen

    assert "parameters not used exactly once: blocks.0.attn.b_X" in reasons(
        with_frozen(run, changed)
    )


# labels, and changes near the bound


def test_two_paths_that_are_called_each_other(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum is the same; the labels of their names are not."""
    right = verification.numbered
    swapped = {"embed > 0.1": "pos > 0.3", "pos > 0.3": "embed > 0.1"}
    paths = run.model.architecture.logits.expand()

    def numbered(term):
        return right(paths[swapped[term.path]] if term.path in swapped else term)

    monkeypatch.setattr(verification, "numbered", numbered)

    found = reasons(run)

    assert found.startswith(
        "identity: the forward recursion and the sum over labelled paths differ"
    )
    assert "\n" not in found


@pytest.mark.parametrize("targets", [None, [(3, 2)]])
@pytest.mark.parametrize("limit", [0, 4096])
def test_an_effect_of_more_than_twice_the_bound(square: Run, targets, limit: int) -> None:
    """A head that is off by a factor such that a checked logit moves by 2.1 bounds, and no more."""
    good = verify(square, targets=targets, enumeration_limit=limit)
    value = square.evaluate("1.2") + square.evaluate(".. > 1.2") - square.evaluate("1.2")
    effect = value.abs().max() if targets is None else value[0, 3, 2].abs()
    factor = 2.1 * good.bound / float(effect)

    def scaled(b):
        return ScaledHead(b.pattern, b.W_V, b.W_O, b.b_V, factor=factor)

    broken = verify(with_heads(square, 1, scaled), targets=targets, enumeration_limit=limit)

    assert not broken.logits.holds
    assert any("logits: the sum over paths differs" in reason for reason in broken.reasons)
    assert factor < 1e-8


@dataclass(frozen=True)
class ScaledHead(FrozenHeads):
    """Head 2 writes slightly more than its matrices say."""

    factor: float = 0.0

    def component(self, index: int, stream: Stream) -> Stream:
        found = super().component(index, stream)
        return found * (1 + self.factor) if index == 2 else found

    def component_constant(self, index: int) -> Stream:
        found = super().component_constant(index)
        return found * (1 + self.factor) if index == 2 else found

    def written(self, moved: Moved) -> Stream:
        moved = moved.clone()
        moved[..., 2, :] *= 1 + self.factor
        return super().written(moved)
