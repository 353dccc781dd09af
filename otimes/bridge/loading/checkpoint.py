"""What a loader returns: everything that a model is made of, whatever it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from otimes.bridge.loading.config import Config
from otimes.bridge.loading.original import Original
from otimes.bridge.loading.tokenizer import Tokenizer
from otimes.bridge.loading.weights import Weights


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A loaded model.

    Attributes:
        name: what results call it.
        config: its architecture.
        weights: its canonical tensors, in their storage dtypes.
        tokenizer: text to ids; without an engine where there is none.
        path: the folder or file that it came from; None where it came from memory.
        native: whether ``path`` is a folder in the native format, which the reference module reads
            by itself.
        original: the module that it came from, where there is one and it can run here.
        notes: what happened on the way, in words: what was dequantised, which tokens are put first.
    """

    name: str
    config: Config
    weights: Weights
    tokenizer: Tokenizer
    path: Path | None = None
    native: bool = False
    original: Original | None = None
    notes: tuple[str, ...] = ()
