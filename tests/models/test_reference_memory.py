"""What the judge holds: weights as they are stored, and recordings within a budget."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from otimes.bridge.loading import load_native
from otimes.models import reference
from otimes.models.reference import Recomputed, Recording, Reference, Sizes, is_kept
from otimes.models.reference.memory import Plan
from tests.factory import make_checkpoint
from tests.models.test_reference_families import FAMILIES, MASK, TOKENS, made

IDS, REAL = torch.tensor(TOKENS), torch.tensor(MASK)
NARROW = ("float16", "bfloat16", "float32", "float64")


def tensors_of(recording: Recording) -> dict[str, Tensor | None]:
    """Every tensor of a recording, by where it stands."""
    found = dict[str, Tensor | None]()
    for field in fields(Recording):
        value: Any = getattr(recording, field.name)
        if isinstance(value, Tensor):
            found[field.name] = value
        else:
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            found |= {f"{field.name}[{key}]": one for key, one in pairs}
    return found


def assert_same_bits(actual: Recording, expected: Recording) -> None:
    mine, right = tensors_of(actual), tensors_of(expected)
    assert mine.keys() == right.keys()
    for name, value in right.items():
        other = mine[name]
        if value is None or other is None:
            assert value is other, name
            continue
        assert other.dtype == value.dtype, name
        assert torch.equal(other, value), name


def stored(folder: Path, name: str, dtype: str) -> tuple[Reference, dict[str, Tensor]]:
    """A judge in float64 that has the tensors of a file, and these tensors."""
    options: dict[str, Any] = {"positions": "none"} | FAMILIES[name]
    checkpoint = make_checkpoint(folder, seed=3, dtype=dtype, **options)
    tensors = load_native(checkpoint.path).weights.tensors()
    return reference.build(checkpoint.config, tensors, torch.float64), tensors


# weights


@pytest.mark.parametrize("dtype", NARROW)
def test_weights_stay_as_they_are_stored(tmp_path: Path, dtype: str) -> None:
    judge, tensors = stored(tmp_path, "everything", dtype)

    parameters = dict(judge.named_parameters())
    assert parameters.keys() == tensors.keys() - {"unembed.W_U"}
    for name, parameter in parameters.items():
        assert parameter.dtype == getattr(torch, dtype)
        assert parameter.data_ptr() == tensors[name].data_ptr()
    assert judge(IDS).logits.dtype == torch.float64


def test_a_native_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, dtype="bfloat16", n_layers=1).path
    judge = reference.load(path)

    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("only Linux says what is mapped")
    file = str(path / "model.safetensors")
    lines = [line for line in maps.read_text(encoding="utf-8").splitlines() if file in line]
    spans = [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in lines]
    for name, parameter in judge.named_parameters():
        start = parameter.data_ptr()
        assert any(low <= start < high for low, high in spans), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize(
    "name", ["everything", "multipliers and sandwich norms", "alibi, six heads"]
)
def test_it_has_the_bits_of_a_module_wholly_converted(
    tmp_path: Path, name: str, narrow: str, dtype: torch.dtype
) -> None:
    judge, tensors = stored(tmp_path, name, narrow)
    lazy = reference.build(judge.config, tensors, dtype)
    if judge.config.get("tied", False):
        tensors.pop("unembed.W_U")
    whole = reference.build(judge.config, {n: t.to(dtype) for n, t in tensors.items()})

    assert whole.embed.W_E.dtype == dtype
    assert_same_bits(lazy(IDS, REAL), whole(IDS, REAL))


def test_a_tied_unembedding_is_the_embedding(tmp_path: Path) -> None:
    judge, _ = stored(tmp_path, "tied", "bfloat16")

    assert not hasattr(judge.unembed, "W_U")
    judge.embed.W_E.data = 2 * judge.embed.W_E.data
    before = judge(IDS)
    judge.embed.W_E.data[5] = 0  # no token of these: its logit alone changes
    after = judge(IDS)
    assert 5 not in IDS
    assert torch.equal(after.streams[-1], before.streams[-1])
    assert float(after.logits[..., 5].abs().max()) == 0


def test_gradients_of_another_module_stay_on(tmp_path: Path) -> None:
    judge, tensors = stored(tmp_path, "rms norm", "float32")
    parameters = {name: nn.Parameter(tensor.clone()) for name, tensor in tensors.items()}

    shared = reference.build(judge.config, dict(parameters), torch.float64)

    assert all(parameter.requires_grad for parameter in parameters.values())
    assert not any(parameter.requires_grad for parameter in shared.parameters())
    for value in tensors_of(shared(IDS, REAL)).values():
        assert value is None or (value.grad_fn is None and not value.requires_grad)


# recordings


def kinds(recording: Recording) -> dict[str, int]:
    """Of how many layers each kind is in memory."""
    names = ("patterns", "neurons", "scores")
    return {n: sum(is_kept(getattr(recording, n), i) for i in range(len(getattr(recording, n))))
            for n in names}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_computed_again_has_the_same_bits(tmp_path: Path, name: str) -> None:
    judge = reference.load(made(tmp_path, name).path)
    everything = judge(IDS, REAL)
    sizes = judge.sizes(*IDS.shape)

    nothing = judge(IDS, REAL, budget=0)
    some = judge(IDS, REAL, budget=sizes.least + sizes.patterns)
    enough = judge(
        IDS, REAL, budget=sizes.least + 9 * (sizes.patterns + sizes.scores + sizes.neurons)
    )

    layers, mlps = sizes.layers, sizes.mlps
    assert kinds(everything) == {"patterns": layers, "neurons": mlps, "scores": layers}
    assert kinds(enough) == kinds(everything)
    assert set(kinds(nothing).values()) == {0}
    assert kinds(some)["patterns"] == 1
    for recording in (nothing, some, enough):
        assert_same_bits(recording, everything)
        assert_same_bits(recording, everything)  # and when it is asked again


@pytest.mark.parametrize("name", ["everything", "parallel", "gated silu", "logits soft-cap"])
def test_sizes_are_those_of_the_tensors(tmp_path: Path, name: str) -> None:
    judge = reference.load(made(tmp_path, name).path)
    recording, sizes = judge(IDS), judge.sizes(*IDS.shape)

    always = {t.data_ptr(): t.nbytes for t in (*recording.streams, *recording.mlp_outputs)}
    always |= {t.data_ptr(): t.nbytes for t in (recording.logits, recording.uncapped_logits)}
    assert sizes.always == sum(always.values())
    assert sizes.patterns == recording.patterns[0].nbytes
    scores = {t.data_ptr(): t.nbytes for t in (recording.scores[0], recording.capped_scores[0])}
    assert sizes.scores == sum(scores.values())
    if recording.neurons:
        of_mlp = (recording.neurons[0], recording.preactivations[0], recording.gates[0])
        assert sizes.neurons >= sum(t.nbytes for t in of_mlp if t is not None)


def test_a_plan_never_takes_more_than_its_budget() -> None:
    config = {"n_layers": 5, "n_heads": 3, "d_model": 8, "d_head": 4, "d_vocab": 11, "d_mlp": 7,
              "positions": "rotary"}  # fmt: skip
    sizes, last = Sizes.of(config, 2, 9, 8), 0
    for budget in range(0, 4 * sizes.least, 97):
        plan = sizes.plan(budget)
        kept = (plan.patterns * sizes.patterns + plan.neurons * sizes.neurons
                + plan.scores * sizes.scores)  # fmt: skip
        assert kept <= max(0, budget - sizes.least)
        assert kept >= last
        assert plan.patterns == 5 or plan.neurons * sizes.neurons < sizes.patterns
        last = max(last, plan.patterns * sizes.patterns)
    assert sizes.plan(10**9) == Plan(5, 5, 5)


def test_a_recording_is_computed_again_by_the_judge_itself(tmp_path: Path) -> None:
    """What was kept stays; what was not shows what the judge is now."""
    judge = reference.load(made(tmp_path, "everything").path)
    kept, again = judge(IDS), judge(IDS, budget=0)
    before = again.patterns[1].clone()
    judge.layers[1].attn.scale *= 2

    assert torch.equal(kept.patterns[1], before)
    assert not torch.equal(again.patterns[1], before)


def test_the_values_of_layers_are_a_sequence() -> None:
    found = Recomputed(["a"], 3, lambda layer: f"again {layer}")

    assert list(found) == ["a", "again 1", "again 2"]
    assert (found[-1], found[1:], len(found)) == ("again 2", ("again 1", "again 2"), 3)
    assert [is_kept(found, layer) for layer in range(3)] == [True, False, False]
    assert is_kept(("a", "b"), 1)
    with pytest.raises(IndexError, match="no layer 3: there are 3"):
        found[3]
