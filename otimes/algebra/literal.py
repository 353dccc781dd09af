"""Single components as text; path expressions are read by :mod:`otimes.algebra.paths`."""

from __future__ import annotations

import re

from otimes.algebra.vocabulary import Component, Neuron

_HEAD = re.compile(r"L?(\d+)(?:\.|H)(\d+)")
_NEURON = re.compile(r"mlp(\d+)\.n(\d+)")


def component(text: str) -> Component | None:
    """Read ``0.7``, ``L0H7`` or ``mlp3.n17``; None for anything else."""
    if match := _HEAD.fullmatch(text):
        return int(match[1]), int(match[2])
    if match := _NEURON.fullmatch(text):
        return Neuron(int(match[1]), int(match[2]))
    return None
