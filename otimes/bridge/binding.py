"""Where symbols meet tensors: the one file in which the paper's convention and the layout meet.

The algebra writes matrices that act on columns; tensors are stored to be multiplied from the
right. So a symbol is bound to the transpose of its tensor: ``W_V[l.kvg]`` to ``W_V[g].T``
(``W_V[l.h]`` names the same matrix by a query head that uses it), ``W_E`` to ``W_E.T``,
``W_OV[l.h]`` to ``(W_V[g] W_O[h]).T``. What depends on the run is bound to what was recorded:
patterns ``A``, the scales ``D`` of norms, the slopes ``S`` of frozen neurons, the outputs ``m`` of
MLPs that are sources, and the stream ``x``. Numbers of sources and components are here too.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor
from torch.nn import functional

from otimes.algebra import Expr, Factor, PathSum, PathTerm
from otimes.algebra.projections import Side, head_norm, projection, projection_bias
from otimes.algebra.scores import PlaneTerm, PositionTerm, Scores, ScoreTerm
from otimes.algebra.scores.terms import additive
from otimes.algebra.types import D_HEAD, D_MODEL, N_CTX, ONE, POS, VOCAB, Type
from otimes.algebra.vocabulary import ROTATION, TYPES, Neuron
from otimes.bridge.freezing import slopes
from otimes.bridge.loading.weights import MLPWeights
from otimes.bridge.model import Model
from otimes.bridge.positions import alibi_shift, rotation
from otimes.bridge.score_values import score_value
from otimes.bridge.values import evaluate
from otimes.errors import UnknownComponentError
from otimes.models.reference import Recording
from otimes.numeric.head_spaces import Rotation
from otimes.numeric.paths import Components
from otimes.numeric.states import StateTables

_ONCE, _LAYER, _HEAD, _NEURON = "", r"\d+", r"\d+\.\d+", r"\d+\.n\d+"
_READS, _NORM = r"\d+\.(?:kv)?\d+", r"\d+\.ln[12](_post)?|final|embed"
# label, and (codomain, domain), of every symbol; b_in is that of a neuron
_HEAD_NORM = r"\d+\.((kv)?\d+\.)?[qk]_norm"
_SYMBOLS = {
    "A": (_HEAD, (POS, POS)),
    "D": (_NORM, (POS, POS)),
    "Γ": (_NORM, (D_MODEL, D_MODEL)),
    "β": (_NORM, (D_MODEL, ONE)),
    "S": (_NEURON, (POS, POS)),
    **dict.fromkeys(("w_in", "w_out"), (_NEURON, (D_MODEL, ONE))),
    "b_in": (_NEURON, (ONE, ONE)),
    "W_E": (_ONCE, (D_MODEL, VOCAB)),
    "W_pos": (_ONCE, (D_MODEL, N_CTX)),
    "W_type": (_ONCE, (D_MODEL, TYPES)),
    "W_U": (_ONCE, (VOCAB, D_MODEL)),
    "b_U": (_ONCE, (VOCAB, ONE)),
    **dict.fromkeys(("b_O", "b_out"), (_LAYER, (D_MODEL, ONE))),
    **dict.fromkeys(("W_OV", "W_QK"), (_HEAD, (D_MODEL, D_MODEL))),
    "W_O": (_HEAD, (D_MODEL, D_HEAD)),
    "W_Q": (_HEAD, (D_HEAD, D_MODEL)),
    "b_Q": (_HEAD, (D_HEAD, ONE)),
    **dict.fromkeys(("W_K", "W_V"), (_READS, (D_HEAD, D_MODEL))),
    **dict.fromkeys(("b_K", "b_V"), (_READS, (D_HEAD, ONE))),
    **dict.fromkeys(("μ_embed", "μ_res"), (_ONCE, (D_MODEL, D_MODEL))),
    "μ_logits": (_ONCE, (VOCAB, VOCAB)),
}
_SIDES: dict[str, Side] = {"W_Q": "q", "b_Q": "q", "W_K": "k", "b_K": "k"}
_SIDE_OF: dict[str, Side] = {"q_norm": "q", "k_norm": "k"}
_MULTIPLIERS = {
    "μ_embed": "embed_multiplier",
    "μ_res": "residual_multiplier",
    "μ_logits": "logits_multiplier",
}


def numbered(term: PathTerm) -> tuple[int, Components]:
    """A term as integers: the number of its source, and (block, component) pairs."""
    architecture = term.architecture
    locate = architecture.language.grid.locate
    return architecture.sources.index(term.source), tuple(map(locate, term.components))


def state_tables(paths: PathSum) -> StateTables:
    """The automaton of a set of paths as integers."""
    tables = paths.automaton.tables()
    return StateTables(tables.member, tables.move, tables.skip, tables.entry, tables.start)


class Binding:
    """The tensors of a run's symbols, and the value of expressions over them, in float64."""

    def __init__(
        self,
        model: Model,
        tokens: Tensor,
        position_ids: Tensor,
        recording: Recording,
        types: Tensor | None = None,
    ) -> None:
        """Bind a model's symbols to its weights and to what a recording holds fixed."""
        self.weights = model.weights
        self.config = model.config
        self.architecture = model.architecture
        self.tokens, self.types = tokens, types
        self.position_ids = position_ids
        self.recording = recording

    def matrix(self, factor: Factor) -> Tensor:
        """The matrix of a symbol.

        Returns:
            ``[codomain, domain]``; ``[batch, dest, src]`` for patterns, scales of norms and slopes;
            a number, with no axes, for a multiplier.
        """
        if re.fullmatch(_HEAD_NORM, factor.label):
            return self._head_norm(factor)
        if factor.name in _SIDES and re.fullmatch(_LAYER, factor.label):
            return self._all_heads(factor)
        return self._known(factor, self._numbers(factor))

    def _known(self, factor: Factor, numbers: tuple[int, ...]) -> Tensor:
        """The matrix of a symbol whose label and type are right."""
        match factor.name, *numbers:
            case "A", layer, head:
                return self.recording.patterns[layer][:, head]
            case (("D" | "Γ" | "β"), *_):
                return self._norm(factor)
            case (("S" | "w_in" | "w_out" | "b_in"), layer, neuron):
                return self._neuron(factor, layer, neuron)
            case (("W_E" | "W_pos" | "W_type" | "W_U"), *_):
                return self._double(getattr(self.weights, factor.name), factor).T
            case "b_U", *_:
                return self._double(self.weights.b_U, factor)[:, None]
            case "b_O", layer:
                return self._double(self.weights.layers[layer].b_O, factor)[:, None]
            case "b_out", layer:
                return self._double(self._mlp(layer, factor).b_out, factor)[:, None]
            case (("μ_embed" | "μ_res" | "μ_logits"), *_):
                return self._multiplier(factor)
            case "W_OV", layer, head:
                write, read = (self._head(name, layer, head, factor) for name in ("W_O", "W_V"))
                return write @ read
            case "W_QK", layer, head:
                query, key = (self._head(name, layer, head, factor) for name in ("W_Q", "W_K"))
                return query.T @ key
            case name, layer, head:
                return self._head(name, layer, head, factor)
            case _:
                raise UnknownComponentError(f"{factor} is no symbol of this model", str(factor))

    def _multiplier(self, factor: Factor) -> Tensor:
        value = getattr(self.config, _MULTIPLIERS[factor.name])
        if value is None:
            raise UnknownComponentError(f"the model has no {factor}", str(factor))
        return torch.tensor(value, dtype=torch.float64)

    def _numbers(self, factor: Factor) -> tuple[int, ...]:
        """The layer and head or neuron of a symbol's label, checked together with its type."""
        known = _SYMBOLS.get(factor.name)
        if known is None or factor.type != Type.of(known[1]):
            raise UnknownComponentError(f"{factor} is no symbol of this model", str(factor))
        if re.fullmatch(known[0], factor.label) is None:
            raise UnknownComponentError(
                f"{factor} is no symbol of this model: its label is {factor.label!r}", str(factor)
            )
        if known[0] == _NORM:
            return ()
        layer, _, kv_head = factor.label.partition(".kv")
        if kv_head:
            return int(layer), self._first_reader(int(layer), int(kv_head), factor)
        numbers = tuple(int(part) for part in re.findall(r"\d+", factor.label))
        if known[0] == _NEURON:
            self.architecture.check_neuron(Neuron(numbers[0], numbers[1]))
        elif numbers:
            self.architecture.check_head((numbers[0], numbers[1] if len(numbers) > 1 else 0))
        return numbers

    def _first_reader(self, layer: int, kv_head: int, factor: Factor) -> int:
        """The first query head that uses a key-value head."""
        heads, shared = self.config.n_heads, self.config.n_kv_heads
        self.architecture.check_head((layer, 0))
        if shared == heads or kv_head >= shared:
            what = "no shared key-value heads" if shared == heads else f"kv0 to kv{shared - 1}"
            raise UnknownComponentError(
                f"{factor} is no symbol of this model: layer {layer} has {what}", str(factor)
            )
        return kv_head * (heads // shared)

    def _head(self, name: str, layer: int, head: int, factor: Factor) -> Tensor:
        tensor = getattr(self.weights.layers[layer], name)
        group = self.config.n_heads // self.config.n_kv_heads if name[-1] in "KV" else 1
        found = self._double(None if tensor is None else tensor[head // group], factor)
        return found[:, None] if found.ndim == 1 else found.T

    def _norm(self, factor: Factor) -> Tensor:
        norm = self.weights.norms.get(factor.label)
        if norm is None:
            raise UnknownComponentError(f"the model has no norm {factor.label}", str(factor))
        if factor.name == "D":
            return torch.diag_embed(self.recording.scales[factor.label].double())
        if factor.name == "β":
            return self._double(norm.b, factor)[:, None]
        gain = self._double(norm.w, factor).diag()
        if self.config.norm == "layer":  # diag(g) (I - 1 1ᵀ/d)
            gain = gain - gain.mean(-1, keepdim=True)
        return gain

    def _head_norm(self, factor: Factor) -> Tensor:
        """1/σ of the queries or keys of a head, ``[batch, pos, pos]``, or their norm's gain."""
        *place, name = factor.label.split(".")
        layer, side = int(place[0]), _SIDE_OF[name]
        own = place[1] if len(place) > 1 else "0"
        number = self._first_reader(layer, int(own[2:]), factor) if "kv" in own else int(own)
        self.architecture.check_head((layer, number))
        norm = head_norm(self.architecture, (layer, number), side)
        if factor not in (*norm.pattern, *norm.weight):
            raise UnknownComponentError(f"{factor} is no symbol of this model", str(factor))
        if side == "k":
            number //= self.config.n_heads // self.config.n_kv_heads
        if factor.name == "D":
            return torch.diag_embed(self.recording.scales[f"{layer}.{name}"][:, number].double())
        gain = self._double(getattr(self.weights.layers[layer], name), factor)
        if self.config.qk_norm == "all":
            gain = gain[number]
        if self.config.norm != "layer":
            return gain.diag()
        columns = self._columns(side) if self.config.qk_norm == "all" else 1
        kept = torch.eye(len(gain) * columns, dtype=torch.float64)
        kept = kept.reshape(columns, len(gain), -1)[number if columns > 1 else 0]
        return gain[:, None] * (kept - 1 / kept.shape[-1])  # its rows of diag(g) (I - 1 1ᵀ/d)

    def _columns(self, side: Side) -> int:
        """How many heads have queries or keys of their own."""
        return self.config.n_heads if side == "q" else self.config.n_kv_heads

    def _all_heads(self, factor: Factor) -> Tensor:
        """The matrices or biases of all heads of a layer, one below the other."""
        layer, side = int(factor.label), _SIDES[factor.name]
        self.architecture.check_head((layer, 0))
        of = projection if factor.name[0] == "W" else projection_bias
        if factor is not of(self.architecture, (layer, 0), side):
            raise UnknownComponentError(f"{factor} is no symbol of this model", str(factor))
        found = self._double(getattr(self.weights.layers[layer], factor.name), factor)
        # [head, d_model, d_head] -> [head d_head, d_model], and [head, d_head] -> [head d_head, 1]
        return found.mT.flatten(0, 1) if found.ndim == 3 else found.reshape(-1, 1)

    def _mlp(self, layer: int, factor: Factor) -> MLPWeights:
        if not self.weights.mlps:
            raise UnknownComponentError(f"the model has no MLPs and no {factor}", str(factor))
        return self.weights.mlps[layer]

    def _neuron(self, factor: Factor, layer: int, neuron: int) -> Tensor:
        mlp = self._mlp(layer, factor)
        if factor.name == "S":
            assert self.config.activation is not None  # a config with an MLP has one
            slope = slopes(self.recording, layer, self.config.activation)
            return torch.diag_embed(slope[..., neuron].double())
        if factor.name == "b_in":
            bias = None if mlp.b_in is None else mlp.b_in[neuron]
            return self._double(bias, factor)[None, None]
        weights = mlp.W_in[:, neuron] if factor.name == "w_in" else mlp.W_out[neuron]
        return self._double(weights, factor)[:, None]

    def _double(self, tensor: Tensor | None, factor: Factor) -> Tensor:
        if tensor is None:
            raise UnknownComponentError(f"the checkpoint has no {factor}", str(factor))
        return tensor.double()

    def vector(self, factor: Factor) -> Tensor:
        """An input vector, ``[batch, pos, space]``.

        One-hot tokens ``t``, positions ``p`` and token types ``s``, ``ones``, the recorded output
        ``m[l]`` of an MLP that is a source, and the recorded stream ``x[l]`` before a layer.
        """
        match factor.name:
            case "t":
                return functional.one_hot(self.tokens, self.config.d_vocab).double()
            case "p":
                return functional.one_hot(self.position_ids, self.config.n_ctx).double()
            case "s" if self.types is not None:
                return functional.one_hot(self.types, self.config.n_token_types or 0).double()
            case "ones":
                return torch.ones(*self.tokens.shape, 1, dtype=torch.float64)
            case "m" if re.fullmatch(_LAYER, factor.label) and (
                int(factor.label) < len(self.recording.mlp_outputs)
            ):
                return self.recording.mlp_outputs[int(factor.label)].double()
            case "x" if re.fullmatch(_LAYER, factor.label) and (
                int(factor.label) < self.architecture.layers
            ):
                blocks = self.architecture.blocks
                before = sum(1 for block in blocks if block.layer < int(factor.label))
                return self.recording.streams[before].double()
            case _:
                raise UnknownComponentError(f"{factor} is no input of this model", str(factor))

    def evaluate(self, expr: Expr) -> Tensor:
        """The value of an expression, ``[batch, pos, d_vocab]``: see :mod:`.values`."""
        return evaluate(expr, self)

    def score(
        self, scores: Scores | ScoreTerm | PositionTerm, plane: PlaneTerm | None = None
    ) -> Tensor:
        """The value of a head's scores or of one of their terms, ``[batch, dest, src]``.

        Keys that a query cannot attend to have a value too: the mask comes behind it. A term of
        rotary scores has parts, of which ``plane`` is one; see :mod:`.score_values`.
        """
        return score_value(scores, self, plane)

    @property
    def d_head(self) -> int:
        """The size of a head's queries and keys."""
        return self.config.d_head

    def rotation(self, layer: int) -> Rotation:
        """How the queries and keys of a layer turn.

        Raises:
            UnknownComponentError: where they do not.
        """
        rotary = self.config.rotary_of(layer)
        if rotary is None:
            raise UnknownComponentError(
                f"{ROTATION} is no symbol of layer {layer}: its queries and keys do not turn",
                str(ROTATION),
            )
        return rotation(rotary, self.position_ids, torch.float64)

    def shift(self, layer: int, head: int) -> Tensor:
        """What positions add to the scores of a head, ``[batch, dest, src]``.

        Raises:
            UnknownComponentError: where they add nothing.
        """
        added = additive((layer, head))
        if self.config.positions != "alibi":
            raise UnknownComponentError(f"{added} is no symbol of this model", str(added))
        return alibi_shift(self.config, self.position_ids)[:, head]
