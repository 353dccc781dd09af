"""Single components as text; path expressions are read by :mod:`otimes.algebra.paths`."""

from __future__ import annotations

import re

from otimes.algebra.vocabulary import Component, Neuron

_HEAD = re.compile(r"L?([0-9]+)(?:\.|H)([0-9]+)")
_NEURON = re.compile(r"mlp([0-9]+)\.n([0-9]+)")


def component(text: str) -> Component | None:
    """Read ``0.7``, ``L0H7`` or ``mlp3.n17``; None for anything else."""
    if match := _HEAD.fullmatch(text):
        return int(match[1]), int(match[2])
    if match := _NEURON.fullmatch(text):
        return Neuron(int(match[1]), int(match[2]))
    return None
