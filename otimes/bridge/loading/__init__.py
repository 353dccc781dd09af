"""From files to canonical weights. Knows no symbols: it imports only ``otimes.errors``."""

from otimes.bridge.loading.checkpoint import Checkpoint
from otimes.bridge.loading.config import Config
from otimes.bridge.loading.gguf_file import PACKAGED
from otimes.bridge.loading.native import load_native
from otimes.bridge.loading.original import Original, OriginalRecording
from otimes.bridge.loading.rotary import Rotary
from otimes.bridge.loading.sources import Source, load_source
from otimes.bridge.loading.tokenizer import Tokenizer
from otimes.bridge.loading.weights import AttentionWeights, MLPWeights, NormWeights, Weights

__all__ = [
    "PACKAGED",
    "AttentionWeights",
    "Checkpoint",
    "Config",
    "MLPWeights",
    "NormWeights",
    "Original",
    "OriginalRecording",
    "Rotary",
    "Source",
    "Tokenizer",
    "Weights",
    "load_native",
    "load_source",
]
