"""Σ paths == the product of sums == a plain forward pass, for every family of architecture."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otimes.algebra import Architecture, Factor
from otimes.errors import OtimesError, UnknownComponentError, UnsupportedError
from tests.algebra.dense import Dense, forward, logits_of

NAMES = {
    "plain": {},
    "two sources": {"positions": "learned"},
    "biases": {"biases": True},
    "pre-norm": {"norm": "layer", "biases": True},
    "pre-norm, no final": {"norm": "rms", "final_norm": False},
    "post-norm": {"norm": "layer", "norm_placement": "post", "biases": True},
    "post-norm, one source": {"norm": "rms", "norm_placement": "post"},
    "BERT": {
        "norm": "layer", "norm_placement": "post", "embed_norm": True, "positions": "learned",
        "token_types": True, "mlp": "source", "biases": True,
    },
    "post-norm neurons": {
        "norm": "layer", "norm_placement": "post", "mlp": "frozen", "neurons": 2, "biases": True,
    },
    "sandwich": {
        "norm": "rms", "norm_placement": "sandwich", "mlp": "frozen", "neurons": 2,
        "multipliers": {"embed"},
    },
    "sandwich, all biases": {
        "norm": "layer", "norm_placement": "sandwich", "mlp": "frozen", "neurons": (1, 2),
        "biases": True, "multipliers": {"residual", "logits", "embed"},
    },
    "OLMo-2": {"norm": "rms", "norm_placement": "output", "mlp": "source"},
    "OLMo-2, all biases": {
        "norm": "layer", "norm_placement": "output", "mlp": "frozen", "neurons": (1, 2),
        "biases": True, "multipliers": {"residual"},
    },
    "GPT-2": {"norm": "layer", "mlp": "source", "positions": "learned", "biases": True},
    "GPT-2, frozen": {
        "norm": "layer", "mlp": "frozen", "neurons": (2, 1), "positions": "learned", "biases": True,
    },
    "NeoX": {"norm": "layer", "mlp": "source", "parallel": True, "biases": True},
    "NeoX, frozen": {
        "norm": "layer", "mlp": "frozen", "neurons": 2, "parallel": True, "biases": True,
    },
    "GPT-J": {"norm": "layer", "mlp": "frozen", "neurons": 2, "parallel": "shared", "biases": True},
    "Granite": {
        "norm": "rms", "mlp": "source", "multipliers": {"embed", "residual", "logits"},
        "kv_heads": 1,
    },
    "some biases": {"norm": "layer", "biases": {"b_V[1]", "b_ln1[0]", "b_final"}},
}  # fmt: skip


def architecture(name: str, heads: Any = (2, 1)) -> Architecture:
    return Architecture(2, heads, **NAMES[name])


def paths_total(arch: Architecture, dense: Dense) -> np.ndarray:
    return np.sum([logits_of(t.expression, arch, dense) for t in arch.logits.expand()], axis=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_paths_add_up_to_the_forward_pass(name: str) -> None:
    arch, dense = architecture(name), Dense(1)
    expected = forward(arch, dense)

    np.testing.assert_allclose(logits_of(arch.logits.expression, arch, dense), expected, rtol=1e-9)
    np.testing.assert_allclose(paths_total(arch, dense), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["GPT-2, frozen", "post-norm", "GPT-J"])
def test_each_term_is_needed(name: str) -> None:
    """The comparison above can fail: no term is zero, none may be dropped or doubled."""
    arch, dense = architecture(name), Dense(1)
    scale = np.abs(forward(arch, dense)).max()

    for term in arch.logits.expand():
        assert np.abs(logits_of(term.expression, arch, dense)).max() > 1e-6 * scale, term.path


@pytest.mark.parametrize("name", NAMES)
def test_counted_is_iterated(name: str) -> None:
    arch = architecture(name)
    paths = arch.logits.expand()
    found = [term.path for term in paths]

    assert len(set(found)) == len(found) == paths.count
    assert Counter(term.order for term in paths) == Counter(
        {k: n for k, n in enumerate(paths.order_counts) if n}
    )
    for k in range(arch.layers + 2):
        own = paths.order(k)
        assert [t.path for t in own] == [t.path for t in paths if t.order == k]
        assert sorted(t.path for t in own.depth_first()) == sorted(t.path for t in own)


@pytest.mark.parametrize("name", NAMES)
def test_depth_first_follows_the_longest_prefix(name: str) -> None:
    paths = architecture(name).logits.expand()
    walked = [(t.source.name, *t.components) for t in paths.depth_first()]

    assert sorted(map(str, walked)) == sorted(str((t.source.name, *t.components)) for t in paths)
    there = set(walked)
    for before, here in pairwise(walked):
        prefix = next((here[:n] for n in range(len(here) - 1, 0, -1) if here[:n] in there), None)
        # the path before this one begins with this one's longest prefix
        assert prefix is None or before[: len(prefix)] == prefix


@pytest.mark.parametrize("name", NAMES)
def test_every_path_is_found_by_its_name(name: str) -> None:
    paths = architecture(name).logits.expand()

    for term in paths:
        assert paths[term.path] == term
        assert paths.contains(term)


def brute_force(arch: Architecture) -> int:
    """Σ over sources of Π over later blocks of (1 + components), written out."""
    sizes = list[int]()
    for layer in range(arch.layers):
        neurons = arch.neurons[layer] if arch.mlp == "frozen" else 0
        if arch.mlp is None or arch.parallel:
            sizes.append(1 + arch.heads[layer] + neurons)
        else:
            sizes += [1 + arch.heads[layer], 1 + neurons]
    return sum(
        int(np.prod(sizes[s.entry :], dtype=object)) if s.joins == "stream" else 1
        for s in arch.sources
    )


architectures = st.builds(
    lambda heads, neurons, norm, placement, mlp, parallel, positions, bias, scaled: Architecture(
        len(heads),
        heads,
        norm=norm,
        norm_placement="pre" if parallel and placement == "post" else placement,
        mlp=mlp,
        neurons=neurons if mlp == "frozen" else None,
        parallel=parallel if mlp else False,
        positions=positions,
        biases=bias,
        multipliers=scaled,
    ),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 2),
    st.sampled_from([None, "layer", "rms"]),
    st.sampled_from(["pre", "post", "sandwich", "output"]),
    st.sampled_from([None, "source", "frozen"]),
    st.sampled_from([False, True, "shared"]),
    st.sampled_from(["none", "learned", "rotary"]),
    st.booleans(),
    st.sets(st.sampled_from(["embed", "residual", "logits"])),
)


@settings(max_examples=40)
@given(architectures)
def test_counts_have_a_closed_form(arch: Architecture) -> None:
    paths = arch.logits.expand()

    assert paths.count == brute_force(arch) == sum(paths.order_counts)
    if paths.count < 3000:
        assert sum(1 for _ in paths) == paths.count
        assert sum(1 for _ in paths.depth_first()) == paths.count


@settings(max_examples=25)
@given(architectures, st.integers(0, 5))
def test_any_architecture_adds_up(arch: Architecture, seed: int) -> None:
    if arch.logits.expand().count > 300:
        return
    dense = Dense(seed)
    expected = forward(arch, dense)
    scale = 1 + np.abs(expected).max()

    assert np.abs(paths_total(arch, dense) - expected).max() < 1e-9 * scale
    assert np.abs(logits_of(arch.logits.expression, arch, dense) - expected).max() < 1e-9 * scale


@settings(max_examples=40)
@given(architectures)
def test_an_architecture_is_its_repr(arch: Architecture) -> None:
    import pickle

    assert eval(repr(arch)) == arch
    _ = arch.sources
    assert pickle.loads(pickle.dumps(arch)) == arch


@pytest.mark.parametrize("name", NAMES)
def test_the_words_built_fast_are_the_words_built_with_checks(name: str) -> None:
    from otimes.algebra import Product

    for term in architecture(name).logits.expand():
        for word in (term.pattern, term.weight):
            if isinstance(word, Product):
                checked = Product(*word.args)
                assert word == checked
                assert word.type == checked.type
                assert hash(word) == hash(checked)


def test_every_constant_has_one_home() -> None:
    """Each bias symbol stands in one source alone, and in no component."""
    for name in NAMES:
        arch = architecture(name)
        homes = Counter(
            str(factor)
            for source in arch.sources
            for factor in source.written.factors
            if factor.name[0] == "b" or (factor.name == "β" and factor.label in ("final", "embed"))
        )
        assert set(homes.values()) <= {1}, name


def test_a_norms_bias_lives_in_each_reader_and_nowhere_else() -> None:
    arch = Architecture(2, 2, norm="layer", biases=True)
    homes = [source.name for source in arch.sources if "β[1.ln1]" in source.written.symbols]

    assert homes == ["bias[1.0]", "bias[1.1]"]


def test_homes_of_biases_by_name() -> None:
    arch = Architecture(
        1, 1, norm="layer", norm_placement="sandwich", mlp="frozen", neurons=1, biases=True
    )

    assert [source.name for source in arch.sources] == [
        "embed", "bias[0.0]", "bias[0.attn]", "bias[mlp0.n0]", "bias[0.mlp]", "bias[final]",
        "bias[unembed]",
    ]  # fmt: skip


def test_an_mlp_that_is_a_source_brings_its_own_biases() -> None:
    arch = Architecture(1, 1, norm="layer", mlp="source", biases=True)

    assert [source.name for source in arch.sources if "mlp" in source.name] == ["mlp0"]
    assert "b_out[0]" not in {name for s in arch.sources for name in s.written.symbols}


def test_a_virtual_pattern_with_and_without_norms() -> None:
    term = Architecture(2, 1, norm="rms").logits.expand()["0.0 > 1.0"]

    assert str(term.pattern) == "D[final] A[1.0] D[1.ln1] A[0.0] D[0.ln1]"
    assert str(term.attention) == "A[1.0] A[0.0]"


def test_order_counts_attention_heads_only() -> None:
    paths = Architecture(1, 2, mlp="frozen", neurons=3).logits.expand()
    term = paths["0.1 > mlp0.n2"]

    assert (term.order, term.kind) == (1, "head")
    assert paths["mlp0.n2"].kind == "mlp"
    assert paths["mlp0.n2"].order == 0
    assert paths.order_counts == (1 + 3, 2 * (1 + 3))
    assert paths.head_words == 3


def test_the_skip_edge_of_a_post_norm_is_on_every_path() -> None:
    paths = Architecture(2, 1, norm="rms", norm_placement="post").logits.expand()

    assert str(paths["direct"]) == ("D[1.ln1] D[0.ln1] ⊗ W_U Γ[1.ln1] Γ[0.ln1] W_E")
    assert str(paths["0.0"]) == "D[1.ln1] D[0.ln1] A[0.0] ⊗ W_U Γ[1.ln1] Γ[0.ln1] W_OV[0.0] W_E"


def test_grouped_heads_share_key_value_groups() -> None:
    arch = Architecture(2, (8, 4), kv_heads=(2, 4))

    assert [arch.kv_head((0, h)) for h in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [arch.kv_head((1, h)) for h in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_heads": 3}, "8 heads cannot share 3 key-value heads in layer 0"),
        ({"kv_heads": 0}, "8 heads cannot share 0 key-value heads"),
        ({"norm": "batch"}, "unknown norm 'batch'; known are None, layer, rms"),
        (
            {"norm_placement": "mid"},
            r"unknown norm_placement 'mid'; known are pre, post, sandwich, output",
        ),
        ({"mlp": True}, "unknown mlp True; known are None, source, frozen"),
        ({"mlp": "frozen"}, "frozen MLPs need neurons="),
        ({"neurons": 3}, 'neurons are components of frozen MLPs: mlp="frozen", not None'),
        ({"parallel": True}, "a parallel block needs an MLP"),
        (
            {"parallel": True, "mlp": "source", "norm": "rms", "norm_placement": "post"},
            "a parallel block with post-norms is no known architecture",
        ),
        ({"embed_norm": True}, "final_norm and embed_norm need a norm"),
        ({"multipliers": ["depth"]}, "unknown multiplier 'depth'; known are embed, residual"),
        ({"biases": ["b_ln1"]}, "unknown bias 'b_ln1': use b_Q, b_K, b_V or b_O for every layer"),
        ({"biases": ["b_V[2]"]}, r"b_V\[1\] for layer 1 of 0 to 1, and b_U"),
        ({"biases": ["b_in"]}, "unknown bias 'b_in'"),
        ({"biases": 3}, "biases is True, False or names such as b_V, not 3"),
        ({"biases": [3]}, "unknown bias 3"),
        ({"multipliers": "depth"}, "unknown multiplier 'depth'"),
        ({"positions": "sinusoidal"}, "unknown positions 'sinusoidal'; known are none, learned"),
        ({"neurons": -1, "mlp": "frozen"}, "neurons must be an integer of 0 or more, not -1"),
    ],
)
def test_what_no_model_has_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Architecture(2, 8, **options)


@pytest.mark.parametrize(
    ("layers", "heads", "message"),
    [
        (-1, 2, "layers must be an integer of 0 or more, not -1"),
        (True, 2, "layers must be an integer of 0 or more, not True"),
        (2, (1,), "heads has 1 numbers for 2 layers; give one for each layer"),
        (2, 1.5, "heads must be an integer of 0 or more, not 1.5"),
        (2, "12", "heads must be an integer of 0 or more, not '12'"),
        (2, None, "heads must be an integer of 0 or more, not None"),
        (10**12, 1, "layers must be at most 100,000, not 1,000,000,000,000"),
        (2, 10**12, "heads must be at most 1,000,000, not 1,000,000,000,000"),
        (2, (1, -2), "heads must be an integer of 0 or more, not -2"),
    ],
)
def test_sizes_that_are_none(layers: Any, heads: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Architecture(layers, heads)


def test_components_that_are_not_there() -> None:
    plain = Architecture(2, (2, 0)).logits.expand()
    sources = Architecture(2, 2, mlp="source").logits.expand()
    frozen = Architecture(2, 2, mlp="frozen", neurons=3).logits.expand()

    with pytest.raises(UnknownComponentError, match=r"no head 1\.0: layer 1 has no heads"):
        plain["1.0"]
    with pytest.raises(UnknownComponentError, match="the MLPs of this model are absent"):
        plain["mlp0.n1"]
    with pytest.raises(UnknownComponentError, match="are sources, which stand in front of a path"):
        sources["0.1 > mlp0.n1"]
    with pytest.raises(UnknownComponentError, match=r"no neuron mlp1\.n3: layer 1 has neurons n0"):
        frozen["mlp1.n3"]
    with pytest.raises(OtimesError, match=r"'mlp1' matches 3 paths, not one \(embed > mlp1\.n0"):
        frozen["mlp1"]


def test_a_parallel_block_is_passed_once() -> None:
    arch = Architecture(1, 1, mlp="frozen", neurons=1, parallel=True)

    assert [t.path for t in arch.logits.expand()] == ["embed", "embed > mlp0.n0", "embed > 0.0"]
    with pytest.raises(OtimesError, match=r"neuron mlp0\.n0 is in the same block as 0\.0"):
        arch.logits.expand()["0.0 > mlp0.n0"]


def test_every_symbol_of_the_paths_is_in_the_context() -> None:
    for name in NAMES:
        arch = architecture(name)
        for term in arch.logits.expand():
            for shown, factor in term.expression.symbols.items():
                assert arch.symbols[shown] is factor
        assert all(isinstance(f, Factor) and str(f) == s for s, f in arch.symbols.items())


def test_the_number_of_paths_of_a_large_frozen_model_is_known_at_once() -> None:
    arch = Architecture(12, 12, norm="layer", mlp="frozen", neurons=3072)

    assert arch.logits.expand().count == (13 * 3073) ** 12
    assert next(iter(arch.logits.expand())).path == "embed"
    parallel = Architecture(12, 12, norm="layer", mlp="frozen", neurons=3072, parallel=True)
    assert parallel.logits.expand().count == 3085**12


@pytest.mark.parametrize(("a", "b"), list(product([{}, {"norm": "rms"}], repeat=2)))
def test_equal_architectures_are_equal(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert (Architecture(2, 2, **a) == Architecture(2, (2, 2), **b)) == (a == b)
