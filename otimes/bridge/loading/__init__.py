"""From files to canonical weights. Knows no symbols: it imports only ``otimes.errors``."""

from otimes.bridge.loading.config import Config
from otimes.bridge.loading.native import NativeCheckpoint, load_native
from otimes.bridge.loading.rotary import Rotary
from otimes.bridge.loading.tokenizer import Tokenizer
from otimes.bridge.loading.weights import AttentionWeights, MLPWeights, NormWeights, Weights

__all__ = [
    "AttentionWeights",
    "Config",
    "MLPWeights",
    "NativeCheckpoint",
    "NormWeights",
    "Rotary",
    "Tokenizer",
    "Weights",
    "load_native",
]
