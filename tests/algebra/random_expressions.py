"""Random well-typed expressions, every kind of node among them."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import strategies as st

from otimes.algebra import (
    Expr,
    Factor,
    Id,
    Product,
    Scaled,
    Sum,
    Tensor,
    Transpose,
    pattern,
    vector,
    weight,
)

SPACES = ("d_model", "d_head", "vocab")
LABELS = ("", "1.4", "10.11", "3.ln1", "0.n7")

coefficients = st.builds(Fraction, st.integers(-3, 3), st.integers(1, 4))


def _leaf(draw: st.DrawFn, codomain: str, domain: str) -> Expr:
    label = draw(st.sampled_from(LABELS))
    if codomain == domain and draw(st.integers(0, 3)) == 0:
        return Id
    if (codomain, domain) == ("pos", "pos"):
        return pattern(draw(st.sampled_from("ADS")), label=label)
    # the type is part of the name, so that a name has one type
    name = draw(st.sampled_from(["W", "Γ", "W_OV", "x"]))
    return weight(f"{name}_{codomain}_{domain}", codomain, domain, label=label)


def _map(draw: st.DrawFn, codomain: str, domain: str, depth: int) -> Expr:
    """A map of one slot."""
    kind = draw(st.integers(0, 6)) if depth else 0
    same = "pos" if codomain == "pos" else draw(st.sampled_from(SPACES))
    match kind:
        case 1 | 2:
            parts = [_map(draw, codomain, same, depth - 1)]
            parts += [_map(draw, same, same, depth - 1) for _ in range(draw(st.integers(0, 1)))]
            parts.append(_map(draw, same, domain, depth - 1))
            return Product(*parts)
        case 3:
            size = draw(st.integers(1, 3))
            return Sum(*[_map(draw, codomain, domain, depth - 1) for _ in range(size)])
        case 4:
            return Transpose(_map(draw, domain, codomain, depth - 1))
        case 5:
            return Scaled(draw(coefficients), _map(draw, codomain, domain, depth - 1))
        case 6:
            return Product(_map(draw, codomain, domain, depth - 1))
        case _:
            return _leaf(draw, codomain, domain)


def _operator(draw: st.DrawFn, codomain: str, domain: str, depth: int) -> Expr:
    """A map of two slots, ``pos ⊗ …``."""
    kind = draw(st.integers(0, 5)) if depth else 0
    match kind:
        case 1 | 2:
            same = draw(st.sampled_from(SPACES))
            return Product(
                _operator(draw, codomain, same, depth - 1), _operator(draw, same, domain, depth - 1)
            )
        case 3:
            size = draw(st.integers(1, 3))
            return Sum(*[_operator(draw, codomain, domain, depth - 1) for _ in range(size)])
        case 4:
            return Transpose(_operator(draw, domain, codomain, depth - 1))
        case 5:
            return Scaled(draw(coefficients), _operator(draw, codomain, domain, depth - 1))
        case _:
            return Tensor(_map(draw, "pos", "pos", depth), _map(draw, codomain, domain, depth))


@st.composite
def maps(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Maps of one slot: words of patterns or of weights."""
    codomain = draw(st.sampled_from(["pos", *SPACES]))
    domain = "pos" if codomain == "pos" else draw(st.sampled_from(SPACES))
    return _map(draw, codomain, domain, depth)


@st.composite
def operators(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Maps of ``pos ⊗ …``, some applied to a vector."""
    codomain, domain = draw(st.sampled_from(SPACES)), draw(st.sampled_from(SPACES))
    found = _operator(draw, codomain, domain, depth)
    if draw(st.booleans()):
        return Product(found, vector(f"t_{domain}", "pos", domain))
    return found


expressions = maps() | operators()


def ends(expr: Expr) -> tuple[str, ...] | None:
    """The codomain of an expression with no open slot."""
    slots = expr.type.slots
    if slots is None or None in slots:
        return None
    return tuple(slot[0] for slot in slots if slot is not None)


__all__ = ["Factor", "coefficients", "ends", "expressions", "maps", "operators"]
