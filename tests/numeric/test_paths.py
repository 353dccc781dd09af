"""The frozen model and its path sums against dense Kronecker products and brute force."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from otimes.bridge import load
from otimes.bridge.binding import numbered
from otimes.numeric.frozen import FrozenBlock, FrozenHeads, FrozenModel, FrozenSource
from otimes.numeric.paths import PrefixStack, Readout, order_streams, path_logits
from tests.factory import make_checkpoint
from tests.kit import close, patterns_of, run_of
from tests.oracles import paths as oracle
from tests.strategies import Case, cases

BIASES = ("b_V", "b_O", "b_U")


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def block(bias: bool = True) -> FrozenHeads:
    """4 query heads on 2 KV heads; batch 2, 3 positions, d_model 5, d_head 2; rows of any sum."""
    return FrozenHeads(
        random(0, 2, 4, 3, 3),
        random(1, 2, 5, 2),
        random(2, 4, 2, 5),
        random(3, 2, 2) if bias else None,
    )


@pytest.mark.parametrize("index", range(4))
def test_a_head_is_a_kronecker_product(index: int) -> None:
    b, x = block(), random(4, 2, 3, 5)

    found = b.component(index, x)

    for row in range(2):
        W_OV = b.W_O[index].T @ b.W_V[index // 2].T  # column convention
        dense = torch.kron(b.pattern[row, index], W_OV) @ x[row].reshape(-1)
        close(found[row].reshape(-1), dense)


@pytest.mark.parametrize("index", range(4))
def test_a_value_bias_goes_through_the_pattern(index: int) -> None:
    """By the row sums, which need not be 1."""
    b = block()
    assert b.b_V is not None

    found = b.component_constant(index)

    for row in range(2):
        sums = b.pattern[row, index].sum(-1)
        close(found[row], np.outer(sums, b.W_O[index].T @ b.b_V[index // 2]))


def test_a_block_without_value_bias_has_none() -> None:
    with pytest.raises(ValueError, match="this block has no value bias"):
        block(bias=False).component_constant(0)


def test_what_is_written_before_each_block() -> None:
    token, bias = random(5, 2, 3, 5), random(6, 1, 1, 5)
    model = FrozenModel(
        (FrozenBlock(block()), FrozenBlock(block())),
        (
            FrozenSource.of(0, token),
            FrozenSource(1, component=(0, 2)),
            FrozenSource.of(1, bias),
            FrozenSource.of(1, 2 * bias),
            FrozenSource(2, joins="logits"),
        ),
        random(7, 5, 6),
        random(8, 6),
        2,
        3,
    )

    close(model.written(0), token)
    close(model.written(1), (3 * bias).expand(2, 3, 5))
    close(model.written(2), torch.zeros(2, 3, 5))
    assert model.start(4) is None
    close(model.start(1), block().component_constant(2))
    assert model.dtype == torch.float64


@settings(max_examples=15)
@given(cases(max_layers=3))
def test_every_path_is_what_brute_force_gives(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder), **case.architecture)
        run = load(folder).run(tokens=case.tokens, mask=case.mask)
        model = run.frozen().model
    terms = list(run.model.architecture.logits.expand().depth_first())
    numbers = [numbered(term) for term in terms]
    expected = {
        path.text: oracle.path_logits(
            checkpoint.config, checkpoint.arrays, case.tokens, patterns_of(run), path, case.mask
        )
        for path in oracle.enumerate_paths(checkpoint.config, checkpoint.arrays)
    }
    assert [term.path for term in terms] == list(dict.fromkeys(term.path for term in terms))
    assert {term.path for term in terms} == set(expected)

    for term, value in zip(terms, path_logits(model, numbers), strict=True):
        close(value, expected[term.path])


def test_every_path_is_its_dense_kronecker_product(tmp_path: Path) -> None:
    run, checkpoint = run_of(
        tmp_path, tokens=[2, 0, 7], n_heads=4, n_kv_heads=2, d_model=5, biases=BIASES,
        positions="learned",
    )  # fmt: skip
    model = run.frozen().model
    patterns = [layer[0] for layer in patterns_of(run)]
    terms = {term.path: term for term in run.model.architecture.logits.expand()}
    for path in oracle.enumerate_paths(checkpoint.config, checkpoint.arrays):
        (found,) = path_logits(model, [numbered(terms[path.text])])

        dense = oracle.kron_path_logits(
            checkpoint.config, checkpoint.arrays, [2, 0, 7], patterns, path
        )
        close(found[0], dense)


def test_shared_prefixes_change_nothing(tmp_path: Path) -> None:
    """Whatever came before a path, its streams are those of a fresh start, bit by bit."""
    run, _ = run_of(tmp_path, n_layers=3, biases=BIASES)
    model = run.frozen().model
    numbers = [numbered(term) for term in run.model.architecture.logits.expand()]
    order = np.random.default_rng(3).permutation(len(numbers))
    shared = PrefixStack(model)
    for place in order:
        source, heads = numbers[place]
        found, fresh = shared.stream(source, heads), PrefixStack(model).stream(source, heads)

        assert (found is None) == (fresh is None)
        assert found is None or torch.equal(found, fresh)


def test_prefixes_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In depth-first order each path costs one head."""
    run, _ = run_of(tmp_path, n_layers=4, n_heads=2)
    model, calls, right = run.frozen().model, [], FrozenHeads.component
    monkeypatch.setattr(
        FrozenHeads, "component", lambda self, i, x: (calls.append(i), right(self, i, x))[1]
    )
    terms = run.model.architecture.logits.expand()

    list(path_logits(model, map(numbered, terms.depth_first())))

    assert len(calls) == terms.count - 1


def test_the_unembedding_bias_passes_through_no_head(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, biases=("b_U",))
    model = run.frozen().model

    with pytest.raises(ValueError, match="the unembedding's bias passes through no component"):
        PrefixStack(model).stream(1, ((0, 0),))


def test_orders_are_sums_of_their_paths(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, n_layers=3, n_heads=2, n_kv_heads=1, biases=BIASES)
    model = run.frozen().model
    terms = run.model.architecture.logits.expand()
    stack = PrefixStack(model)
    for layer, streams in enumerate(order_streams(model)):
        assert len(streams) == layer + 1
        for order, stream in enumerate(streams):
            standing = [
                stack.stream(*numbered(term))
                for term in terms.order(order)
                if (term.heads[-1][0] + 1 if term.heads else term.source.entry) <= layer
            ]
            written = [part for part in standing if part is not None]
            close(stream, torch.stack(written).sum(0) if written else torch.zeros_like(stream))


def test_chosen_positions_and_tokens(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, biases=BIASES)
    model = run.frozen().model
    numbers = [numbered(term) for term in run.model.architecture.logits.expand().depth_first()]
    whole = list(path_logits(model, numbers))
    chosen = list(path_logits(model, numbers, positions=[4, 0], tokens=[12, 3, 3]))

    for all_of_it, part in zip(whole, chosen, strict=True):
        close(part, all_of_it[:, [4, 0]][..., [12, 3, 3]])


def test_a_model_without_unembedding_bias_has_no_path_of_it(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path)
    model = run.frozen().model

    with pytest.raises(ValueError, match="the model has no unembedding bias"):
        Readout.of(model, None, None).logits(None, model)
