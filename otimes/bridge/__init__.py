"""Where symbols and tensors meet: loading, running, evaluating and verifying models."""

from otimes.bridge.model import Model, load
from otimes.bridge.run import Run
from otimes.bridge.shares import logit_shares
from otimes.bridge.verification import verify

__all__ = ["Model", "Run", "load", "logit_shares", "verify"]
