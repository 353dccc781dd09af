"""An architecture as a few formulas, and what texts and LaTeX say is held fixed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from otimes.algebra import Architecture, derive_head, parse, pattern, tensor, weight
from otimes.algebra.derivations import Derivation
from otimes.algebra.held import held_by, held_by_scores, held_in, latex_sentence, sentence
from otimes.algebra.rules import TransposeProduct
from otimes.errors import UnsupportedError
from tests.algebra.test_latex import mathtext

GEMMA3 = Architecture(
    4, 6, kv_heads=2, norm="rms", norm_placement="sandwich", qk_norm="head", positions="rotary",
    mlp="frozen", neurons=5, multipliers={"embed"}, attention_scale=0.25,
)  # fmt: skip


def lines(arch: Architecture) -> dict[str, str]:
    """The lines of the printed formulas by their names."""
    split = (line.split(" = ", 1) for line in str(arch).splitlines()[1:] if " = " in line)
    return {name.strip(): meaning for name, meaning in split}


def test_the_formula_of_a_head_in_a_pre_norm_model() -> None:
    found = lines(Architecture(4, 6, norm="rms"))

    assert found["head 3.5"] == "A[3.5] D[3.ln1] ⊗ W_OV[3.5] Γ[3.ln1]"
    assert found["logits"] == "(Id ⊗ W_U)(D[final] ⊗ Γ[final]) x[4]"


def test_a_model_with_all_of_it() -> None:
    assert (
        str(GEMMA3)
        == """\
4 layers of 6 heads, which share 2 key-value heads, RMSNorm before and behind each branch, \
norms of the queries and keys of each head, rotary positions, frozen MLPs, each neuron a component
logits        = (Id ⊗ W_U)(D[final] ⊗ Γ[final]) x[4]
x[4]          = x[3.mid] + Σ neuron 3.n (x[3.mid])
x[3.mid]      = x[3] + Σ head 3.h (x[3])
head 3.5      = D[3.ln1_post] A[3.5] D[3.ln1] ⊗ Γ[3.ln1_post] W_OV[3.5] Γ[3.ln1]
neuron 3.n4   = D[3.ln2_post] S[3.n4] D[3.ln2] ⊗ Γ[3.ln2_post] w_out[3.n4] w_in[3.n4]ᵀ Γ[3.ln2]
scores of 3.5 = 0.25 · D[3.5.q_norm] x[3.read] W_Q[3.5]ᵀ Γ[3.q_norm]ᵀ R(j−i) Γ[3.k_norm] \
W_K[3.kv1] x[3.read]ᵀ D[3.kv1.k_norm]
x[3.read]     = (D[3.ln1] ⊗ Γ[3.ln1]) x[3]
x[0]          = (Id ⊗ μ_embed W_E) t
with A (attention patterns), D (1/σ of norms, those of queries and keys too) and S (slopes of \
neurons) held at the run's values"""
    )


@pytest.mark.parametrize(
    ("options", "name", "meaning"),
    [
        ({"norm": "layer", "norm_placement": "post", "mlp": "source"}, "x[2]",
         "(D[1.ln2] ⊗ Γ[1.ln2]) x[1.mid] + mlp1"),
        ({"mlp": "source", "parallel": True, "norm": "rms"}, "x[2]",
         "x[1] + Σ head 1.h (x[1]) + mlp1"),
        ({"biases": True, "norm": "layer"}, "x[2]",
         "x[1] + Σ head 1.h (x[1]) + Σ bias[1.h] + bias[1.attn]"),
        ({"biases": True, "norm": "layer"}, "logits",
         "(Id ⊗ W_U)((D[final] ⊗ Γ[final]) x[2] + (Id ⊗ β[final]) ones) + (Id ⊗ b_U) ones"),
        ({"biases": True}, "bias[1.2]", "(A[1.2] ⊗ W_O[1.2] b_V[1.2]) ones"),
        ({"biases": {"b_U"}, "multipliers": {"logits"}}, "logits",
         "(Id ⊗ μ_logits W_U) x[2] + (Id ⊗ b_U) ones"),
        ({"positions": "learned", "token_types": True, "embed_norm": True, "norm": "layer"}, "x[0]",
         ("(D[embed] ⊗ Γ[embed] W_E) t + (D[embed] ⊗ Γ[embed] W_pos) p + "
         "(D[embed] ⊗ Γ[embed] W_type) s")),
        ({"positions": "shortformer"}, "x[1.read]", "x[1] + (Id ⊗ W_pos) p"),
        ({"positions": "alibi"}, "scores of 1.2", "1/√d_head · x[1] W_QK[1.2] x[1]ᵀ + B[1.2]"),
        ({"mlp": "source", "multipliers": {"residual"}}, "mlp1", "(Id ⊗ μ_res) m[1]"),
        ({"attention_scale": 5**-0.5}, "scores of 1.2", "1/√5 · x[1] W_QK[1.2] x[1]ᵀ"),
    ],
)  # fmt: skip
def test_lines(options: dict[str, Any], name: str, meaning: str) -> None:
    assert lines(Architecture(2, 3, **options))[name] == meaning


def test_what_comes_behind_the_formulas_is_said() -> None:
    arch = Architecture(1, 1, softcaps=["attention", "logits"])

    assert str(arch).startswith("1 layer of 1 head, scores and logits before their soft-cap\n")
    assert str(arch.scores("0.0")).endswith("; a soft-cap comes behind it")
    assert eval(repr(arch)) == arch
    with pytest.raises(UnsupportedError, match="unknown softcap 'all'; known are attention, logi"):
        Architecture(1, 1, softcaps=["all"])


def test_models_without_layers_or_heads_print() -> None:
    assert str(Architecture(0, 0)) == "no layers\nlogits = (Id ⊗ W_U) x[0]\nx[0]   = (Id ⊗ W_E) t"
    assert "x[2]   = x[1]\n" in str(Architecture(2, (1, 0)))


def test_the_latex_of_an_architecture_says_what_is_held() -> None:
    found = GEMMA3.latex

    assert found.startswith(r"\begin{aligned} \text{logits} &= ")
    assert found.endswith(rf"\\ & {latex_sentence(held_by(GEMMA3))} \end{{aligned}}")
    assert r"R(j-i)" in found
    assert GEMMA3._repr_latex_() == rf"$\displaystyle {found}$"
    for row in re.split(r" \\\\ ", found[len(r"\begin{aligned} ") : -len(r" \end{aligned}")]):
        mathtext(row.replace("&", ""))


def test_logits_say_what_is_held() -> None:
    logits = Architecture(1, 1, norm="layer", mlp="source").logits

    assert logits.latex == (
        rf"\begin{{aligned}} & {logits.expression.latex} \\ & \text{{with }} A \text{{ (attention "
        r"patterns), } D \text{ (}1/\sigma\text{ of norms) and } m \text{ (outputs of MLPs) "
        r"held at the run's values} \end{aligned}"
    )
    mathtext(latex_sentence(logits.held))
    nothing = Architecture(0, 0).logits
    assert nothing.latex == nothing.expression.latex


def test_a_long_product_goes_over_lines_and_loses_nothing() -> None:
    logits = Architecture(6, 4, norm="rms").logits
    shown = logits.latex.partition(r" \\ & \text{with")[0].removeprefix(r"\begin{aligned} & ")

    assert shown.count(r" \\ & \quad ") >= 5
    assert shown.replace(r" \\ & \quad ", "") == logits.expression.latex


def test_derivations_say_what_is_held() -> None:
    derivation = derive_head("1.0")

    assert derivation.latex.splitlines()[-2] == (
        r"& \text{with } A \text{ (attention patterns) held at the run's values}"
    )
    assert derivation.markdown.endswith("With A (attention patterns) held at the run's values.")
    free = Derivation((pattern("B") @ pattern("A")).T).apply(TransposeProduct())
    assert "held" not in free.latex + free.markdown


def test_what_is_held_is_what_is_there() -> None:
    arch = Architecture(2, 1, norm="rms", qk_norm="head", mlp="source")

    assert sentence(held_by_scores(arch.scores("0.0"))) == (
        "D (1/σ of norms, those of queries and keys too) held at the run's values"
    )
    assert [kind.symbol for kind in held_by_scores(arch.scores("1.0"))] == ["A", "D", "m"]
    assert held_by_scores(Architecture(1, 1).scores("0.0")) == ()
    term = arch.scores("1.0").expand()["embed", "mlp0"]
    assert [kind.symbol for kind in held_in(term.operator.factors)] == ["D"]
    assert held_in(parse("W_OV[1.0] W_E").factors) == ()
    # a symbol of these names that is no component's is any map
    assert held_in(tensor(pattern("A"), weight("D", "d_model", "d_model", label="x")).factors) == ()
    assert sentence(()) == latex_sentence(()) == ""


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("mlp", ["source", "frozen"])
@pytest.mark.parametrize("norm", [None, "layer"])
def test_what_an_architecture_holds_is_in_its_logits(
    norm: str | None, mlp: str, biases: bool
) -> None:
    arch = Architecture(2, 1, norm=norm, mlp=mlp, neurons=1 if mlp == "frozen" else None,
                        biases=biases)  # fmt: skip

    assert arch.logits.held == held_by(arch)
