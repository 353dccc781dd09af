"""Canonical weights: every checkpoint, whatever its source, becomes these tensors.

The layout is the ecosystem's, inputs on the left: a head reads ``x W_Q[h]``, writes ``z W_O[h]``.
Query head ``h`` reads the KV head ``h // (n_heads / n_kv_heads)``. A bias that is None does not
exist; one that is there is a source of paths even if it is zero. A norm's gain is what it
multiplies by: loaders of families that store ``w − 1`` add the 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.bridge.loading.config import Config
from otimes.errors import UnsupportedError


# eq=False: comparing tensors gives tensors, so equality of weights is identity
@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """The heads of one layer, and the gains of the norms of their queries and keys."""

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "kv_head d_model d_head"]
    W_V: Float[Tensor, "kv_head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    b_Q: Float[Tensor, "head d_head"] | None = None
    b_K: Float[Tensor, "kv_head d_head"] | None = None
    b_V: Float[Tensor, "kv_head d_head"] | None = None
    b_O: Float[Tensor, " d_model"] | None = None
    q_norm: Float[Tensor, " d_head"] | Float[Tensor, "head d_head"] | None = None
    k_norm: Float[Tensor, " d_head"] | Float[Tensor, "kv_head d_head"] | None = None


@dataclass(frozen=True, eq=False)
class MLPWeights:
    """The MLP of one layer: ``φ(x W_in + b_in) W_out + b_out``.

    With ``W_gate`` it is gated: ``φ(x W_gate + b_gate) · (x W_in + b_in)`` goes through ``W_out``.
    """

    W_in: Float[Tensor, "d_model d_mlp"]
    W_out: Float[Tensor, "d_mlp d_model"]
    W_gate: Float[Tensor, "d_model d_mlp"] | None = None
    b_in: Float[Tensor, " d_mlp"] | None = None
    b_gate: Float[Tensor, " d_mlp"] | None = None
    b_out: Float[Tensor, " d_model"] | None = None


@dataclass(frozen=True, eq=False)
class NormWeights:
    """A norm's gain and bias."""

    w: Float[Tensor, " d_model"]
    b: Float[Tensor, " d_model"] | None = None


@dataclass(frozen=True, eq=False)
class Weights:
    """All tensors of a model, in their storage dtypes.

    Attributes:
        mlps: one for each layer; empty where the model has no MLPs.
        norms: by the label of their symbols: ``0.ln1``, ``0.ln2_post``, ``final``, ``embed``.
        tied: ``W_U`` is a view of ``W_E`` and not in the file.
        unused: the tensors of the file that the model does not have, in sorted order; they are text
            from the file, to be escaped where they are shown.
        sources: where a family's table made them of other tensors, the names of these, each used
            once, in sorted order.
    """

    W_E: Float[Tensor, "d_vocab d_model"]
    W_pos: Float[Tensor, "n_ctx d_model"] | None
    layers: tuple[AttentionWeights, ...]
    W_U: Float[Tensor, "d_model d_vocab"]
    b_U: Float[Tensor, " d_vocab"] | None = None
    unused: tuple[str, ...] = ()
    W_type: Float[Tensor, "types d_model"] | None = None
    mlps: tuple[MLPWeights, ...] = ()
    norms: Mapping[str, NormWeights] = field(default_factory=dict[str, NormWeights])
    tied: bool = False
    sources: tuple[str, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by its name in a native file, each exactly once.

        A tied ``unembed.W_U`` is among them, as a view of ``embed.W_E``: it has uses of its own.
        """
        found: dict[str, Tensor | None] = {
            "embed.W_E": self.W_E,
            "pos_embed.W_pos": self.W_pos,
            "type_embed.W_type": self.W_type,
        }
        for label, norm in self.norms.items():
            found |= {f"{norm_file_name(label)}.{part}": getattr(norm, part) for part in "wb"}
        for index, layer in enumerate(self.layers):
            for name in _ATTENTION:
                found[f"blocks.{index}.attn.{name}"] = getattr(layer, _field_name(name))
        for index, mlp in enumerate(self.mlps):
            for name in _MLP:
                found[f"blocks.{index}.mlp.{name}"] = getattr(mlp, name)
        found |= {"unembed.W_U": self.W_U, "unembed.b_U": self.b_U}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def names(self) -> tuple[str, ...]:
        """Return the name of each tensor that is used, for the parameter audit."""
        return tuple(self.tensors())

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The storage dtypes by name, sorted: ``("bfloat16", "float32")``, for example."""
        return tuple(sorted({str(t.dtype).removeprefix("torch.") for t in self.tensors().values()}))

    @property
    def upcast(self) -> tuple[str, ...]:
        """What reports say of weights in 16 bits, which no sum is made in; else nothing."""
        narrow = [name for name in self.dtypes if name in ("bfloat16", "float16")]
        stored = " and ".join(narrow)
        return (f"weights at the values stored in {stored}, upcast before any sum",) * bool(narrow)

    def to(self, dtype: torch.dtype) -> Weights:
        """Return new weights in ``dtype``, without gradients; these stay as they are.

        Upcasting is exact; a dtype narrower than the storage rounds. Tensors that have the dtype
        already are shared, not copied, and tied ones stay tied.

        Raises:
            UnsupportedError: ``dtype`` is not a floating-point type.
        """
        if not dtype.is_floating_point:
            raise UnsupportedError(
                f"weights cannot be converted to {dtype}, which would cut off their fractions: use "
                "torch.float64 or torch.float32"
            )
        kept = {name: t for name, t in self.tensors().items() if not self._is_view(name)}
        converted = {name: t.detach().to(dtype) for name, t in kept.items()}
        return replace(
            from_tensors(converted, len(self.layers)), unused=self.unused, sources=self.sources
        )

    def _is_view(self, name: str) -> bool:
        return self.tied and name == "unembed.W_U"


@dataclass(frozen=True)
class Slot:
    """A tensor that a model of some config has or may have: its name, axes and sizes."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    required: bool

    def __str__(self) -> str:
        """Return the shape with its axes: ``[head=8, d_model=128, d_head=32]``."""
        sizes = zip(self.axes, self.shape, strict=True)
        return f"[{', '.join(f'{axis}={size}' for axis, size in sizes)}]"


_ATTENTION: Mapping[str, tuple[str, ...]] = {
    "W_Q": ("head", "d_model", "d_head"),
    "W_K": ("kv_head", "d_model", "d_head"),
    "W_V": ("kv_head", "d_model", "d_head"),
    "W_O": ("head", "d_head", "d_model"),
    "b_Q": ("head", "d_head"),
    "b_K": ("kv_head", "d_head"),
    "b_V": ("kv_head", "d_head"),
    "b_O": ("d_model",),
    "q_norm.w": ("head", "d_head"),
    "k_norm.w": ("kv_head", "d_head"),
}
_MLP: Mapping[str, tuple[str, ...]] = {
    "W_in": ("d_model", "d_mlp"),
    "W_gate": ("d_model", "d_mlp"),
    "W_out": ("d_mlp", "d_model"),
    "b_in": ("d_mlp",),
    "b_gate": ("d_mlp",),
    "b_out": ("d_model",),
}


def _field_name(tensor: str) -> str:
    """The field that holds a tensor: ``q_norm`` for ``q_norm.w``."""
    return tensor.partition(".")[0]


def norm_file_name(label: str) -> str:
    """The name in a file of the norm that symbols label ``0.ln1``, ``final`` or ``embed``.

    >>> norm_file_name("12.ln2_post"), norm_file_name("final")
    ('blocks.12.ln2_post', 'ln_final')
    """
    return f"blocks.{label}" if "." in label else f"ln_{label}"


def norm_labels(config: Config) -> list[str]:
    """The labels of the norms that a model of this config has, in the order of their use."""
    if config.norm is None:
        return []
    branches = ["ln1"] if config.d_mlp is None else ["ln1", "ln2"]
    found = ["embed"] if config.embed_norm else []
    for layer in range(config.n_layers):
        for branch in branches:
            # parallel branches that share a norm read through the first
            shared = branch == "ln2" and config.parallel == "shared"
            if config.norm_placement != "output" and not shared:
                found.append(f"{layer}.{branch}")
            if config.norm_placement in ("sandwich", "output"):
                found.append(f"{layer}.{branch}_post")
    return [*found, "final"] if config.final_norm else found


def axis_sizes(config: Config) -> dict[str, int]:
    """How long each axis of a tensor is, by its name."""
    return {
        "head": config.n_heads,
        "kv_head": config.n_kv_heads,
        "d_model": config.d_model,
        "d_head": config.d_head,
        "d_mlp": config.d_mlp or 0,
        "n_ctx": config.n_ctx,
        "d_vocab": config.d_vocab,
        "types": config.n_token_types or 0,
    }


def slots(config: Config) -> Iterator[Slot]:
    """Yield the tensors that a model of this config has (``required``) or may have."""
    sizes = axis_sizes(config)

    def slot(name: str, axes: tuple[str, ...], *, required: bool = True) -> Slot:
        return Slot(name, axes, tuple(sizes[axis] for axis in axes), required)

    yield slot("embed.W_E", ("d_vocab", "d_model"))
    if config.positions in ("learned", "shortformer"):
        yield slot("pos_embed.W_pos", ("n_ctx", "d_model"))
    if config.n_token_types is not None:
        yield slot("type_embed.W_type", ("types", "d_model"))
    for label in norm_labels(config):
        yield slot(f"{norm_file_name(label)}.w", ("d_model",))
        yield slot(f"{norm_file_name(label)}.b", ("d_model",), required=False)
    for layer in range(config.n_layers):
        for tensor, axes in _ATTENTION.items():
            if tensor.endswith("_norm.w"):
                if config.qk_norm is None:
                    continue
                # over all heads together each has gains of its own, else all share them
                gains = axes if config.qk_norm == "all" else axes[1:]
                yield slot(f"blocks.{layer}.attn.{tensor}", gains)
                continue
            yield slot(f"blocks.{layer}.attn.{tensor}", axes, required=tensor.startswith("W_"))
        for tensor, axes in _MLP.items() if config.d_mlp is not None else ():
            required = tensor in ("W_in", "W_out")
            yield slot(f"blocks.{layer}.mlp.{tensor}", axes, required=required)
    if not config.tied:
        yield slot("unembed.W_U", ("d_model", "d_vocab"))
    yield slot("unembed.b_U", ("d_vocab",), required=False)


_NORM = re.compile(r"(?:blocks\.(\d+\.ln[12](?:_post)?)|ln_(final|embed))\.w")


def from_tensors(tensors: Mapping[str, Tensor], n_layers: int) -> Weights:
    """Put tensors that were checked against ``slots`` into their places.

    Args:
        tensors: by name in the native format; nothing else may be there. Without ``unembed.W_U``
            the unembedding is tied.
        n_layers: the number of layers.
    """
    norms = dict[str, NormWeights]()
    for name, gain in tensors.items():
        if match := _NORM.fullmatch(name):
            norms[match[1] or match[2]] = NormWeights(gain, tensors.get(name[:-1] + "b"))
    attention, mlps = list[AttentionWeights](), list[MLPWeights]()
    for layer in range(n_layers):
        own = _part(tensors, f"blocks.{layer}.attn.", _ATTENTION)
        attention.append(AttentionWeights(**own))
        if f"blocks.{layer}.mlp.W_in" in tensors:
            mlps.append(MLPWeights(**_part(tensors, f"blocks.{layer}.mlp.", _MLP)))
    W_E = tensors["embed.W_E"]
    return Weights(
        W_E=W_E,
        W_pos=tensors.get("pos_embed.W_pos"),
        layers=tuple(attention),
        W_U=tensors.get("unembed.W_U", W_E.T),
        b_U=tensors.get("unembed.b_U"),
        W_type=tensors.get("type_embed.W_type"),
        mlps=tuple(mlps),
        norms=norms,
        tied="unembed.W_U" not in tensors,
    )


def _part(
    tensors: Mapping[str, Tensor], prefix: str, names: Mapping[str, object]
) -> dict[str, Tensor]:
    """The tensors below a prefix, by the fields that hold them."""
    return {_field_name(n): tensors[prefix + n] for n in names if prefix + n in tensors}
