"""Batches of suffixes of paths, and the values of words that are found with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from otimes.numeric.frozen import FrozenModel
from otimes.numeric.standing import on_device


@dataclass(frozen=True)
class Found:
    """Values of words that begin with any component and end in one of some suffixes.

    ``parents`` index ``suffixes [n, length, 2]`` and ``firsts`` index ``numbering [component, 2]``,
    which gives a component's block and its number there; no ``firsts`` means the words are the
    suffixes. ``values`` are ``[rows]`` or, by source position, ``[rows, pos]``.
    """

    values: Float[np.ndarray, " rows *pos"]
    sources: Integer[np.ndarray, " rows"]
    parents: Integer[np.ndarray, " rows"]
    firsts: Integer[np.ndarray, " rows"] | None
    suffixes: Integer[np.ndarray, "n length 2"]
    numbering: Integer[np.ndarray, "component 2"]

    @property
    def length(self) -> int:
        """How many components the words have."""
        return self.suffixes.shape[1] + (self.firsts is not None)

    def words(self, chosen: slice | np.ndarray) -> Integer[np.ndarray, "chosen length 2"]:
        """The (block, component) pairs of chosen rows, earliest first."""
        suffixes = self.suffixes[self.parents[chosen]]
        if self.firsts is None:
            return suffixes
        return np.concatenate([self.numbering[self.firsts[chosen], None], suffixes], axis=1)


@dataclass(frozen=True)
class Suffixes:
    """A batch, latest first blocks in front.

    ``boundaries`` are the blocks before which the functionals stand, ``ranks`` the places of the
    suffixes in the stated order, ``accepts [n, state]`` the states of an automaton before the
    boundary from which the suffix is accepted.
    """

    words: Integer[np.ndarray, "n length 2"]
    orders: Integer[np.ndarray, " n"]
    boundaries: Integer[np.ndarray, " n"]
    ranks: Integer[np.ndarray, " n"]
    rows: Float[Tensor, "n pos"]
    vectors: Float[Tensor, "n d_model"]
    accepts: Bool[np.ndarray, "n state"] | None

    def __len__(self) -> int:
        return len(self.words)

    def between(self, which: slice) -> Suffixes:
        """Some of the suffixes, without a copy."""
        return Suffixes(
            self.words[which], self.orders[which], self.boundaries[which], self.ranks[which],
            self.rows[which], self.vectors[which],
            None if self.accepts is None else self.accepts[which],
        )  # fmt: skip

    def chosen(self, which: np.ndarray) -> Suffixes:
        """Some of the suffixes; their ranks are kept."""
        places = on_device(which, self.rows)
        return Suffixes(
            self.words[which], self.orders[which], self.boundaries[which], self.ranks[which],
            self.rows[places], self.vectors[places],
            None if self.accepts is None else self.accepts[which],
        )  # fmt: skip


def component_numbers(model: FrozenModel) -> Integer[np.ndarray, "component 2"]:
    """The (block, index) of every component of the model, in order."""
    found = [(b, i) for b, block in enumerate(model.blocks) for i in range(block.components)]
    return np.array(found, dtype=np.int32).reshape(-1, 2)


def joined(parts: list[Suffixes]) -> Suffixes | None:
    """One batch of several, with places counted anew."""
    if not parts:
        return None
    ranks = np.concatenate([part.ranks for part in parts])
    places = np.empty_like(ranks)
    places[np.argsort(ranks)] = np.arange(len(ranks))
    accepts = [part.accepts for part in parts if part.accepts is not None]
    return Suffixes(
        np.concatenate([part.words for part in parts]),
        np.concatenate([part.orders for part in parts]),
        np.concatenate([part.boundaries for part in parts]),
        places,
        torch.cat([part.rows for part in parts]),
        torch.cat([part.vectors for part in parts]),
        np.concatenate(accepts) if accepts else None,
    )


def array(values: Tensor) -> np.ndarray:
    """Numbers of the model as float64 numbers on the host."""
    return values.double().cpu().numpy()
