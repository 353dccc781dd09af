"""Models of the Hugging Face kind: a folder, or a module of the transformers package.

The config names the family; the family's table does the rest. Nothing of transformers is needed to
read a folder with a ``tokenizer.json``: it is loaded when the original module is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from torch import nn

from otimes.bridge.loading import transformers_package
from otimes.bridge.loading.checkpoint import Checkpoint
from otimes.bridge.loading.families import BY_MODEL_TYPE, Family
from otimes.bridge.loading.files import read_config, shown, shown_path
from otimes.bridge.loading.original import Original, call_transformers
from otimes.bridge.loading.state import family_config, family_weights, refuse_quantised
from otimes.bridge.loading.stored import folder_state, only_tensors
from otimes.bridge.loading.tokenizer import Tokenizer, find_tokenizer
from otimes.errors import CheckpointError, UnsupportedError

_OTHER_TOKENIZERS = ("tokenizer.model", "spiece.model", "vocab.json", "tokenizer_config.json")
_NEEDED: Mapping[str, str] = {
    "mamba": "its state-space layers are no attention, and have no pattern that could be frozen",
    "mamba2": "its state-space layers are no attention, and have no pattern that could be frozen",
    "rwkv": "its recurrent layers are no attention, and have no pattern that could be frozen",
    "t5": "it would need cross-attention from a decoder to an encoder",
    "bart": "it would need cross-attention from a decoder to an encoder",
    "mixtral": "it would need experts, whose choice is one more thing to freeze",
    "gemma3": "it would need images; its text part alone is a gemma3_text model",
}
"""What families would need that are often asked for."""


def family_of(mapping: Mapping[str, object], where: str) -> Family:
    """The family of a config.

    Args:
        mapping: the config.
        where: for messages.

    Raises:
        CheckpointError: it names no family.
        UnsupportedError: it is none that otimes reads; the message says what would be needed.
    """
    model_type = mapping.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(
            f"{where} has no model_type, which names the family of a model: give a config.json of "
            "the Hugging Face kind, or of the native format"
        )
    classes = mapping.get("architectures")
    kind = shown(model_type)
    if isinstance(classes, list) and classes:
        kind = f"{shown(cast('list[object]', classes)[0])} (model_type {kind})"
    if model_type not in BY_MODEL_TYPE:
        needed = _NEEDED.get(model_type)
        if needed is None and "auto_map" in mapping:
            needed = "it comes with its own code, which otimes never runs"
        needed = needed or "it would need a table of its own, see docs/models.md"
        raise UnsupportedError(
            f"{where}: {kind} cannot be loaded: {needed}; known are {', '.join(BY_MODEL_TYPE)}"
        )
    if mapping.get("quantization_config") is not None:
        raise UnsupportedError(
            f"{where}: the linear layers of {kind} are quantised (quantization_config): "
            "dequantise the model, to float16 or wider, save it and load that"
        )
    return BY_MODEL_TYPE[model_type]


def load_folder(folder: Path) -> Checkpoint:
    """Load a folder with a Hugging Face ``config.json`` and its weights, memory-mapped.

    Raises:
        CheckpointError: something is missing, unreadable, corrupt or does not fit.
        UnsupportedError: another kind of model than otimes reads.
    """
    file = folder / "config.json"
    where = shown_path(file)
    mapping = read_config(file)
    family = family_of(mapping, where)
    config, notes = family_config(family, mapping, where)
    tokenizer = _folder_tokenizer(folder, config.d_vocab)
    first, said = _first_token(tokenizer)
    notes += said
    if "auto_map" in mapping:
        notes.append(
            f"code of its own (auto_map) is never run: it is read as a {family.name} model, and "
            "judged by transformers' own module of that kind"
        )
    config = replace(config, bos_token_id=first)
    weights = family_weights(family, config, folder_state(folder), shown_path(folder))
    original = None
    if transformers_package.available():
        original = Original(
            family.name,
            partial(transformers_package.causal_model, folder),
            call_transformers,
            config,
            family.places,
            _float32(family, mapping),
            family.renamed,
        )
    else:
        notes.append(
            "the original module is not run: transformers is not installed "
            f"({transformers_package.INSTALL})"
        )
    return Checkpoint(
        folder.resolve().name, config, weights, tokenizer, folder, original=original,
        notes=tuple(notes),
    )  # fmt: skip


def load_module(
    module: nn.Module, tokenizer: object = None, *, name: str | None = None
) -> Checkpoint:
    """Load a module of the transformers package; the weights share its storage.

    Args:
        module: with an unembedding: ``GPT2LMHeadModel``, not ``GPT2Model``.
        tokenizer: of transformers or of tokenizers, where texts are to be used.
        name: what to call it; by default its class.

    Raises:
        CheckpointError: something does not fit.
        UnsupportedError: another kind of model than otimes reads.
    """
    kind = type(module).__name__
    mapping: dict[str, object] = module.config.to_dict()  # type: ignore[union-attr,operator]
    # of a module it is the tensors themselves that say whether they are quantised
    mapping.pop("quantization_config", None)
    family = family_of({**mapping, "architectures": [kind]}, kind)
    if module.get_output_embeddings() is None:  # type: ignore[operator]
        raise UnsupportedError(
            f"{kind} has no unembedding, so it has no logits: load the model for causal language "
            "modelling, such as GPT2LMHeadModel in place of GPT2Model"
        )
    state = module.state_dict()
    refuse_quantised(state, kind)
    config, notes = family_config(family, mapping, kind)
    wrapped = given_tokenizer(tokenizer, config.d_vocab)
    first, said = _first_token(wrapped)
    notes += said
    config = replace(config, bos_token_id=first)
    if rounded := transformers_package.rounded_tables(module):
        notes.append(
            f"{kind} rounded {', '.join(rounded[:2])} with its parameters: the original module "
            "runs with them computed again, as from_pretrained has them"
        )
    return Checkpoint(
        name or kind,
        config,
        family_weights(family, config, only_tensors(state, kind), kind),
        wrapped,
        original=Original(
            kind,
            partial(transformers_package.copy_in_dtype, module),
            call_transformers,
            config,
            family.places,
            _float32(family, mapping),
        ),
        notes=tuple(notes),
    )


def _float32(family: Family, mapping: Mapping[str, object]) -> tuple[str, ...]:
    """What a model of the family computes in float32 in any dtype."""
    upcast = mapping.get("reorder_and_upcast_attn", False)
    return (*family.float32, *(("scores", "softmax") if upcast else ()))


def given_tokenizer(tokenizer: object, d_vocab: int) -> Tokenizer:
    """Wrap a tokenizer that a user hands over: an object, or the path of a tokenizer.json."""
    if tokenizer is None:
        return Tokenizer(None, d_vocab)
    if isinstance(tokenizer, str | Path):
        path = Path(tokenizer)
        return Tokenizer(path / "tokenizer.json" if path.is_dir() else path, d_vocab)
    return Tokenizer(None, d_vocab, serialized=transformers_package.serialized(tokenizer))


def _folder_tokenizer(folder: Path, d_vocab: int) -> Tokenizer:
    if (path := find_tokenizer(folder)) is not None:
        return Tokenizer(path, d_vocab)
    others = any((folder / name).exists() for name in _OTHER_TOKENIZERS)
    if not others or not transformers_package.available():
        return Tokenizer(None, d_vocab)
    text = transformers_package.serialized_tokenizer(folder)
    return Tokenizer(None, d_vocab, serialized=text)


def _first_token(tokenizer: Tokenizer) -> tuple[int | None, list[str]]:
    """The token that the tokenizer puts in front of a text, and a note that says so."""
    if not tokenizer.available:
        return None, []
    try:
        first = tokenizer.first_token()
    except CheckpointError as error:
        # the weights can be used without it; a text will raise this error
        return None, [f"its tokenizer cannot be used: {error}"]
    if first is None:
        return None, ["its tokenizer puts no token in front of a text"]
    return first, [f"its tokenizer puts {first} ({tokenizer.token_text(first)}) in front of a text"]
