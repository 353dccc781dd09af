"""TransformerLens: its parameter names and its config, of models it made or converted.

The layout is the canonical one already. Weights that it has processed (norms folded, centred) are
taken as they are: with ``LNPre`` and ``RMSPre`` norms, which have no gains left, the gains are 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from otimes.bridge.loading.config import Config
from otimes.bridge.loading.families.settings import Settings
from otimes.bridge.loading.families.table import Family, Places, Take
from otimes.errors import UnsupportedError

_NORMS: Mapping[object, str | None] = {
    None: None, "LN": "layer", "LNPre": "layer", "RMS": "rms", "RMSPre": "rms",
}  # fmt: skip
_POSITIONS: Mapping[object, str] = {
    "standard": "learned", "shortformer": "shortformer", "rotary": "rotary", "alibi": "alibi",
    "none": "none",
}  # fmt: skip
_OTHERWISE = "write the weights into a native checkpoint that says how"


def config(settings: Settings) -> dict[str, object]:
    """The fields of a native config for those of a ``HookedTransformerConfig``."""
    for key in (
        "use_logn_attn", "use_dynamic_ntk_rope", "use_NTK_by_parts_rope", "use_yarn_rope",
        "use_attention_sinks", "scale_attn_by_inverse_layer_idx",
    ):  # fmt: skip
        settings.only(key, False, need=_OTHERWISE)
    for key in ("clip_qkv", "num_experts", "rotary_base_local", "relative_attention_num_buckets"):
        settings.only(key, None, need=_OTHERWISE)
    settings.only("rotary_scaling_factor", 1, need=_OTHERWISE)
    d_head = settings.size("d_head")
    positions = _one_of(settings, "positional_embedding_type", _POSITIONS)
    norm = _one_of(settings, "normalization_type", _NORMS)
    has_mlp = not settings.truth("attn_only", default=False)
    both = settings.truth("use_normalization_before_and_after", default=False)
    return {
        "n_layers": settings.size("n_layers"),
        "n_heads": settings.size("n_heads"),
        "n_kv_heads": settings.size("n_key_value_heads", "n_heads"),
        "d_model": settings.size("d_model"),
        "d_head": d_head,
        "d_mlp": settings.size("d_mlp") if has_mlp else None,
        "n_ctx": settings.size("n_ctx"),
        "d_vocab": settings.size("d_vocab"),
        "positions": positions,
        "rotary": _rotary(settings, d_head) if positions == "rotary" else None,
        "norm": norm,
        "eps": settings.positive_number("eps") if norm is not None else None,
        "norm_placement": "sandwich" if both else "pre",
        "embed_norm": settings.truth("post_embedding_ln", default=False),
        "qk_norm": "head" if settings.truth("use_qk_norm", default=False) else None,
        "activation": settings.activation("act_fn") if has_mlp else None,
        "causal": settings.mapping.get("attention_dir") != "bidirectional",
        "attention_scale": _scale(settings, d_head),
        "attention_softcap": _cap(settings, "attn_scores_soft_cap"),
        "logits_softcap": _cap(settings, "output_logits_soft_cap"),
        "parallel": has_mlp and settings.truth("parallel_attn_mlp", default=False),
        "windows": _windows(settings),
    }


def _one_of(settings: Settings, key: str, known: Mapping[object, str | None]) -> str | None:
    value = settings.mapping.get(key)
    if value not in known:
        names = ", ".join(str(name) for name in known)
        raise UnsupportedError(
            f"{settings.where}: {key} is {value!r}, which otimes does not compute: it has {names}"
        )
    return known[value]


def _rotary(settings: Settings, d_head: int) -> dict[str, object]:
    adjacent = settings.truth("rotary_adjacent_pairs", default=False)
    return {
        "theta": settings.positive_number("rotary_base"),
        "dim": settings.size("rotary_dim") if settings.has("rotary_dim") else d_head,
        "pairing": "interleaved" if adjacent else "half",
    }


def _scale(settings: Settings, d_head: int) -> float:
    if not settings.truth("use_attn_scale", default=True):
        return 1.0
    divisor = settings.number("attn_scale")
    return 1 / divisor if divisor > 0 else d_head**-0.5


def _cap(settings: Settings, key: str) -> float | None:
    value = settings.number(key)
    return value if value > 0 else None


def _windows(settings: Settings) -> list[int | None] | None:
    if not settings.truth("use_local_attn", default=False):
        return None
    layers, window = settings.size("n_layers"), settings.size("window_size")
    types = settings.items("attn_types", layers, "global or local for each layer")
    return [window if one == "local" else None for one in types]


def idle(config: Config, state: Mapping[str, Tensor], where: str) -> list[str]:
    """Positions of a model with ALiBi, and what a gated MLP adds to its product if it is 0."""
    found = ["pos_embed.W_pos"] if config.positions == "alibi" else []
    for layer in range(config.n_layers):
        name = f"blocks.{layer}.mlp.b_in"
        if f"blocks.{layer}.mlp.W_gate" not in state or name not in state:
            continue
        # there b_in is added to act(x W_gate) * (x W_in), which no other model does
        if bool(state[name].any()):
            raise UnsupportedError(
                f"{where}: {name} is not 0 in a gated MLP, where TransformerLens adds it to the "
                "product with the gate: add b_in W_out to b_out and set b_in to 0"
            )
        found.append(name)
    return [name for name in found if name in state]


_BLOCK = "blocks.{l}"
_SAME: Mapping[str, str] = {
    "embed.W_E": "d_vocab d_model",
    "pos_embed.W_pos": "n_ctx d_model",
    "unembed.W_U": "d_model d_vocab",
    "unembed.b_U": "d_vocab",
    f"{_BLOCK}.attn.W_Q": "head d_model d_head",
    f"{_BLOCK}.attn.W_K": "kv_head d_model d_head",
    f"{_BLOCK}.attn.W_V": "kv_head d_model d_head",
    f"{_BLOCK}.attn.W_O": "head d_head d_model",
    f"{_BLOCK}.attn.b_Q": "head d_head",
    f"{_BLOCK}.attn.b_K": "kv_head d_head",
    f"{_BLOCK}.attn.b_V": "kv_head d_head",
    f"{_BLOCK}.attn.b_O": "d_model",
    f"{_BLOCK}.attn.q_norm.w": "d_head",
    f"{_BLOCK}.attn.k_norm.w": "d_head",
    f"{_BLOCK}.mlp.W_in": "d_model d_mlp",
    f"{_BLOCK}.mlp.W_gate": "d_model d_mlp",
    f"{_BLOCK}.mlp.W_out": "d_mlp d_model",
    f"{_BLOCK}.mlp.b_in": "d_mlp",
    f"{_BLOCK}.mlp.b_out": "d_model",
    **{
        f"{at}.{part}": "d_model"
        for at in (
            *(f"{_BLOCK}.{norm}" for norm in ("ln1", "ln2", "ln1_post", "ln2_post")),
            "ln_final",
        )
        for part in "wb"
    },
}

TRANSFORMER_LENS = Family(
    name="TransformerLens",
    model_types=("transformer_lens",),
    config=config,
    takes=(
        *(Take(name, {name: axes}) for name, axes in _SAME.items()),
        # keys and values that are stored once for each group of heads
        *(
            Take(f"{_BLOCK}.attn._{name}", {f"{_BLOCK}.attn.{name}": axes})
            for name, axes in (
                ("W_K", "kv_head d_model d_head"),
                ("W_V", "kv_head d_model d_head"),
                ("b_K", "kv_head d_head"),
                ("b_V", "kv_head d_head"),
            )
        ),
        Take("embed.ln.w", {"ln_embed.w": "d_model"}),
        Take("embed.ln.b", {"ln_embed.b": "d_model"}),
    ),
    defaults={
        "act_fn": "relu",
        "normalization_type": "LN",
        "positional_embedding_type": "standard",
        "eps": 1e-5,
        "attn_scale": -1.0,
        "rotary_base": 10000,
        "attn_scores_soft_cap": -1.0,
        "output_logits_soft_cap": -1.0,
    },
    buffers=(
        f"{_BLOCK}.attn.mask",
        f"{_BLOCK}.attn.IGNORE",
        f"{_BLOCK}.attn.rotary_sin",
        f"{_BLOCK}.attn.rotary_cos",
    ),
    idle=idle,
    unit_gains=True,
    places=Places(
        layer=f"{_BLOCK}",
        attention="attn",
        mlp="mlp",
        middle="hook_resid_mid",
        final=("ln_final", "unembed"),
    ),
)
