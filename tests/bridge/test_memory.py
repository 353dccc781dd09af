"""What runs and their analyses hold in memory: budgets change no number, nothing grows."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import otimes as ox
from otimes.bridge import Run, freezing, load, memory, verify
from otimes.bridge import run as run_module
from otimes.bridge.binding import numbered
from otimes.errors import LimitError
from otimes.models.reference import Recomputed, Reference
from otimes.numeric.chosen import Chosen
from otimes.numeric.remade import RemadeBlocks, RemadeHeads, RemadeNeurons, each_block
from otimes.numeric.traces import enumerated_trace, order_trace
from tests.bridge.test_families import BASE, FAMILIES, MASK, TOKENS, TWO_LAYERS, made
from tests.factory import ALL_BIASES, make_checkpoint
from tests.kit import reasons

STATM = Path("/proc/self/statm")
PAGE = 4096


def tight(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Budgets under which nothing is kept that can be made again."""
    least = run.model.reference().sizes(*run.tokens.shape).least
    monkeypatch.setattr(run_module, "RECORDING_BUDGET", least)
    monkeypatch.setattr(freezing, "FROZEN_BUDGET", 0)


def again(run: Run) -> Run:
    return run.model.run(tokens=run.tokens, mask=run.mask)


GROUPINGS = ("path", "order", "source", "source-position", "last-head", "last-edge")


def everything(run: Run) -> dict[str, Any]:
    """Numbers of all kinds of analyses."""
    found: dict[str, Any] = {
        "logits": run.logits,
        "by order": run.by_order(),
        "all paths": run.evaluate(".."),
        "some": run.evaluate("0.* > .."),
        "expression": run.evaluate(run.model.architecture.logits.expression),
        "terms": torch.stack([value for _, value in run.terms(positions=-1)]),
        "scores": run.scores(1),
        "pattern": run.pattern(1),
    }
    for by in GROUPINGS:
        rows = ox.attribute(run, 3, 5, by=by, top=9).rows
        found[by] = [(row.key, row.value) for row in rows]
    for through in ("head", "edge"):
        rows = ox.attribute(run, 3, 5, through=through).rows
        found[through] = [(row.key, row.value) for row in rows]
    scores = ox.scores(run, "1.0", query=2, key=1)
    found["score"] = (scores.score, scores.by_kind, [(t.query_path, t.value) for t in scores.terms])
    term = next(iter(run.paths("1.0").terms()))
    found["causal"] = ox.causal_effects(run, [term], 4, at="input").causal
    for dtype, limit in (("float64", 10**9), ("float64", 0), ("float32", 0)):
        certificate = verify(run, dtype=dtype, enumeration_limit=limit)
        found[f"{dtype} {limit}"] = repr(certificate)
        assert certificate.holds, certificate
    return found


CASES = [
    ("everything", "source", "bfloat16"), ("rotary, half", "source", "float64"),
    ("alibi, six heads", "source", "bfloat16"), ("parallel, one norm", "frozen", "bfloat16"),
    ("post-norms", "frozen", "float64"), ("sandwich norms", "source", "bfloat16"),
    ("grouped", "source", "bfloat16"), ("gated silu", "frozen", "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mlp", "narrow"), CASES)
def test_budgets_change_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mlp: str, narrow: str
) -> None:
    run, _ = made(tmp_path, name, mlp, dtype=narrow, **TWO_LAYERS.get(name, {}))
    expected = everything(run)
    tight(monkeypatch, run)

    found = everything(again(run))

    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[key], value), key
        else:
            assert found[key] == value, key


def test_a_tight_budget_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would say nothing if the budgets did nothing."""
    run, _ = made(tmp_path, "sandwich norms", "frozen", dtype="bfloat16")
    blocks = run.frozen().model.blocks
    assert not isinstance(blocks[0].attention, RemadeHeads)
    assert isinstance(run.recording().patterns, tuple)
    tight(monkeypatch, run)

    other = again(run)
    frozen = other.frozen()

    assert isinstance(other.recording().patterns, Recomputed)
    assert isinstance(other.recording().neurons, Recomputed)
    assert isinstance(frozen.readers, Recomputed)
    assert all(isinstance(block.attention, RemadeHeads) for block in frozen.model.blocks[::2])
    assert all(isinstance(block.mlp, RemadeNeurons) for block in frozen.model.blocks[1::2])
    assert isinstance(each_block(frozen.model.blocks, lambda _, block: block), RemadeBlocks)
    assert isinstance(each_block(blocks, lambda _, block: block), tuple)
    assert [b.components for b in frozen.model.blocks] == [b.components for b in blocks]


def held(dtype: torch.dtype) -> int:
    """The bytes of all living tensors of a dtype."""
    gc.collect()
    living = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
                for t in living if t.dtype == dtype}  # fmt: skip
    return sum(storages.values())


def test_converted_weights_are_not_kept_beyond_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, n_layers=6, d_model=48, d_head=16, n_heads=3, d_mlp=96, norm="rms",
                    d_vocab=16, positions="none", dtype="bfloat16")  # fmt: skip
    model = load(tmp_path, mlp="frozen")
    weights = 8 * sum(t.numel() for n, t in model.weights.tensors().items() if "blocks" in n)
    before = held(torch.float64)

    run = model.run(tokens=[1, 2])
    recorded = held(torch.float64) - before
    run.evaluate("..")
    verify(run)
    kept = held(torch.float64) - before
    assert recorded < weights / 20  # the judge converts each matrix where it uses it
    assert kept > weights
    del run
    assert held(torch.float64) - before < weights / 20
    tight(monkeypatch, model.run(tokens=[1, 2]))

    run = model.run(tokens=[1, 2])
    run.evaluate("..")
    verify(run)
    assert held(torch.float64) - before < weights / 10


def test_what_needs_no_conversion_is_shared(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "tied", "source")
    weights, frozen = run.model.weights, run.frozen()
    heads = frozen.model.blocks[0].attention
    assert heads is not None

    assert weights.W_U.data_ptr() == weights.W_E.data_ptr() == frozen.model.W_U.data_ptr()
    assert heads.W_O.data_ptr() == weights.layers[0].W_O.data_ptr()
    assert heads.pattern.data_ptr() == run.recording().patterns[0].data_ptr()
    assert frozen.readers[0].W_Q.data_ptr() == weights.layers[0].W_Q.data_ptr()


@pytest.mark.parametrize("budgets", ["large", "tight"])
def test_nothing_is_changed_and_no_gradient_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budgets: str
) -> None:
    run, _ = made(tmp_path, "sandwich norms", "frozen", dtype="float32")
    if budgets == "tight":
        tight(monkeypatch, run)
    tokens, mask = torch.tensor(TOKENS), torch.tensor(MASK)
    weights = {name: t.clone() for name, t in run.model.weights.tensors().items()}

    with torch.enable_grad():
        found = run.model.run(tokens=tokens, mask=mask)
        everything(found)
        recording, frozen = found.recording(), found.frozen()
    assert torch.equal(tokens, torch.tensor(TOKENS))
    assert torch.equal(mask, torch.tensor(MASK))
    for name, tensor in found.model.weights.tensors().items():
        assert torch.equal(tensor, weights[name]), name
        assert not tensor.requires_grad
    heads, neurons = frozen.model.blocks[0].attention, frozen.model.blocks[1].mlp
    assert heads is not None
    assert neurons is not None
    for tensor in (
        *recording.patterns, *recording.scores, *recording.neurons, *recording.streams,
        heads.pattern, heads.W_V, neurons.slope, neurons.W_in, frozen.readers[1].W_Q,
    ):  # fmt: skip
        assert tensor.grad_fn is None
        assert not tensor.requires_grad


# refusals


def test_a_recording_beyond_the_budget_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = made(tmp_path, "gated silu", "source")
    least = run.model.reference().sizes(2, 5).least
    monkeypatch.setattr(run_module, "RECORDING_BUDGET", least)
    assert torch.equal(again(run).logits, run.logits)
    monkeypatch.setattr(run_module, "RECORDING_BUDGET", least - 1)

    def work(*_: object, **__: object) -> None:
        raise AssertionError("the module ran")

    monkeypatch.setattr(Reference, "forward", work)
    with pytest.raises(
        LimitError,
        match=r"recording a run of 2 × 5 tokens would take .* GiB, more than the budget of .* GiB: "
        r"give fewer tokens, or fewer sequences at once, or set otimes\.bridge\.run\."
        "RECORDING_BUDGET to more bytes",
    ) as refused:
        again(run)
    assert (refused.value.count, refused.value.limit) == (least, least - 1)


def test_a_verification_beyond_the_budget_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = made(tmp_path, "gated silu", "source")
    paths = run.paths("..").count
    size = memory.verification_bytes(run, paths, torch.float64)
    monkeypatch.setattr(memory, "VERIFICATION_BUDGET", size)
    assert verify(run).holds
    monkeypatch.setattr(memory, "VERIFICATION_BUDGET", size - 1)
    monkeypatch.setattr(Run, "frozen", None)  # no work is begun

    with pytest.raises(
        LimitError,
        match=r"verifying 2 × 5 tokens would take .* GiB, more than the budget of .* GiB: give "
        r"fewer tokens, .* or set otimes\.bridge\.memory\.VERIFICATION_BUDGET to more bytes",
    ):
        verify(run)


@pytest.mark.parametrize("name", ["gated silu", "post-norms", "parallel"])
@pytest.mark.parametrize(("limit", "large"), [(0, False), (0, True), (10**9, False)])
def test_the_streams_of_a_verification_fit_what_is_said(
    tmp_path: Path, name: str, limit: int, *, large: bool
) -> None:
    run, _ = made(tmp_path, name, "frozen", d_model=40)
    count, model = run.paths("..").count, run.frozen().model
    paths = count if limit else None
    said = memory.verification_bytes(run, paths, torch.float64, large=large)
    if limit:
        engine = enumerated_trace(model, map(numbered, run.paths("..").depth_first()))
    else:
        chosen = Chosen.largest(run.uncapped_logits, 3) if large else None
        engine = order_trace(model, count, chosen)

    parts = {part.data_ptr() for standing in engine.parts for part in standing}
    stream = model.zeros().nbytes
    both = 2 * len(engine.trace.streams) * 12  # 12 streams for each step of a side
    assert said >= stream * (len(parts) + both)
    if limit == 0 or name != "post-norms":  # where each path may pass every block
        assert said <= 2 * stream * (len(parts) + both)


def test_a_judge_that_changed_after_its_run_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns that are computed again are not those that the recorded streams came from."""
    run, _ = made(tmp_path, "rms norm", "source")
    tight(monkeypatch, run)
    changed = again(run)
    assert verify(changed).holds
    changed = again(run)
    changed.model.reference().layers[0].attn.scale *= 1 + 1e-6

    assert "block 0.attn: the model's output is not its input plus" in reasons(changed)


# many calls


def resident() -> int:
    """The bytes of this process in memory."""
    gc.collect()
    return PAGE * int(STATM.read_text(encoding="ascii").split()[1])


def growth(work: Callable[[], object], times: int) -> int:
    """How much this process grows by calls, after as many as warm it up."""
    for _ in range(10):
        work()
    before = resident()
    for _ in range(times):
        work()
    return resident() - before


def count_tensors() -> int:
    """How many tensors live."""
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def grown(folder: Path) -> tuple[int, int, int]:
    """The bytes of one run's logits, and how much calls grow a process, dropped and kept."""
    model, tokens, kept = load(folder), [(7 * n) % 500 for n in range(64)], list[Run]()

    def once() -> Run:
        run = model.run(tokens=tokens)
        run.evaluate("0.1 > ..", positions=-1)
        ox.attribute(run, 3, by="order")
        ox.attribute(run, 3, top=5)
        ox.scores(run, "0.1", query=9, key=4)
        verify(run, primes=1, targets=[(-1, 3)])
        return run

    one = once().logits.nbytes
    living = count_tensors()
    dropped = growth(once, 100)
    assert count_tensors() <= living
    return one, dropped, growth(lambda: kept.append(model.run(tokens=tokens)), 100)


@pytest.mark.skipif(not STATM.exists(), reason="only Linux says what is resident")
def test_a_process_does_not_grow_over_100_calls(tmp_path: Path) -> None:
    """In a process of its own, where no memory is left over from other tests."""
    changes: dict[str, Any] = {"n_layers": 1, "norm": "rms", "biases": ALL_BIASES}
    options: dict[str, Any] = BASE | FAMILIES["gated silu"] | changes
    make_checkpoint(tmp_path, n_ctx=64, d_vocab=500, dtype="float32", **options)
    program = "import sys; from tests.bridge.test_memory import *; print(*grown(Path(sys.argv[1])))"

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )

    assert done.returncode == 0, done.stderr
    one, dropped, kept = map(int, done.stdout.split())
    assert dropped < 60 * one
    assert kept > 60 * one  # runs that are kept are seen
