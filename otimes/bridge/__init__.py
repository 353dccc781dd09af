"""Where symbols and tensors meet: loading, running, evaluating and verifying models."""

from otimes.bridge.attribution import attribute
from otimes.bridge.causal import causal_effects
from otimes.bridge.model import Model, load
from otimes.bridge.run import Run
from otimes.bridge.score_decomposition import scores
from otimes.bridge.shares import logit_shares
from otimes.bridge.verification import verify

__all__ = [
    "Model",
    "Run",
    "attribute",
    "causal_effects",
    "load",
    "logit_shares",
    "scores",
    "verify",
]
