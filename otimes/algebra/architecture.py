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

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

from otimes.algebra.expressions import Factor
from otimes.algebra.layout import Block, build_blocks
from otimes.algebra.logits import Logits
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
from otimes.errors import UnknownComponentError, UnsupportedError

if TYPE_CHECKING:
    import networkx as nx

    from otimes.algebra.paths import PathLanguage
    from otimes.algebra.scores import Scores

__all__ = [
    "ATTENTION_BIASES",
    "B_U",
    "ONES",
    "POSITIONS",
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

POSITIONS = ("none", "learned", "shortformer", "rotary", "alibi", "relative")
NORMS = (None, "layer", "rms")
PLACEMENTS = ("pre", "post", "sandwich", "output")
MLPS = (None, "source", "frozen")
PARALLEL = (False, True, "shared")
MAX_LAYERS = 100_000
MAX_WIDTH = 1_000_000
"""The most layers, and the most heads or neurons in one: far beyond any model, quick to refuse."""
ATTENTION_BIASES = ("b_Q", "b_K", "b_V", "b_O")


@dataclass(frozen=True, init=False, repr=False)
class Architecture:
    """Layers of attention heads, and MLPs where there are any, around a residual stream.

    Args:
        layers: the number of layers, 0 or more.
        heads: heads in each layer, or one number for each layer.
        kv_heads: key-value groups in each layer, the heads' number where absent; query head ``h``
            uses group ``h // (heads / kv_heads)``.
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
    ) -> None:
        _size("layers", layers)
        per_layer = _per_layer("heads", heads, layers)
        groups = per_layer if kv_heads is None else _per_layer("kv_heads", kv_heads, layers)
        _check_groups(per_layer, groups)
        _one_of("positions", positions, POSITIONS)
        _one_of("norm", norm, NORMS)
        _one_of("norm_placement", norm_placement, PLACEMENTS)
        _one_of("mlp", mlp, MLPS)
        _one_of("parallel", parallel, PARALLEL)
        scaled = frozenset((multipliers,) if isinstance(multipliers, str) else multipliers)
        for name in sorted(scaled):
            _one_of("multiplier", name, tuple(MULTIPLIERS))
        _check_combination(norm, norm_placement, final_norm, embed_norm, mlp, neurons, parallel)
        values = {
            "heads": per_layer,
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
            "neurons": _per_layer("neurons", neurons or 0, layers),
            "parallel": parallel,
            "multipliers": scaled,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "biases", _bias_names(biases, self))

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
            needed = field.name == "neurons" and self.mlp == "frozen"
            if needed or value != getattr(plain, field.name):
                if isinstance(value, frozenset):
                    value = sorted(value)
                text = _short(value) if isinstance(value, tuple) else repr(value)
                shown.append(f"{field.name}={text}")
        return f"Architecture({', '.join(shown)})"

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
            scale: what raw dot products are multiplied by, ``1/√d_head`` by default.
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


def _size(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UnsupportedError(f"{what} must be an integer of 0 or more, not {value!r}")
    most = MAX_LAYERS if what == "layers" else MAX_WIDTH
    if value > most:
        raise UnsupportedError(f"{what} must be at most {most:,}, not {value:,}")


def _per_layer(what: str, numbers: int | Sequence[int], layers: int) -> tuple[int, ...]:
    if isinstance(numbers, int):
        _size(what, numbers)
        return (numbers,) * layers
    if isinstance(numbers, str) or not isinstance(numbers, Iterable):
        raise UnsupportedError(f"{what} must be an integer of 0 or more, not {numbers!r}")
    found = tuple(numbers)
    for number in found:
        _size(what, number)
    if len(found) != layers:
        raise UnsupportedError(
            f"{what} has {len(found)} numbers for {layers} layers; give one for each layer"
        )
    return found


def _one_of(what: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        names = ", ".join(str(name) for name in known)
        raise UnsupportedError(f"unknown {what} {value!r}; known are {names}")


def _check_groups(heads: tuple[int, ...], groups: tuple[int, ...]) -> None:
    for layer, (own, shared) in enumerate(zip(heads, groups, strict=True)):
        if own and (not shared or own % shared):
            raise UnsupportedError(
                f"{own} heads cannot share {shared} key-value heads in layer {layer}: the number "
                "of heads must be a multiple of kv_heads"
            )


def _check_combination(
    norm: str | None,
    placement: str,
    final_norm: bool | None,
    embed_norm: bool,
    mlp: str | None,
    neurons: object,
    parallel: bool | str,
) -> None:
    if norm is None and (final_norm or embed_norm):
        raise UnsupportedError("final_norm and embed_norm need a norm: layer or rms")
    if neurons is not None and mlp != "frozen":
        raise UnsupportedError(f'neurons are components of frozen MLPs: mlp="frozen", not {mlp!r}')
    if mlp == "frozen" and neurons is None:
        raise UnsupportedError("frozen MLPs need neurons=, their number in each layer")
    if parallel and mlp is None:
        raise UnsupportedError("a parallel block needs an MLP beside its attention: mlp=")
    if parallel and norm is not None and placement == "post":
        raise UnsupportedError(
            "a parallel block with post-norms is no known architecture: use pre, sandwich or output"
        )


_LAYER_BIAS = re.compile(r"(b_(?:[QKVO]|in|out|ln[12](?:_post)?))(?:\[([0-9]+)\])?")


def _bias_names(biases: bool | Iterable[str], arch: Architecture) -> frozenset[str]:
    """Bias names with their layers, checked against what the architecture can have."""
    everywhere, once = _possible_biases(arch)
    if isinstance(biases, bool):
        biases = (*everywhere, *once) if biases else ()
    names = set[str]()
    if not isinstance(biases, Iterable):
        raise UnsupportedError(f"biases is True, False or names such as b_V, not {biases!r}")
    for name in (biases,) if isinstance(biases, str) else biases:
        match = _LAYER_BIAS.fullmatch(str(name))
        if name in once:
            names.add(name)
        elif (
            match is None
            or match[1] not in everywhere
            or (match[2] is not None and int(match[2]) >= arch.layers)
        ):
            raise UnsupportedError(
                f"unknown bias {name!r}: use {', '.join(everywhere[:-1])} or {everywhere[-1]} for "
                f"every layer, b_V[1] for layer 1 of 0 to {arch.layers - 1}, and "
                f"{', '.join(reversed(once))}"
            )
        elif match[2] is not None:
            names.add(f"{match[1]}[{int(match[2])}]")
        else:
            names.update(f"{match[1]}[{layer}]" for layer in range(arch.layers))
    return frozenset(names)


def _possible_biases(arch: Architecture) -> tuple[list[str], list[str]]:
    everywhere, once = list[str](ATTENTION_BIASES), ["b_U"]
    if arch.mlp is not None:
        everywhere += ["b_in", "b_out"]
    if arch.norm is not None:
        branches = ["ln1"] if arch.mlp is None else ["ln1", "ln2"]
        if arch.norm_placement != "output":
            everywhere += [
                f"b_{norm}" for norm in branches if arch.parallel != "shared" or norm != "ln2"
            ]
        if arch.norm_placement in ("sandwich", "output"):
            everywhere += [f"b_{norm}_post" for norm in branches]
        if arch.final_norm:
            once.append("b_final")
        if arch.embed_norm:
            once.append("b_embed")
    return everywhere, once
