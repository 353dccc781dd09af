"""The blocks of a frozen transformer, and the words that paths through them spell.

A block maps the stream to ``skip · x + Σ components · x + what it writes directly``. With patterns,
norm scales and slopes fixed every part is again ``pattern ⊗ weight``:

- pre-norm: the skip edge is Id, a head is ``A D ⊗ W_OV Γ`` (it reads through the norm ``D ⊗ Γ``);
- post-norm: the norm follows the addition: the skip edge is ``D ⊗ Γ``, a head ``D A ⊗ Γ W_OV``;
- sandwich: a norm before and one after the head, ``D′ A D ⊗ Γ′ W_OV Γ``, and the skip edge is Id;
- output: the norm after the head alone, ``D′ A ⊗ Γ′ W_OV``, and the skip edge is Id.

>>> from otimes.algebra import Architecture
>>> for place in ("pre", "post", "sandwich", "output"):
...     paths = Architecture(1, 1, norm="rms", norm_placement=place).logits.expand()
...     print(f"{place:9} {paths['0.0']}")
pre       D[final] A[0.0] D[0.ln1] ⊗ W_U Γ[final] W_OV[0.0] Γ[0.ln1] W_E
post      D[0.ln1] A[0.0] ⊗ W_U Γ[0.ln1] W_OV[0.0] W_E
sandwich  D[final] D[0.ln1_post] A[0.0] D[0.ln1] ⊗ W_U Γ[final] Γ[0.ln1_post] W_OV[0.0] Γ[0.ln1] W_E
output    D[final] D[0.ln1_post] A[0.0] ⊗ W_U Γ[final] Γ[0.ln1_post] W_OV[0.0] W_E

A frozen neuron is a component of the same kind: ``S ⊗ w_out w_inᵀ`` with its slopes
``S = diag(φ(z)/z)``; a gated neuron has ``S = diag(φ(gate))``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from otimes.algebra.expressions import Expr, Id, Product, Sum, Transpose, tensor
from otimes.algebra.vocabulary import (
    MULTIPLIERS,
    W_U,
    Component,
    Head,
    Neuron,
    attention,
    of_neuron,
    of_norm,
    ov,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otimes.algebra.architecture import Architecture


class Word(NamedTuple):
    """``pattern ⊗ weight`` as two words; the later factor stands on the left."""

    pattern: tuple[Expr, ...]
    weight: tuple[Expr, ...]

    def then(self, later: Word) -> Word:
        """The word of ``later`` after this one."""
        return Word(later.pattern + self.pattern, later.weight + self.weight)

    @property
    def expression(self) -> Expr:
        """The word as ``pattern ⊗ weight``."""
        return tensor(product(self.pattern), product(self.weight))


EMPTY = Word((), ())


def product(factors: Sequence[Expr]) -> Expr:
    """The product of factors: ``Id`` of none, the factor itself of one."""
    if not factors:
        return Id
    return factors[0] if len(factors) == 1 else Product(*factors)


def total(parts: Sequence[Expr]) -> Expr:
    """The sum of one or more expressions: the expression itself of one."""
    return parts[0] if len(parts) == 1 else Sum(*parts)


@dataclass(frozen=True, slots=True)
class Block:
    """One step of the stream: its branches, their components, and the norms around them.

    ``branches`` are ``attn`` and ``mlp``, or both where a layer is one block and has an MLP.
    ``attention`` and ``mlp`` are the norms (their labels) that the branches read through;
    ``written`` those that what they write goes through. ``skip`` is the skip edge. ``sharing`` is
    how many query heads use one key-value head.
    """

    layer: int
    branches: tuple[str, ...]
    heads: int
    neurons: int
    reads: dict[str, Word]
    writes: dict[str, Word]
    skip: Word
    sharing: int = 1

    @property
    def name(self) -> str:
        """``0.attn``, ``0.mlp``, or ``0`` where it has both branches."""
        one = len(self.branches) == 1
        return f"{self.layer}.{self.branches[0]}" if one else str(self.layer)

    def components(self) -> list[Component]:
        """Heads, then neurons."""
        heads: list[Component] = [(self.layer, index) for index in range(self.heads)]
        return [*heads, *(Neuron(self.layer, index) for index in range(self.neurons))]

    def word(self, component: Component) -> Word:
        """A component with the norms around it."""
        branch = branch_of(component)
        return self.reads[branch].then(self.bare_word(component)).then(self.writes[branch])

    def bare_word(self, component: Component) -> Word:
        """``A ⊗ W_OV`` of a head, ``S ⊗ w_out w_inᵀ`` of a neuron."""
        if isinstance(component, Neuron):
            read = Transpose(of_neuron("w_in", component))
            return Word((of_neuron("S", component),), (of_neuron("w_out", component), read))
        return Word((attention(component),), (ov(component, self.group(component)),))

    def group(self, head: Head) -> int | None:
        """The key-value head that a query head shares; None where it has its own."""
        return head[1] // self.sharing if self.sharing > 1 else None


ATTENTION, MLP = "attn", "mlp"


def branch_of(component: Component) -> str:
    """``attn`` for a head, ``mlp`` for a neuron."""
    return MLP if isinstance(component, Neuron) else ATTENTION


def norm_word(norm: str | None) -> Word:
    """``D ⊗ Γ`` of a frozen norm; empty for none."""
    return Word((of_norm("D", norm),), (of_norm("Γ", norm),)) if norm is not None else EMPTY


def reading_norm(arch: Architecture, layer: int, branch: str) -> str | None:
    """The label of the norm that a branch reads through."""
    if arch.norm is None or arch.norm_placement in ("post", "output"):
        return None
    first = branch == ATTENTION or arch.parallel == "shared"
    return f"{layer}.ln1" if first else f"{layer}.ln2"


def writing_norm(arch: Architecture, layer: int, branch: str) -> str | None:
    """The label of the norm that what a branch writes goes through."""
    if arch.norm is None or arch.norm_placement == "pre":
        return None
    norm = f"{layer}.ln1" if branch == ATTENTION else f"{layer}.ln2"
    return norm if arch.norm_placement == "post" else norm + "_post"


def residual_word(arch: Architecture) -> Word:
    """The residual multiplier, where there is one."""
    return Word((), (MULTIPLIERS["residual"],)) if "residual" in arch.multipliers else EMPTY


def build_blocks(arch: Architecture) -> tuple[Block, ...]:
    """The blocks of an architecture, one for each layer and branch, one for a parallel layer."""
    blocks = list[Block]()
    for layer, heads in enumerate(arch.heads):
        neurons = arch.neurons[layer] if arch.mlp == "frozen" else 0
        reads, writes = dict[str, Word](), dict[str, Word]()
        for branch in (ATTENTION, MLP):
            reads[branch] = norm_word(reading_norm(arch, layer, branch))
            norm = norm_word(writing_norm(arch, layer, branch))
            multiplied = residual_word(arch)
            post = arch.norm_placement == "post"
            writes[branch] = multiplied.then(norm) if post else norm.then(multiplied)
        skips = {
            branch: norm_word(writing_norm(arch, layer, branch))
            if arch.norm_placement == "post"
            else EMPTY
            for branch in (ATTENTION, MLP)
        }
        sharing = heads // arch.kv_heads[layer] if heads else 1
        around = reads, writes, skips[ATTENTION], sharing
        if arch.mlp is None:
            blocks.append(Block(layer, (ATTENTION,), heads, 0, *around))
        elif arch.parallel:
            blocks.append(Block(layer, (ATTENTION, MLP), heads, neurons, *around))
        else:
            blocks.append(Block(layer, (ATTENTION,), heads, 0, *around))
            blocks.append(Block(layer, (MLP,), 0, neurons, reads, writes, skips[MLP]))
    return tuple(blocks)


def unembedding(arch: Architecture) -> Word:
    """What stands between the final norm and the logits: ``W_U``, with its multiplier."""
    scale = (MULTIPLIERS["logits"],) if "logits" in arch.multipliers else ()
    return Word((), (*scale, W_U))


def block_operator(arch: Architecture, block: Block) -> tuple[Expr, ...]:
    """A block as factors of a product, the norms factored out of its branches; none for Id."""
    addends = [Id, *_branches(arch, block)]
    if len(addends) > 1:
        inner: tuple[Expr, ...] = (Sum(*addends),)
    else:
        inner = ()
    return (block.skip.expression, *inner) if block.skip != EMPTY else inner


def _branches(arch: Architecture, block: Block) -> list[Expr]:
    """What a block adds to its skip edge, before a post-norm."""
    found = list[Expr]()
    for branch in (ATTENTION, MLP):
        parts = [c for c in block.components() if branch_of(c) == branch]
        if not parts:
            continue
        words = [block.bare_word(component).expression for component in parts]
        after = list[Expr]()
        if residual_word(arch) != EMPTY:
            after.append(residual_word(arch).expression)
        if arch.norm_placement in ("sandwich", "output") and arch.norm is not None:
            after.append(norm_word(writing_norm(arch, block.layer, branch)).expression)
        before = [block.reads[branch].expression] if block.reads[branch] != EMPTY else []
        if after or before:
            found.append(Product(*after, total(words), *before))
        else:
            found.extend(words)
    return found
