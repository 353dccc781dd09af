"""Canonical weights: every checkpoint, whatever its source, becomes these tensors.

The layout is the ecosystem's, inputs on the left: a head reads ``x W_Q[h]``, writes ``z W_O[h]``.
Query head ``h`` reads the KV head ``h // (n_heads / n_kv_heads)``. A bias that is None does not
exist; one that is there is a source of paths even if it is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.bridge.loading.config import Config
from otimes.errors import UnsupportedError


# eq=False: comparing tensors gives tensors, so equality of weights is identity
@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """The heads of one layer."""

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "kv_head d_model d_head"]
    W_V: Float[Tensor, "kv_head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    b_Q: Float[Tensor, "head d_head"] | None = None
    b_K: Float[Tensor, "kv_head d_head"] | None = None
    b_V: Float[Tensor, "kv_head d_head"] | None = None
    b_O: Float[Tensor, " d_model"] | None = None


@dataclass(frozen=True, eq=False)
class Weights:
    """All tensors of an attention-only model, in their storage dtypes.

    ``unused`` names the tensors of the file that the model does not have, in sorted order; they are
    text from the file, to be escaped where they are shown.
    """

    W_E: Float[Tensor, "d_vocab d_model"]
    W_pos: Float[Tensor, "n_ctx d_model"] | None
    layers: tuple[AttentionWeights, ...]
    W_U: Float[Tensor, "d_model d_vocab"]
    b_U: Float[Tensor, " d_vocab"] | None = None
    unused: tuple[str, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that exists by its name in a native file, each exactly once."""
        found: dict[str, Tensor | None] = {"embed.W_E": self.W_E, "pos_embed.W_pos": self.W_pos}
        for index, layer in enumerate(self.layers):
            for field in fields(layer):
                found[f"blocks.{index}.attn.{field.name}"] = getattr(layer, field.name)
        found |= {"unembed.W_U": self.W_U, "unembed.b_U": self.b_U}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def names(self) -> tuple[str, ...]:
        """Return the name in the file of each tensor that is used, for the parameter audit."""
        return tuple(self.tensors())

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The storage dtypes by name, sorted: what a report says about upcasting.

        ``("bfloat16", "float32")``, for example.
        """
        return tuple(sorted({str(t.dtype).removeprefix("torch.") for t in self.tensors().values()}))

    def to(self, dtype: torch.dtype) -> Weights:
        """Return new weights in ``dtype``, without gradients; these stay as they are.

        Upcasting is exact; a dtype narrower than the storage rounds. Tensors that have the dtype
        already are shared, not copied.

        Raises:
            UnsupportedError: ``dtype`` is not a floating-point type.
        """
        if not dtype.is_floating_point:
            raise UnsupportedError(
                f"weights cannot be converted to {dtype}, which would cut off their fractions: use "
                "torch.float64 or torch.float32"
            )
        converted = {name: t.detach().to(dtype) for name, t in self.tensors().items()}
        return replace(from_tensors(converted, len(self.layers)), unused=self.unused)


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
}


def slots(config: Config) -> Iterator[Slot]:
    """Yield the tensors that a model of this config has (``required``) or may have (biases)."""
    sizes = {
        "head": config.n_heads,
        "kv_head": config.n_kv_heads,
        "d_model": config.d_model,
        "d_head": config.d_head,
        "n_ctx": config.n_ctx,
        "d_vocab": config.d_vocab,
    }

    def slot(name: str, axes: tuple[str, ...], *, required: bool = True) -> Slot:
        return Slot(name, axes, tuple(sizes[axis] for axis in axes), required)

    yield slot("embed.W_E", ("d_vocab", "d_model"))
    if config.positions != "none":
        yield slot("pos_embed.W_pos", ("n_ctx", "d_model"))
    for layer in range(config.n_layers):
        for tensor, axes in _ATTENTION.items():
            yield slot(f"blocks.{layer}.attn.{tensor}", axes, required=tensor.startswith("W_"))
    yield slot("unembed.W_U", ("d_model", "d_vocab"))
    yield slot("unembed.b_U", ("d_vocab",), required=False)


def from_tensors(tensors: Mapping[str, Tensor], n_layers: int) -> Weights:
    """Put tensors that were checked against ``slots`` into their places.

    Args:
        tensors: by name in the native format; nothing else may be there.
        n_layers: the number of layers.
    """
    return Weights(
        W_E=tensors["embed.W_E"],
        W_pos=tensors.get("pos_embed.W_pos"),
        layers=tuple(
            AttentionWeights(
                **{
                    name: tensors[f"blocks.{layer}.attn.{name}"]
                    for name in _ATTENTION
                    if f"blocks.{layer}.attn.{name}" in tensors
                }
            )
            for layer in range(n_layers)
        ),
        W_U=tensors["unembed.W_U"],
        b_U=tensors.get("unembed.b_U"),
    )
