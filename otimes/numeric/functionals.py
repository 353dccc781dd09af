"""Scalar targets and what reads them through suffixes of paths: functionals of rank one.

A scalar target is a linear functional of the last stream at one position, such as a logit or a
difference of two. Read back through a component it stays of rank one, a row over positions times a
vector of the stream:

    x -> Σ_pos r[pos] (x[pos] · v),   behind head h:  r' = D_r Aᵀ D_w r,   v' = Γ_rᵀ W_V W_O Γ_wᵀ v

So a suffix of a path (its last components) costs a row and a vector, whatever it is applied to: the
sum over all paths with that suffix is the functional applied to the whole stream before its first
component. Everything here is about a single sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.frozen import FrozenModel, Stream


@dataclass(frozen=True)
class Target:
    """A linear functional of the logits at one position of one sequence.

    ``direction [d_model]`` is what the unembedding's columns give, such as ``W_U[:, t]`` or
    ``W_U[:, t] - W_U[:, u]``, and ``bias`` what ``b_U`` gives.
    """

    position: int
    direction: Float[Tensor, " d_model"]
    bias: float = 0.0

    @staticmethod
    def logit(model: FrozenModel, position: int, weights: Float[Tensor, " d_vocab"]) -> Target:
        """``Σ_t weights[t] logit[t]`` at a position."""
        bias = 0.0 if model.b_U is None else float(model.b_U @ weights)
        return Target(position, model.W_U @ weights, bias)


@dataclass(frozen=True)
class Functionals:
    """Functionals ``rows [n, pos] ⊗ vectors [n, d_model]`` of the stream before block ``boundary``.

    ``boundary`` is the number of blocks for functionals of the last stream.
    """

    boundary: int
    rows: Float[Tensor, "n pos"]
    vectors: Float[Tensor, "n d_model"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: slice | Tensor) -> Functionals:
        return Functionals(self.boundary, self.rows[chosen], self.vectors[chosen])

    def of(self, stream: Stream) -> Float[Tensor, "*lead n"]:
        """Their values on streams ``[..., pos, d_model]``, without a batch axis."""
        # [..., pos, d_model] x [d_model, n], then rows over positions
        return torch.einsum("...pn,np->...n", stream @ self.vectors.T, self.rows)

    def at_positions(self, stream: Stream) -> Float[Tensor, "*lead n pos"]:
        """The parts of :meth:`of` by the position of the stream: they add up to it."""
        return (stream @ self.vectors.T).transpose(-1, -2) * self.rows


def of_target(model: FrozenModel, target: Target) -> Functionals:
    """A target as a functional of the stream behind the last block (before the final norm)."""
    check_single(model)
    row = torch.zeros(1, model.length, dtype=model.dtype, device=model.W_U.device)
    row[0, target.position] = 1
    vector = model.direction(target.direction[None].to(model.dtype))
    final = model.final
    return Functionals(model.depth, final.pattern_adjoint(row), final.weight_adjoint(vector))


def past_norm(model: FrozenModel, target: Target) -> Float[Tensor, " d_model"]:
    """The vector that reads, at the target's position, what joins behind the final norm."""
    return model.direction(target.direction.to(model.dtype))


def through_skip(model: FrozenModel, found: Functionals, boundary: int) -> Functionals:
    """Functionals read back past the skip edges down to block ``boundary``, by no component."""
    rows, vectors = found.rows, found.vectors
    for block in reversed(model.blocks[boundary : found.boundary]):
        if not block.skip.is_identity:
            rows = block.skip.pattern_adjoint(rows)
            vectors = block.skip.weight_adjoint(vectors)
    return Functionals(boundary, rows, vectors)


def through_components(
    model: FrozenModel, found: Functionals, number: int
) -> tuple[Float[Tensor, "n component pos"], Float[Tensor, "n component d_model"]]:
    """Functionals read back through every component of block ``number``, which they stand behind.

    Returns:
        Rows and vectors that read the stream before the block, components as the block counts them.
    """
    if found.boundary != number + 1:
        found = through_skip(model, found, number + 1)
    rows, vectors = list[Tensor](), list[Tensor]()
    for branch in model.blocks[number].branches:
        inner = branch.inner(found.vectors)
        row, vector = branch.pull(branch.writes.pattern_adjoint(found.rows), inner)
        rows.append(row)
        vectors.append(vector)
    if not rows:
        empty = found.rows.new_zeros
        return empty(len(found), 0, model.length), empty(len(found), 0, model.W_U.shape[0])
    return torch.cat(rows, 1), torch.cat(vectors, 1)


def check_single(model: FrozenModel) -> None:
    """Functionals are about one sequence: ``model.sequence(index)`` chooses it."""
    if model.batch != 1:
        raise ValueError(f"a scalar target is of one sequence, not of {model.batch}")


def path_positions(
    model: FrozenModel, target: Target, source: int, components: Sequence[tuple[int, int]]
) -> Float[Tensor, " pos"]:
    """The value of one path by the position that its source wrote at; they add up to it.

    A constant inside a component begins at the positions that this component reads; what joins
    behind the blocks counts at the target's position.
    """
    found, here = model.sources[source], torch.zeros(model.length, dtype=model.dtype)
    here = here.to(model.W_U.device)
    if found.joins == "logits":
        here[target.position] = target.bias
        return here
    stream = model.start(source)
    assert stream is not None
    if found.joins == "unembed":
        here[target.position] = stream[0, target.position] @ past_norm(model, target)
        return here
    functional = of_target(model, target)
    for number, index in reversed(components[1 if found.component is not None else 0 :]):
        rows, vectors = through_components(model, functional, number)
        functional = Functionals(number, rows[:, index], vectors[:, index])
    if found.component is None:
        return through_skip(model, functional, found.entry).at_positions(stream[0])[0]
    number, index = found.component
    functional = through_skip(model, functional, number + 1)
    branch, own = model.blocks[number].of(index)
    rows = branch.rows(branch.writes.pattern_adjoint(functional.rows))[0, own]
    constants = branch.value_constants()
    assert constants is not None
    return rows * (constants[own] @ branch.inner(functional.vectors)[0, own])
