"""The recorded run and exact sums over its paths, against plain numpy."""

from __future__ import annotations

import gc
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from otimes.algebra import Architecture
from otimes.bridge import Run, load
from otimes.bridge import run as run_module
from otimes.errors import (
    CheckpointError,
    InputError,
    LimitError,
    NotationError,
    UnknownComponentError,
)
from tests.factory import Checkpoint, make_checkpoint
from tests.kit import close, patterns_of, run_of, untyped
from tests.oracles import numpy_model, paths
from tests.strategies import Case, cases

BIASES = ("b_Q", "b_K", "b_V", "b_O", "b_U")


@pytest.fixture
def biased(tmp_path: Path) -> tuple[Run, Checkpoint]:
    """All kinds of sources: embed, pos and all biases; 4 query heads on 2 KV heads."""
    return run_of(tmp_path, n_heads=4, n_kv_heads=2, positions="learned", biases=BIASES, n_layers=2)


@pytest.fixture
def run(biased: tuple[Run, Checkpoint]) -> Run:
    return biased[0]


def by_hand(run: Run, checkpoint: Checkpoint, words: str) -> np.ndarray:
    """The sum over the sources of one sequence of heads."""
    total = np.zeros(tuple(run.logits.shape))
    for path in paths.enumerate_paths(checkpoint.config, checkpoint.arrays):
        if path.words == words:
            total += paths.path_logits(
                checkpoint.config, checkpoint.arrays, run.tokens.numpy(), patterns_of(run), path,
                None if run.mask is None else run.mask.numpy(),
            )  # fmt: skip
    return total


def path_by_hand(run: Run, checkpoint: Checkpoint, text: str) -> np.ndarray:
    (path,) = (p for p in paths.enumerate_paths(checkpoint.config, checkpoint.arrays)
               if p.text == text)  # fmt: skip
    return paths.path_logits(
        checkpoint.config, checkpoint.arrays, run.tokens.numpy(), patterns_of(run), path
    )


# what was recorded


@settings(max_examples=15)
@given(cases(max_layers=2))
def test_the_recording_is_the_numpy_forward_pass(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder), **case.architecture)
        run = load(folder).run(tokens=case.tokens, mask=case.mask)
    right = numpy_model.forward(checkpoint.config, checkpoint.arrays, case.tokens, case.mask)

    close(run.logits, right.logits, 1e-7)
    for layer in range(checkpoint.config["n_layers"]):
        close(run.pattern(layer), right.patterns[layer], 1e-7)
        close(run.scores(layer), right.scores[layer], 1e-7)
        close(run.stream(layer + 1), right.streams[layer + 1], 1e-7)
    close(run.stream(0), right.streams[0], 1e-12)


def test_a_run_is_recorded_when_it_is_made(tmp_path: Path) -> None:
    """What happens to the files afterwards changes nothing."""
    run, _ = run_of(tmp_path)
    expected = run.logits.clone()
    for file in tmp_path.iterdir():
        file.unlink()

    assert torch.equal(
        run.evaluate("..", tokens=[1]) * 0 + run.logits[..., [1]], expected[..., [1]]
    )
    with pytest.raises(CheckpointError, match=r"the reference module cannot read .* read before"):
        run.recording(torch.float32)


def test_a_run_says_what_it_is(run: Run) -> None:
    assert repr(run).endswith("on 1 × 9 tokens>")
    assert run.logits.dtype == torch.float64


@pytest.mark.parametrize("name", ["pattern", "scores"])
@pytest.mark.parametrize("layer", [-1, 2])
def test_layers_that_do_not_exist(run: Run, name: str, layer: int) -> None:
    with pytest.raises(InputError, match=f"no layer {layer}: the model has 2, counted from 0"):
        getattr(run, name)(layer)


def test_streams_that_do_not_exist(run: Run) -> None:
    with pytest.raises(InputError, match="no stream 3: there are streams 0 to 2"):
        run.stream(3)


def test_no_gradients_are_kept(run: Run) -> None:
    recording = run.recording()
    for tensor in (run.logits, *recording.streams, *recording.patterns, run.evaluate("0.1")):
        assert not tensor.requires_grad
        assert tensor.grad_fn is None
    assert not any(p.requires_grad for p in run.model.reference().parameters())


# paths


@pytest.mark.parametrize("text", ["0.3 > 1.2", "0.3", "1.2", "direct", "L0H3 > L1H2", "0.0>1.3"])
def test_heads_alone_are_summed_over_their_sources(
    biased: tuple[Run, Checkpoint], text: str
) -> None:
    words = text.replace("L0H3 > L1H2", "0.3 > 1.2").replace("0.0>1.3", "0.0 > 1.3")

    close(biased[0].evaluate(text), by_hand(*biased, words))


@pytest.mark.parametrize(
    "text",
    ["embed", "pos", "embed > 0.3 > 1.2", "pos > 0.3", "bias[0.attn]", "bias[0.attn] > 1.2",
     "bias[1.2] > 1.2", "bias[0.1] > 0.1 > 1.3", "bias[unembed]", "bias[1.attn]"],
)  # fmt: skip
def test_a_path_with_its_source_is_one_term(biased: tuple[Run, Checkpoint], text: str) -> None:
    run = biased[0]
    expected = path_by_hand(*biased, text)

    close(run.evaluate(text), expected)
    close(run.evaluate(run.model.architecture.logits.expand()[text]), expected)


def test_everything_is_the_logits(run: Run) -> None:
    architecture = run.model.architecture

    close(run.evaluate(".."), run.logits)
    close(run.evaluate(architecture.logits), run.logits)
    close(run.evaluate(architecture.logits.expand()), run.logits)
    close(sum(value for _, value in run.terms()), run.logits)


@settings(max_examples=20)
@given(cases(max_layers=3))
def test_all_terms_add_up_to_the_logits(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), **case.architecture)
        run = load(folder).run(tokens=case.tokens, mask=case.mask)
    terms = list(run.terms())
    parts = torch.stack([value for _, value in terms])

    assert len(terms) == run.model.architecture.logits.expand().count
    error = (parts.sum(0) - run.logits).abs()
    assert (error <= 1e-12 * parts.abs().sum(0) + 1e-300).all()
    close(run.evaluate(".."), run.logits, 1e-9)


def test_orders_partition_the_logits(run: Run) -> None:
    whole = run.model.architecture.logits.expand()
    orders = [run.evaluate(whole.order(order)) for order in range(3)]

    close(orders[0], run.evaluate("direct"))
    close(orders[2], sum(run.evaluate(f"0.{a} > 1.{b}") for a in range(4) for b in range(4)))
    close(sum(orders), run.logits)


def test_terms_come_with_their_names(run: Run) -> None:
    found = {term.path: value for term, value in run.terms("0.3 > 1.2", positions=[2, -1])}

    assert list(found) == ["embed > 0.3 > 1.2", "pos > 0.3 > 1.2", "bias[0.3] > 0.3 > 1.2"]
    for path, value in found.items():
        close(value, run.evaluate(path)[:, [2, -1]])


def test_a_model_without_layers(tmp_path: Path) -> None:
    run, checkpoint = run_of(tmp_path, n_layers=0, biases=("b_U",), positions="learned")
    w, ids = checkpoint.arrays, run.tokens[0].numpy()

    close(run.evaluate("direct"), run.logits)
    close(run.evaluate("embed")[0], w["embed.W_E"][ids] @ w["unembed.W_U"])
    close(run.evaluate("bias")[0], np.tile(w["unembed.b_U"], (9, 1)))


# positions, tokens and bad requests


@pytest.mark.parametrize("text", ["..", "0.3 > 1.2", "bias[unembed]"])
def test_chosen_positions_and_tokens(run: Run, text: str) -> None:
    whole = run.evaluate(text)

    close(run.evaluate(text, positions=-1), whole[:, [8]])
    close(run.evaluate(text, tokens=4), whole[..., [4]])
    close(run.evaluate(text, positions=[0, -2], tokens=(3, 3)), whole[:, [0, 7]][..., [3, 3]])
    close(run.evaluate(text, positions=range(2, 5)), whole[:, 2:5])
    with untyped():
        close(run.evaluate(text, positions=np.int64(3), tokens=np.array([1, 2])),
              whole[:, [3]][..., [1, 2]])  # fmt: skip
        close(run.evaluate(text, positions=torch.tensor([3])), whole[:, [3]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"positions": torch.tensor(9)}, "position 9 is out of range: -9 to 8"),
        ({"positions": ""}, "a position is an integer, not ''"),
        ({"positions": 9}, "position 9 is out of range: -9 to 8"),
        ({"positions": [0, -10]}, "position -10 is out of range: -9 to 8"),
        ({"tokens": 13}, "token id 13 is out of range: 0 to 12"),
        ({"tokens": -1}, "token id -1 is out of range: 0 to 12"),
        ({"positions": 1.5}, "a position is an integer, not 1.5"),
        ({"positions": [1.0]}, "a position is an integer, not 1.0"),
        ({"positions": True}, "a position is an integer, not True"),
        ({"tokens": "3"}, "a token id is an integer, not '3'"),
        ({"tokens": torch.tensor([1.5])}, "a token id is an integer, not tensor"),
    ],
)
def test_positions_and_tokens_out_of_range(
    run: Run, arguments: dict[str, Any], message: str
) -> None:
    with untyped(), pytest.raises(InputError, match=message):
        run.evaluate("..", **arguments)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("0.7", UnknownComponentError, "no head 0.7: layer 0 has heads 0 to 3"),
        ("2.0", UnknownComponentError, "no head 2.0: the model has layers 0 to 1"),
        ("1.2 > 0.3", NotationError, "head 0.3 is before 1.2 and cannot read it"),
        ("bias[7.attn]", UnknownComponentError, r"no source 'bias\[7.attn\]' in this model"),
        ("", NotationError, "an empty path"),
    ],
)
def test_paths_that_the_model_does_not_have(
    run: Run, text: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run.evaluate(text)


def test_paths_of_another_model(run: Run) -> None:
    other = Architecture(layers=1, heads=1).logits.expand()

    for foreign in (other, other["0.0"], Architecture(layers=1, heads=1).logits):
        with pytest.raises(
            InputError, match=r"these are paths of Architecture\(layers=1, heads=1\), the model is"
        ):
            run.evaluate(foreign)


def test_results_beyond_the_memory_budget(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MEMORY_BUDGET", 8 * 9 * 13 - 1)

    with pytest.raises(LimitError, match=r"more than the budget of .* choose positions= or tokens"):
        run.evaluate("..")
    with pytest.raises(LimitError, match="choose positions= or tokens="):
        next(run.terms())
    assert run.evaluate("..", positions=-1).shape == (1, 1, 13)


# padding and batches


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("positions", ["none", "learned", "shortformer"])
def test_padding_changes_no_term_of_the_real_tokens(
    tmp_path: Path, side: str, positions: str
) -> None:
    make_checkpoint(tmp_path, n_heads=4, n_kv_heads=2, positions=positions, biases=BIASES)
    model = load(tmp_path)
    sequences = [[3, 1, 4, 1, 5], [9], [2, 6, 5]]
    rows, mask = [], []
    for sequence in sequences:
        padding = 5 - len(sequence)
        real, nothing = [True] * len(sequence), [False] * padding
        rows.append([7] * padding + sequence if side == "left" else sequence + [7] * padding)
        mask.append(nothing + real if side == "left" else real + nothing)

    batch = model.run(tokens=rows, mask=mask)

    assert torch.isfinite(batch.logits).all()
    padded = {term.path: value for term, value in batch.terms()}
    for row, sequence in enumerate(sequences):
        at = slice(5 - len(sequence), None) if side == "left" else slice(0, len(sequence))
        alone = model.run(tokens=sequence)
        close(batch.logits[row, at], alone.logits[0])
        for term, value in alone.terms():
            close(padded[term.path][row, at], value[0])


def test_a_fully_masked_row_gives_zero(tmp_path: Path) -> None:
    """And so does the value bias there, which is weighted by the row's sum."""
    run, _ = run_of(tmp_path, tokens=[[7, 7, 3, 1]], mask=[[False, False, True, True]],
                    biases=("b_V",))  # fmt: skip

    assert float(run.pattern(0)[0, :, :2].abs().max()) == 0
    assert float(run.evaluate("bias[0.1] > 0.1")[0, :2].abs().max()) == 0
    assert float(run.evaluate("bias[0.1] > 0.1")[0, 2:].abs().min()) > 0


def test_unequal_lengths_are_the_same_as_right_padding(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    model = load(tmp_path)

    batch = model.run(tokens=[[1, 2, 3], [4]])

    close(batch.logits[1, :1], model.run(tokens=[4]).logits[0])
    close(batch.logits[0], model.run(tokens=[1, 2, 3]).logits[0])


def test_a_batch_is_its_sequences(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, causal=False, biases=BIASES)
    model, rows = load(tmp_path), [[1, 2, 3], [3, 2, 1], [5, 5, 5]]

    batch = model.run(tokens=rows)

    for row, tokens in enumerate(rows):
        close(batch.logits[row], model.run(tokens=tokens).logits[0])
        close(batch.evaluate("0.1 > 1.2")[row], model.run(tokens=tokens).evaluate("0.1 > 1.2")[0])


# memory, and small terms


def test_memory_does_not_grow_over_many_runs(tmp_path: Path) -> None:
    """Nothing keeps a run alive, and the model keeps none of their tensors."""
    make_checkpoint(tmp_path, n_layers=1)
    model = load(tmp_path)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    def once() -> None:
        run = model.run(tokens=[1, 2, 3])
        run.evaluate("0.1")
        run.evaluate("..")
        run.binding.evaluate(run.model.architecture.logits.expression)

    once()
    before = tensors()
    kept = [model.run(tokens=[1])]
    assert tensors() > before  # a run that is kept is counted
    kept.clear()
    for _ in range(100):
        once()

    assert tensors() <= before


@settings(max_examples=3)
@given(st.sampled_from(["float16", "bfloat16"]), st.integers(0, 2**16))
def test_small_terms_of_low_precision_weights_are_exact(dtype: str, seed: int) -> None:
    """They are upcast first: sums in bfloat16 would overstate the smallest terms."""
    with tempfile.TemporaryDirectory() as folder:
        run, checkpoint = run_of(
            Path(folder), seed=seed, dtype=dtype, scale=0.05, n_ctx=4, n_layers=3, n_heads=4,
            n_kv_heads=2,
        )  # fmt: skip
        values = [(value.abs().max(), term, value) for term, value in run.terms()]
    config, arrays = checkpoint.config, checkpoint.arrays
    by_text = {path.text: path for path in paths.enumerate_paths(config, arrays)}
    assert len(values) == len(by_text) == 5**3
    tokens, patterns = run.tokens.numpy(), patterns_of(run)
    for _, term, value in sorted(values, key=lambda item: float(item[0]))[:100]:
        path = by_text[term.path]
        close(value, paths.path_logits(config, arrays, tokens, patterns, path), 1e-11)


def test_values_are_exact_where_weights_are(tmp_path: Path) -> None:
    """Numbers that a float holds exactly: the path's value is the product, to the last digit."""
    run, _ = run_of(tmp_path, tokens=[0], n_layers=1, n_heads=1, d_model=1, d_head=1, d_vocab=1,
                    n_ctx=1, dtype="bfloat16")  # fmt: skip
    weights = {name: Fraction(float(t)) for name, t in run.model.weights.tensors().items()}
    expected = weights["embed.W_E"] * weights["unembed.W_U"]
    expected *= weights["blocks.0.attn.W_V"] * weights["blocks.0.attn.W_O"]

    assert Fraction(float(run.evaluate("0.0"))) == expected
