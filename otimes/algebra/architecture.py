"""The symbolic transformer: its components, its sources and its unexpanded logits.

With the attention patterns fixed, a head is ``A ⊗ W_OV`` (Elhage et al. 2021) and the logits are
a product of sums. Where the model has one source, the token embedding, this is an operator on the
one-hot tokens:

>>> print(Architecture(layers=2, heads=1).logits)
(Id ⊗ W_U)(Id + A[1.0] ⊗ W_OV[1.0])(Id + A[0.0] ⊗ W_OV[0.0])(Id ⊗ W_E)

Norms with their scales held fixed are factors of the same form:

>>> print(Architecture(layers=1, heads=2, norm="rms").logits)
(Id ⊗ W_U)(D[final] ⊗ Γ[final])(Id + (A[0.0] ⊗ W_OV[0.0]
+ A[0.1] ⊗ W_OV[0.1])(D[0.ln1] ⊗ Γ[0.ln1]))(Id ⊗ W_E)

Learned positions and biases enter beside the tokens, so then the logits are a sum over the input
vectors: the one-hot tokens ``t``, the one-hot positions ``p`` and ``ones``, a 1 at each position:

>>> print(Architecture(layers=1, heads=1, biases={"b_V", "b_O"}).logits)
(Id ⊗ W_U)((Id + A[0.0] ⊗ W_OV[0.0])(Id ⊗ W_E) t
+ (A[0.0] ⊗ W_O[0.0] b_V[0.0]) ones + (Id ⊗ b_O[0]) ones)

Every constant has exactly one home; see :mod:`otimes.algebra.sources`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

from otimes.algebra.expressions import Factor
from otimes.algebra.held import displayed
from otimes.algebra.layout import Block, build_blocks
from otimes.algebra.logits import Logits
from otimes.algebra.options import (
    MLPS,
    NORMS,
    PARALLEL,
    PLACEMENTS,
    POSITIONS,
    QK_NORMS,
    SOFTCAPS,
    bias_names,
    check_combination,
    check_groups,
    one_of,
    per_layer,
    scale_of_scores,
    size,
    turning_layers,
)
from otimes.algebra.sources import Source, build_sources
from otimes.algebra.vocabulary import (
    B_U,
    MULTIPLIERS,
    ONES,
    POSITION_IDS,
    TOKENS,
    W_E,
    W_POS,
    W_U,
    Component,
    Head,
    Neuron,
    attention,
    component_name,
    head_name,
    ov,
)
from otimes.algebra.words import Words
from otimes.errors import UnknownComponentError

if TYPE_CHECKING:
    import networkx as nx

    from otimes.algebra.paths import PathLanguage
    from otimes.algebra.scores import Scores

__all__ = [
    "B_U",
    "ONES",
    "POSITION_IDS",
    "TOKENS",
    "W_E",
    "W_POS",
    "W_U",
    "Architecture",
    "Component",
    "Head",
    "Logits",
    "Neuron",
    "Source",
    "attention",
    "head_name",
    "ov",
]


@dataclass(frozen=True, init=False, repr=False)
class Architecture:
    """Layers of attention heads, and MLPs where there are any, around a residual stream.

    Args:
        layers: the number of layers, 0 or more.
        heads: heads in each layer, or one number for each layer.
        kv_heads: key-value groups in each layer, the heads' number where absent; query head ``h``
            uses group ``h // (heads / kv_heads)``. Where they differ, ``W_K``, ``W_V``, ``b_K`` and
            ``b_V`` are those of the key-value heads: ``W_K[1.kv2]``.
        positions: ``none``, ``learned`` (added to the stream: the source ``pos``), ``shortformer``
            (enter queries and keys only, never the stream), ``rotary``, ``alibi`` or ``relative``
            (T5's); the last four act on attention scores alone.
        token_types: whether token types are added to the stream: the source ``type``.
        norm: ``layer``, ``rms`` or None; frozen norms are factors ``D ⊗ Γ``.
        norm_placement: ``pre``, ``post`` (behind the addition to the stream), ``sandwich`` (before
            and behind each branch) or ``output`` (behind each branch alone).
        final_norm: whether a norm stands before the unembedding; by default where norms are
            there and not ``post``.
        embed_norm: whether the embeddings are normed.
        qk_norm: norms of queries and keys, before they turn: over each ``head``, or over ``all``
            heads of a token together; None: none. They are of the kind that ``norm`` names.
        mlp: ``source`` (paths start at the MLP's output), ``frozen`` (each neuron is a component
            with its secant slope; a gated MLP's gate is frozen) or None.
        neurons: with frozen MLPs, neurons in each layer, or one number for each layer.
        parallel: whether attention and MLP of a layer read the same stream, each through its own
            norm, or through one norm (``"shared"``).
        multipliers: any of ``embed``, ``residual`` and ``logits``.
        biases: True for all that this architecture can have, or names: ``b_V`` is in every layer,
            ``b_V[1]`` in layer 1 alone; ``b_Q``, ``b_K``, ``b_V``, ``b_O``; ``b_in``, ``b_out``;
            those of norms, ``b_ln1``, ``b_ln2``, ``b_ln1_post``, ``b_ln2_post``, ``b_final``,
            ``b_embed``; and ``b_U``.
        rotary_layers: with rotary positions, the layers whose queries and keys turn; None: all.
        attention_scale: what dot products of queries and keys are multiplied by; None:
            ``1/√d_head``.
        softcaps: any of ``attention`` and ``logits``: what goes through ``c tanh(· / c)``. Scores
            and logits are sums before their caps.

    Raises:
        UnsupportedError: for what no model has; it names what there is.
    """

    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    positions: str
    token_types: bool
    norm: str | None
    norm_placement: str
    final_norm: bool
    embed_norm: bool
    mlp: str | None
    neurons: tuple[int, ...]
    parallel: bool | str
    multipliers: frozenset[str]
    biases: frozenset[str]
    qk_norm: str | None
    rotary_layers: frozenset[int]
    attention_scale: float | None
    softcaps: frozenset[str]

    def __init__(
        self,
        layers: int,
        heads: int | Sequence[int],
        *,
        kv_heads: int | Sequence[int] | None = None,
        positions: str = "none",
        token_types: bool = False,
        norm: str | None = None,
        norm_placement: str = "pre",
        final_norm: bool | None = None,
        embed_norm: bool = False,
        mlp: str | None = None,
        neurons: int | Sequence[int] | None = None,
        parallel: bool | str = False,
        multipliers: Iterable[str] = (),
        biases: bool | Iterable[str] = False,
        qk_norm: str | None = None,
        rotary_layers: Iterable[int] | None = None,
        attention_scale: float | None = None,
        softcaps: Iterable[str] = (),
    ) -> None:
        size("layers", layers)
        own_heads = per_layer("heads", heads, layers)
        groups = own_heads if kv_heads is None else per_layer("kv_heads", kv_heads, layers)
        check_groups(own_heads, groups)
        one_of("positions", positions, POSITIONS)
        one_of("norm", norm, NORMS)
        one_of("norm_placement", norm_placement, PLACEMENTS)
        one_of("qk_norm", qk_norm, QK_NORMS)
        one_of("mlp", mlp, MLPS)
        one_of("parallel", parallel, PARALLEL)
        scaled = frozenset((multipliers,) if isinstance(multipliers, str) else multipliers)
        for name in sorted(scaled):
            one_of("multiplier", name, tuple(MULTIPLIERS))
        capped = frozenset((softcaps,) if isinstance(softcaps, str) else softcaps)
        for name in sorted(capped):
            one_of("softcap", name, SOFTCAPS)
        check_combination(
            norm, norm_placement, final_norm, embed_norm, qk_norm, mlp, neurons, parallel
        )
        values = {
            "heads": own_heads,
            "kv_heads": groups,
            "positions": positions,
            "token_types": bool(token_types),
            "norm": norm,
            # where there are no norms they have no place: equal models are equal
            "norm_placement": norm_placement if norm is not None else "pre",
            "final_norm": norm is not None
            and (norm_placement != "post" if final_norm is None else bool(final_norm)),
            "embed_norm": bool(embed_norm),
            "mlp": mlp,
            "neurons": per_layer("neurons", neurons or 0, layers),
            "parallel": parallel,
            "multipliers": scaled,
            "qk_norm": qk_norm,
            "rotary_layers": turning_layers(positions, rotary_layers, layers),
            "attention_scale": scale_of_scores(attention_scale),
            "softcaps": capped,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "biases", bias_names(biases, self))

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.heads)

    def __repr__(self) -> str:
        plain = Architecture(self.layers, self.heads)
        shown = [f"layers={self.layers}", f"heads={_short(self.heads)}"]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if field.name == "final_norm":
                if value != (self.norm is not None and self.norm_placement != "post"):
                    shown.append(f"final_norm={value}")
                continue
            if field.name == "rotary_layers":
                if value != turning_layers(self.positions, None, self.layers):
                    shown.append(f"rotary_layers={sorted(value)}")
                continue
            needed = field.name == "neurons" and self.mlp == "frozen"
            if needed or value != getattr(plain, field.name):
                if isinstance(value, frozenset):
                    value = sorted(value)
                text = _short(value) if isinstance(value, tuple) else repr(value)
                shown.append(f"{field.name}={text}")
        return f"Architecture({', '.join(shown)})"

    def __str__(self) -> str:
        from otimes.algebra.formulas import formulas

        return formulas(self)

    @property
    def latex(self) -> str:
        """What the model computes as a few formulas, and what of it is held fixed, in LaTeX."""
        from otimes.algebra.formulas import latex_formulas

        return latex_formulas(self)

    def _repr_latex_(self) -> str:
        return displayed(self.latex)

    def __getstate__(self) -> dict[str, object]:
        # what is made on demand is made again on demand
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def check_head(self, head: Head) -> None:
        """Raise UnknownComponentError, with what there is, unless the head exists."""
        self._check_layer(head[0], f"head {head_name(head)}", head_name(head))
        layer, index = head
        if not 0 <= index < self.heads[layer]:
            last = self.heads[layer] - 1
            known = f"heads 0 to {last}" if last >= 0 else "no heads"
            raise UnknownComponentError(
                f"no head {head_name(head)}: layer {layer} has {known}", head_name(head)
            )

    def check_neuron(self, neuron: Neuron) -> None:
        """Raise UnknownComponentError, with what there is, unless the frozen neuron exists."""
        name = component_name(neuron)
        if self.mlp != "frozen":
            raise UnknownComponentError(
                f"no component {name}: the MLPs of this model are "
                + ("sources, which stand in front of a path" if self.mlp else "absent")
                + '; mlp="frozen" makes each neuron a component',
                name,
            )
        self._check_layer(neuron.layer, f"neuron {name}", name)
        if not 0 <= neuron.number < self.neurons[neuron.layer]:
            raise UnknownComponentError(
                f"no neuron {name}: layer {neuron.layer} has neurons n0 to "
                f"n{self.neurons[neuron.layer] - 1}",
                name,
            )

    def _check_layer(self, layer: int, what: str, name: str) -> None:
        if not 0 <= layer < self.layers:
            known = f"layers 0 to {self.layers - 1}" if self.layers else "no layers"
            raise UnknownComponentError(f"no {what}: the model has {known}", name)

    def kv_head(self, head: Head) -> int:
        """The key-value group of a query head."""
        self.check_head(head)
        layer, index = head
        return index // (self.heads[layer] // self.kv_heads[layer])

    def group(self, head: Head) -> int | None:
        """The key-value group of a query head; None where each head has its own keys and values."""
        found = self.kv_head(head)
        return None if self.heads[head[0]] == self.kv_heads[head[0]] else found

    def turns(self, layer: int) -> bool:
        """Whether the queries and keys of a layer turn with their positions."""
        return layer in self.rotary_layers

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The steps of the stream; without MLPs, or with parallel ones, one for each layer."""
        return build_blocks(self)

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """All sources, in the order of their entry."""
        return build_sources(self, self.blocks)

    @cached_property
    def words(self) -> Words:
        """The words that paths spell."""
        return Words(self)

    @cached_property
    def language(self) -> PathLanguage:
        """The path language over the components and sources of this architecture."""
        from otimes.algebra.paths import PathLanguage

        return PathLanguage(self)

    @cached_property
    def symbols(self) -> dict[str, Factor]:
        """Every symbol of this architecture by the name that it prints: a context to parse in."""
        from otimes.algebra.contexts import symbols_of

        return symbols_of(self)

    @property
    def logits(self) -> Logits:
        """The factored, unexpanded logits; ``.expand()`` gives the sum over paths."""
        return Logits(self)

    def scores(self, head: str | Head, *, scale: float | None = None) -> Scores:
        """The unexpanded attention scores of a head; ``.expand()`` gives pairs of paths.

        Args:
            head: ``1.4``, ``L1H4`` or (1, 4).
            scale: what raw dot products are multiplied by; by default the model's own
                ``attention_scale``.
        """
        from otimes.algebra.scores import Scores

        return Scores(self, head, scale=scale)

    def graph(self, *, stream: bool = False) -> nx.MultiDiGraph[str]:
        """The graph of paths; see :mod:`otimes.algebra.graph`.

        Args:
            stream: whether the stream's states are nodes, as deep models need it.
        """
        from otimes.algebra.graph import path_graph

        return path_graph(self, stream=stream)


def _short(per_layer: tuple[int, ...]) -> str:
    return repr(per_layer[0] if len(set(per_layer)) == 1 else per_layer)
