"""The derivations of the framework paper, made by the rules (Elhage et al. 2021).

Each function returns a :class:`~otimes.algebra.derivations.Derivation` whose steps are those of the
paper's own argument.

>>> print(derive_head())
  h
= (Id ⊗ W_O)(A ⊗ Id)(Id ⊗ W_V)    (definition of h)
= A ⊗ W_O W_V                     (mixed product, identity)
= A ⊗ W_OV                        (the OV circuit)
>>> from otimes.algebra import Architecture
>>> print(derive_logits(Architecture(layers=0, heads=0)))
  (Id ⊗ W_U) x[0]
= (Id ⊗ W_U)(Id ⊗ W_E)    (substitute x[0])
= Id ⊗ W_U W_E            (mixed product, identity)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otimes.algebra.counts import large
from otimes.algebra.definitions import ov_circuit, read, shared, write
from otimes.algebra.derivations import Derivation
from otimes.algebra.expressions import (
    Expr,
    Factor,
    Id,
    Product,
    Sum,
    pattern,
    tensor,
    vector,
    weight,
)
from otimes.algebra.kinds import head, norm, rotation
from otimes.algebra.logits import NESTED_LAYERS
from otimes.algebra.measures import Eigenvalues
from otimes.algebra.rules import (
    CancelRotation,
    CollectOrder,
    Concatenate,
    Cycle,
    Distribute,
    DropIdentity,
    ExpandHead,
    ExpandNorm,
    ExpandOV,
    Flatten,
    FoldOV,
    MixedProduct,
    Rotate,
    Substitute,
    VirtualWeights,
)
from otimes.algebra.stacked import Column, Row
from otimes.algebra.streams import name_heads, name_streams
from otimes.algebra.types import D_MODEL, POS, VOCAB
from otimes.algebra.vocabulary import W_E, W_U, Head, head_name, kv_name
from otimes.errors import LimitError, UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture
    from otimes.algebra.expansion import PathSum

MAX_TERMS: Final = 2_000
"""How many paths a derivation writes out; beyond that nobody reads them."""


def derive_logits(architecture: Architecture, limit: int = MAX_TERMS) -> Derivation:
    """The logits as a sum over paths, from the forward pass ("Path Expansion of Logits").

    Each layer's stream is substituted, a head is taken apart into its three stages and becomes
    ``A ⊗ W_OV``, the product of sums is multiplied out, and the mixed product makes one term
    ``pattern ⊗ weight`` of each path. Norms enter as ``D ⊗ Γ``.

    Args:
        architecture: the transformer; patterns, norm scales and slopes are held fixed.
        limit: the number of paths that may be written out.

    Raises:
        LimitError: if there are more paths, or several sources and more layers than are nested;
            it says how many.
    """
    _check_size(architecture, limit)
    start, streams = name_streams(name_heads(architecture.logits.expression))
    derivation = Derivation(start, streams)
    for symbol, meaning in streams.items():
        derivation = derivation.everywhere(Substitute(symbol, meaning))
    return (
        derivation.where_possible(ExpandHead())
        .where_possible(ExpandNorm())
        .where_possible(*_STAGES)
        .where_possible(FoldOV())
        .where_possible(Distribute(), DropIdentity(), Flatten())
        .where_possible(*_MIXED)
        .where_possible(CollectOrder())
    )


def _check_size(architecture: Architecture, limit: int) -> None:
    # paths from the embedding through heads alone: a bound that needs no table of any size
    count = 1
    for heads in architecture.heads:
        count *= 1 + heads
        if count > limit:
            break
    deep = architecture.layers > _MANY_LAYERS
    if not deep:
        count = architecture.logits.expand().count
    if count > limit or architecture.layers > limit:
        raise LimitError(
            f"this derivation would write out {'at least ' if deep else ''}{large(count)} paths in "
            f"{architecture.layers:,} layers, more than {limit:,}; derive fewer layers or heads, "
            "see partial_expansion, or iterate over .expand()",
            count,
            limit,
        )
    layers = architecture.layers
    if layers > NESTED_LAYERS and any(source.entry for source in architecture.sources):
        raise LimitError(
            f"a derivation with biases or MLPs as sources nests as the layers do: {layers:,} "
            f"layers are more than {NESTED_LAYERS}; derive fewer layers, or iterate over .expand()",
            layers,
            NESTED_LAYERS,
        )


def derive_paths(paths: PathSum, limit: int = MAX_TERMS) -> Derivation:
    """A chosen set of paths, each a product of heads, as terms ``pattern ⊗ weight``.

    ``(Id ⊗ W_U) h[1.4] h[0.7] (Id ⊗ W_E)`` becomes one term, because a product of heads is a head.

    Args:
        paths: a non-empty part of the expansion of a model whose one source is the tokens and
            whose heads read the stream itself.
        limit: the number of paths that may be written out.

    Raises:
        LimitError: if there are more paths; it says how many.
        UnsupportedError: for no paths, for norms, MLPs, biases or learned positions.
    """
    architecture = paths.architecture
    if paths.count > limit:
        raise LimitError(
            f"this derivation would write out {large(paths.count)} paths, more than {limit:,}; "
            "choose fewer, or iterate over the sum",
            paths.count,
            limit,
        )
    plain = len(architecture.sources) == 1 and architecture.norm is None and not architecture.mlp
    if not plain or architecture.multipliers or not paths.count:
        raise UnsupportedError(
            "chosen paths are derived where there are some, where the tokens are the one source "
            "and without norms, MLPs and multipliers; derive the whole, or expand the paths"
        )
    first, last = tensor(Id, W_U), tensor(Id, W_E)

    def named(of: Head) -> Factor:
        return shared(head(head_name(of)), kv_name(of, architecture.group(of)))

    written = [Product(first, *(named(h) for h in reversed(term.heads)), last) for term in paths]
    start = written[0] if len(written) == 1 else Sum(*written)
    return (
        Derivation(start)
        .where_possible(ExpandHead())
        .where_possible(*_STAGES)
        .where_possible(FoldOV())
        .where_possible(*_MIXED)
        .where_possible(CollectOrder())
    )


_MANY_LAYERS: Final = 100
_MIXED = (MixedProduct(), DropIdentity(), Flatten())
_STAGES = (MixedProduct(), DropIdentity())


def derive_head(label: str = "") -> Derivation:
    """The three stages of a head collapse: ``h = A ⊗ W_OV``.

    From the paper's "Attention Heads as Information Movement".
    """
    return (
        Derivation(head(label))
        .everywhere(ExpandHead())
        .everywhere(MixedProduct(), DropIdentity())
        .everywhere(FoldOV())
    )


def derive_virtual_head(later: str = "2", earlier: str = "1") -> Derivation:
    """A product of heads is a head: ``h² h¹ = A² A¹ ⊗ W_OV² W_OV¹`` ("Virtual attention heads").

    The last line shows the virtual weights ``W_V² W_O¹`` through which the heads are joined.
    """
    return (
        Derivation(head(later) @ head(earlier))
        .everywhere(ExpandHead(), within=[(0,), (1,)])
        .everywhere(MixedProduct(), DropIdentity(), within=[(0,), (1,)])
        .everywhere(FoldOV())
        .everywhere(MixedProduct())
        .everywhere(ExpandOV())
        .everywhere(VirtualWeights())
    )


def derive_concatenation(heads: int = 2, layer: int = 0) -> Derivation:
    """Concatenate, then project, is a sum of heads ("Attention heads are independent").

    ``W_O`` of the layer is the row of its heads' own; the results ``r = (A ⊗ W_V) x`` are stacked.
    """
    labels = [f"{layer}.{h}" for h in range(heads)]
    results = {h: vector("r", POS, "d_head", label=h) for h in labels}
    x = vector("x", POS, D_MODEL)
    meaning: dict[Factor, Expr] = {
        r: tensor(pattern("A", label=h), read("V", h)) @ x for h, r in results.items()
    }
    project = tensor(Id, Row(*map(write, labels))) if heads > 1 else tensor(Id, write(labels[0]))
    stacked = Column(*results.values()) if heads > 1 else results[labels[0]]
    derivation = Derivation(project @ stacked, meaning).where_possible(Concatenate())
    for symbol in results.values():
        derivation = derivation.everywhere(Substitute(symbol, meaning[symbol]), Flatten())
    return derivation.everywhere(MixedProduct(), DropIdentity()).everywhere(FoldOV())


def derive_frozen_norm(label: str = "1.0") -> Derivation:
    """A head that reads through a frozen norm is a head with scaled pattern: ``A D ⊗ W_OV Γ``."""
    layer = label.partition(".")[0]
    return (
        Derivation(head(label) @ norm(f"{layer}.ln1"))
        .everywhere(ExpandHead())
        .everywhere(ExpandNorm())
        .everywhere(MixedProduct(), DropIdentity())
        .everywhere(FoldOV())
    )


def derive_eigenvalues(label: str = "0.0") -> Derivation:
    """Eigenvalues of an OV circuit from a d_head × d_head matrix ("Summarizing OV/QK Matrices").

    Only ``λ`` is the same at the end; as maps, and by their norms, the two sides differ.
    """
    w_u, w_e = weight("W_U", VOCAB, D_MODEL), weight("W_E", D_MODEL, VOCAB)
    return (
        Derivation(Eigenvalues(Product(w_u, ov_circuit(label), w_e)))
        .everywhere(ExpandOV())
        .apply(Cycle(2))
    )


def derive_rotation(label: str = "0.0") -> Derivation:
    """A rotation of the stream cancels: it has no privileged basis ("The residual stream")."""
    w_u, w_e = weight("W_U", VOCAB, D_MODEL), weight("W_E", D_MODEL, VOCAB)
    return (
        Derivation(Product(w_u, ov_circuit(label), w_e))
        .everywhere(ExpandOV())
        .apply(Rotate(rotation("R")))
        .everywhere(CancelRotation(), DropIdentity())
        .everywhere(FoldOV())
    )
