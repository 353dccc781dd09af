"""Random well-typed expressions in which rules find something to do.

Heads, norms, definitions, blocks and rotations are among the symbols, and products of tensor
products, sums in products and nested words are common.
"""

from __future__ import annotations

from fractions import Fraction

from hypothesis import strategies as st

from otimes.algebra import (
    Column,
    Expr,
    Id,
    Product,
    Row,
    Scaled,
    Sum,
    Tensor,
    Transpose,
    diagonal,
    head,
    norm,
    pattern,
    rotation,
    vector,
    weight,
)
from otimes.algebra.definitions import ov_circuit, qk_circuit, read, write

coefficients = st.builds(Fraction, st.integers(-2, 3), st.integers(1, 3))
ROTATION = rotation("R")
_LEAVES = {
    ("pos", "pos"): [pattern("A1"), pattern("A", label="1.0"), diagonal("D", label="1.ln1"), Id],
    ("d_model", "d_model"): [
        ov_circuit("1.0"), ov_circuit("0.1"), qk_circuit("1.0"), ROTATION, ROTATION.T, Id,
        weight("W", "d_model", "d_model"), weight("Γ", "d_model", "d_model", label="1.ln1"),
    ],
    ("d_model", "d_head"): [write("1.0"), write("0.1"), read("Q", "1.0").T],
    ("d_head", "d_model"): [read("V", "1.0"), read("V", "0.1"), read("K", "1.0")],
    ("d_head", "d_head"): [weight("M", "d_head", "d_head"), Id],
}  # fmt: skip
_SPACES = ("d_model", "d_head")


def _one(draw: st.DrawFn, codomain: str, domain: str, depth: int) -> Expr:
    """A map of one slot."""
    middle = "pos" if codomain == "pos" else draw(st.sampled_from(_SPACES))
    match draw(st.integers(0, 9)) if depth else 0:
        case 1 | 2 | 3:
            left, right = (
                _one(draw, codomain, middle, depth - 1),
                _one(draw, middle, domain, depth - 1),
            )
            return Product(left, right)
        case 4 | 5:
            return Sum(*(_one(draw, codomain, domain, depth - 1) for _ in range(2)))
        case 6:
            return Transpose(_one(draw, domain, codomain, depth - 1))
        case 7:
            return Scaled(draw(coefficients), _one(draw, codomain, domain, depth - 1))
        case 8 if codomain != "pos":
            # W_O of a layer, and results stacked; an identity has no known space and is no block
            blocks = draw(st.integers(2, 3))
            leaves = st.sampled_from(
                [leaf for leaf in _LEAVES[codomain, "d_head"] if leaf is not Id]
            )
            reads = st.sampled_from([leaf for leaf in _LEAVES["d_head", domain] if leaf is not Id])
            return Product(
                Row(*(draw(leaves) for _ in range(blocks))),
                Column(*(draw(reads) for _ in range(blocks))),
            )
        case _:
            return draw(st.sampled_from(_LEAVES[codomain, domain]))


def _two(draw: st.DrawFn, codomain: str, domain: str, depth: int) -> Expr:
    """A map of ``pos ⊗ …``."""
    match draw(st.integers(0, 8)) if depth else 0:
        case 1 | 2 | 3:
            middle = draw(st.sampled_from(_SPACES))
            left, right = (
                _two(draw, codomain, middle, depth - 1),
                _two(draw, middle, domain, depth - 1),
            )
            return Product(left, right)
        case 4 | 5:
            return Sum(*(_two(draw, codomain, domain, depth - 1) for _ in range(2)))
        case 6:
            return Transpose(_two(draw, domain, codomain, depth - 1))
        case 7:
            return Scaled(draw(coefficients), _two(draw, codomain, domain, depth - 1))
        case 8 if (codomain, domain) == ("d_model", "d_model"):
            return draw(st.sampled_from([head("1.0"), head("0.1"), norm("1.ln1"), Id]))
        case _:
            inner = max(depth - 1, 0)
            return Tensor(_one(draw, "pos", "pos", inner), _one(draw, codomain, domain, inner))


@st.composite
def rule_expressions(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Maps of one slot or of two, some applied to a vector."""
    codomain, domain = draw(st.sampled_from(_SPACES)), draw(st.sampled_from(_SPACES))
    match draw(st.integers(0, 4)):
        case 0:
            return _one(draw, "pos", "pos", depth)
        case 1:
            return _one(draw, codomain, domain, depth)
        case 2:
            return Product(
                _two(draw, codomain, domain, depth), vector(f"t_{domain}", "pos", domain)
            )
        case _:
            return _two(draw, codomain, domain, depth)
