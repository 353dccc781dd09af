"""What hypothesis draws: architectures of native checkpoints, and inputs for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.factory import bias_names


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


@dataclass(frozen=True)
class Case:
    """Arguments of ``make_checkpoint``, and tokens and mask [batch][pos] for the model."""

    architecture: dict[str, Any]
    tokens: list[list[int]]
    mask: list[list[bool]] | None


@st.composite
def cases(draw: st.DrawFn, padded: bool = True, **limits: int) -> Case:
    """A model and a batch of 1 to 3 sequences, from one token to the full context.

    With ``padded`` some batches have sequences of different lengths, padded on the left or right.
    """
    architecture = draw(architectures(**limits))
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
