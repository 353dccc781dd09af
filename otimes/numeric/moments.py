"""The exact energy of paths on small models, from the second moment of beginnings of paths.

With ``X_p`` the flattened stream that a beginning ``p`` writes, ``C = Σ_p X_p X_pᵀ`` before a block
becomes behind it

    C <- skip C skipᵀ + Σ_c (A_c ⊗ W_c) C (A_c ⊗ W_c)ᵀ + Σ_sources x xᵀ

because a longer path is a beginning and a component or the skip edge. A suffix ``f`` has the energy
``fᵀ C f``. Of each component only what it moves of ``C`` is kept, ``[pos · width]²``.

No path of a suffix is larger than the square root of its energy, which proves a list of the largest
paths complete. The matrix is ``[pos · d_model]²``, so models and prompts must be small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.errors import LimitError
from otimes.numeric.frozen import Branch, FrozenHeads, FrozenNeurons, Stream
from otimes.numeric.paths import Components
from otimes.numeric.prefixes import MEMORY_BUDGET, Reading, direct_sources
from otimes.numeric.tree import PathTree

Matrix = Float[Tensor, "_ _"]


class SecondMoments:
    """The exact energy of every suffix of a tree.

    As a guide of :meth:`PathTree.expand` it gives each child's energy, and on top of it what the
    rounding of the product that reads it may hide; the rounding of the recursion is not bounded.
    """

    def __init__(self, tree: PathTree, budget: int = MEMORY_BUDGET) -> None:
        """Carry the second moments through the blocks.

        Raises:
            LimitError: if the matrices would take more than ``budget`` bytes.
        """
        size = bytes_of(tree)
        if size > budget:
            width = tree.model.length * tree.model.W_U.shape[0]
            raise LimitError(
                f"exact energies need matrices of {width} × {width} numbers, "
                f"{size / 2**30:.2f} GiB with those of the components, more than the budget of "
                f"{budget / 2**30:.2f} GiB; take a shorter prompt, or estimate the energy by signs",
                size,
                budget,
            )
        self.tree = tree
        model, transitions = tree.model, tree.transitions
        self._kept = list[list[Float[Tensor, "component state inner inner"]]]()
        width = model.length * model.W_U.shape[0]
        moments = self._add_sources(0, model.W_U.new_zeros(transitions.states[0], width, width))
        for number, block in enumerate(model.blocks):
            states = transitions.states[number + 1]
            later = model.W_U.new_zeros(states + 1, width, width)
            for state, into in enumerate(transitions.skip[number][:-1].tolist()):
                if into < states:
                    later[into] += self._both_sides(moments[state], block.skip.apply)
            kept, first = list[Tensor](), 0
            for branch in block.branches:
                kept.append(self._through(number, branch, first, moments, later))
                first += branch.size
            self._kept.append(kept)
            moments = self._add_sources(number + 1, later[:-1])
        (self._last,) = moments

    def _add_sources(self, entry: int, moments: Tensor) -> Tensor:
        model = self.tree.model
        for number, start in direct_sources(model, self.tree.transitions, entry):
            stream = model.start(number)
            assert stream is not None
            moments[start] += torch.outer(stream.flatten(), stream.flatten())
        return moments

    def _both_sides(self, matrix: Matrix, apply: Callable[[Stream], Tensor]) -> Matrix:
        """``F C Fᵀ`` of a map of streams: rows are streams, then columns."""
        model = self.tree.model
        for _ in range(2):
            # a batch axis of one sequence
            streams = matrix.reshape(len(matrix), 1, model.length, -1)
            matrix = apply(streams).reshape(len(matrix), -1).T
        return matrix

    def _through(
        self, number: int, branch: Branch, first: int, moments: Tensor, later: Tensor
    ) -> Float[Tensor, "component state inner inner"]:
        """What each component moves of the moments; adds what it writes to ``later``."""
        transitions, constants = self.tree.transitions, self.tree.prefixes.constants[number]
        found = list[Tensor]()
        for index in range(branch.size):
            one = _alone(branch, index)
            moved = torch.stack([self._both_sides(matrix, one.moved) for matrix in moments])
            after = transitions.after[number][:, first + index].tolist()
            onto = moved.new_zeros(len(later), *moved.shape[1:])
            for state, into in enumerate(after[:-1]):
                onto[into] += moved[state]
            source, constant = int(constants[first + index]), one.constant()
            if source >= 0 and constant is not None:
                onto[transitions.start[source]] += torch.outer(
                    constant.flatten(), constant.flatten()
                )
            for into, matrix in enumerate(onto[:-1]):
                later[into] += self._both_sides(matrix, _written(one))
            found.append(moved)
        return torch.stack(found)

    def _read(self, reading: Reading) -> tuple[Tensor, Tensor]:
        """The energies ``[n, component]``, and what rounding may hide of them."""
        kept = self._kept[reading.block][reading.branch]
        # [n, pos] x [n, component, width] -> [n, component, pos * width]
        functional = torch.einsum("np,ncw->ncpw", reading.rows, reading.inner).flatten(2)
        parts = torch.einsum("ncx,csxy,ncy->nsc", functional, kept, functional)
        size = functional.square().sum(-1)
        norms = torch.linalg.matrix_norm(kept).T * torch.finfo(kept.dtype).eps * kept.shape[-1]
        if reading.accept is None:
            energy, hidden = parts[:, 0], size * norms[0]
        else:
            accept = reading.accept[:, :-1].to(parts.dtype)
            energy = (parts * accept).sum(1)
            hidden = size * torch.einsum("nsc,sc->nc", accept, norms)
        if reading.constants is not None:
            energy = energy + reading.constants.square()
        return energy, hidden

    def __call__(
        self, reading: Reading, values: Float[Tensor, "n component"]
    ) -> Float[Tensor, "n component"]:
        """The energy of each child and what rounding may hide of it."""
        del values
        energy, hidden = self._read(reading)
        return energy.clamp(min=0) + hidden

    def energy(self, components: Components = ()) -> float:
        """The energy of the paths that end with ``components``."""
        if components:
            reading, place = self.tree.read_first(components)
            return float(self._read(reading)[0][0, place])
        last = self.tree.last
        functional = torch.outer(last.rows[0], last.vectors[0]).flatten()
        beyond = sum(value**2 for _, value in self.tree.beyond)
        return float(functional @ self._last @ functional) + beyond


def bytes_of(tree: PathTree) -> int:
    """The bytes that the matrices of :class:`SecondMoments` take at once."""
    model, states = tree.model, tree.transitions.states
    # before and behind a block, and one that is read from both sides
    numbers = (model.length * model.W_U.shape[0]) ** 2 * (2 * max(states) + 2)
    for number, block in enumerate(model.blocks):
        for branch in block.branches:
            numbers += states[number] * branch.size * (model.length * branch.width) ** 2
    return numbers * model.dtype.itemsize


def _written(one: Branch) -> Callable[[Stream], Tensor]:
    # [row, 1, pos, width] as what a single component moved
    return lambda moved: one.written(moved[..., None, :])


def _alone(branch: Branch, index: int) -> Branch:
    """A branch of one component."""
    one = slice(index, index + 1)
    if isinstance(branch, FrozenHeads):
        kv = slice(index // branch.group, index // branch.group + 1)
        return replace(
            branch,
            pattern=branch.pattern[:, one],
            W_V=branch.W_V[kv],
            W_O=branch.W_O[one],
            b_V=None if branch.b_V is None else branch.b_V[kv],
        )
    assert isinstance(branch, FrozenNeurons)
    return replace(
        branch,
        slope=branch.slope[..., one],
        W_in=branch.W_in[:, one],
        W_out=branch.W_out[one],
        b_in=None if branch.b_in is None else branch.b_in[one],
    )
