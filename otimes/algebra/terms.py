"""One path and its ``pattern ⊗ weight``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otimes.algebra.expressions import Expr, Id, Product, tensor, word
from otimes.algebra.held import displayed_expression
from otimes.algebra.vocabulary import Component, Head, Neuron, component_name

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture
    from otimes.algebra.sources import Source
    from otimes.algebra.words import Spelling

DIRECT = "direct"


class PathTerm:
    """One path from a source through components to the logits, and its ``A ⊗ W``.

    ``components`` are in reading order, earliest first. Words are built when asked for.
    """

    __slots__ = ("_spelling", "architecture", "components", "source")

    def __init__(
        self,
        architecture: Architecture,
        source: Source,
        components: tuple[Component, ...],
        spelling: Spelling | None = None,
    ) -> None:
        """Name a path; whether it is one is checked by ``PathSum`` and not here.

        ``spelling`` has the factors of its words where an iteration knows them already.
        """
        self.architecture = architecture
        self.source = source
        self.components = components
        self._spelling = spelling

    @property
    def heads(self) -> tuple[Head, ...]:
        """The attention heads among the components, earliest first."""
        if self.architecture.mlp != "frozen":
            return self.components  # pyright: ignore[reportReturnType] - there are heads only
        return tuple(c for c in self.components if not isinstance(c, Neuron))

    @property
    def path(self) -> str:
        """The path with its source, such as ``embed > 0.7 > 1.4``."""
        names = self.architecture.words.names
        return " > ".join([self.source.name, *[names[c] for c in self.components]])

    @property
    def short_path(self) -> str:
        """The path without its source where the model has no other."""
        if len(self.architecture.sources) > 1:
            return self.path
        return " > ".join(map(component_name, self.components)) or DIRECT

    @property
    def order(self) -> int:
        """The number of attention heads on the path."""
        return len(self.heads)

    @property
    def kind(self) -> str:
        """``direct``, ``mlp`` (neurons alone), ``head`` (one head) or ``virtual`` (two or more)."""
        order = self.order
        if order:
            return "head" if order == 1 else "virtual"
        return "mlp" if self.components else "direct"

    @property
    def pattern(self) -> Expr:
        """The pattern word, ``A[1.4] A[0.7]``, norm scales included; ``Id`` for a direct path."""
        spelling = self._spelling
        if spelling is None:
            return self.architecture.words.word(0, self.source, self.components)
        return word(spelling[2][0], spelling[0][::-1])

    @property
    def weight(self) -> Expr:
        """The weight word from the source to the logits, ``W_U W_OV[1.4] W_OV[0.7] W_E``."""
        spelling = self._spelling
        if spelling is None:
            return self.architecture.words.word(1, self.source, self.components)
        return word(spelling[2][1], spelling[1][::-1])

    @property
    def attention(self) -> Expr:
        """The pattern word without the scales ``D`` of norms: how attention alone moves it."""
        return self.architecture.words.attention(self.source, self.components)

    @property
    def operator(self) -> Expr:
        """``pattern ⊗ weight``."""
        return tensor(self.pattern, self.weight)

    @property
    def expression(self) -> Expr:
        """The term as it stands in the sum: applied to its input where there are several."""
        if len(self.architecture.sources) == 1:
            return self.operator
        operator = self.operator
        if operator == tensor(Id, Id):  # a vector that is written to the logits as it is
            return self.source.input
        return Product(operator, self.source.input)

    @property
    def latex(self) -> str:
        """LaTeX of ``pattern ⊗ weight``."""
        return self.operator.latex

    def _repr_latex_(self) -> str:
        return displayed_expression(self.operator, self.latex)

    def __str__(self) -> str:
        return str(self.operator)

    def __repr__(self) -> str:
        return f"{self.architecture!r}.logits.expand()[{self.path!r}]"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PathTerm)
            and self.components == other.components
            and self.source == other.source
            and self.architecture == other.architecture
        )

    def __hash__(self) -> int:
        return hash((self.components, self.source.name))
