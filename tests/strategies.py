"""What hypothesis draws: architectures of native checkpoints, and inputs for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.factory import ALL_BIASES, bias_names


def _sizes(largest: int) -> st.SearchStrategy[int]:
    """Draw from 1 to ``largest``, evenly: ``integers`` favours 1, where mistakes cannot show."""
    return st.sampled_from(range(1, largest + 1))


@st.composite
def architectures(
    draw: st.DrawFn, max_layers: int = 4, max_heads: int = 3, max_ctx: int = 7
) -> dict[str, Any]:
    """Keyword arguments of ``make_checkpoint``: 0 to 4 layers, GQA, any biases, all positions.

    Each layer draws its own biases, so a model may have b_V in one layer alone.
    """
    n_layers = draw(st.sampled_from(range(max_layers + 1)))
    n_heads = draw(_sizes(max_heads))
    return {
        "seed": draw(st.integers(0, 2**16)),
        "n_layers": n_layers,
        "n_heads": n_heads,
        "n_kv_heads": draw(st.sampled_from([n for n in range(1, n_heads + 1) if n_heads % n == 0])),
        "d_model": draw(_sizes(6)),
        "d_head": draw(_sizes(4)),
        "n_ctx": draw(_sizes(max_ctx)),
        "d_vocab": draw(_sizes(8)),
        "positions": draw(st.sampled_from(["none", "learned", "shortformer"])),
        "biases": draw(st.sets(st.sampled_from(bias_names(n_layers)))),
        "causal": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["float64", "float32", "bfloat16", "float16"])),
        "scale": draw(st.sampled_from([0.1, 0.5, 1.5])),
        "attention_scale": draw(st.sampled_from([None, 1.0, 0.3])),
    }


_HALVES = st.sampled_from([None, 0.5, 2.0])


@st.composite
def _rotaries(draw: st.DrawFn, d_head: int) -> dict[str, Any]:
    dim = draw(st.sampled_from(range(2, d_head + 1, 2)))
    scalings: list[dict[str, Any] | None] = [
        None,
        {"type": "linear", "factor": 3.0},
        {"type": "factors", "factors": [1.0 + f for f in range(dim // 2)]},
        {
            "type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0,
            "original_n_ctx": 20,
        },
    ]  # fmt: skip
    scalings += [{"type": "ntk", "factor": 3.0}] if dim > 2 else []
    return {
        "theta": draw(st.sampled_from([10.0, 1000.0])),
        "dim": dim,
        "pairing": draw(st.sampled_from(["half", "interleaved"])),
        "scaling": draw(st.sampled_from(scalings)),
    }


@st.composite
def families(draw: st.DrawFn, max_layers: int = 2, max_heads: int = 3) -> dict[str, Any]:
    """Keyword arguments of ``make_checkpoint`` for any model that the format has, all biases."""
    made = draw(architectures(max_layers, max_heads, max_ctx=5)) | {"biases": ALL_BIASES}
    layers, norm = made["n_layers"], draw(st.sampled_from([None, "layer", "rms"]))
    made |= {"d_head": 4, "norm": norm, "dtype": "float64", "scale": 0.5}
    made["positions"] = draw(
        st.sampled_from(["none", "learned", "shortformer", "alibi", "rotary", "rotary"])
    )
    if made["positions"] == "rotary":
        each = st.one_of(st.none(), _rotaries(4))
        by_layer = st.lists(each, min_size=layers, max_size=layers)
        made["rotary"] = draw(st.one_of(_rotaries(4), by_layer))
    places = ["pre", "post", "sandwich", "output"]
    if norm is not None:
        made["norm_placement"] = draw(st.sampled_from(places))
        made["qk_norm"] = draw(st.sampled_from([None, "head", "all"]))
        made["final_norm"], made["embed_norm"] = draw(st.booleans()), draw(st.booleans())
    if draw(st.booleans()):
        made |= {"d_mlp": draw(_sizes(5)), "gated": draw(st.booleans())}
        made["activation"] = draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"]))
        if made.get("norm_placement") != "post":
            made["parallel"] = draw(st.sampled_from([False, True, "shared"]))
    for name in ("embed_multiplier", "residual_multiplier", "logits_multiplier",
                 "attention_softcap", "logits_softcap"):  # fmt: skip
        made[name] = draw(_HALVES)
    window = st.sampled_from([None, 1, 2, 3])
    made["windows"] = draw(st.none() | st.lists(window, min_size=layers, max_size=layers))
    made["tied"] = draw(st.booleans())
    made["n_token_types"] = draw(st.sampled_from([None, 2]))
    return made


@dataclass(frozen=True)
class Case:
    """Arguments of ``make_checkpoint``, and tokens and mask [batch][pos] for the model."""

    architecture: dict[str, Any]
    tokens: list[list[int]]
    mask: list[list[bool]] | None


@st.composite
def cases(draw: st.DrawFn, padded: bool = True, of: Any = architectures, **limits: int) -> Case:
    """A model and a batch of 1 to 3 sequences, from one token to the full context.

    With ``padded`` some batches have sequences of different lengths, padded on the left or right.
    ``of`` draws the models: ``architectures`` or ``families``.
    """
    architecture = draw(of(**limits))
    length = draw(_sizes(architecture["n_ctx"]))
    batch = draw(_sizes(3))
    ids = st.integers(0, architecture["d_vocab"] - 1)
    sequence = st.lists(ids, min_size=length, max_size=length)
    tokens = draw(st.lists(sequence, min_size=batch, max_size=batch))
    mask = None
    if padded and draw(st.booleans()):
        mask = []
        for _ in range(batch):
            real = draw(_sizes(length))
            row = [True] * real + [False] * (length - real)
            mask.append(row if draw(st.booleans()) else row[::-1])
    return Case(architecture, tokens, mask)
