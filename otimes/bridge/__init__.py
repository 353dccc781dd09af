"""Where symbols and tensors meet: loading, running, evaluating and verifying models."""

from otimes.bridge.model import Model, load, shipped
from otimes.bridge.run import Run
from otimes.bridge.verification import verify

__all__ = ["Model", "Run", "load", "shipped", "verify"]
