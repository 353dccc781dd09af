"""Sums over all paths *through* a component or an edge, from one forward and one backward pass.

What a component c wrote, ``o_c``, read by the adjoint stream behind its block, is the sum over all
paths through it,

    M_c = <g, o_c> = <W_O Γ_wᵀ g, z_c>,

and an edge from c to a later component c', read with no component between, has

    M_{c c'} = <y_{c'}, skip … skip o_c>,   y_{c'} = e_rᵀ (A_{c'}ᵀ (W_O' Γ_wᵀ g) W_V'ᵀ):

what c' reads by itself. The groups overlap. Every path through c enters it by one edge and leaves
it by one, so the edges into c, and those out of it, add up to ``M_c``. All is of one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from otimes.numeric.branches import Branch, Moved
from otimes.numeric.edges import FrozenEdge
from otimes.numeric.frozen import FrozenModel, Stream
from otimes.numeric.functionals import Target, of_target, through_skip
from otimes.numeric.standing import source_stream
from otimes.numeric.suffixes import BUDGET

_POSITIONS = 32  # positions of one product: enough for the product, few for the memory


@dataclass(frozen=True)
class Edges:
    """All paths through each edge, components in the order of blocks.

    ``between [earlier, later]`` are edges between components, zero where the first is not in an
    earlier block; ``sources [source, component]`` are edges into the first component of a path,
    those of a component's own constant into it; ``outputs`` are the paths that end with each
    component. ``components`` are the sums over all paths through each component.
    """

    components: Float[Tensor, " component"]
    between: Float[Tensor, "earlier later"]
    sources: Float[Tensor, "source component"]
    outputs: Float[Tensor, " component"]


@dataclass(frozen=True)
class _Passed:
    """What a forward and a backward pass leave of one branch.

    ``moved`` is what its components moved, constants included, ``gradient`` what reads that: both
    ``[1, pos, component, width]``.
    """

    branch: Branch
    moved: Moved
    gradient: Moved

    @property
    def through(self) -> Float[Tensor, " component"]:
        """The sum over all paths through each component."""
        return (self.moved * self.gradient).sum((0, 1, 3))

    @cached_property
    def back(self) -> Float[Tensor, "pos component width"]:
        """The adjoint of what every component reads, before its ``W_V``."""
        return self.branch.moved_back(self.gradient)[0]


def component_marginals(
    model: FrozenModel, target: Target, streams: list[Stream] | None = None
) -> Float[Tensor, " component"]:
    """The sum over all paths through each component, in the order of blocks.

    Args:
        model: the frozen model of one sequence.
        target: what is read.
        streams: the streams of the forward pass where they are known.
    """
    passed = _passes(model, target, streams)
    parts = [part.through for block in passed for part in block]
    return torch.cat(parts) if parts else model.W_U.new_zeros(0)


def edge_marginals(
    model: FrozenModel,
    target: Target,
    streams: list[Stream] | None = None,
    budget: int = BUDGET,
) -> Edges:
    """The sum over all paths through each component and each edge.

    What every component wrote and reads by itself is made for a few positions at a time, so that it
    takes no more than ``budget`` bytes; the edges from all earlier components to those of a block
    are one product.

    Raises:
        ValueError: one position does not fit in the budget.
    """
    passed = _passes(model, target, streams)
    total, width = sum(block.components for block in model.blocks), model.W_U.shape[0]
    written = [source_stream(model, number) for number in range(len(model.sources))]
    one = (2 * total + sum(w is not None for w in written)) * width * model.W_U.element_size()
    if one > budget:
        raise ValueError(f"the edges of one position need {one} bytes, and the budget is {budget}")
    most = min(max(1, budget // max(1, one)), _POSITIONS)
    found = model.W_U.new_zeros(len(model.sources) + total, total)
    for start in range(0, model.length, most):
        _add_edges(model, passed, written, slice(start, min(start + most, model.length)), found)
    between, sources = found[len(model.sources) :], found[: len(model.sources)]
    _add_constants(model, passed, sources)
    parts = [part.through for block in passed for part in block]
    components = torch.cat(parts) if parts else model.W_U.new_zeros(0)
    return Edges(components, between, sources, _outputs(model, target, passed))


def _passes(
    model: FrozenModel, target: Target, streams: list[Stream] | None
) -> list[list[_Passed]]:
    """By block and branch: what was moved, and what reads it."""
    stream = model.added(0) if streams is None else streams[0]
    moved = list[list[Moved]]()
    for number, block in enumerate(model.blocks):
        here = list[Moved]()
        for branch in block.branches:
            found, constant = branch.moved(stream), branch.constant()
            here.append(found if constant is None else found + constant)
        moved.append(here)
        if streams is not None:
            stream = streams[number + 1]
            continue
        stream = block.skip.apply(stream) + model.written(number + 1)
        for branch, found in zip(block.branches, here, strict=True):
            stream = stream + branch.written(found)
    last = of_target(model, target)
    gradient = (last.rows.T @ last.vectors)[None]  # [1, pos] x [1, d_model]
    passed = list[list[_Passed]]()
    for block, here in zip(reversed(model.blocks), reversed(moved), strict=True):
        back = block.skip.adjoint(gradient)
        parts = list[_Passed]()
        for branch, found in zip(block.branches, here, strict=True):
            inner = branch.written_adjoint(gradient)
            parts.append(_Passed(branch, found, inner))
            back = back + branch.moved_adjoint(inner)
        passed.append(parts)
        gradient = back
    return passed[::-1]


def _add_edges(
    model: FrozenModel,
    passed: list[list[_Passed]],
    written: list[Stream | None],
    at: slice,
    found: Float[Tensor, "writer component"],
) -> None:
    """Add the part that some positions have in all edges: what was written there and is read there.

    Writers are the sources, then the components in the order of blocks; what they wrote goes
    forward past the skip edges, one block after the other.
    """
    sources, places = len(model.sources), at.stop - at.start
    size = places * model.W_U.shape[0]
    wrote = model.W_U.new_zeros(len(found), places, model.W_U.shape[0])
    first = 0
    for number, block in enumerate(model.blocks):
        for source, stream in enumerate(written):
            if stream is not None and model.sources[source].entry == number:
                wrote[source] = stream[0, at]
        earlier = wrote[: sources + first].view(-1, size)
        offset = first
        for part in passed[number]:
            columns = slice(offset, offset + part.branch.size)
            # [writer, place * d_model] x [place * d_model, component]
            reads = _reads(part, at).reshape(part.branch.size, size)
            found[: len(earlier), columns] += earlier @ reads.T
            offset = columns.stop
        if not block.skip.is_identity:
            wrote[: sources + first] = _places(block.skip, at).apply(wrote[: sources + first])
        for part in passed[number]:
            rows = slice(sources + first, sources + first + part.branch.size)
            _wrote(part, at, wrote[rows])
            first += part.branch.size


def _wrote(part: _Passed, at: slice, into: Float[Tensor, "component place d_model"]) -> None:
    """What every component wrote at some positions."""
    # [component, place, width] x [component, width, d_model]
    torch.bmm(part.moved[0, at].transpose(0, 1), part.branch.out, out=into)
    if not part.branch.writes.is_identity:
        into.copy_(_places(part.branch.writes, at).apply(into))


def _reads(part: _Passed, at: slice) -> Float[Tensor, "component place d_model"]:
    """The adjoint of what every component reads at some positions."""
    vectors = part.branch.vectors(part.back[at]).transpose(0, 1)
    scale = part.branch.reads.scale
    return vectors if scale is None else vectors * scale[0, at, None]


def _places(edge: FrozenEdge, at: slice) -> FrozenEdge:
    """An edge at some positions."""
    return edge if edge.scale is None else replace(edge, scale=edge.scale[:, at])


def _add_constants(
    model: FrozenModel, passed: list[list[_Passed]], sources: Float[Tensor, "source component"]
) -> None:
    """The edges of the components' own constants, into these components."""
    numbers = {s.component: i for i, s in enumerate(model.sources) if s.component is not None}
    first = 0
    for number, block in enumerate(passed):
        offset = first
        for part in block:
            constant = part.branch.constant()
            if constant is not None:
                values = (constant * part.gradient).sum((0, 1, 3))
                for index, value in enumerate(values):
                    source = numbers[number, offset - first + index]
                    sources[source, offset + index] = value
            offset += part.branch.size
        first = offset


def _outputs(
    model: FrozenModel, target: Target, passed: list[list[_Passed]]
) -> Float[Tensor, " component"]:
    """The paths that end with each component."""
    last = of_target(model, target)
    parts = list[Tensor]()
    for number in reversed(range(model.depth)):
        behind = through_skip(model, last, number + 1)
        found = list[Tensor]()
        for part in passed[number]:
            row = part.branch.writes.pattern_adjoint(behind.rows)[0]
            inner = part.branch.inner(behind.vectors)[0]
            # [pos] x [pos, component, width], then over the width
            found.append((torch.tensordot(row, part.moved[0], 1) * inner).sum(-1))
        parts = found + parts
    return torch.cat(parts) if parts else model.W_U.new_zeros(0)
