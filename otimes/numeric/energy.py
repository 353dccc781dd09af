"""Path energy ``E = Σ_p c_p²``, estimated by frozen passes with random signs.

Flip independently the sign of every component and of every source. Two different paths differ in a
component or in their source, so the mean of the product of their signs is 0, and the mean square of
the signed sum of all paths is Σ_p c_p²; the same holds for the paths of any suffix. A sum may be
small where large paths cancel; its energy is not.

The squares of the draws are heavy-tailed: a few draws in which many large paths get the same sign
carry much of the mean. Intervals are therefore percentile bootstraps over the draws. They are too
narrow more often than their level says where the draws are few.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.nodes import Node
from otimes.numeric.paths import Components
from otimes.numeric.prefixes import MEMORY_BUDGET, Prefixes, Reading, Signs, prefixes
from otimes.numeric.tree import PathTree

RESAMPLES = 1000
"""Bootstrap samples of an interval."""


@dataclass(frozen=True)
class Estimate:
    """A number with an interval; all three are equal where it is exact."""

    value: float
    low: float
    high: float

    @staticmethod
    def exactly(value: float) -> Estimate:
        """A number that is not estimated."""
        return Estimate(value, value, value)

    @staticmethod
    def of_mean(draws: Float[Tensor, " draw"], seed: int = 0, level: float = 0.95) -> Estimate:
        """A mean with its percentile-bootstrap interval, always the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randint(0, len(draws), (RESAMPLES, len(draws)), generator=generator)
        means = draws.double().cpu()[chosen].mean(1)
        tail = (1 - level) / 2
        low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=means.dtype))
        return Estimate(float(draws.double().mean()), float(low), float(high))


class SignedEnergies:
    """Estimates of the energy of every suffix of a tree, all from the same draws.

    As a guide of :meth:`PathTree.expand` it gives the energy of each child.
    """

    def __init__(
        self,
        tree: PathTree,
        draws: int = 128,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        budget: int = MEMORY_BUDGET,
        *,
        root_alone: bool = False,
    ) -> None:
        """Run the passes.

        Args:
            tree: whose paths are meant.
            draws: how many draws of signs.
            seed: of the draws and of the intervals.
            dtype: in which streams of draws are carried; values of paths do not depend on it.
            budget: bytes that the streams of all draws may take.
            root_alone: keep what the energy of all paths needs, and nothing for suffixes.

        Raises:
            ValueError: if there are no draws.
            LimitError: if the streams of the draws would take more than the budget.
        """
        if draws < 1:
            raise ValueError(f"an estimate needs at least one draw, not {draws}")
        self.tree = tree
        self.seed = seed
        # streams stop before the unembedding: no copy of it in another dtype
        model = replace(tree.model, W_U=tree.model.W_U[:, :0], b_U=None).to(dtype)
        self.signs = Signs.draw(model, draws, seed, dtype)
        self.prefixes: Prefixes = prefixes(
            model, tree.transitions, self.signs, budget, keep=not root_alone
        )

    def __call__(
        self, reading: Reading, values: Float[Tensor, "n component"]
    ) -> Float[Tensor, "n component"]:
        """The energy of each child."""
        del values
        return self.prefixes.read(reading).square().mean(1)

    def signed(self, components: Components = ()) -> Float[Tensor, " draw"]:
        """The signed sum of the paths that end with ``components``, in every draw.

        The signs of ``components`` themselves are left out: they change no square.
        """
        if components:
            reading, place = self.tree.read_first(components)
            return self.prefixes.read(reading)[0, :, place].double()
        last = self.tree.last
        # [draw, pos, d_model] x [1, d_model], rows [1, pos]
        total = last.of(self.prefixes.last.double())[:, 0]
        for source, value in self.tree.beyond:
            total = total + self.signs.sources[:, source] * value
        return total

    def energy(self, components: Components = ()) -> Estimate:
        """The energy of the paths that end with ``components``."""
        return Estimate.of_mean(self.signed(components).square(), self.seed)

    def explained(self, shown: list[Node]) -> Estimate:
        """The share of the whole energy that complete paths hold: ``Σ c² / (Σ c² + E_rest)``.

        The energy of the other paths is the mean square of the signed sum without those shown,
        which the large paths no longer disturb. It is unbiased where the paths were chosen by
        other draws than these.
        """
        rest, energy = self.signed(), sum(node.value**2 for node in shown)
        for node in shown:
            rest = rest - self.signs.of_path(node.source, node.components) * node.value
        if not energy:
            return Estimate.exactly(0.0)
        others = Estimate.of_mean(rest.square(), self.seed)
        value, low, high = (
            energy / (energy + part) for part in (others.value, others.high, others.low)
        )
        return Estimate(value, low, high)
