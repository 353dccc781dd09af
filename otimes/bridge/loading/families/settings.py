"""Reading a config of the Hugging Face kind: names of activations, rotary angles, windows.

What such a config asks for and the canonical model does not have is refused in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from otimes.bridge.loading.families.scaling import Turns
from otimes.bridge.loading.files import shown
from otimes.bridge.loading.reader import Reader, as_object
from otimes.errors import CheckpointError, UnsupportedError

_ACTIVATIONS: Mapping[str, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_LARGEST = 2**40
_MOST_LAYERS = 10_000


class Settings(Reader):
    """The values of a config, its family's defaults filled in.

    Args:
        mapping: the config as an object.
        defaults: for the keys that it leaves out.
        where: for messages.
    """

    def __init__(
        self, mapping: Mapping[str, object], defaults: Mapping[str, object], where: str
    ) -> None:
        super().__init__({**defaults, **mapping}, where)

    def size(self, key: str, otherwise: str | None = None) -> int:
        """A positive integer; where the key is null or absent that of the key ``otherwise``."""
        if otherwise is not None and not self.has(key):
            return self.size(otherwise)
        self.check_keys(list(self.mapping), (key,))
        # lists with an entry for each layer are made before the native config is checked
        return self.integer(key, 1, _MOST_LAYERS if key == "num_hidden_layers" else _LARGEST)

    def per_head(self, width: str, heads: str) -> int:
        """The width of each of some heads that share a width, rounded down as modules do."""
        found = self.size(width) // self.size(heads)
        if not found:
            raise CheckpointError(
                f"{self.where}: {heads} {self.size(heads)} leaves nothing of {width} "
                f"{self.size(width)} for each head: correct one of the two"
            )
        return found

    def activation(self, key: str) -> str:
        """The canonical name of the activation that a key names."""
        name = self.mapping.get(key)
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            raise UnsupportedError(
                f"{self.where}: {key} is {shown(name)}, an activation that otimes does not have: "
                f"it has {', '.join(sorted(_ACTIVATIONS))}"
            )
        return _ACTIVATIONS[name]

    def only(self, key: str, *allowed: object, need: str) -> None:
        """Refuse a value that changes what the model computes in a way that otimes has not.

        Args:
            key: absent is allowed.
            allowed: the values that are.
            need: what would be needed, for the message.
        """
        if key in self.mapping and self.mapping[key] not in allowed:
            raise UnsupportedError(
                f"{self.where}: {key} is {shown(self.mapping[key])}, which otimes does not "
                f"compute: {need}"
            )

    def rotary(
        self,
        d_head: int,
        *,
        layer_type: str | None = None,
        pairing: str = "half",
        share: float = 1.0,
    ) -> dict[str, object]:
        """The canonical ``rotary`` object of layers of a type.

        Read from ``rope_parameters`` or, in older configs, ``rope_theta`` and ``rope_scaling``.

        Args:
            d_head: the width of queries and keys, of which a part may turn.
            layer_type: where the config tells types of layers apart.
            pairing: which coordinates turn together.
            share: of the coordinates, which part turns where the config does not say it.

        Returns:
            The object, with what ``scaling.settle`` takes out of it.
        """
        parameters, alone = self._rope_parameters(layer_type)
        reader = Reader(parameters, f"{self.where}: rotary parameters")
        holder = reader if reader.has("partial_rotary_factor") else self
        dim = int(d_head * (holder.optional_positive("partial_rotary_factor") or share))
        turns = Turns(reader=reader, config=self, dim=dim, d_head=d_head, alone=alone)
        theta = reader.positive_number("rope_theta")
        return {"theta": theta, "dim": dim, "pairing": pairing, **turns.scaling()}

    def _rope_parameters(self, layer_type: str | None) -> tuple[dict[str, object], bool]:
        """The parameters, and whether they are those of all layers."""
        given = as_object(self.mapping.get("rope_parameters")) or {}
        nested = False
        if layer_type is not None and layer_type in given:
            nested, given = True, as_object(given[layer_type]) or {}
        theta = "rope_theta"
        older = as_object(self.mapping.get("rope_scaling")) or {}
        if layer_type == "sliding_attention" and self.has("rope_local_base_freq"):
            theta, older = "rope_local_base_freq", {}
        found = {"rope_theta": self.mapping.get(theta), **older, **given}
        if "type" in found:  # what rope_type was called before
            found.setdefault("rope_type", found["type"])
        return found, not nested

    def layer_types(self, n_layers: int, default: list[str]) -> list[str]:
        """For each layer ``full_attention`` or ``sliding_attention``."""
        if not self.has("layer_types"):
            return default
        found = self.items("layer_types", n_layers, "the type of each layer")
        for name in found:
            if name not in ("full_attention", "sliding_attention"):
                raise UnsupportedError(
                    f"{self.where}: layer_types has {shown(name)}, a kind of layer that otimes "
                    "does not have: it has full_attention and sliding_attention"
                )
        return cast("list[str]", found)

    def windows(self, types: list[str]) -> list[int | None] | None:
        """The canonical ``windows`` of layers of these types, of ``sliding_window`` positions."""
        if "sliding_attention" not in types or not self.has("sliding_window"):
            return None
        window = self.size("sliding_window")
        return [window if one == "sliding_attention" else None for one in types]
