"""Architectures for tests of scores and graphs, and the plain model that goes with each."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from otimes.algebra import Architecture
from tests.oracles.scores import D_HEAD, Model

EXAMPLES: dict[str, Any] = {
    "plain": {"layers": 2, "heads": 3},
    "uneven": {"layers": 3, "heads": (2, 0, 1)},
    "biases": {"layers": 2, "heads": 2, "biases": True},
    "grouped": {"layers": 2, "heads": 4, "kv_heads": 2, "biases": True},
    "learned": {"layers": 2, "heads": 2, "positions": "learned", "token_types": True},
    "shortformer": {"layers": 2, "heads": 2, "positions": "shortformer", "biases": True},
    "shortformer-norm": {"layers": 2, "heads": 1, "positions": "shortformer", "norm": "layer"},
    "pre": {"layers": 2, "heads": 2, "norm": "layer", "biases": True, "embed_norm": True},
    "post": {"layers": 2, "heads": 2, "norm": "layer", "norm_placement": "post", "biases": True},
    "post-mlp": {
        "layers": 2, "heads": 1, "norm": "layer", "norm_placement": "post", "biases": True,
        "mlp": "source",
    },
    "sandwich": {
        "layers": 2, "heads": 2, "norm": "rms", "norm_placement": "sandwich", "biases": True,
        "mlp": "frozen", "neurons": 2, "multipliers": {"embed", "residual", "logits"},
    },
    "frozen": {"layers": 2, "heads": 2, "mlp": "frozen", "neurons": 2, "biases": True},
    "parallel": {
        "layers": 2, "heads": 2, "mlp": "frozen", "neurons": 1, "biases": True, "norm": "layer",
        "parallel": True,
    },
    "shared": {
        "layers": 2, "heads": 1, "mlp": "source", "biases": True, "norm": "layer",
        "parallel": "shared",
    },
    "q and k norms": {
        "layers": 2, "heads": 4, "kv_heads": 2, "norm": "rms", "qk_norm": "head", "biases": True,
    },
    "q and k norms of all heads": {
        "layers": 2, "heads": 4, "kv_heads": 2, "norm": "rms", "qk_norm": "all", "mlp": "source",
        "norm_placement": "output", "biases": {"b_Q", "b_K"},
    },
    "q and k norms that couple heads": {
        "layers": 2, "heads": (2, 4), "kv_heads": 2, "norm": "layer", "qk_norm": "all",
        "biases": True, "positions": "shortformer",
    },
    "alibi": {"layers": 2, "heads": 2, "positions": "alibi", "biases": {"b_K"}},
    "relative": {"layers": 1, "heads": 2, "positions": "relative", "norm": "rms"},
}  # fmt: skip

ROTARY: dict[str, Any] = {
    "half": {"rotary": (D_HEAD, "half"), "kv_heads": 1},
    "interleaved": {"rotary": (D_HEAD, "interleaved"), "biases": True},
    "partial half": {"rotary": (4, "half"), "biases": True, "norm": "layer"},
    "partial interleaved": {"rotary": (4, "interleaved")},
    "q and k norms": {
        "rotary": (4, "half"),
        "norm": "rms",
        "qk_norm": "head",
        "kv_heads": 1,
        "biases": {"b_Q"},
    },
    "q and k norms that couple heads": {
        "rotary": (D_HEAD, "interleaved"),
        "norm": "layer",
        "qk_norm": "all",
        "biases": {"b_K"},
    },
}


def model_of(arch: Architecture, seed: int = 0, rotary: tuple[int, str] = (0, "half")) -> Model:
    """The plain model with the parts that an architecture names."""
    return Model(
        heads=arch.heads,
        kv_heads=arch.kv_heads,
        positions=arch.positions,
        token_types=arch.token_types,
        norm=arch.norm is not None,
        placement=arch.norm_placement,
        embed_norm=arch.embed_norm,
        mlp=arch.mlp,
        neurons=arch.neurons,
        parallel=arch.parallel,
        multipliers=arch.multipliers,
        biases=arch.biases,
        rotary=rotary,
        qk_norm=arch.qk_norm,
        centred=arch.norm == "layer",
        seed=seed,
    )


@st.composite
def architectures(draw: st.DrawFn, max_layers: int = 3, max_heads: int = 2) -> Architecture:
    """Small architectures with any combination of what there is."""
    layers = draw(st.integers(0, max_layers))
    sizes = st.integers(0, max_heads)
    mlp = draw(st.sampled_from([None, "source", "frozen"]))
    parallel = draw(st.sampled_from([False, True, "shared"])) if mlp else False
    norm = draw(st.sampled_from([None, "layer", "rms"]))
    places = ["pre", "sandwich", "output"] + ([] if parallel else ["post"])
    multipliers = draw(st.sets(st.sampled_from(["embed", "residual", "logits"])))
    whole: dict[str, Any] = {
        "heads": draw(st.lists(sizes, min_size=layers, max_size=layers)),
        "positions": draw(
            st.sampled_from(["none", "learned", "shortformer", "rotary", "alibi", "relative"])
        ),
        "token_types": draw(st.booleans()),
        "norm": norm,
        "norm_placement": draw(st.sampled_from(places)),
        "embed_norm": norm is not None and draw(st.booleans()),
        "qk_norm": draw(st.sampled_from([None, "head", "all"])) if norm is not None else None,
        "mlp": mlp,
        "neurons": draw(st.lists(sizes, min_size=layers, max_size=layers))
        if mlp == "frozen"
        else None,
        "parallel": parallel,
        "multipliers": multipliers,
    }
    everything = sorted(Architecture(layers, **whole, biases=True).biases)
    biases = draw(st.sets(st.sampled_from(everything))) if everything else set[str]()
    return Architecture(layers, **whole, biases=biases)
