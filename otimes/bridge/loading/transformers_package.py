"""The transformers package, where something of it is needed: loaded late, quietly, offline.

``trust_remote_code`` is never switched on: no code that comes with a checkpoint is run.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from otimes.bridge.loading.files import is_failure, shown_path
from otimes.bridge.loading.original import in_dtype
from otimes.errors import CheckpointError, UnsupportedError

INSTALL = "pip install 'otimes[hf]'"


def package(purpose: str) -> ModuleType:
    """Import transformers.

    Args:
        purpose: what it is needed for, for the message where it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise UnsupportedError(
            f"{purpose} needs the transformers package ({error}): {INSTALL}"
        ) from error
    return transformers


def available() -> bool:
    """Whether transformers is installed; it is not imported."""
    from importlib.util import find_spec

    return find_spec("transformers") is not None


def causal_model(folder: Path, dtype: torch.dtype, **options: Any) -> nn.Module:
    """The module of a local folder, in evaluation mode, with attention that can be looked at."""
    found = package("running the original module")
    with _quietly(found), _failures_of(folder / options.get("gguf_file", "")):
        module, loaded = found.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
    if missing := sorted(loaded["missing_keys"]):
        # transformers fills them with random numbers
        raise CheckpointError(
            f"{shown_path(folder / options.get('gguf_file', ''))} lacks {', '.join(missing[:4])}: "
            "it is no complete model, fetch a fresh copy"
        )
    return module.requires_grad_(False).eval()


def copy_in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a module in a dtype, its own tables as precise as ``from_pretrained`` has them.

    Tables that a module computes by itself, such as the frequencies of rotary positions, are in no
    file. ``from_pretrained`` keeps them in float32 in any dtype, but ``module.to(torch.bfloat16)``
    rounds them as well: the module is then another one than its config describes. Here they are not
    rounded below float32, and those that were are computed again by the module's own code.
    """
    clone = in_dtype(module, dtype)
    wide = torch.promote_types(dtype, torch.float32)
    rounded = set(rounded_tables(module))
    for name, table in _own_tables(module).items():
        place, _, last = name.rpartition(".")
        part = clone.get_submodule(place)
        setattr(part, last, table.detach().to(wide))
        scale: object = getattr(part, "scalar_embed_scale", None)
        if name in rounded and isinstance(scale, float | int):
            # the module's own code would draw the embeddings anew as well
            setattr(part, last, torch.tensor(scale, dtype=wide))
    for place in sorted({name.rpartition(".")[0] for name in rounded}):
        part = clone.get_submodule(place)
        if not any(True for _ in part.parameters()):
            clone._init_weights(part)  # type: ignore[operator] # noqa: SLF001 - nothing public does it
    return clone


def rounded_tables(module: nn.Module) -> list[str]:
    """The names of the tables that a module computes by itself and that are below float32."""
    return [
        name for name, table in _own_tables(module).items() if torch.finfo(table.dtype).bits < 32
    ]


def _own_tables(module: nn.Module) -> dict[str, torch.Tensor]:
    stored = module.state_dict().keys()
    return {
        name: table
        for name, table in module.named_buffers(remove_duplicate=False)
        if name not in stored and table.is_floating_point()
    }


def serialized_tokenizer(folder: Path, **options: Any) -> str:
    """The tokenizer of a local folder as the text of a ``tokenizer.json``."""
    found = package("a tokenizer without a tokenizer.json")
    with _quietly(found), _failures_of(folder / options.get("gguf_file", "")):
        tokenizer = found.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **options
        )
    return serialized(tokenizer)


def serialized(tokenizer: object) -> str:
    """A tokenizer object, of transformers or of tokenizers, as the text of a ``tokenizer.json``."""
    engine: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(engine, "to_str"):
        raise UnsupportedError(
            f"{type(tokenizer).__name__} has no engine of the tokenizers package behind it, so its "
            "tokens cannot be shown exactly: pass token ids, or a fast tokenizer"
        )
    return str(engine.to_str())


@contextmanager
def _quietly(found: ModuleType) -> Generator[None]:
    """Without progress bars and reports, which are global settings of the package."""
    logging = found.utils.logging
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _failures_of(source: Path) -> Generator[None]:
    try:
        yield
    except BaseException as error:  # whatever its many readers make of a damaged file
        if not is_failure(error):
            raise
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"transformers cannot load {shown_path(source)} ({type(error).__name__}: {reason}): "
            "fetch a fresh copy, or install what it asks for"
        ) from error
