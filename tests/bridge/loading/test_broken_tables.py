"""A family table that is wrong is noticed, and the first stream that differs says where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import otimes as ox
from otimes.bridge.loading import families, huggingface
from otimes.bridge.loading.families import BY_MODEL_TYPE, Family, Settings, Take
from tests.bridge.loading.tiny import tiny, tokens

Change = Callable[[Family], Family]


def config_with(**changed: object) -> Change:
    """The family with other fields of the native config."""

    def change(family: Family) -> Family:
        def config(settings: Settings) -> dict[str, object]:
            found = family.config(settings)
            return {**found, **{k: v(found[k]) if callable(v) else v for k, v in changed.items()}}

        return replace(family, config=config)

    return change


def takes_with(change: Callable[[Take], Take]) -> Change:
    return lambda family: replace(family, takes=tuple(map(change, family.takes)))


def axes_with(old: str, new: str) -> Change:
    return takes_with(
        lambda take: replace(take, into={n: a.replace(old, new) for n, a in take.into.items()})
    )


def into_with(old: str, new: str) -> Change:
    return takes_with(
        lambda take: replace(take, into={n.replace(old, new): a for n, a in take.into.items()})
    )


def swap(one: str, other: str) -> Change:
    def change(take: Take) -> Take:
        names = {n.replace(one, "?").replace(other, one).replace("?", other): a
                 for n, a in take.into.items()}  # fmt: skip
        return replace(take, into=names)

    return takes_with(change)


def other_pairing(rotary: object) -> object:
    flipped = {"half": "interleaved", "interleaved": "half"}
    if isinstance(rotary, list):
        return [other_pairing(one) for one in rotary]
    assert isinstance(rotary, dict)
    return {**rotary, "pairing": flipped[rotary["pairing"]]}


def whole_head(rotary: dict) -> dict:
    return {**rotary, "dim": 8}


def unscaled(rotary: dict) -> dict:
    return {**rotary, "scaling": None}


#: a model, what is wrong, the change, and the first stream that shows it (0 is the embedding's)
FAULTS: list[tuple[str, str, Change, int]] = [
    ("gpt2", "the activation is another", config_with(activation="gelu"), 2),
    ("gpt2", "queries and keys are exchanged", swap("W_Q", "W_K"), 1),
    ("gpt2", "heads and their coordinates are exchanged",
     axes_with("head d_head) ->", "d_head head) ->"), 1),
    ("gpt2", "the scale is forgotten", config_with(attention_scale=1.0), 1),
    ("gpt_neox", "heads are taken to be contiguous",
     axes_with("(head 0/3 d_head)", "(0/3 head d_head)"), 1),
    ("gpt_neox", "the branches are taken to be in sequence", config_with(parallel=False), 1),
    ("gpt_neox", "the whole head turns", config_with(rotary=whole_head), 1),
    ("gptj", "rotary coordinates are paired otherwise", config_with(rotary=other_pairing), 1),
    ("llama", "rotary coordinates are paired otherwise", config_with(rotary=other_pairing), 1),
    ("llama", "gate and input are exchanged", swap("W_gate", "W_in"), 2),
    ("llama-13-layers", "the angles are not scaled", config_with(rotary=unscaled), 1),
    ("llama-linear", "the angles are not scaled", config_with(rotary=unscaled), 1),
    ("mistral", "the window is forgotten", config_with(windows=None), 1),
    ("qwen2", "the window is in an earlier layer", config_with(windows=[4, 4, 4]), 1),
    ("qwen3", "norms of queries and keys are of the wrong size", config_with(eps=1e-6), 1),
    ("gemma", "gains are taken without the 1", takes_with(lambda t: replace(t, add=0.0)), 1),
    ("gemma", "the embeddings' multiplier is dropped", config_with(embed_multiplier=None), 0),
    ("gemma2", "the score's soft-cap is dropped", config_with(attention_softcap=None), 1),
    ("gemma2", "the norms before and behind a branch are exchanged", swap("ln1.", "ln1_post."), 1),
    ("gemma2", "windows are in the other layers", config_with(windows=[None, 4, None]), 1),
    ("gemma3", "windows turn as the others do", config_with(rotary=lambda r: [r[1]] * 4), 1),
    ("olmo2", "the norms stand before their branches", config_with(norm_placement="pre"), 1),
    ("phi3", "keys and values are exchanged", swap("W_K", "W_V"), 1),
    ("granite", "the branches' multiplier is dropped", config_with(residual_multiplier=None), 1),
    ("granite", "the score's multiplier is dropped", config_with(attention_scale=0.5), 1),
]  # fmt: skip


def first_difference(name: str) -> int | None:
    model = ox.load(tiny(name))
    # GPT-2 computes in float64 throughout, the others norm or turn in float32
    limit = 1e-10 if name == "gpt2" else 1e-5
    judged, recorded = model.reference()(tokens()), model.original.record(tokens())
    for index, (ours, theirs) in enumerate(zip(judged.streams, recorded.streams, strict=False)):
        if float((ours - theirs).abs().max()) > limit * float(theirs.abs().max()):
            return index
    if float((judged.logits - recorded.logits).abs().max()) > limit * float(
        recorded.logits.abs().max()
    ):
        return len(recorded.streams)
    return None


@pytest.mark.parametrize(
    ("name", "what", "change", "stream"), FAULTS, ids=[f"{f[0]}: {f[1]}" for f in FAULTS]
)
def test_faults_of_a_table_are_located(name, what, change, stream, monkeypatch):
    family = BY_MODEL_TYPE[families_name(name)]
    if what.startswith("the norms stand before"):
        change = _both(change, into_with("_post.", "."))
    broken = {**BY_MODEL_TYPE, families_name(name): change(family)}
    monkeypatch.setattr(huggingface, "BY_MODEL_TYPE", broken)

    assert first_difference(name) == stream


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gemma2", config_with(logits_softcap=None)),
        ("granite", config_with(logits_multiplier=None)),
    ],
)
def test_faults_of_the_unembedding_show_in_the_logits_alone(name, change, monkeypatch):
    family = BY_MODEL_TYPE[families_name(name)]
    monkeypatch.setattr(huggingface, "BY_MODEL_TYPE", {families_name(name): change(family)})

    assert first_difference(name) == 7


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_kv_heads_that_are_tiled_are_noticed(name, monkeypatch):
    from otimes.models.reference.attention import Attention

    forward = Attention.forward

    def tiled_forward(self: Attention, *args: torch.Tensor) -> object:
        # the KV heads of a tiled model are those of another order of the query heads
        order = torch.arange(6).view(2, 3).T.flatten()
        W_Q, W_O, b_Q = self.W_Q, self.W_O, self.b_Q
        self.W_Q = torch.nn.Parameter(W_Q[order], requires_grad=False)
        self.W_O = torch.nn.Parameter(W_O[order], requires_grad=False)
        self.b_Q = None if b_Q is None else torch.nn.Parameter(b_Q[order], requires_grad=False)
        try:
            return forward(self, *args)
        finally:
            self.W_Q, self.W_O, self.b_Q = W_Q, W_O, b_Q

    monkeypatch.setattr(Attention, "forward", tiled_forward)
    assert first_difference(name) == 1


def test_nothing_differs_where_nothing_is_broken():
    for name in ("gpt2", "gemma3", "olmo2"):
        assert first_difference(name) is None


def families_name(name: str) -> str:
    """The model_type of a tiny model."""
    from tests.bridge.loading.tiny import CONFIGS

    return CONFIGS[name][0]


def _both(one: Change, other: Change) -> Change:
    return lambda family: other(one(family))


@pytest.mark.parametrize("source", ["model.layers.{l}.self_attn.v_proj.bias", "model.norm.weight"])
def test_lines_that_are_missing_from_a_table_are_noticed(source, monkeypatch):
    family = families.BY_MODEL_TYPE["llama"]
    less = replace(family, takes=tuple(t for t in family.takes if t.source != source))
    monkeypatch.setattr(huggingface, "BY_MODEL_TYPE", {"llama": less})

    with pytest.raises(ox.OtimesError, match="which the table of Llama does not know"):
        ox.load(tiny("llama"))
