"""Scalar targets on random frozen models, with the value of every path by brute force."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from otimes.numeric.frozen import FrozenModel
from otimes.numeric.functionals import Target
from otimes.numeric.states import StateTables
from tests.oracles.frozen import Dense, Path
from tests.synthetic import SHAPES, dense, make_frozen


def weights_of(model: FrozenModel) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(7).standard_normal(model.W_U.shape[1]))


Case = tuple[FrozenModel, Target, Dense, dict[Path, float]]


@cache
def cases(name: str) -> list[Case]:
    """Every sequence of a model, each with targets at two positions, and all path values."""
    model, found = make_frozen(SHAPES[name]), list[Case]()
    weights = weights_of(model)
    for row in range(model.batch):
        alone, network = model.sequence(row), dense(model, row)
        logits = {path: network.logits(path) @ weights.numpy() for path in network.paths()}
        for position in (1, model.length - 1):
            values = {path: float(value[position]) for path, value in logits.items()}
            found.append((alone, Target.logit(alone, position, weights), network, values))
    return found


def tables_of(model: FrozenModel, seed: int) -> StateTables:
    """A random automaton of two states and three classes."""
    generator = np.random.default_rng(seed)

    def states(size: int, most: int) -> tuple[int, ...]:
        return tuple(int(s) for s in generator.integers(-1, most, size))

    depth = model.depth
    size = [2] * depth + [1]
    return StateTables(
        tuple(states(block.components, 3) for block in model.blocks),
        tuple(tuple(states(3, size[b + 1]) for _ in range(size[b])) for b in range(depth)),
        tuple(states(size[b], size[b + 1]) for b in range(depth)),
        tuple(source.entry for source in model.sources),
        tuple(states(1, size[source.entry])[0] for source in model.sources),
    )


def accepted(tables: StateTables, network: Dense, path: Path) -> bool:
    """Follow the automaton along one path."""
    state = tables.start[path.source]
    inside = dict(path.components[0 if network.sources[path.source].component is None else 1 :])
    for block in range(tables.entry[path.source], len(network.blocks)):
        if state < 0:
            return False
        if block not in inside:
            state = tables.skip[block][state]
            continue
        kind = tables.member[block][inside[block]]
        state = tables.move[block][state][kind] if kind >= 0 else -1
    return state == 0
