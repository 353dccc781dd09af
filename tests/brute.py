"""Every path of a scalar target by brute force, and random automata that accept some of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from otimes.numeric.frozen import FrozenModel
from otimes.numeric.functionals import Target
from otimes.numeric.states import StateTables
from tests.synthetic import Shape, dense, make_frozen

Components = tuple[tuple[int, int], ...]
Values = dict[tuple[int, Components], float]


@dataclass(frozen=True)
class Brute:
    """One sequence of a synthetic model, a target, and the value of each of its paths."""

    model: FrozenModel
    target: Target
    values: Values

    def ending(self, components: Components) -> Values:
        """The paths that end with ``components``."""
        size = len(components)
        return {
            path: value for path, value in self.values.items()
            if path[1][len(path[1]) - size :] == components
        }  # fmt: skip

    def suffixes(self) -> list[Components]:
        """Every suffix that has a path, the empty one first."""
        found = {path[1][i:] for path in self.values for i in range(len(path[1]))}
        return [(), *sorted(found)]

    def energy(self, components: Components = ()) -> float:
        return sum(value**2 for value in self.ending(components).values())

    def accepted(self, tables: StateTables) -> Brute:
        """The same with the paths alone that an automaton accepts."""
        values = {p: v for p, v in self.values.items() if accepts(self.model, tables, *p)}
        return Brute(self.model, self.target, values)


def brute(shape: Shape, sequence: int = 0, position: int = 1, seed: int = 5) -> Brute:
    """A random target at one position, and each path's value by the dense oracle."""
    whole = make_frozen(shape)
    model = whole.sequence(sequence)
    weights = np.random.default_rng(seed).standard_normal(shape.d_vocab)
    network = dense(whole, sequence)
    values = {
        (path.source, path.components): float(network.logits(path)[position] @ weights)
        for path in network.paths()
    }
    return Brute(model, Target.logit(model, position, torch.from_numpy(weights)), values)


def random_tables(model: FrozenModel, seed: int) -> StateTables:
    """An automaton of up to three states at each boundary, with moves that lead nowhere."""
    generator = np.random.default_rng(seed)
    states = [*generator.integers(1, 4, model.depth).tolist(), 1]

    def into(boundary: int, size: int) -> tuple[int, ...]:
        return tuple(generator.integers(-1, states[boundary], size).tolist())

    def member(size: int) -> tuple[int, ...]:
        return tuple(generator.integers(-1, 2, size).tolist())

    numbers = range(model.depth)
    return StateTables(
        tuple(member(block.components) for block in model.blocks),
        tuple(tuple(into(b + 1, 2) for _ in range(states[b])) for b in numbers),
        tuple(into(b + 1, states[b]) for b in numbers),
        tuple(source.entry for source in model.sources),
        tuple(into(source.entry, 1)[0] for source in model.sources),
    )


def accepts(model: FrozenModel, tables: StateTables, source: int, components: Components) -> bool:
    """Walk the automaton along one path."""
    state = tables.start[source]
    inside = dict(components if model.sources[source].component is None else components[1:])
    for number in range(tables.entry[source], model.depth):
        if state < 0:
            return False
        if number not in inside:
            state = tables.skip[number][state]
        else:
            kind = tables.member[number][inside[number]]
            state = -1 if kind < 0 else tables.move[number][state][kind]
    return state == 0
