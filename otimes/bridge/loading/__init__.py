"""From files to canonical weights. Knows no symbols: it imports only ``otimes.errors``."""

from otimes.bridge.loading.config import Config
from otimes.bridge.loading.native import NativeCheckpoint, load_native
from otimes.bridge.loading.tokenizer import Tokenizer
from otimes.bridge.loading.weights import AttentionWeights, Weights

__all__ = [
    "AttentionWeights",
    "Config",
    "NativeCheckpoint",
    "Tokenizer",
    "Weights",
    "load_native",
]
