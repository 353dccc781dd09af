"""What goes wrong with real models, done on purpose: each is caught, and located by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from otimes.bridge import Run, verify
from otimes.bridge.freezing import Frozen
from otimes.models.reference import Recording
from otimes.numeric.edges import IDENTITY
from otimes.numeric.frozen import FrozenBlock, FrozenHeads, FrozenModel, FrozenPart
from otimes.numeric.scores import FrozenReader
from tests.bridge.test_families import made
from tests.kit import reasons, with_block, with_frozen, with_heads, with_model

GROUPED = {"n_heads": 4, "n_kv_heads": 2}
Change = Callable[[Run], Run]


def with_neurons(run: Run, block: int, **changes: Any) -> Run:
    def changed(found: Any) -> Any:
        return replace(found, mlp=replace(found.mlp, **changes))

    return with_block(run, block, changed)


def edges(run: Run, block: int, which: str, **changes: Any) -> Run:
    """Change the reading or writing edge of a block's heads."""

    def changed(heads: FrozenHeads) -> FrozenHeads:
        return replace(heads, **{which: replace(getattr(heads, which), **changes)})

    return with_heads(run, block, changed)


def with_readers(run: Run, change: Callable[[FrozenReader], FrozenReader]) -> Run:
    def changed(frozen: Frozen) -> Frozen:
        return replace(frozen, readers=tuple(map(change, frozen.readers)))

    return with_frozen(run, changed)


def with_parts(run: Run, name: str, change: Callable[[FrozenPart], FrozenPart | None]) -> Run:
    """Change the parts of a source; None leaves one out."""
    number = [source.name for source in run.model.architecture.sources].index(name)

    def changed(model: FrozenModel) -> FrozenModel:
        sources = list(model.sources)
        parts = (change(part) for part in sources[number].parts)
        sources[number] = replace(sources[number], parts=tuple(p for p in parts if p is not None))
        return replace(model, sources=tuple(sources))

    return with_model(run, changed)


def no_post_norm(run: Run) -> Run:
    """The norm behind the addition is forgotten, on the branch and on the skip edge."""
    return with_block(
        run, 2, lambda b: replace(b, skip=IDENTITY, attention=replace(b.attention, writes=IDENTITY))
    )


def no_skip_norm(run: Run) -> Run:
    return with_block(run, 1, lambda b: replace(b, skip=IDENTITY))


def tiled(weight: torch.Tensor, times: int) -> torch.Tensor:
    return weight.tile(times, *[1] * (weight.ndim - 1))


def tiled_values(run: Run) -> Run:
    def changed(heads: FrozenHeads) -> FrozenHeads:
        assert heads.b_V is not None
        return replace(heads, W_V=tiled(heads.W_V, 2), b_V=tiled(heads.b_V, 2))

    return with_heads(run, 1, changed)


def tiled_keys(reader: FrozenReader) -> FrozenReader:
    assert reader.b_K is not None
    return replace(reader, W_K=tiled(reader.W_K, 2), b_K=tiled(reader.b_K, 2))


def doubled(heads: FrozenHeads) -> FrozenHeads:
    assert heads.b_V is not None
    return replace(heads, b_V=2 * heads.b_V)


def counted_twice(run: Run) -> Run:
    """b_V also in b_O, by the shortcut that rows sum to 1."""
    heads = run.frozen().model.blocks[0].attention
    assert isinstance(heads, FrozenHeads)
    assert heads.b_V is not None
    folded = sum(heads.b_V[h // heads.group] @ heads.W_O[h] for h in range(heads.size))

    def changed(part: FrozenPart) -> FrozenPart:
        return replace(part, stream=part.stream + folded.to(part.stream.dtype))

    return with_parts(run, "bias[0.attn]", changed)


def gain_off_by_one(run: Run, block: int, which: str) -> Run:
    def changed(heads: FrozenHeads) -> FrozenHeads:
        edge = getattr(heads, which)
        return replace(heads, **{which: replace(edge, gain=edge.gain - 1)})

    return with_heads(run, block, changed)


def unscaled_bias(part: FrozenPart) -> FrozenPart:
    """The bias of a norm behind a branch without the residual multiplier."""
    return part if part.edge.scale is not None else replace(part, edge=IDENTITY)


def final_gain(model: FrozenModel) -> FrozenModel:
    assert model.final.gain is not None
    return replace(model, final=replace(model.final, gain=model.final.gain - 1))


def turning(**changes: Any) -> Callable[[FrozenReader], FrozenReader]:
    def changed(reader: FrozenReader) -> FrozenReader:
        assert reader.rotation is not None
        return replace(reader, rotation=replace(reader.rotation, **changes))

    return changed


def q_gain(reader: FrozenReader) -> FrozenReader:
    assert reader.q_norm is not None
    return replace(reader, q_norm=replace(reader.q_norm, gain=reader.q_norm.gain - 1))


def keys_unnormed(reader: FrozenReader) -> FrozenReader:
    return replace(reader, k_norm=None)


def alibi_the_other_way(reader: FrozenReader) -> FrozenReader:
    assert reader.shift is not None
    return replace(reader, shift=-reader.shift)


def half_slopes(run: Run, block: int) -> Run:
    def changed(found: FrozenBlock) -> FrozenBlock:
        assert found.mlp is not None
        return replace(found, mlp=replace(found.mlp, slope=torch.ones_like(found.mlp.slope) / 2))

    return with_block(run, block, changed)


BROKEN: dict[str, tuple[str, str, Change, str]] = {
    "post-norm forgotten": ("post-norms", "frozen", no_post_norm, "block 1.attn: the model's"),
    "post-norm forgotten on the skip edge": (
        "post-norms", "source", no_skip_norm, "block 0.mlp: the model's",
    ),
    "sandwich norm forgotten": (
        "sandwich norms", "source", lambda r: edges(r, 2, "writes", scale=None, gain=None),
        "block 1.attn: the model's",
    ),
    "residual multiplier dropped": (
        "multipliers", "frozen", lambda r: with_neurons(r, 3, writes=IDENTITY), "block 1.mlp: the",
    ),
    "multiplier of the heads dropped": (
        "multipliers", "source", lambda r: edges(r, 0, "writes", multiplier=1.0), "block 0.attn: ",
    ),
    "embedding multiplier dropped": (
        "multipliers", "source",
        lambda r: with_parts(r, "embed", lambda p: replace(p, edge=IDENTITY)), "block embed: the",
    ),
    "logits multiplier dropped": (
        "multipliers", "source", lambda r: with_model(r, lambda m: replace(m, multiplier=1.0)),
        "block unembed: the",
    ),
    "wrong rotary pairing": (
        "rotary, half", "source", lambda r: with_readers(r, turning(pairing="interleaved")),
        "scores of 0.0, 0.1",
    ),
    "frequencies not scaled": (
        "rotary, llama3", "source",
        lambda r: with_readers(r, lambda x: turning(angle=1.001 * x.rotation.angle)(x)),  # type: ignore[union-attr]
        "scores of 0.0, 0.1",
    ),
    "values of KV heads tiled": ("grouped", "source", tiled_values, "block 1.attn: the model's"),
    "keys of KV heads tiled": (
        "grouped", "source", lambda r: with_readers(r, tiled_keys), "scores of 0.1, 0.2, 1.1, …",
    ),
    "b_V doubled": ("grouped", "source", lambda r: with_heads(r, 0, doubled), "block 0.attn: the"),
    "b_V in b_O too": ("grouped", "source", counted_twice, "block 0.attn: the model's"),
    "gain off by one, reading": (
        "rms norm", "source", lambda r: gain_off_by_one(r, 1, "reads"), "block 1.attn: the model's",
    ),
    "gain off by one, writing": (
        "output norms", "frozen", lambda r: gain_off_by_one(r, 2, "writes"), "block 1.attn: the",
    ),
    "gain off by one, final": (
        "rms norm", "source", lambda r: with_model(r, final_gain), "block unembed: the model's",
    ),
    "gain off by one, queries": (
        "q and k norms", "source", lambda r: with_readers(r, q_gain), "scores of 0.0, 0.1, 0.2, …",
    ),
    "keys not normed": (
        "q and k norms, layer", "source", lambda r: with_readers(r, keys_unnormed), "scores of 0.0",
    ),
    "not centred": (
        "layer norm", "source", lambda r: edges(r, 0, "reads", centred=False), "block 0.attn: the",
    ),
    "bias of the reading norm dropped": (
        "layer norm", "source", lambda r: edges(r, 1, "reads", bias=None), "block 1.attn: the",
    ),
    "ALiBi the other way": (
        "alibi, six heads", "source", lambda r: with_readers(r, alibi_the_other_way),
        "scores of 0.0, 0.1, 0.2, …",
    ),
    "slopes of another activation": (
        "plain silu", "frozen", lambda r: half_slopes(r, 1), "block 0.mlp: the model's",
    ),
    "an MLP's output without its bias": (
        "plain relu", "source",
        lambda r: with_parts(r, "mlp0", lambda p: replace(p, stream=0.99 * p.stream)),
        "block 0.mlp: the model's",
    ),
    "the bias of a norm behind, multiplied wrongly": (
        "multipliers and sandwich norms", "source",
        lambda r: with_parts(r, "bias[1.attn]", unscaled_bias),
        "block 1.attn: the model's",
    ),
    "token types forgotten": (
        "token types", "source", lambda r: with_parts(r, "type", lambda _: None),
        "block embed: the",
    ),
}  # fmt: skip


IN_FLOAT32 = (
    "post-norm forgotten", "residual multiplier dropped", "wrong rotary pairing", "b_V in b_O too",
    "values of KV heads tiled", "gain off by one, reading", "slopes of another activation",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float64") for name in BROKEN), *((name, "float32") for name in IN_FLOAT32)],
)
def test_it_is_caught_and_located(tmp_path: Path, name: str, dtype: str) -> None:
    family, mlp, change, where = BROKEN[name]
    run, _ = made(tmp_path, family, mlp)

    found = reasons(change(run), dtype=dtype)

    assert where in found
    wrong = [line for line in found.splitlines() if "the model's output is not" in line]
    assert {line.split(":")[0] for line in wrong} <= {where.split(":")[0]}  # and no other block


def with_recording(run: Run, change: Callable[[Recording], Recording]) -> Run:
    """The judge did something else than what the engine takes it for."""
    broken = Run(run.model, run.model.prompt(tokens=run.tokens, mask=run.mask))
    broken._recordings = {
        dtype: change(run.recording(dtype)) for dtype in (torch.float64, torch.float32)
    }
    return broken


def test_a_window_that_was_not_kept(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "windows", "source")
    whole = torch.softmax(
        run.scores(0).masked_fill(~run.allowed[:, None], -torch.inf), -1
    ).nan_to_num(0.0)

    broken = with_recording(run, lambda r: replace(r, patterns=(whole, *r.patterns[1:])))

    assert "patterns of 0.0, 0.1: they are not the softmax" in reasons(broken)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_scores_that_were_not_capped(tmp_path: Path, dtype: str) -> None:
    run, _ = made(tmp_path, "attention soft-cap", "source")

    broken = with_recording(run, lambda r: replace(r, capped_scores=r.scores))

    assert "patterns of 0.0, 0.1, 1.0, …: they are not the softmax" in reasons(broken, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weights_of_a_source_that_did_not_give_its_output(tmp_path: Path, dtype: str) -> None:
    """The source is recorded as it is; its own weights are compared with it."""
    run, _ = made(tmp_path, "sandwich norms", "source")
    assert verify(run, dtype=dtype).holds
    mlps = list(run.model.weights.mlps)
    mlps[1] = replace(mlps[1], W_out=mlps[1].W_out.flip(0))
    weights = replace(run.model.weights, mlps=tuple(mlps))
    run.model.weights = weights

    found = reasons(run, dtype=dtype)

    assert found.startswith("source mlp1: the recorded output is not what the MLP's weights give")
    assert "mlp0" not in found


def test_a_tensor_that_nothing_takes(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "q and k norms", "source")

    def changed(frozen: Frozen) -> Frozen:
        used = frozen.used.copy()
        del used["blocks.1.attn.q_norm.w"]
        used["blocks.0.attn.W_K"] += 1
        return replace(frozen, used=used)

    found = reasons(with_frozen(run, changed))

    assert "not used exactly once: blocks.0.attn.W_K, blocks.1.attn.q_norm.w" in found


def scaled(label: str) -> Callable[[Recording], Recording]:
    return lambda r: replace(r, scales=r.scales | {label: 1.01 * r.scales[label]})


RECORDED: dict[str, tuple[str, str, Callable[[Recording], Recording], str]] = {
    "a norm": ("sandwich norms", "frozen", scaled("1.ln2"), "block 1.mlp: the model's"),
    "the final norm": ("layer norm", "source", scaled("final"), "block unembed: the model's"),
    "the embeddings' norm": ("embed norm", "source", scaled("embed"), "block embed: the model's"),
    "queries": ("q and k norms", "source", scaled("1.q_norm"), "scores of 1.0, 1.1, 1.2, …"),
    "keys": ("q and k norms, all heads", "source", scaled("0.k_norm"), "scores of 0.0, 0.1"),
    "pre-activations": (
        "plain silu", "frozen",
        lambda r: replace(r, preactivations=(1.01 * r.preactivations[0], *r.preactivations[1:])),
        "block 0.mlp: the model's",
    ),
    "gates": (
        "gated gelu", "frozen", lambda r: replace(r, gates=(r.gates[0], r.gates[1].flip(0))),  # type: ignore[union-attr]
        "block 1.mlp: the model's",
    ),
    "an MLP's output": (
        "plain relu", "source",
        lambda r: replace(r, mlp_outputs=(r.mlp_outputs[0].flip(1), r.mlp_outputs[1])),
        "source mlp0: the recorded output",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_a_freeze_that_does_not_hold(tmp_path: Path, name: str) -> None:
    """What was held fixed is not what the run did."""
    family, mlp, change, where = RECORDED[name]
    run, _ = made(tmp_path, family, mlp)

    assert where in reasons(with_recording(run, change))
