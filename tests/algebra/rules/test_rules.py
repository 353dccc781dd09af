"""Each rule: proved by SymPy on matrices of symbols, and a wrong variant of it caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import pytest

import otimes.algebra.rules as all_rules
from otimes.algebra import (
    Column,
    Eigenvalues,
    Expr,
    FrobeniusNorm,
    Id,
    Product,
    Row,
    Scaled,
    Sum,
    Tensor,
    check_step,
    diagonal,
    head,
    norm,
    pattern,
    rotation,
    tensor,
    vector,
    weight,
)
from otimes.algebra.checking import counterexample
from otimes.algebra.definitions import ov_circuit, qk_circuit, read, write
from otimes.algebra.rules import (
    CancelRotation,
    Collapse,
    CollectOrder,
    CollectPattern,
    CollectWeight,
    Concatenate,
    Cycle,
    Distribute,
    DropIdentity,
    ExpandHead,
    ExpandNorm,
    ExpandOV,
    ExpandQK,
    Flatten,
    FoldHead,
    FoldNorm,
    FoldOV,
    FoldQK,
    LikeTerms,
    Merge,
    MixedProduct,
    PullScalar,
    Rotate,
    Rule,
    Split,
    Substitute,
    TransposeLinear,
    TransposeProduct,
    TransposeTensor,
    VirtualWeights,
)
from otimes.errors import OtimesError, UnsupportedError
from tests.algebra.judge import Judge

A, B, C = pattern("A"), pattern("B"), pattern("C")
W, V = weight("W", "d_model", "d_model"), weight("V", "d_model", "d_model")
W_U, W_E = weight("W_U", "vocab", "d_model"), weight("W_E", "d_model", "vocab")
W_O, W_V = write("1.0"), read("V", "1.0")
R = rotation("R")
X0, X1 = vector("x", "pos", "d_model", label="0"), vector("x", "pos", "d_model", label="1")
R0, R1 = vector("r", "pos", "d_head", label="0"), vector("r", "pos", "d_head", label="1")
STREAM = Product(Id + head("1.0"), X0)
STAGES = tensor(Id, W_O) @ tensor(pattern("A", label="1.0"), Id) @ tensor(Id, W_V)
OV = ov_circuit("1.0")


@dataclass(frozen=True)
class Case:
    """A rule, what it does to an expression, and what somebody might mistake it for."""

    rule: Rule
    before: Expr
    after: Expr
    wrong: Callable[[Expr], Expr]

    @property
    def name(self) -> str:
        return type(self.rule).__name__


CASES = [
    Case(
        MixedProduct(),
        tensor(A, W_U) @ tensor(B, W),
        tensor(A @ B, W_U @ W),
        lambda _: tensor(B @ A, W_U @ W),
    ),
    Case(
        Split(),
        tensor(A, W_E),
        tensor(A, Id) @ tensor(Id, W_E),
        lambda _: tensor(A.T, Id) @ tensor(Id, W_E),
    ),
    Case(
        Distribute(),
        Product(A, B + C, A + Id),
        Sum(Product(A, B, A), Product(A, B, Id), Product(A, C, A), Product(A, C, Id)),
        # the cross terms forgotten
        lambda _: Sum(Product(A, B, A), Product(A, C, Id)),
    ),
    Case(
        Distribute(),
        tensor(A + B, W),
        tensor(A, W) + tensor(B, W),
        lambda _: tensor(A, W) + tensor(B, V),
    ),
    Case(Distribute(), Scaled(2, A + B), 2 * A + 2 * B, lambda _: 2 * A + B),
    Case(DropIdentity(), Product(Id, A, Id, B), A @ B, lambda _: A),
    Case(DropIdentity(), tensor(Id, Id), Id, lambda _: Scaled(2, Id)),
    Case(Flatten(), Product(A, Product(B, C)), A @ B @ C, lambda _: A @ C @ B),
    Case(Flatten(), Sum(A, Sum(B, C)), A + B + C, lambda _: A + B),
    Case(
        PullScalar(),
        tensor(2 * A, Fraction(1, 3) * W_E),
        Scaled(Fraction(2, 3), tensor(A, W_E)),
        # scalars of the slots add up instead of being multiplied
        lambda _: Scaled(Fraction(7, 3), tensor(A, W_E)),
    ),
    Case(PullScalar(), Scaled(2, Scaled(3, A)), 6 * A, lambda _: 5 * A),
    Case(PullScalar(), A + 0 * B, A, lambda _: A + B),
    Case(LikeTerms(), A + B + 2 * A, 3 * A + B, lambda _: 2 * A + B),
    Case(
        Merge(),
        tensor(A, W) + 2 * tensor(B, W),
        tensor(A + 2 * B, W),
        # both slots added: two terms are not one tensor product
        lambda _: tensor(A + 2 * B, W + W),
    ),
    Case(TransposeProduct(), (A @ B).T, B.T @ A.T, lambda _: A.T @ B.T),
    Case(TransposeTensor(), tensor(A, W).T, tensor(A.T, W.T), lambda _: tensor(A.T, W)),
    Case(TransposeLinear(), (A + 2 * B).T, A.T + (2 * B).T, lambda _: A.T + 2 * B),
    Case(TransposeLinear(), A.T.T, A, lambda _: A.T),
    Case(TransposeLinear(), diagonal("D").T, diagonal("D"), lambda _: -diagonal("D")),
    Case(ExpandOV(), OV, W_O @ W_V, lambda _: (W_O @ W_V).T),
    Case(FoldOV(), W_U @ W_O @ W_V @ W_E, W_U @ OV @ W_E, lambda _: W_U @ OV.T @ W_E),
    Case(
        ExpandQK(),
        qk_circuit("1.0"),
        read("Q", "1.0").T @ read("K", "1.0"),
        # queries and keys exchanged
        lambda _: read("K", "1.0").T @ read("Q", "1.0"),
    ),
    Case(
        FoldQK(),
        read("Q", "1.0").T @ read("K", "1.0"),
        qk_circuit("1.0"),
        lambda _: qk_circuit("1.0").T,
    ),
    Case(ExpandHead(), head("1.0"), STAGES, lambda _: tensor(pattern("A", label="1.0").T, OV)),
    Case(FoldHead(), STAGES, head("1.0"), lambda _: head("1.1")),
    Case(
        ExpandNorm(),
        norm("1.ln1"),
        tensor(diagonal("D", label="1.ln1"), weight("Γ", "d_model", "d_model", label="1.ln1")),
        # the scales forgotten
        lambda _: tensor(Id, weight("Γ", "d_model", "d_model", label="1.ln1")),
    ),
    Case(
        FoldNorm(),
        tensor(diagonal("D", label="1.ln1"), weight("Γ", "d_model", "d_model", label="1.ln1")),
        norm("1.ln1"),
        lambda _: norm("1.ln2"),
    ),
    Case(
        Substitute(X1, STREAM),
        tensor(Id, W_U) @ X1,
        tensor(Id, W_U) @ (Id + head("1.0")) @ X0,
        # the skip edge lost
        lambda _: tensor(Id, W_U) @ head("1.0") @ X0,
    ),
    Case(
        Collapse(X1, STREAM),
        tensor(Id, W_U) @ (Id + head("1.0")) @ X0,
        tensor(Id, W_U) @ X1,
        lambda _: tensor(Id, W_U) @ X0,
    ),
    Case(
        Concatenate(),
        tensor(Id, Row(write("0"), write("1"))) @ Column(R0, R1),
        tensor(Id, write("0")) @ R0 + tensor(Id, write("1")) @ R1,
        # heads paired with one another's results
        lambda _: tensor(Id, write("1")) @ R0 + tensor(Id, write("0")) @ R1,
    ),
    Case(
        Concatenate(),
        Row(W_O, W) @ Column(W_V, V),
        W_O @ W_V + W @ V,
        lambda _: W_O @ W_V + V @ W,
    ),
    Case(
        VirtualWeights(),
        Product(W_O, W_V, write("0.0"), read("V", "0.0")),
        Product(W_O, Product(W_V, write("0.0")), read("V", "0.0")),
        lambda _: Product(W_O, Product(read("V", "0.0"), write("0.0")), W_V),
    ),
    Case(
        Cycle(),
        Eigenvalues(W_O @ W_V),
        Eigenvalues(W_V @ W_O),
        lambda _: Eigenvalues(2 * (W_V @ W_O)),
    ),
    Case(
        Rotate(R),
        W_U @ OV @ W_E,
        Product(W_U, R.T, R, OV, R.T, R, W_E),
        # W → R W R, which is a rotation only of symmetric ones
        lambda _: Product(W_U, R.T, R, OV, R, R, W_E),
    ),
    Case(
        CancelRotation(),
        Product(W_U, R.T, R, W_E),
        Product(W_U, Id, W_E),
        lambda _: Product(W_U, R, W_E),
    ),
    Case(
        CollectPattern(),
        tensor(A, W) + tensor(B, V) + tensor(A, V),
        tensor(A, W + V) + tensor(B, V),
        lambda _: tensor(A + B, W + V),
    ),
    Case(
        CollectWeight(),
        tensor(A, W) + tensor(B, V) + 2 * tensor(B, W),
        tensor(A + 2 * B, W) + tensor(B, V),
        lambda _: tensor(A + B, W) + tensor(B, V),
    ),
    Case(
        CollectOrder(),
        Id + head("1.0") @ head("0.0") + head("0.0") + head("1.0"),
        Sum(Id, head("0.0") + head("1.0"), head("1.0") @ head("0.0")),
        lambda _: Sum(Id, head("0.0") + head("1.0"), head("0.0") @ head("1.0")),
    ),
]
cases = pytest.mark.parametrize("case", CASES, ids=[f"{c.name}-{i}" for i, c in enumerate(CASES)])


@cases
def test_what_the_rule_does(case: Case) -> None:
    assert case.rule.why_not(case.before) is None
    assert case.rule.apply(case.before) == case.after


@cases
def test_sympy_proves_the_rule_on_matrices_of_symbols(case: Case) -> None:
    judge = Judge(dict(case.rule.definitions))

    assert judge.agree(case.before, case.after)


@cases
def test_the_exact_check_agrees_and_catches_a_wrong_variant(case: Case) -> None:
    wrong = case.wrong(case.before)
    definitions = case.rule.definitions

    assert check_step(case.before, case.after, definitions)
    assert not check_step(case.before, wrong, definitions)
    assert counterexample(case.before, wrong, definitions) is not None


@cases
def test_sympy_sees_that_the_wrong_variant_is_wrong(case: Case) -> None:
    judge = Judge(dict(case.rule.definitions))

    assert not judge.agree(case.before, case.wrong(case.before))


def test_every_rule_has_a_case() -> None:
    classes = {
        name
        for name in all_rules.__all__
        if isinstance(value := getattr(all_rules, name), type) and issubclass(value, Rule)
    } - {"Rule"}

    assert classes == {case.name for case in CASES}


@cases
def test_a_rule_says_what_it_is(case: Case) -> None:
    rule = case.rule

    assert rule.name
    assert "=" in rule.identity or "→" in rule.identity
    assert rule.preserves in ("value", "spectrum", "gauge")
    assert str(rule) == f"{rule.name}: {rule.identity}"
    # docstrings hold the identity and are run as doctests
    assert ">>>" in (__import__(type(rule).__module__, fromlist=["_"]).__doc__ or "")


REFUSALS = [
    (MixedProduct(), A @ B, "no two tensor products stand side by side in A B"),
    (MixedProduct(), A, "A is not a product"),
    (Split(), tensor(A, Id), "A ⊗ Id acts on one slot alone"),
    (Split(), A, "A is not a tensor product"),
    (Distribute(), A + B, "A + B is neither a product nor a multiple"),
    (Distribute(), A @ B, "A B has no sum to multiply out"),
    (DropIdentity(), tensor(Id, A), "an identity beside A says that its slot is left alone"),
    (DropIdentity(), A @ B, "A B has no identity that could be left out"),
    (Flatten(), A, "A is neither a product nor a sum"),
    (Flatten(), A + B, "A + B has no sum inside the sum"),
    (PullScalar(), A + B, "A + B has no scalar inside"),
    (LikeTerms(), A, "A is not a sum"),
    (Merge(), tensor(A, W) + tensor(A, W), "A ⊗ W and A ⊗ W are like terms"),
    (Merge(), tensor(A, W) + tensor(B, V), "A ⊗ W and B ⊗ V differ in 2"),
    (Merge(), Id + tensor(A, W), "Id + A ⊗ W has no two tensor products"),
    (TransposeProduct(), (A + B).T, "(A + B)ᵀ is not the transpose of a product"),
    (TransposeTensor(), A, "A is not the transpose of a tensor product"),
    (TransposeLinear(), A.T, "Aᵀ is not the transpose of a sum, multiple or transpose"),
    (ExpandOV(), W, "W is not a W_OV"),
    (FoldOV(), W_O @ read("V", "1.1"), "has no W_O W_V of one label side by side"),
    (FoldQK(), read("Q", "1.0") @ read("K", "1.0").T, "has no W_Qᵀ W_K of one label side by side"),
    (Substitute(X1, STREAM), X0, "x[0] does not have x[1] at its top"),
    (Collapse(X1, STREAM), X0, "x[0] does not contain (Id + h[1.0]) x[0]"),
    (Concatenate(), A @ B, "no row of blocks meets a column in A B"),
    (VirtualWeights(), W_V @ W_O, "W_V[1.0] W_O[1.0] is a virtual weight already"),
    (Cycle(), FrobeniusNorm(W_O @ W_V), "a norm is taken, and norms of"),
    (Cycle(), W_O @ W_V, "it preserves eigenvalues alone"),
    (Cycle(3), Eigenvalues(W_O @ W_V), "is not a product of more than 3 factors"),
    (Rotate(R), W_E, "coordinates of the stream are rotated with it"),
    (Rotate(W), W_U @ W_E, "W is not known to be a rotation"),
    (Rotate(R), A @ B, "A B nowhere touches d_model"),
    (
        Rotate(R),
        Product(tensor(Id, W_U), norm("final"), tensor(Id, W_E)),
        "the gain of N[final] singles out coordinates; fold it first",
    ),
    (CancelRotation(), R @ R, "no rotation meets its transpose in R R"),
    (CollectPattern(), tensor(A, W) + tensor(B, V), "have the same pattern"),
    (CollectWeight(), tensor(A, W) + tensor(B, V), "have the same weight"),
    # equal addends that are no tensor products once broke these two rules
    (CollectPattern(), A + A, "no two addends of A + A have the same pattern"),
    (CollectWeight(), A + A, "no two addends of A + A have the same weight"),
    (CollectOrder(), A + Product(A, A + B), "A (A + B) is not one path: it holds a sum"),
    (CollectOrder(), A + B, "all addends of A + B have one order"),
]


@pytest.mark.parametrize(("rule", "expr", "reason"), REFUSALS)
def test_a_rule_says_why_it_does_not_apply(rule: Rule, expr: Expr, reason: str) -> None:
    found = rule.why_not(expr)

    assert found is not None
    assert reason in found
    with pytest.raises(UnsupportedError) as caught:
        rule.apply(expr)
    assert (
        str(caught.value)
        == f"the rule {rule.name!r}, {rule.identity}, does not apply to {expr}: {found}"
    )
    assert isinstance(caught.value, OtimesError)


def test_blocks_that_do_not_meet_are_not_multiplied() -> None:
    square = Row(weight("P", "d_model", "d_head"), weight("Q", "d_model", "vocab"))
    other = Column(weight("P", "d_head", "d_model"), weight("Q", "vocab", "d_model"))
    three = Row(Row(write("0"), write("1")), write("2"))
    stacked = Column(read("V", "0"), Column(read("V", "1"), read("V", "2")))

    assert Concatenate().why_not(square @ other) is None
    assert "do not meet one to one" in str(Concatenate().why_not(three @ stacked))


def test_the_merge_of_different_heads_is_refused_where_sympy_has_merged_them() -> None:
    # SymPy's combine_kronecker has merged A1 ⊗ W1 + A2 ⊗ W2, which is no tensor product at all
    two_heads = tensor(A, W) + tensor(B, V)

    assert Merge().why_not(two_heads) is not None
    assert not check_step(two_heads, tensor(A + B, W + V))
    assert isinstance(Merge().apply(tensor(A, W) + tensor(A, V)), Tensor)
