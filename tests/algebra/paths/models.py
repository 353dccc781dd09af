"""Small models, the same for otimes and for the oracle, and random expressions over them."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from otimes.algebra import Architecture
from otimes.algebra.vocabulary import component_name
from tests.oracles import path_language as oracle

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "plain": {"layers": 4, "heads": (2, 1, 0, 2)},
    "sources": {"layers": 3, "heads": (2, 1, 2), "positions": "learned", "biases": True},
    "some biases": {"layers": 3, "heads": 2, "biases": ("b_V[1]", "b_O[0]", "b_U")},
    "MLP sources": {"layers": 2, "heads": 2, "mlp": "source", "norm": "layer", "biases": True},
    "frozen": {"layers": 2, "heads": (2, 1), "mlp": "frozen", "neurons": (1, 2)},
    "frozen, biases": {
        "layers": 2, "heads": (1, 2), "mlp": "frozen", "neurons": (2, 1), "norm": "layer",
        "biases": ("b_V", "b_in", "b_out", "b_final"), "token_types": True,
    },
    "parallel": {
        "layers": 3, "heads": (1, 2, 1), "mlp": "frozen", "neurons": (2, 1, 0), "parallel": True,
        "biases": ("b_in[1]", "b_O[0]"),
    },
    "wide": {"layers": 2, "heads": (4, 3)},
    "deep": {"layers": 5, "heads": (1, 2, 1, 1, 2)},
    "none": {"layers": 0, "heads": (), "biases": True},
}  # fmt: skip


@cache
def architecture(name: str) -> Architecture:
    return Architecture(**ARCHITECTURES[name])


@cache
def model(name: str) -> oracle.Model:
    return oracle_of(architecture(name))


@cache
def all_paths(name: str) -> tuple[oracle.Path, ...]:
    return tuple(model(name).paths())


def oracle_of(arch: Architecture) -> oracle.Model:
    """An architecture as plain names."""
    blocks = tuple(tuple(map(component_name, block.components())) for block in arch.blocks)
    return oracle.Model(
        blocks,
        tuple(
            oracle.Source(
                source.name,
                source.kind,
                source.entry if source.joins == "stream" else len(blocks),
                None if source.component is None else component_name(source.component),
            )
            for source in arch.sources
        ),
    )


def _members(arch: Architecture) -> list[str]:
    names = [component_name(c) for block in arch.blocks for c in block.components()]
    found = ["*", "*.*", *names, *(f"{layer}.*" for layer in range(arch.layers))]
    found += [f"*.{index}" for index in range(max(arch.heads, default=0))]
    if arch.mlp == "frozen":
        found += [f"mlp{layer}" for layer in range(arch.layers)]
    return found


@st.composite
def expressions(draw: st.DrawFn, name: str, depth: int = 4) -> str:
    """An expression over the components and sources of a model."""
    arch = architecture(name)
    members, sources = _members(arch), [s.name for s in arch.sources]
    sources += sorted({s.kind for s in arch.sources} | {s.name for s in arch.sources})

    def component() -> str:
        kind = draw(st.sampled_from(["one", "one", "one", "set", "but"]))
        if kind == "one":
            return draw(st.sampled_from(members))
        chosen = draw(st.lists(st.sampled_from(members), min_size=1, max_size=3))
        return "{" + "^" * (kind == "but") + ",".join(chosen) + "}"

    def part(left: int, place: str) -> str:
        """``place``: alone, front or later, where a source or ``direct`` may not stand."""
        kinds = ["component"] * 3 + ["any", "any", "order"]
        kinds += ["source"] * 2 * (place != "later") + ["direct"] * (place == "alone")
        if left:
            kinds += ["then"] * 6 + ["or", "and", "not", "times", "times"]
        kind = draw(st.sampled_from(kinds))
        if kind == "then":
            count = draw(st.integers(2, 4))
            first = "front" if place != "later" else "later"
            parts = [part(left - 1, first if n == 0 else "later") for n in range(count)]
            return "(" + " > ".join(parts) + ")"
        if kind in ("or", "and"):
            sign = " | " if kind == "or" else "&"
            return "(" + sign.join(part(left - 1, place) for _ in range(2)) + ")"
        if kind == "not":
            return f"(!{part(left - 1, place)})"
        if kind == "times":
            least = draw(st.integers(0, 2))
            most = least + draw(st.integers(0, 2))
            count = draw(st.sampled_from(["?", f"{{{least}}}", f"{{{least},{most}}}"]))
            once = count in ("?", "{0}", "{1}", "{0,1}", "{1,1}", "{0,0}")
            front = "front" if once and place != "later" else "later"
            return f"({part(left - 1, front)}){count}"
        if kind == "component":
            return component()
        if kind == "order":
            return f"order={draw(st.integers(0, 3))}"
        if kind == "source":
            return draw(st.sampled_from(sources))
        return "direct" if kind == "direct" else ".."

    text = part(depth, "alone")
    # the parentheses around the whole are not needed: their absence tests precedence
    return text[1:-1] if text.startswith("(") and text.endswith(")") and _wraps(text) else text


@st.composite
def repetitions(draw: st.DrawFn, name: str) -> str:
    """Repetitions of repetitions, shorter and longer than the model is deep."""
    members = _members(architecture(name))

    def part(left: int) -> str:
        if not left:
            return draw(st.sampled_from([*members, "..", "*?"]))
        kind = draw(st.sampled_from(["times", "times", "times", "then", "or"]))
        if kind == "times":
            least = draw(st.integers(0, 3))
            most = least + draw(st.integers(0, 4))
            return f"({part(left - 1)}){{{least},{most}}}"
        sign = " > " if kind == "then" else " | "
        return f"({part(left - 1)}{sign}{part(left - 1)})"

    return part(3)


def _wraps(text: str) -> bool:
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return position == len(text) - 1
    return False


NAMES = st.sampled_from(sorted(ARCHITECTURES))
