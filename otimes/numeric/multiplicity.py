"""How many beginnings of paths there are before each block, in integers of any size."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from otimes.numeric.frozen import FrozenModel
from otimes.numeric.paths import Components
from otimes.numeric.prefixes import Reading, Transitions, constant_sources, direct_sources


class Multiplicity:
    """The number of beginnings before each block, by the state that they are in.

    ``counts[b][s]`` is exact. A beginning that is one source alone is *direct*.
    """

    def __init__(self, model: FrozenModel, transitions: Transitions) -> None:
        self.transitions = transitions
        device = model.W_U.device
        self._constants = constant_sources(model, device)
        starts = transitions.start
        self.beyond = sum(
            source.joins != "stream" and start >= 0
            for source, start in zip(model.sources, starts, strict=True)
        )
        self.counts = list[list[int]]()
        self._skip = [skip.tolist() for skip in transitions.skip]
        self._few = list[Tensor]()
        self._alone = list[Tensor]()
        counts = [0] * transitions.states[0]
        direct: list[list[int]] = [[] for _ in counts]
        for boundary in range(model.depth + 1):
            if boundary:
                counts, direct = self._through(boundary - 1, counts, direct)
                for source in self._constants[boundary - 1].tolist():
                    if source >= 0 and starts[source] >= 0:
                        counts[starts[source]] += 1
            for number, start in direct_sources(model, transitions, boundary):
                counts[start] += 1
                direct[start].append(number)
            self.counts.append(counts)
            self._few.append(torch.tensor([*(min(n, 2) for n in counts), 0], device=device))
            # the source's number and one, 0 where the only beginning goes through components
            self._alone.append(
                torch.tensor(
                    [
                        found[0] + 1 if n == 1 and found else 0
                        for n, found in zip([*counts, 0], [*direct, []], strict=True)
                    ],
                    device=device,
                )
            )

    def _through(
        self, block: int, counts: list[int], direct: list[list[int]]
    ) -> tuple[list[int], list[list[int]]]:
        """Counts and direct sources behind a block, without what begins there."""
        later = [0] * (self.transitions.states[block + 1] + 1)
        carried: list[list[int]] = [[] for _ in later]
        after, skip = self.transitions.after[block], self._skip[block]
        for state, count in enumerate(counts):
            later[skip[state]] += count
            carried[skip[state]] += direct[state]
            moves = torch.bincount(after[state], minlength=len(later)).tolist()
            for into, components in enumerate(moves):
                later[into] += count * components
        return later[:-1], carried[:-1]

    def of(
        self, reading: Reading
    ) -> tuple[Bool[Tensor, "n component"], Int[Tensor, "n component"]]:
        """Whether there is a path in each child, and the source of a child that is one path.

        The source is -1 where there are more paths, or the only one goes through more components.
        """
        few, alone = self._few[reading.block], self._alone[reading.block]
        size = reading.inner.shape[:2]
        if reading.accept is None:
            total, source = few[0].expand(size), alone[0].expand(size)
        else:
            # [n, state, component] x [state]
            total = (reading.accept * few[:, None]).sum(1)
            source = (reading.accept * alone[:, None]).sum(1)
        if reading.begins is not None:
            total = total + reading.begins
            first, last = reading.first, reading.first + size[1]
            constants = self._constants[reading.block][first:last] + 1
            source = torch.where(reading.begins, constants, source)
        return total > 0, torch.where(total == 1, source, 0) - 1

    def count(self, components: Components) -> int:
        """How many paths end with ``components``."""
        transitions, boundary = self.transitions, len(self.counts) - 1
        if not components:
            return self.counts[boundary][0] + self.beyond
        accept, behind = {0}, {0}
        # where all paths are meant, every state is the same one
        for block, number in [] if transitions.trivial else reversed(components):
            while boundary > block + 1:
                boundary -= 1
                skip = self._skip[boundary]
                accept = {state for state, into in enumerate(skip) if into in accept}
            after = transitions.after[block][:, number].tolist()
            behind, boundary = accept, block
            accept = {state for state, into in enumerate(after) if into in accept}
        block, number = components[0]
        constant = int(self._constants[block][number])
        begins = constant >= 0 and transitions.start[constant] in behind
        found = (n for state, n in enumerate(self.counts[block]) if state in accept)
        return sum(found) + begins
