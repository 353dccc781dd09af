"""Symbols and tensors: the column convention on one side, the layout on the other."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from otimes.algebra import Expr, Id, Product, Sum, pattern, tensor, vector, weight
from otimes.bridge import Run, load
from otimes.bridge.binding import numbered
from otimes.errors import TypeMismatchError, UnknownComponentError, UnsupportedError
from tests.factory import ALL_BIASES, Checkpoint, make_checkpoint
from tests.kit import close, run_of
from tests.strategies import Case, cases

BIASES = ("b_Q", "b_K", "b_V", "b_O", "b_U")


@pytest.fixture
def bound(tmp_path: Path) -> tuple[Run, Checkpoint]:
    return run_of(
        tmp_path, n_heads=4, n_kv_heads=2, positions="learned", biases=BIASES, tokens=[[3, 1, 4]]
    )


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        (weight("W_E", "d_model", "vocab"), lambda w: w["embed.W_E"].T),
        (weight("W_pos", "d_model", "n_ctx"), lambda w: w["pos_embed.W_pos"].T),
        (weight("W_U", "vocab", "d_model"), lambda w: w["unembed.W_U"].T),
        (weight("b_U", "vocab", "1"), lambda w: w["unembed.b_U"][:, None]),
        (weight("b_O", "d_model", "1", label="1"), lambda w: w["blocks.1.attn.b_O"][:, None]),
        (weight("W_Q", "d_head", "d_model", label="1.3"), lambda w: w["blocks.1.attn.W_Q"][3].T),
        (weight("W_K", "d_head", "d_model", label="1.3"), lambda w: w["blocks.1.attn.W_K"][1].T),
        (weight("W_V", "d_head", "d_model", label="0.1"), lambda w: w["blocks.0.attn.W_V"][0].T),
        (weight("W_K", "d_head", "d_model", label="1.kv1"), lambda w: w["blocks.1.attn.W_K"][1].T),
        (weight("W_V", "d_head", "d_model", label="0.kv0"), lambda w: w["blocks.0.attn.W_V"][0].T),
        (weight("W_O", "d_model", "d_head", label="0.2"), lambda w: w["blocks.0.attn.W_O"][2].T),
        (weight("b_Q", "d_head", "1", label="0.3"), lambda w: w["blocks.0.attn.b_Q"][3][:, None]),
        (weight("b_K", "d_head", "1", label="0.3"), lambda w: w["blocks.0.attn.b_K"][1][:, None]),
        (weight("b_V", "d_head", "1", label="1.0"), lambda w: w["blocks.1.attn.b_V"][0][:, None]),
        (
            weight("W_OV", "d_model", "d_model", label="1.2"),
            lambda w: w["blocks.1.attn.W_O"][2].T @ w["blocks.1.attn.W_V"][1].T,
        ),
    ],
    ids=str,
)
def test_a_symbol_is_the_transposed_tensor(bound, symbol, expected) -> None:
    run, checkpoint = bound

    found = run.binding.matrix(symbol)

    close(found, expected(checkpoint.arrays), 1e-15)
    assert found.dtype == torch.float64


def test_patterns_are_the_recorded_ones(bound) -> None:
    run, _ = bound

    close(run.binding.matrix(pattern("A", label="1.3")), run.pattern(1)[:, 3], 1e-15)


def test_input_vectors(bound) -> None:
    run, _ = bound

    close(run.binding.vector(vector("t", "pos", "vocab"))[0], np.eye(13)[[3, 1, 4]])
    close(run.binding.vector(vector("p", "pos", "n_ctx"))[0], np.eye(9)[[0, 1, 2]])
    close(run.binding.vector(vector("ones", "pos", "1"))[0], np.ones((3, 1)))
    with pytest.raises(UnknownComponentError, match="x is no input of this model"):
        run.binding.vector(vector("x", "pos", "vocab"))


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        (weight("W", "d_model", "d_model"), "W is no symbol of this model"),
        (weight("W_E", "vocab", "d_model"), "W_E is no symbol of this model"),
        (weight("W_OV", "d_model", "d_model", label="2.0"), "no head 2.0: the model has layers 0"),
        (weight("W_OV", "d_model", "d_model", label="1.4"), "no head 1.4: layer 1 has heads 0 to"),
        (weight("W_OV", "d_model", "d_model"), "W_OV is no symbol of this model: its label is ''"),
        (weight("W_OV", "d_model", "d_model", label="x.y"), "its label is 'x.y'"),
        (weight("W_O", "d_model", "d_head", label="1"), "its label is '1'"),
        (weight("b_O", "d_model", "1", label="1.0"), "its label is '1.0'"),
        (weight("b_O", "d_model", "1", label="5"), "no head 5.0: the model has layers 0 to 1"),
        (weight("W_E", "d_model", "vocab", label="0"), "its label is '0'"),
        (pattern("A", label="0.9"), "no head 0.9"),
        (pattern("B", label="0.0"), "is no symbol of this model"),
    ],
)
def test_symbols_that_the_model_does_not_have(bound, symbol: Expr, message: str) -> None:
    with pytest.raises(UnknownComponentError, match=re.escape(message)):
        bound[0].binding.matrix(symbol)


def test_symbols_of_absent_tensors(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, positions="none")

    for symbol in (weight("b_V", "d_head", "1", label="0.0"), weight("W_pos", "d_model", "n_ctx")):
        with pytest.raises(
            UnknownComponentError, match=r"the checkpoint has no (b_V\[0.0\]|W_pos)"
        ):
            run.binding.matrix(symbol)


@settings(max_examples=15)
@given(cases(max_layers=3, max_heads=2))
def test_every_expression_has_the_engines_value(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), **case.architecture)
        run = load(folder).run(tokens=case.tokens, mask=case.mask)
    logits = run.model.architecture.logits

    close(run.evaluate(logits.expression), run.logits, 1e-9)
    for term in logits.expand():
        value = run.evaluate(term)
        close(run.evaluate(term.expression), value, 1e-10)
        close(run.binding.evaluate(term.expression), value, 1e-10)


def test_terms_are_numbered_by_source(bound) -> None:
    run, _ = bound
    names = [source.name for source in run.model.architecture.sources]

    for term in run.model.architecture.logits.expand():
        source, heads = numbered(term)
        assert names[source] == term.source.name
        assert heads == term.heads


def head(label: str) -> Expr:
    return tensor(pattern("A", label=label), weight("W_OV", "d_model", "d_model", label=label))


W_U, W_E = weight("W_U", "vocab", "d_model"), weight("W_E", "d_model", "vocab")


def test_expressions_by_hand(tmp_path: Path) -> None:
    """Sums, products, multiples and transposes of a model with one source."""
    run, _ = run_of(tmp_path, tokens=[3, 1, 4])
    start, end = tensor(Id, W_E), tensor(Id, W_U)
    one, two = run.evaluate("0.1"), run.evaluate("0.1 > 1.2")

    close(run.evaluate(end @ head("0.1") @ start), one)
    close(run.evaluate(end @ head("1.2") @ head("0.1") @ start), two)
    close(run.evaluate(end @ (head("0.1") - head("1.2")) @ start), one - run.evaluate("1.2"))
    close(run.evaluate(end @ (head("0.1") * 3) @ start), 3 * one)
    close(run.evaluate(Product(end, Sum(Id, head("1.2")), head("0.1"), start)), one + two)
    W_O, W_V = (
        weight("W_O", "d_model", "d_head", label="0.1"),
        weight("W_V", "d_head", "d_model", label="0.1"),
    )
    A = pattern("A", label="0.1")
    close(run.evaluate(end @ tensor(A, Product(W_O, W_V)) @ start), one)
    close(run.evaluate(end @ tensor(A, Product(W_V.T, W_O.T).T) @ start), one)
    transposed = run.evaluate(end @ tensor(A.T, Product(W_O, W_V)) @ start)
    assert float((transposed - one).abs().max()) > 1e-3
    close(run.evaluate(end @ head("0.1") @ start, positions=[-1], tokens=[2, 5]),
          one[:, [-1]][..., [2, 5]])  # fmt: skip


@pytest.mark.parametrize(
    "expr", [head("0.1"), W_U, tensor(Id, W_U), tensor(Id, W_E), vector("ones", "pos", "1"),
             vector("t", "pos", "vocab").T]
)  # fmt: skip
def test_expressions_that_do_not_end_in_logits(bound, expr: Expr) -> None:
    with pytest.raises(TypeMismatchError, match="from the tokens to the logits, of the type pos"):
        bound[0].evaluate(expr)


def test_expressions_that_cannot_be_evaluated(bound) -> None:
    run, _ = bound
    W = weight("W_OV", "d_model", "d_model", label="0.0")
    inside = tensor(Id, W_U) @ tensor(Id, Sum(Id, W)) @ tensor(Id, W_E)

    with pytest.raises(
        UnsupportedError, match=r"cannot evaluate .* in one slot of a tensor product"
    ):
        run.evaluate(inside)


SYMBOLS: dict[str, tuple[str, str, Callable[[Any, Run], Any]]] = {
    "Γ[1.ln1]": (
        "d_model", "d_model",
        lambda w, _: np.diag(w["blocks.1.ln1.w"]) @ (np.eye(10) - np.ones((10, 10)) / 10),
    ),
    "β[0.ln2_post]": ("d_model", "1", lambda w, _: w["blocks.0.ln2_post.b"][:, None]),
    "β[final]": ("d_model", "1", lambda w, _: w["ln_final.b"][:, None]),
    "w_in[1.n2]": ("d_model", "1", lambda w, _: w["blocks.1.mlp.W_in"][:, [2]]),
    "w_out[0.n1]": ("d_model", "1", lambda w, _: w["blocks.0.mlp.W_out"][[1]].T),
    "b_in[0.n2]": ("1", "1", lambda w, _: w["blocks.0.mlp.b_in"][[2], None]),
    "b_out[1]": ("d_model", "1", lambda w, _: w["blocks.1.mlp.b_out"][:, None]),
    "W_type": ("d_model", "types", lambda w, _: w["type_embed.W_type"].T),
    "μ_res": ("d_model", "d_model", lambda *_: np.array(0.3)),
    "μ_embed": ("d_model", "d_model", lambda *_: np.array(3.0)),
    "μ_logits": ("vocab", "vocab", lambda *_: np.array(-0.5)),
    "D[1.ln2]": (
        "pos", "pos",
        lambda _, run: np.stack([np.diag(row) for row in run.recording().scales["1.ln2"].numpy()]),
    ),
    "S[1.n2]": (
        "pos", "pos",
        lambda _, run: np.stack([
            np.diag(neurons / z)
            for neurons, z in zip(
                run.recording().neurons[1][..., 2].numpy(),
                run.recording().preactivations[1][..., 2].numpy(),
                strict=True,
            )
        ]),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole() -> Iterator[tuple[Run, Checkpoint]]:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(
            Path(folder), norm="layer", norm_placement="sandwich", d_mlp=3, n_token_types=2,
            positions="none", embed_multiplier=3.0, residual_multiplier=0.3,
            logits_multiplier=-0.5, biases=ALL_BIASES,
        )  # fmt: skip
        yield load(folder, mlp="frozen").run(tokens=[[3, 1, 4], [2, 0, 7]]), checkpoint


@pytest.mark.parametrize("name", SYMBOLS)
def test_symbols_of_norms_neurons_and_multipliers(whole, name: str) -> None:
    run, checkpoint = whole
    codomain, domain, expected = SYMBOLS[name]
    head, _, label = name.partition("[")

    found = run.binding.matrix(weight(head, codomain, domain, label=label.removesuffix("]")))

    close(found, expected(checkpoint.arrays, run), 1e-14)
    assert found.dtype == torch.float64


def test_inputs_of_types_and_mlps(whole) -> None:
    run, _ = whole

    close(run.binding.vector(vector("s", "pos", "types"))[1], [[1, 0]] * 3)
    close(run.binding.vector(vector("m", "pos", "d_model", label="1")),
          run.recording().mlp_outputs[1], 1e-15)  # fmt: skip
    with pytest.raises(UnknownComponentError, match=r"m\[2\] is no input of this model"):
        run.binding.vector(vector("m", "pos", "d_model", label="2"))


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        (weight("Γ", "d_model", "d_model", label="2.ln1"), "the model has no norm 2.ln1"),
        (weight("Γ", "d_model", "d_model", label="0.q_norm"), "Γ[0.q_norm] is no symbol of this"),
        (weight("D", "pos", "pos", label="embed"), "the model has no norm embed"),
        (weight("w_in", "d_model", "1", label="0.n3"), "no neuron mlp0.n3: layer 0"),
        (weight("w_in", "d_model", "1", label="0.1"), "its label is '0.1'"),
        (weight("b_out", "d_model", "1", label="4"), "no head 4.0"),
        (weight("W_pos", "d_model", "n_ctx"), "the checkpoint has no W_pos"),
    ],
    ids=str,
)
def test_symbols_of_norms_and_neurons_that_are_not_there(whole, symbol: Expr, message: str) -> None:
    with pytest.raises(UnknownComponentError, match=re.escape(message)):
        whole[0].binding.matrix(symbol)


def test_symbols_of_a_model_without_them(bound) -> None:
    run, _ = bound

    for symbol, message in (
        (weight("μ_res", "d_model", "d_model"), "the model has no μ_res"),
        (weight("b_out", "d_model", "1", label="0"), r"the model has no MLPs and no b_out\[0\]"),
        (weight("β", "d_model", "1", label="0.ln1"), r"the model has no norm 0\.ln1"),
    ):
        with pytest.raises(UnknownComponentError, match=message):
            run.binding.matrix(symbol)


def test_sums_and_multiples_in_one_slot(bound) -> None:
    run, _ = bound
    W = [weight("W_OV", "d_model", "d_model", label=f"0.{h}") for h in range(2)]
    A, t = pattern("A", label="0.1"), vector("t", "pos", "vocab")

    def value(*weights: Expr) -> torch.Tensor:
        inside = [Product(tensor(Id, W_U), tensor(A, w), tensor(Id, W_E), t) for w in weights]
        return sum(map(run.evaluate, inside))

    close(value(Sum(W[0], W[1])), value(*W), 1e-13)
    close(value(W[0] * 3), 3 * value(W[0]), 1e-13)
