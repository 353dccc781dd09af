"""Whatever a model can be loaded from, to a :class:`Checkpoint`: one function that looks at it.

A folder (native or Hugging Face), a file (safetensors, GGUF, a pickle of plain tensors, llama2.c),
a module, a mapping of tensors, the name of a model in an installed package or on the Hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from otimes.bridge.loading import transformers_package
from otimes.bridge.loading.checkpoint import Checkpoint
from otimes.bridge.loading.config import FORMAT, VERSIONS, Config
from otimes.bridge.loading.families import TRANSFORMER_LENS, Family
from otimes.bridge.loading.files import check_folder, read_config, shown, shown_path
from otimes.bridge.loading.gguf_file import PACKAGED, load_gguf, packaged_file
from otimes.bridge.loading.huggingface import (
    family_of,
    given_tokenizer,
    load_folder,
    load_module,
)
from otimes.bridge.loading.llama2c_file import read_llama2c
from otimes.bridge.loading.native import load_native
from otimes.bridge.loading.original import Original, call_plain, in_dtype
from otimes.bridge.loading.state import canonical_weights, family_config, family_weights
from otimes.bridge.loading.stored import file_state, only_tensors, unpickled
from otimes.errors import CheckpointError, UnsupportedError

Source = str | Path | nn.Module | Mapping[str, Tensor]
"""What a model is loaded from."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ("*.json", "*.safetensors", "tokenizer.model", "merges.txt")
_CONFIG_ADVICE = (
    'config={"model_type": "mingpt", "n_head": 3, …} for a family that otimes knows, or the fields '
    "of a native config.json"
)


def load_source(
    source: Source,
    *,
    config: Mapping[str, object] | None = None,
    tokenizer: object = None,
    original: nn.Module | None = None,
) -> Checkpoint | None:
    """Load from a source; None: it is a name that is nothing here.

    Args:
        source: see the module.
        config: for tensors alone: the fields of a native ``config.json``, or of a family's config
            with its ``model_type``.
        tokenizer: a path or an object, for sources that bring none.
        original: for a mapping: the module that it is the weights of, which maps ids to logits.

    Raises:
        CheckpointError: the source cannot be used.
        UnsupportedError: it is a model of another kind than otimes reads.
    """
    if isinstance(source, nn.Module):
        return _from_module(source, config, tokenizer)
    if isinstance(source, Mapping):
        name = "tensors" if original is None else type(original).__name__
        return _from_tensors(source, config, tokenizer, name, original=original)
    if isinstance(source, str) and source in PACKAGED:
        return load_gguf(packaged_file(source), source)
    path = Path(source)
    try:
        is_folder, there = path.is_dir(), path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return None
    if is_folder:
        return _from_folder(path)
    if there:
        return _from_file(path, config, tokenizer)
    if isinstance(source, str) and _HUB_NAME.fullmatch(source):
        return replace(_from_folder(_downloaded(source)), name=source)
    return None


def _from_folder(path: Path) -> Checkpoint:
    check_folder(path)
    mapping = read_config(path / "config.json")
    if "format" not in mapping and ("model_type" in mapping or "architectures" in mapping):
        return load_folder(path)
    return load_native(path)


def _from_file(path: Path, config: Mapping[str, object] | None, tokenizer: object) -> Checkpoint:
    name = path.stem
    if path.suffix == ".gguf":
        return load_gguf(path)
    if path.suffix == ".bin" and not _is_archive(path):
        found, tensors = read_llama2c(path)
        config, name = {**found, **(config or {})}, path.name
    elif path.suffix in (".pt", ".pth", ".ckpt"):
        tensors, config = _pickled(unpickled(path), config, path)
    elif path.suffix in (".safetensors", ".bin"):
        tensors = file_state(path)
    else:
        raise CheckpointError(
            f"{shown_path(path)} is no file that otimes reads weights from: it reads .safetensors, "
            ".gguf, .pt, .pth, .ckpt and .bin files, and folders"
        )
    return replace(_from_tensors(tensors, config, tokenizer, name), path=path)


def _is_archive(path: Path) -> bool:
    """Whether a ``.bin`` is a pickle of torch, which is a zip archive, and not of llama2.c."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _pickled(
    found: Mapping[str, object], config: Mapping[str, object] | None, path: Path
) -> tuple[dict[str, Tensor], Mapping[str, object] | None]:
    """The state dict of a pickle; a training checkpoint of nanoGPT brings its config."""
    model, arguments = found.get("model"), found.get("model_args")
    if isinstance(model, Mapping) and isinstance(arguments, Mapping):
        named = cast("Mapping[str, object]", arguments)
        config = {"model_type": "nanogpt", **named, **(config or {})}
        found = cast("Mapping[str, object]", model)
    return only_tensors(found, shown_path(path)), config


def _from_tensors(
    tensors: Mapping[str, Tensor],
    mapping: Mapping[str, object] | None,
    tokenizer: object,
    name: str,
    *,
    original: nn.Module | None = None,
) -> Checkpoint:
    if mapping is None:
        raise CheckpointError(f"tensors alone do not say how they are used: give {_CONFIG_ADVICE}")
    tensors = only_tensors(tensors, name)
    bos, notes = mapping.get("bos_token_id"), list[str]()
    if "model_type" in mapping:
        family = family_of(mapping, "config")
        first = bos if isinstance(bos, int) and tokenizer is not None else None
        config, notes = family_config(family, mapping, "config", first)
        weights = family_weights(family, config, tensors, name)
    else:
        known = {"format": FORMAT, "version": VERSIONS[-1], **mapping}
        config = Config.parse(known, "config")
        weights = canonical_weights(config, tensors, name)
    return Checkpoint(
        name,
        config,
        weights,
        given_tokenizer(tokenizer, config.d_vocab),
        original=None if original is None else _plain_original(original, config),
        notes=tuple(notes),
    )


def _plain_original(module: nn.Module, config: Config) -> Original:
    kind = type(module).__name__
    return Original(kind, partial(in_dtype, module), call_plain, config, None)


def _from_module(
    module: nn.Module, config: Mapping[str, object] | None, tokenizer: object
) -> Checkpoint:
    kind = type(module).__name__
    if config is not None:
        return _from_tensors(module.state_dict(), config, tokenizer, kind, original=module)
    if any(base.__name__ == "HookedTransformer" for base in type(module).__mro__):
        return _from_hooked(module, tokenizer)
    if hasattr(getattr(module, "config", None), "to_dict"):
        return load_module(module, tokenizer)
    raise UnsupportedError(
        f"{kind} is no module of transformers or TransformerLens, so nothing says how its tensors "
        "are used: name them as a native checkpoint does and load the mapping with a config (see "
        "docs/models.md)"
    )


def _from_hooked(module: nn.Module, tokenizer: object) -> Checkpoint:
    """A ``HookedTransformer``, with its own tokenizer where it has one."""
    mapping: dict[str, object] = dict(module.cfg.to_dict())  # type: ignore[union-attr,operator]
    family: Family = TRANSFORMER_LENS
    kind = type(module).__name__
    own: object = getattr(module, "tokenizer", None) if tokenizer is None else tokenizer
    config, notes = family_config(family, mapping, kind)
    wrapped = given_tokenizer(own, config.d_vocab)
    bos: object = getattr(own, "bos_token_id", None)
    # prompts begin as this library's own do
    if mapping.get("default_prepend_bos") and isinstance(bos, int) and bos < config.d_vocab:
        config = replace(config, bos_token_id=bos)
    return Checkpoint(
        str(mapping.get("model_name") or kind),
        config,
        family_weights(family, config, module.state_dict(), kind),
        wrapped,
        original=Original(kind, partial(in_dtype, module), call_plain, config, family.places),
        notes=tuple(notes),
    )


def _downloaded(name: str) -> Path:
    """The folder of a model of the Hub: from its cache or, with a network, fetched."""
    transformers_package.package(f"fetching {name} from the Hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{shown(name)} is no folder here and could not be fetched from the Hub "
            f"({type(error).__name__}: {reason}): check the name and the network, or give a local "
            "folder"
        ) from error
