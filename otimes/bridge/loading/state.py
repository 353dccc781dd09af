"""From a state dict to canonical weights by a family's table, with the audit of its tensors.

Each tensor of the state dict is used exactly once, or it is a known buffer and named as unused; any
other is refused, because a tensor that the table does not know is a part of the model that would
silently be left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from otimes.bridge.loading.axes import parse, rearrange
from otimes.bridge.loading.checks import check_finite, check_gates, check_plain
from otimes.bridge.loading.config import FORMAT, VERSIONS, Config
from otimes.bridge.loading.families import Family, Settings, Take
from otimes.bridge.loading.families.scaling import settle
from otimes.bridge.loading.files import shown
from otimes.bridge.loading.weights import (
    Slot,
    Weights,
    axis_sizes,
    from_tensors,
    norm_file_name,
    norm_labels,
    slots,
)
from otimes.errors import CheckpointError, UnsupportedError

READABLE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: what quantised linear layers hold, by the package that made them
_QUANTISED = frozenset({
    "qweight", "qzeros", "scales", "g_idx",  # GPTQ, AWQ
    "SCB", "absmax", "quant_map", "quant_state", "nested_absmax",  # bitsandbytes
    "weight_packed", "weight_scale", "weight_scale_inv", "weight_zero_point",  # compressed-tensors
    "_packed_params",  # torch.ao
    "W_q",  # HQQ
    "_data", "_scale",  # quanto
})  # fmt: skip
_DEQUANTISE = "dequantise the model, to float16 or wider, and load that"
_WRAPPERS = ("_orig_mod.", "module.")


def family_config(
    family: Family, mapping: Mapping[str, object], where: str, bos_token_id: int | None = None
) -> tuple[Config, list[str]]:
    """The canonical config of a model of a family, and what is to be said about it.

    Args:
        family: its table.
        mapping: its own config.
        where: for messages.
        bos_token_id: the token that its tokenizer puts in front of a text.

    Raises:
        CheckpointError: values that are missing or impossible.
        UnsupportedError: something that the canonical model does not have.
    """
    settings = Settings(mapping, family.defaults, where)
    found, notes = settle(family.config(settings), where)
    whole = {"format": FORMAT, "version": VERSIONS[-1], **found, "bos_token_id": bos_token_id}
    return Config.parse(whole, where), notes


def family_weights(
    family: Family, config: Config, state: Mapping[str, Tensor], where: str
) -> Weights:
    """The canonical weights of a state dict, as views of it where its layout allows.

    Args:
        family: its table.
        config: of ``family_config``.
        state: the tensors by the family's own names.
        where: what is being read, for messages.

    Raises:
        CheckpointError: a tensor is missing, unknown, not finite or of the wrong shape.
        UnsupportedError: weights that are quantised.
    """
    return _Conversion(family, config, unwrapped(state, family.prefix), where).weights()


def canonical_weights(config: Config, tensors: Mapping[str, Tensor], where: str) -> Weights:
    """The weights of tensors that have the names and layouts of a native checkpoint.

    Args:
        config: their config.
        tensors: by name; names that the model does not have are refused.
        where: for messages.

    Raises:
        CheckpointError: a tensor is missing, unknown, not finite or of the wrong shape or dtype.
    """
    known = {slot.name: slot for slot in slots(config)}
    tensors = _without_tied(config, tensors)
    for name, tensor in tensors.items():
        slot = known.get(name)
        if slot is None:
            raise CheckpointError(
                f"{where} has the tensor {shown(name)}, which a model of this config does not have"
            )
        check_plain(tensor, name, where)
        if tuple(tensor.shape) != slot.shape or tensor.dtype not in READABLE_DTYPES:
            raise CheckpointError(
                f"{where}: {name} is {list(tensor.shape)} in {tensor.dtype}, but the config asks "
                f"for floats {slot}"
            )
        check_finite(tensor.detach(), slot, where)
    missing = [f"{s.name} {s}" for s in known.values() if s.required and s.name not in tensors]
    if missing:
        raise CheckpointError(f"{where} lacks {', '.join(missing[:4])}")
    check_gates(tensors, where)
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    return from_tensors(detached, config.n_layers)


def _without_tied(config: Config, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Without a tied unembedding, which is a view of the embedding in ``Weights.tensors()``."""
    embed, unembed = tensors.get("embed.W_E"), tensors.get("unembed.W_U")
    if not config.tied or embed is None or unembed is None:
        return tensors
    same = embed.ndim == 2 and unembed.shape == embed.T.shape and torch.equal(unembed, embed.T)
    return {n: t for n, t in tensors.items() if n != "unembed.W_U"} if same else tensors


def refuse_quantised(names: Iterable[str], where: str) -> None:
    """Refuse a state dict with quantised linear layers, which the names of its values tell.

    Raises:
        UnsupportedError: the message names the layer.
    """
    for name in names:
        parts = name.split(".")
        kind = next((part for part in parts if part in _QUANTISED), None)
        if kind is not None:
            module = ".".join(parts[: parts.index(kind)])
            raise UnsupportedError(
                f"{where}: {shown(module)} holds quantised weights ({kind}): {_DEQUANTISE}"
            )


class _Conversion:
    def __init__(
        self, family: Family, config: Config, state: Mapping[str, Tensor], where: str
    ) -> None:
        self.family, self.config, self.state, self.where = family, config, state, where
        self.sizes = axis_sizes(config)

    def weights(self) -> Weights:
        config = self.config
        known = {slot.name: slot for slot in slots(config)}
        found = dict[str, Tensor]()
        copies, sources = list[str](), list[str]()
        idle = self.family.idle(config, self.state, self.where) if self.family.idle else []
        present = [line for line in self._present() if line[0] not in idle]
        refuse_quantised(self.state, self.where)
        for source, _, _ in present:
            check_plain(self.state[source], source, self.where)
        unused = self._unused({*idle, *(source for source, _, _ in present)})
        for source, take, layer in present:
            names = {target.replace("{l}", str(layer)): axes for target, axes in take.into.items()}
            if config.tied and "unembed.W_U" in names:
                copies += self._tied_copy(source, take)
                continue
            sources.append(source)
            self._check_known(source, names, known)
            self._check(source, take)
            for name, axes in names.items():
                if name in found:
                    raise CheckpointError(
                        f"{self.where} has two tensors for {name}, one of them {shown(source)}: "
                        "remove one"
                    )
                found[name] = self._taken(source, axes, take.add)
        if self.family.unit_gains:
            found |= self._unit_gains(known, found)
        self._check_complete(known, found)
        check_gates(found, self.where)
        for name, tensor in found.items():
            check_finite(tensor, known[name], self.where)
        weights = from_tensors(found, config.n_layers)
        unused = sorted([*unused, *idle, *copies])
        return replace(weights, unused=tuple(unused), sources=tuple(sorted(sources)))

    def _present(self) -> list[tuple[str, Take, int]]:
        """The tensors that are there, with their lines of the table and layers."""
        found = list[tuple[str, Take, int]]()
        for take in self.family.takes:
            layers = range(self.config.n_layers) if "{l}" in take.source else range(1)
            for layer in layers:
                source = take.source.replace("{l}", str(layer))
                if source in self.state:
                    found.append((source, take, layer))
        return found

    def _check(self, source: str, take: Take) -> None:
        tensor = self.state[source]
        if tensor.dtype not in READABLE_DTYPES:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise UnsupportedError(
                f"{self.where}: {source} holds {dtype} numbers, the codes of quantised weights: "
                + _DEQUANTISE
            )
        wanted = [parse(axes).shape(self.sizes) for axes in take.into.values()]
        for shape, axes in zip(wanted, take.into.values(), strict=True):
            if tuple(tensor.shape) != shape:
                raise CheckpointError(
                    f"{self.where}: {source} has the shape {list(tensor.shape)}, but the config "
                    f"asks for {list(shape)} ({axes.partition('->')[0].strip()}): they are of "
                    "different models, or this is another layout than the family's"
                )

    def _check_known(
        self, source: str, names: Mapping[str, str], known: Mapping[str, Slot]
    ) -> None:
        for name in names:
            if name not in known:
                raise CheckpointError(
                    f"{self.where} has {source}, which a {self.family.name} model of this config "
                    f"does not have ({name}): correct the config or remove the tensor"
                )

    def _taken(self, source: str, axes: str, add: float) -> Tensor:
        tensor = rearrange(self.state[source].detach(), axes, self.sizes)
        if not add:
            return tensor
        # in float32 or wider, as the module adds it: bfloat16 would round the sum
        return tensor.to(torch.promote_types(tensor.dtype, torch.float32)).add(add)

    def _tied_copy(self, source: str, take: Take) -> list[str]:
        """Check that a tied unembedding is the embedding; name it if it is a copy in storage."""
        if take.into != {"unembed.W_U": "d_vocab d_model -> d_model d_vocab"}:
            raise CheckpointError(
                f"{self.where}: the unembedding {source} is tied in the config, but stored in "
                "another layout than the embedding: correct the config"
            )
        embed = next(
            self.state[one.source]
            for one in self.family.takes
            if "embed.W_E" in one.into and one.source in self.state
        )
        copy = self.state[source]
        if copy.data_ptr() == embed.data_ptr() and copy.shape == embed.shape:
            return []
        if not torch.equal(copy, embed):
            raise CheckpointError(
                f"{self.where}: the config ties the unembedding to the embedding, but {source} "
                "holds other numbers: set tie_word_embeddings to false or remove the tensor"
            )
        return [source]

    def _unused(self, used: Collection[str]) -> list[str]:
        """The tensors that are left, all of them buffers."""
        buffers = [
            re.compile(re.escape(name).replace(r"\{l\}", r"\d+")) for name in self.family.buffers
        ]
        left = [name for name in self.state if name not in used]
        for name in left:
            if not any(buffer.fullmatch(name) for buffer in buffers):
                raise CheckpointError(
                    f"{self.where} has the tensor {shown(name)}, which the table of "
                    f"{self.family.name} does not know: this is another kind of model, or one with "
                    "parts that otimes would leave out"
                )
        return left

    def _unit_gains(
        self, known: Mapping[str, Slot], found: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        dtype = next((tensor.dtype for tensor in found.values()), torch.float32)
        gains = {f"{norm_file_name(label)}.w" for label in norm_labels(self.config)}
        return {
            name: torch.ones(known[name].shape, dtype=dtype)
            for name in sorted(gains - found.keys())
        }

    def _check_complete(self, known: Mapping[str, Slot], found: Mapping[str, Tensor]) -> None:
        missing = [slot for slot in known.values() if slot.required and slot.name not in found]
        if not missing:
            return
        sources = [self._source_of(slot.name) for slot in missing]
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise CheckpointError(
            f"{self.where} lacks {', '.join(sources[:4])}{more}: it is no complete "
            f"{self.family.name} model with its unembedding, or the config is another's"
        )

    def _source_of(self, name: str) -> str:
        """What the family calls a canonical tensor."""
        layer = re.search(r"\d+", name)
        pattern = re.sub(r"\d+", "{l}", name, count=1)
        for take in self.family.takes:
            if pattern in take.into:
                return take.source.replace("{l}", layer[0] if layer else "")
        return name


def unwrapped(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The state dict without the prefixes of wrappers, and with that of the family."""
    found = dict(state)
    for wrapper in _WRAPPERS:
        if found and all(name.startswith(wrapper) for name in found):
            found = {name.removeprefix(wrapper): tensor for name, tensor in found.items()}
    if prefix and not any(name.startswith(prefix) for name in found):
        # a model without its unembedding names its tensors without the prefix
        heads = ("lm_head.", "embed_out.")
        found = {
            name if name.startswith(heads) else prefix + name: tensor
            for name, tensor in found.items()
        }
    return found
