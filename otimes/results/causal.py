"""Frozen values of paths beside their causal effects."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from otimes.results.saved import Saved, read, write

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class CausalEffect:
    """One path: its value at the run's patterns, and the effect of taking it away."""

    path: str
    frozen: float
    causal: float

    @property
    def gap(self) -> float:
        """The causal effect less the frozen value: what the recomputed patterns make of it."""
        return self.causal - self.frozen


@dataclass(frozen=True)
class CausalEffects:
    """What happens to a target when what a path writes is taken away and the rest is recomputed.

    ``causal`` is the target of the run less the target of the changed run, so it has the sign of
    the ``frozen`` value: both say how much of the target the path makes.

    Attributes:
        model: its name.
        tokens: the ids of the sequence.
        position: where the target is read, from 0.
        target: what it is: a logit, the difference of two, or a weighted sum.
        at: ``output``: the vector that the path writes is subtracted from the stream right behind
            its last component; ``input``: what arrives at the path's last component is subtracted
            from what that reads, a head with its queries, keys and values.
        original: the target of the run.
        effects: one for each path, in the order asked.
    """

    model: str
    tokens: tuple[int, ...]
    position: int
    target: str
    at: str
    original: float
    effects: tuple[CausalEffect, ...]

    @property
    def frozen(self) -> Float64[np.ndarray, " path"]:
        """The frozen values."""
        return np.array([effect.frozen for effect in self.effects], dtype=np.float64)

    @property
    def causal(self) -> Float64[np.ndarray, " path"]:
        """The causal effects."""
        return np.array([effect.causal for effect in self.effects], dtype=np.float64)

    @property
    def gap(self) -> Float64[np.ndarray, " path"]:
        """The causal effects less the frozen values."""
        return self.causal - self.frozen

    def to_json(self) -> dict[str, Any]:
        """The result as one JSON object."""
        effects = [asdict(effect) | {"gap": effect.gap} for effect in self.effects]
        return asdict(self) | {"tokens": list(self.tokens), "effects": effects}

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each path: path, frozen, causal, gap."""
        import pandas

        columns = ["path", "frozen", "causal", "gap"]
        return pandas.DataFrame(self.to_json()["effects"], columns=columns)

    def save(self, path: str | Path) -> None:
        """Write the result as JSON; :meth:`load` reads it without the model."""
        write(path, asdict(self))

    @staticmethod
    def load(path: str | Path) -> CausalEffects:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: if the file holds no saved causal effects.
        """
        return read(path, "causal effects", _effects)

    def __repr__(self) -> str:
        width = max([4, *(len(effect.path) for effect in self.effects)])
        head = f"causal effects on the {self.target} at position {self.position}, at={self.at!r}"
        return "\n".join(
            [
                head,
                f"{'path':{width}}  {'frozen':>9}  {'causal':>9}  {'gap':>9}",
                *(
                    f"{effect.path:{width}}  {effect.frozen:+9.4f}  {effect.causal:+9.4f}  "
                    f"{effect.gap:+9.4f}"
                    for effect in self.effects
                ),
            ]
        )


def _effects(saved: Saved) -> CausalEffects:
    return CausalEffects(
        model=saved.get("model", str),
        tokens=saved.integers("tokens"),
        position=saved.get("position", int),
        target=saved.get("target", str),
        at=saved.get("at", str),
        original=saved.number("original"),
        effects=tuple(
            CausalEffect(item.get("path", str), item.number("frozen"), item.number("causal"))
            for item in saved.objects("effects")
        ),
    )
