"""What a family of models is to the loader: a table, and how to read its config.

A family is a page: the defaults of its config, a function from the config to the fields of a
native ``config.json``, one line for each tensor, and the names of its modules. ``docs/models.md``
shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from otimes.bridge.loading.config import Config
from otimes.bridge.loading.families.settings import Settings

FLOAT32_PARTS = ("norms", "angles", "scores", "softmax")
"""What modules may compute in float32 whatever their dtype is.

``norms``: these, and multipliers of embeddings; ``angles``: of rotary positions; ``scores``:
products of queries and keys; ``softmax``.
"""


@dataclass(frozen=True)
class Take:
    """One tensor of a source, and the canonical tensors that are made of it.

    Attributes:
        source: its name; ``{l}`` stands for the layer's number.
        into: for each canonical name the pattern of axes (see ``otimes.bridge.loading.axes``).
            Together they use every value of the source once.
        add: a number that is added to every value: 1 for gains that are stored as ``w − 1``.
    """

    source: str
    into: Mapping[str, str]
    add: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Places:
    """The names of the modules whose inputs and outputs show the blocks of an original module.

    Attributes:
        layer: a layer; its input is the residual stream.
        attention: within a layer: writes what the heads write, ``b_O`` added, before a norm behind
            it and the residual multiplier.
        mlp: within a layer: the same of the MLP; None where the family has none.
        middle: within a layer: reads the stream between attention and MLP; None where both read the
            same stream.
        final: reads the stream behind the last layer; the first of these that is there.
    """

    layer: str
    attention: str
    mlp: str | None
    middle: str | None
    final: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models.

    Attributes:
        name: as people write it.
        model_types: the values of ``model_type`` in its configs.
        defaults: what a config means that leaves a key out.
        config: the fields of a native ``config.json`` for a config of the family.
        takes: its tensors; those that a model lacks are skipped where they are optional.
        buffers: tensors that are no weights, such as masks; ``{l}`` as above.
        prefix: what the names of the model without its unembedding begin with; some checkpoints
            leave it out.
        idle: the tensors of a state dict that a model of the config has and does not use, found by
            their values where that is what tells; None: there are none.
        unit_gains: whether norms without a gain in the file have gains of 1.
        places: its modules; None where none is known.
        float32: which of ``FLOAT32_PARTS`` its modules compute in float32 in any dtype.
        renamed: names of tensors in files whose parameters modules call otherwise.
    """

    name: str
    model_types: tuple[str, ...]
    config: Callable[[Settings], dict[str, object]]
    takes: tuple[Take, ...]
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    buffers: tuple[str, ...] = ()
    prefix: str = ""
    idle: Callable[[Config, Mapping[str, Tensor], str], list[str]] | None = None
    unit_gains: bool = False
    places: Places | None = None
    float32: tuple[str, ...] = ("norms", "angles", "softmax")
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])


def heads(at: str, names: tuple[str, str, str, str]) -> tuple[Take, ...]:
    """Linear layers for queries, keys, values and outputs, with or without biases.

    Args:
        at: the module that they are in, with ``{l}``.
        names: of the four modules.
    """
    found = list[Take]()
    # a linear layer stores [out, in]
    for name, letter, head in zip(names, "QKV", ("head", "kv_head", "kv_head"), strict=False):
        rows = f"({head} d_head)"
        W = f"blocks.{{l}}.attn.W_{letter}"
        b = f"blocks.{{l}}.attn.b_{letter}"
        found += [
            Take(f"{at}.{name}.weight", {W: f"{rows} d_model -> {head} d_model d_head"}),
            Take(f"{at}.{name}.bias", {b: f"{rows} -> {head} d_head"}),
        ]
    output = "d_model (head d_head) -> head d_head d_model"
    return (
        *found,
        Take(f"{at}.{names[3]}.weight", {"blocks.{l}.attn.W_O": output}),
        Take(f"{at}.{names[3]}.bias", {"blocks.{l}.attn.b_O": "d_model"}),
    )


def plain_mlp(at: str, names: tuple[str, str]) -> tuple[Take, ...]:
    """Two linear layers, with or without biases: into the neurons and out of them."""
    return (
        *linear(f"{at}.{names[0]}", "blocks.{l}.mlp.W_in", "blocks.{l}.mlp.b_in", "d_mlp d_model"),
        *linear(
            f"{at}.{names[1]}", "blocks.{l}.mlp.W_out", "blocks.{l}.mlp.b_out", "d_model d_mlp"
        ),
    )


def gated_mlp(at: str, names: tuple[str, str, str]) -> tuple[Take, ...]:
    """Three linear layers, with or without biases: the gate, into the neurons, out of them."""
    gate = f"{at}.{names[0]}"
    return (
        *linear(gate, "blocks.{l}.mlp.W_gate", "blocks.{l}.mlp.b_gate", "d_mlp d_model"),
        *plain_mlp(at, names[1:]),
    )


def linear(at: str, W: str, b: str, axes: str) -> tuple[Take, Take]:
    """A linear layer; its weight is stored with the ``axes`` out and in."""
    out, in_ = axes.split()
    return Take(f"{at}.weight", {W: f"{axes} -> {in_} {out}"}), Take(f"{at}.bias", {b: out})


def norm(at: str, into: str, *, add: float = 0.0) -> tuple[Take, Take]:
    """A norm's gain and, where it has one, its bias."""
    return (
        Take(f"{at}.weight", {f"{into}.w": "d_model"}, add),
        Take(f"{at}.bias", {f"{into}.b": "d_model"}),
    )


def embeddings(embed: str, unembed: str) -> tuple[Take, ...]:
    """The embedding ``[d_vocab, d_model]`` and a linear unembedding, with or without a bias."""
    return (
        Take(f"{embed}.weight", {"embed.W_E": "d_vocab d_model"}),
        *linear(unembed, "unembed.W_U", "unembed.b_U", "d_vocab d_model"),
    )
