"""What a head reads with its queries and with its keys: each is a sum over paths of its own.

The stream that head ``l.h`` reads is what the layers before ``l`` wrote, through the head's norm:
the paths of a smaller model that ends there. On top of the stream each side has sources of its own,
which no other component sees:

- ``pos``, for shortformer positions: they enter queries and keys of every layer behind the norm,
  and are never in the stream (Press, Smith and Lewis 2021, "Shortformer");
- ``bias[l.ln1]``, the bias ``β`` of the norm that the head reads through;
- ``bias[l.h.q]`` and ``bias[l.h.k]``, the biases ``b_Q`` and ``b_K``, which are added behind
  ``W_Q`` and ``W_K``.

Norms of queries and keys act behind all of it: :mod:`otimes.algebra.projections`.

>>> from otimes.algebra import Architecture
>>> arch = Architecture(2, 1, positions="shortformer", norm="layer", biases={"b_Q", "b_ln1[1]"})
>>> for path in ReadStream(arch, (1, 0), QUERY).paths:
...     print(f"{path.path:14} {path}")
embed          D[1.ln1] ⊗ Γ[1.ln1] W_E
pos            Id ⊗ W_pos
bias[1.ln1]    Id ⊗ β[1.ln1]
bias[1.0.q]    Id ⊗ b_Q[1.0]
embed > 0.0    D[1.ln1] A[0.0] D[0.ln1] ⊗ Γ[1.ln1] W_OV[0.0] Γ[0.ln1] W_E
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from otimes.algebra.architecture import Architecture
from otimes.algebra.expansion import PathSum
from otimes.algebra.expressions import Expr, Factor
from otimes.algebra.layout import ATTENTION, EMPTY, Word, norm_word, reading_norm
from otimes.algebra.projections import head_norm, projection, projection_bias
from otimes.algebra.sources import Source
from otimes.algebra.types import D_MODEL
from otimes.algebra.vocabulary import (
    ONES,
    POSITION_IDS,
    W_POS,
    Component,
    Head,
    Neuron,
    component_name,
    head_name,
    of_norm,
)
from otimes.algebra.words import Words
from otimes.errors import UnknownComponentError

Side = Literal["query", "key"]
QUERY: Final = "query"
KEY: Final = "key"

_LETTERS: Final[dict[Side, Literal["q", "k"]]] = {QUERY: "q", KEY: "k"}


@dataclass(frozen=True, init=False, repr=False)
class ReadStream(Architecture):
    """The layers before a head, ending in what the head reads on one side.

    It is an architecture, so that its paths are counted, selected and named as those to the
    logits are; the words of its paths end at the head's reading norm and not at the logits.

    Args:
        whole: the model.
        reader: the head.
        side: ``query`` or ``key``.
    """

    whole: Architecture
    reader: Head
    side: Side

    def __init__(self, whole: Architecture, reader: Head, side: Side) -> None:
        whole.check_head(reader)
        layers = reader[0]
        super().__init__(
            layers,
            whole.heads[:layers],
            kv_heads=whole.kv_heads[:layers],
            positions=whole.positions,
            token_types=whole.token_types,
            norm=whole.norm,
            norm_placement=whole.norm_placement,
            final_norm=False,
            embed_norm=whole.embed_norm,
            mlp=whole.mlp,
            neurons=whole.neurons[:layers] if whole.mlp == "frozen" else None,
            parallel=whole.parallel,
            multipliers=whole.multipliers - {"logits"},
            biases=[name for name in whole.biases if _is_before(name, layers)],
        )
        for name, value in (("whole", whole), ("reader", reader), ("side", side)):
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"{self.whole!r}.scores({head_name(self.reader)!r}).{self.side}_stream"

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the stream, then those of this side of the head alone."""
        return (*super().sources, *self._own_sources())

    def _own_sources(self) -> list[Source]:
        layer = self.reader[0]
        norm = reading_norm(self.whole, layer, ATTENTION)
        found = list[Source]()
        if self.whole.positions == "shortformer":
            found.append(self._added("pos", "pos", POSITION_IDS, W_POS))
        if norm is not None and f"b_ln1[{layer}]" in self.whole.biases:
            found.append(self._added(f"bias[{norm}]", "bias", ONES, of_norm("β", norm)))
        if self.is_biased:
            bias = projection_bias(self.whole, self.reader, self.letter)
            found.append(self._added(self._bias_name, "bias", ONES, bias))
        return found

    def _added(self, name: str, kind: str, vector: Expr, weight: Expr) -> Source:
        # behind the last block and behind the norm: nothing stands between it and the head
        return Source(name, kind, len(self.blocks), None, vector, (weight,), (), "logits")

    @cached_property
    def words(self) -> Words:
        """The words from the sources to what the head reads: the last factor is its norm's."""
        norm = norm_word(reading_norm(self.whole, self.reader[0], ATTENTION))
        tails = {"stream": norm, "unembed": EMPTY, "logits": EMPTY}
        return Words(self, tails, codomain=D_MODEL)

    def check_head(self, head: Head) -> None:
        """Raise UnknownComponentError, with what there is, unless the head is before the reader."""
        self.whole.check_head(head)
        self._check_before(head)

    def check_neuron(self, neuron: Neuron) -> None:
        """Raise UnknownComponentError unless the frozen neuron comes before the reader."""
        self.whole.check_neuron(neuron)
        self._check_before(neuron)

    def _check_before(self, component: Component) -> None:
        if self.layers <= component[0] < self.whole.layers:
            reads = (
                f"reads layers 0 to {self.layers - 1}" if self.layers else "reads no other layer"
            )
            name = component_name(component)
            raise UnknownComponentError(
                f"{name} is on no path to head {head_name(self.reader)}, which {reads}", name
            )

    @property
    def letter(self) -> Literal["q", "k"]:
        """``q`` or ``k``."""
        return _LETTERS[self.side]

    @property
    def projection(self) -> Factor:
        """``W_Q`` or ``W_K``, what a query or key is made with of what is read."""
        return projection(self.whole, self.reader, self.letter)

    @property
    def norm_behind(self) -> Word:
        """``D ⊗ Γ`` of the norm of queries or keys; empty where there is none."""
        return head_norm(self.whole, self.reader, self.letter)

    @property
    def is_biased(self) -> bool:
        """Whether ``b_Q`` or ``b_K`` is added behind the projection."""
        return f"b_{self.letter.upper()}[{self.reader[0]}]" in self.whole.biases

    @property
    def paths(self) -> PathSum:
        """All paths to this side of the head."""
        return PathSum(self)

    def is_projected(self, source: Source) -> bool:
        """Whether a source is a vector of d_head already: ``b_Q`` or ``b_K``."""
        return source.name == self._bias_name

    @property
    def _bias_name(self) -> str:
        return f"bias[{head_name(self.reader)}.{self.letter}]"


def _is_before(bias: str, layers: int) -> bool:
    """Whether a bias such as ``b_V[1]`` or ``b_embed`` is added before a layer."""
    name, _, layer = bias.partition("[")
    return int(layer[:-1]) < layers if layer else name == "b_embed"
