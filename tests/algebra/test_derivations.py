"""Derivations: the paper's, step by step and judged by SymPy; students' chains; how they print."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

import otimes as ox
from otimes.algebra import (
    Architecture,
    Column,
    Derivation,
    Eigenvalues,
    Expr,
    Id,
    Product,
    Sum,
    check_derivation,
    derive_concatenation,
    derive_eigenvalues,
    derive_frozen_norm,
    derive_head,
    derive_logits,
    derive_rotation,
    derive_virtual_head,
    equivalent,
    expressions,
    head,
    parse,
    pattern,
    tensor,
    vector,
    weight,
)
from otimes.algebra.definitions import ov_circuit
from otimes.algebra.rules import (
    Cycle,
    Distribute,
    DropIdentity,
    ExpandOV,
    MixedProduct,
    Rule,
    Substitute,
)
from otimes.algebra.rules.base import Refusal
from otimes.algebra.types import Type
from otimes.cli.derive import derive
from otimes.errors import LimitError, OtimesError, UnsupportedError
from tests.algebra.judge import Judge

A, B = pattern("A"), pattern("B")
W1, W2 = weight("W1", "d_model", "d_model"), weight("W2", "d_model", "d_model")

ARCHITECTURES = [
    Architecture(0, 0),
    Architecture(1, 2),
    Architecture(2, 2),
    Architecture(2, (1, 0)),
    Architecture(3, (2, 1, 1)),
    Architecture(1, 1, biases=True),
    Architecture(0, 0, biases=True),
    Architecture(2, 1, positions="learned", biases={"b_V", "b_U"}),
    Architecture(1, 2, norm="layer", biases=True),
    Architecture(2, 1, norm="rms", norm_placement="post"),
    Architecture(1, 1, norm="rms", norm_placement="sandwich", mlp="source"),
    Architecture(1, 1, norm="rms", mlp="frozen", neurons=2),
    Architecture(1, 2, norm="rms", mlp="frozen", neurons=1, parallel=True),
    Architecture(1, 1, multipliers=("embed", "residual", "logits")),
]
architectures = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=repr)


def terms(expr: Expr) -> list[Expr]:
    """The addends, grouped ones too."""
    if isinstance(expr, Sum):
        return [term for arg in expr.args for term in terms(arg)]
    return [expr]


@architectures
def test_logits_are_derived_from_the_forward_pass_to_the_sum_over_paths(
    architecture: Architecture,
) -> None:
    derivation = derive_logits(architecture)

    assert derivation.check().holds
    assert derivation.steps
    assert all(step.before != step.after for step in derivation)
    assert all(a.after == b.before for a, b in pairwise(derivation))
    # it starts at the forward pass and ends at what .expand() lists
    assert equivalent(
        derivation.start, architecture.logits.expression, derivation.definitions
    ).holds
    assert equivalent(derivation.end, architecture.logits.expression).holds
    if not architecture.biases:
        expected = {term.expression for term in architecture.logits.expand()}
        assert set(terms(derivation.end)) == expected
        assert len(terms(derivation.end)) == architecture.logits.expand().count


@architectures
def test_each_expression_of_a_derivation_parses_back(architecture: Architecture) -> None:
    derivation = derive_logits(architecture)

    for expr in derivation.expressions:
        assert parse(str(expr), derivation.symbols) == expr


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_sympy_agrees_with_every_step(layers: int) -> None:
    derivation = derive_logits(Architecture(layers, layers))
    judge = Judge(dict(derivation.definitions), seed=1)

    assert all(judge.agree(step.before, step.after) for step in derivation)


def test_the_one_layer_derivation_reads_like_the_paper() -> None:
    assert (
        str(derive_logits(Architecture(1, 1)))
        == """\
  (Id ⊗ W_U) x[1]
= (Id ⊗ W_U)(Id + h[0.0]) x[0]                     (substitute x[1])
= (Id ⊗ W_U)(Id + h[0.0])(Id ⊗ W_E)                (substitute x[0])
= (Id ⊗ W_U)(Id + (Id ⊗ W_O[0.0])(A[0.0] ⊗ Id)(Id ⊗ W_V[0.0]))(Id ⊗ W_E)
                                                   (definition of h)
= (Id ⊗ W_U)(Id + A[0.0] ⊗ W_O[0.0] W_V[0.0])(Id ⊗ W_E)
                                                   (mixed product, identity)
= (Id ⊗ W_U)(Id + A[0.0] ⊗ W_OV[0.0])(Id ⊗ W_E)    (the OV circuit)
= (Id ⊗ W_U)(Id ⊗ W_E) + (Id ⊗ W_U)(A[0.0] ⊗ W_OV[0.0])(Id ⊗ W_E)
                                                   (distribute, identity)
= Id ⊗ W_U W_E + A[0.0] ⊗ W_U W_OV[0.0] W_E        (mixed product, identity)"""
    )


def test_two_layers_of_twelve_heads_are_1_and_24_and_144_terms() -> None:
    derivation = derive_logits(Architecture(2, 12))

    assert isinstance(derivation.end, Sum)
    assert derivation.steps[-1].rule == "collect by order"
    assert [len(terms(group)) for group in derivation.end.args] == [1, 24, 144]
    assert derivation.check().holds


def test_the_product_of_two_tensor_products_is_one() -> None:
    # the first example of the field: (A2 ⊗ W2)(A1 ⊗ W1) = A2 A1 ⊗ W2 W1
    product = parse("(A2 ⊗ W2)(A1 ⊗ W1)", {"A1": A, "A2": B, "W1": W1, "W2": W2})

    assert str(Derivation(product).apply(MixedProduct()).end) == "B A ⊗ W2 W1"


PAPER = {
    "head": (derive_head(), "A ⊗ W_OV"),
    "virtual head": (
        derive_virtual_head(),
        "A[2] A[1] ⊗ W_O[2] (W_V[2] W_O[1]) W_V[1]",
    ),
    "heads as a sum": (
        derive_concatenation(2),
        "(A[0.0] ⊗ W_OV[0.0]) x + (A[0.1] ⊗ W_OV[0.1]) x",
    ),
    "one head": (derive_concatenation(1), "(A[0.0] ⊗ W_OV[0.0]) x"),
    "frozen norm": (derive_frozen_norm(), "A[1.0] D[1.ln1] ⊗ W_OV[1.0] Γ[1.ln1]"),
    "eigenvalues": (derive_eigenvalues(), "λ(W_V[0.0] W_E W_U W_O[0.0])"),
    "rotation": (derive_rotation(), "W_U W_OV[0.0] W_E"),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_derivations_of_the_paper(name: str) -> None:
    derivation, end = PAPER[name]
    judge = Judge(dict(derivation.definitions), seed=1)

    assert str(derivation.end) == end
    assert derivation.check().holds
    assert all(judge.agree(step.before, step.after) for step in derivation)
    assert str(derivation.check()) == f"all {len(derivation)} steps hold"


def test_a_step_says_what_it_preserves() -> None:
    assert [step.preserves for step in derive_eigenvalues()] == ["value", "spectrum"]
    assert [step.preserves for step in derive_rotation()] == ["value", "gauge", "value", "value"]


def test_only_rules_that_changed_something_are_named() -> None:
    plain = Derivation(tensor(A, W1) @ tensor(B, W2)).everywhere(MixedProduct(), DropIdentity())

    assert [step.rule for step in plain] == ["mixed product"]


def test_a_rule_that_applies_nowhere_is_refused_with_its_reason() -> None:
    start = Derivation(A @ B)

    with pytest.raises(
        UnsupportedError, match=r"'mixed product', .* applies nowhere in A B: no two"
    ):
        start.everywhere(MixedProduct())
    with pytest.raises(UnsupportedError, match="does not apply to A B: no two tensor products"):
        start.apply(MixedProduct())
    with pytest.raises(UnsupportedError, match=r"no place \(5,\): A B, at \(\), has 2 arguments"):
        start.apply(MixedProduct(), (5,))
    assert start.where_possible(MixedProduct()) is start


def test_a_rule_for_the_spectrum_does_not_apply_to_a_part() -> None:
    inside = Derivation(Product(W1, W2, W1))

    with pytest.raises(
        UnsupportedError, match="preserves the spectrum alone, so it holds for a who"
    ):
        inside.apply(Cycle(), (0,))


class Careless(Rule):
    """A wrong mixed product: the patterns are composed in the order of the text, and reversed."""

    name = "careless mixed product"
    identity = "(A ⊗ B)(C ⊗ D) = CA ⊗ BD"

    def attempt(self, expr: Expr) -> Expr | Refusal:
        right = MixedProduct().attempt(expr)
        if isinstance(right, Refusal):
            return right
        first, second = right.children
        return tensor(Product(*first.children[::-1]), second)


def test_a_wrong_rule_is_caught_at_its_step() -> None:
    heads = Derivation(tensor(B, W2) @ tensor(A, W1)).apply(Careless())
    found = heads.check()

    assert not found.holds
    assert found.first_bad == 0
    assert found.counterexample is not None
    assert heads.to_json()["steps"][0]["checked"] is False  # pyright: ignore[reportIndexIssue]


def test_the_first_bad_step_of_a_student_is_named() -> None:
    h = {n: f"(A[{n}] ⊗ W_OV[{n}])" for n in ("0.0", "1.0")}
    chain = [
        f"(Id + {h['1.0']})(Id + {h['0.0']})",
        f"Id + {h['0.0']} + {h['1.0']} + {h['1.0']}{h['0.0']}",
        # right product, wrong order of the patterns
        f"Id + {h['0.0']} + {h['1.0']} + A[0.0] A[1.0] ⊗ W_OV[1.0] W_OV[0.0]",
        f"Id + {h['0.0']} + {h['1.0']}",
    ]

    found = ox.check_derivation(chain)

    assert not found
    assert found.checked == (True, False, False)
    assert found.first_bad == 1
    assert found.counterexample is not None
    assert str(found).startswith("step 2 of 3 does not hold\nId + ")
    assert set(found.counterexample.matrices) == {
        "A[0.0]", "A[1.0]", "W_O[0.0]", "W_O[1.0]", "W_V[0.0]", "W_V[1.0]",
    }  # fmt: skip


@pytest.mark.parametrize("drop", range(4))
def test_each_dropped_term_of_a_student_is_found(drop: int) -> None:
    whole = [Id, head("0.0"), head("1.0"), head("1.0") @ head("0.0")]
    kept = [term for k, term in enumerate(whole) if k != drop]

    found = check_derivation([(Id + head("1.0")) @ (Id + head("0.0")), Sum(*kept)])

    assert found.first_bad == 0


def test_a_step_between_different_spaces_is_bad_and_says_why() -> None:
    found = check_derivation([weight("W_U", "vocab", "d_model"), weight("W_E", "d_model", "vocab")])

    assert found.first_bad == 0
    assert found.counterexample is None
    assert "W_U is vocab <- d_model, W_E is d_model <- vocab" in str(found)


def test_a_chain_of_one_expression_has_no_step() -> None:
    assert check_derivation([A]).holds
    assert str(check_derivation([A])) == "all 0 steps hold"


def test_definitions_of_the_student_are_used() -> None:
    x0, x1 = (vector("x", "pos", "d_model", label=label) for label in "01")
    chain = [x1, x0 + head("0.0") @ x0]

    assert check_derivation(chain, {x1: Product(Id + head("0.0"), x0)}).holds
    assert not check_derivation(chain).holds


def test_a_derivation_prints_as_text_markdown_and_latex() -> None:
    derivation = Derivation(ov_circuit("0.0")).everywhere(ExpandOV())

    assert derivation.latex == (
        "\\begin{align*}\n& W_{OV}^{0.0} \\\\\n"
        "={}& W_{O}^{0.0} W_{V}^{0.0} && \\text{definition of W\\_OV}\n\\end{align*}"
    )
    assert derivation.markdown == (
        "$$\nW_{OV}^{0.0}\n$$\n\n1. By *definition of W_OV*:\n\n   $$\n"
        "   = W_{O}^{0.0} W_{V}^{0.0}\n   $$"
    )
    assert derivation._repr_latex_() == derivation.latex
    assert derivation._repr_markdown_() == derivation.markdown


def test_long_sums_go_over_lines_and_lose_nothing() -> None:
    derivation = derive_logits(Architecture(2, 3, biases={"b_O"}))
    shown = " ".join(line.strip() for line in str(derivation).splitlines())

    assert max(map(len, str(derivation.end).splitlines())) > 300
    for term in derivation.end.children:
        assert all(str(path) in shown for path in terms(term))
    assert derivation.latex.count(r"\otimes") >= str(derivation).count("⊗")


def test_more_paths_than_anybody_reads_are_refused_with_their_number() -> None:
    with pytest.raises(
        LimitError, match="would write out 28,561 paths in 4 layers, more than 2,000"
    ) as caught:
        Architecture(4, 12).logits.derive()

    assert caught.value.count == 13**4
    for architecture in (Architecture(100_000, 1), Architecture(100_000, 0)):
        with pytest.raises(LimitError, match=r"would write out at least .* in 100,000 layers"):
            derive_logits(architecture)
    with pytest.raises(LimitError, match=r"about 10\^30 .*paths in 100 layers"):
        derive_logits(Architecture(100, 1))


def test_a_concatenation_takes_the_blocks_in_their_order() -> None:
    derivation = derive_concatenation(3)

    assert isinstance(derivation.start, Product)
    assert isinstance(derivation.start.args[1], Column)
    assert [str(term) for term in derivation.end.children] == [
        f"(A[0.{h}] ⊗ W_OV[0.{h}]) x" for h in range(3)
    ]


def test_substitution_knows_what_it_stands_on() -> None:
    x0, x1 = (vector("x", "pos", "d_model", label=label) for label in "01")
    rule = Substitute(x1, x0)
    derivation = Derivation(x1).apply(rule)

    assert derivation.definitions == {x1: x0}
    assert derivation.check().holds
    assert isinstance(Derivation(Eigenvalues(W1)).check().holds, bool)


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(derive, args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_the_command_prints_steps_that_parse_back_and_that_sympy_confirms() -> None:
    status, out = run("--layers", "2", "--heads", "2", "--json")
    data = json.loads(out)
    symbols = {name: eval(text, vars(ox.algebra)) for name, text in data["symbols"].items()}
    definitions = dict(derive_logits(Architecture(2, 2)).definitions)
    judge = Judge(definitions, seed=1)

    assert status == 0
    assert data["latex"].startswith("\\begin{align*}")
    assert len(data["steps"]) == 9
    for step in data["steps"]:
        assert set(step) == {"rule", "before", "after", "checked"}
        assert step["checked"] is True
        before, after = parse(step["before"], symbols), parse(step["after"], symbols)
        assert (str(before), str(after)) == (step["before"], step["after"])
        assert check_derivation([before, after], definitions).holds
        assert judge.agree(before, after)


def test_the_command_in_text_markdown_and_latex() -> None:
    status, out = run("--layers", "1", "--heads", "1")
    assert status == 0
    assert out.endswith(
        "all 7 steps hold, checked exactly on explicit matrices\n"
        "note: A (attention patterns) held at the run's values\n"
    )
    assert run("--layers", "1", "--heads", "1", "--latex")[1].startswith("\\begin{align*}")
    assert "1. By *substitute x[1]*" in run("--layers", "1", "--heads", "1", "--markdown")[1]
    assert "h[1.2]" in run("--layers", "2", "--heads", "1,3")[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--heads", "two"), "--heads takes a number or one for each layer (4,8), not 'two'"),
        (("--heads", "1,2,3"), "heads has 3 numbers for 2 layers"),
        (("--heads", "100"), "would write out 10,201 paths in 2 layers, more than 2,000"),
        (("--heads", "1", "--target", "loss"), "cannot derive 'loss': the target is 'logits'"),
    ],
)
def test_the_command_refuses_what_it_cannot_derive(args: tuple[str, ...], message: str) -> None:
    with pytest.raises(OtimesError) as caught:
        run("--layers", "2", *args)

    assert message in str(caught.value)


def test_a_real_latex_compiles_the_derivations(tmp_path: Path) -> None:
    """Where there is one; that braces match needs none."""
    shown = [derivation.latex for derivation, _ in PAPER.values()]
    shown += [derive_logits(architecture).latex for architecture in ARCHITECTURES]
    assert all(text.count("{") == text.count("}") for text in shown)
    assert all(text.count(r"\left(") == text.count(r"\right)") for text in shown)
    if shutil.which("pdflatex") is None:
        return
    document = "\n".join([
        r"\documentclass{article}",
        r"\usepackage[paperwidth=100cm,paperheight=60cm,margin=1cm]{geometry}",
        r"\usepackage{amsmath}",
        r"\begin{document}",
        *shown,
        r"\end{document}",
    ])  # fmt: skip
    (tmp_path / "derivations.tex").write_text(document)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "derivations.tex"],
        check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-2000:]


def test_multiplying_out_a_thousand_paths_does_not_check_each_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = list[object]()
    compose = expressions.compose

    def counted(left: Type, right: Type) -> Type | None:
        checks.append(left)
        return compose(left, right)

    product_of_sums = Architecture(10, 1).logits.expression
    monkeypatch.setattr(expressions, "compose", counted)
    attempts = list[Expr]()
    attempt = Distribute.attempt

    def watched(self: Distribute, expr: Expr) -> Expr | Refusal:
        attempts.append(expr)
        return attempt(self, expr)

    monkeypatch.setattr(Distribute, "attempt", watched)
    paths = Derivation(product_of_sums).where_possible(Distribute())

    assert len(paths.end.children) == 1024
    assert len(checks) < 1024
    assert attempts.count(product_of_sums) == 1
