"""The recorded run: what a forward pass did, and exact sums over its paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import EllipsisType

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from otimes.algebra import Architecture, Expr, Logits, PathSum, PathTerm
from otimes.bridge.binding import Binding, numbered, state_tables
from otimes.bridge.freezing import Frozen, freeze
from otimes.bridge.indices import each, index_of
from otimes.bridge.inputs import Prompt
from otimes.bridge.model import Model
from otimes.errors import InputError, LimitError
from otimes.models.reference import Recording
from otimes.numeric.paths import Readout, order_outputs, path_logits
from otimes.numeric.states import Ending, sum_of_states, sums_of_states

MEMORY_BUDGET = 2 * 2**30
"""Bytes that one result may take."""

RECORDING_BUDGET = 4 * 2**30
"""Bytes that a recording may take while it is made and kept.

Patterns, neurons and scores of layers for which there is no room are computed again each time that
they are asked for; a run whose streams and logits alone do not fit is refused.
"""

Path = str | PathTerm | PathSum | Logits


class Run:
    """One forward pass of the reference module, recorded, in float64.

    Every tensor has a leading batch axis. Values of paths hold at this run's patterns.
    """

    def __init__(self, model: Model, prompt: Prompt) -> None:
        """Record a run; ``model.run(…)`` is the way to get one.

        Raises:
            LimitError: if the recording would take more than ``RECORDING_BUDGET``.
        """
        self.model = model
        self.tokens: Int[Tensor, "batch pos"] = prompt.tokens
        self.mask = prompt.mask
        self.types = prompt.types
        self._recordings: dict[torch.dtype, Recording] = {}
        self._frozen: dict[torch.dtype, Frozen] = {}
        self.recording()

    @property
    def positions(self) -> Int[Tensor, "batch pos"]:
        """The position ids, from 0 at the first real token; padding on the left has 0."""
        if self.mask is None:
            return torch.arange(self.tokens.shape[1]).expand(self.tokens.shape)
        return (self.mask.cumsum(-1) - 1).clamp(min=0)

    @property
    def allowed(self) -> Bool[Tensor, "batch dest src"]:
        """What may be attended to: not padding and, in a causal model, nothing later."""
        batch, length = self.tokens.shape
        allowed = torch.ones(batch, length, length, dtype=torch.bool)
        if self.model.config.causal:
            allowed = allowed.tril()
        return allowed if self.mask is None else allowed & self.mask[:, None, :]

    def attended(self, layer: int) -> Bool[Tensor, "batch dest src"]:
        """What a layer may attend to: what is ``allowed`` and in its window, if it has one."""
        window = self.model.config.window_of(self._layer(layer))
        if window is None:
            return self.allowed
        slots = torch.arange(self.tokens.shape[1])
        return self.allowed & ((slots[:, None] - slots).abs() < window)

    def recording(self, dtype: torch.dtype = torch.float64) -> Recording:
        """What the reference module did when it computed in ``dtype``.

        Raises:
            LimitError: if it would take more than ``RECORDING_BUDGET``.
        """
        if dtype not in self._recordings:
            reference = self.model.reference(dtype)
            batch, length = self.tokens.shape
            _check_recording(reference.sizes(batch, length).least, batch, length)
            with torch.no_grad():
                self._recordings[dtype] = reference(
                    self.tokens, self.mask, self.types, budget=RECORDING_BUDGET
                )
        return self._recordings[dtype]

    @property
    def logits(self) -> Float[Tensor, "batch pos d_vocab"]:
        """The reference module's own logits, through their soft-cap where there is one."""
        return self.recording().logits

    @property
    def uncapped_logits(self) -> Float[Tensor, "batch pos d_vocab"]:
        """The reference module's logits before their soft-cap: what all paths add up to."""
        return self.recording().uncapped_logits

    def pattern(self, layer: int) -> Float[Tensor, "batch head dest src"]:
        """The attention patterns of a layer: ``A[dest, src]``, rows sum to 1."""
        return self.recording().patterns[self._layer(layer)]

    def scores(self, layer: int) -> Float[Tensor, "batch head dest src"]:
        """The attention scores of a layer before soft-cap, mask and softmax, scale applied."""
        return self.recording().scores[self._layer(layer)]

    def stream(self, layer: int) -> Float[Tensor, "batch pos d_model"]:
        """The residual stream that a layer reads; that of ``n_layers`` is what comes out last."""
        last = self.model.config.n_layers
        if not 0 <= layer <= last:
            raise InputError(f"no stream {layer}: there are streams 0 to {last}")
        blocks = self.model.architecture.blocks
        before = sum(1 for block in blocks if block.layer < layer)
        return self.recording().streams[before]

    def _layer(self, layer: int) -> int:
        layers = self.model.config.n_layers
        if not 0 <= layer < layers:
            raise InputError(f"no layer {layer}: the model has {layers}, counted from 0")
        return layer

    @property
    def held_fixed(self) -> tuple[str, ...]:
        """What the frozen model holds fixed, in words, and that weights in 16 bits were upcast."""
        config, arch = self.model.config, self.model.architecture
        held = list[str]()
        if config.n_layers:
            held.append(f"attention patterns of {config.n_layers} layers × {config.n_heads} heads")
        norms = len(self.model.weights.norms)
        if norms:
            held.append(f"scales of {norms} norm{'s' if norms > 1 else ''}")
        if config.qk_norm is not None and config.n_layers:
            held.append(f"scales of the norms of queries and keys of {config.n_layers} layers")
        mlps = self.model.weights.mlps
        if mlps and arch.mlp == "source":
            held.append(f"outputs of {len(mlps)} MLPs")
        elif mlps:
            gated = any(mlp.W_gate is not None for mlp in mlps)
            what = "gates" if gated else "slopes"
            held.append(f"{what} of {len(mlps)} MLPs × {config.d_mlp} neurons")
        recorded = (f"{what}, as the run recorded them" for what in held)
        return (*recorded, *self.model.weights.upcast)

    def frozen(self, dtype: torch.dtype = torch.float64) -> Frozen:
        """The model as linear operators with what this run recorded held fixed."""
        if dtype not in self._frozen:
            self._frozen[dtype] = freeze(
                self.model, self.tokens, self.positions, self.recording(dtype), dtype, self.types
            )
        return self._frozen[dtype]

    @cached_property
    def binding(self) -> Binding:
        """The tensors of the symbols, for evaluating any expression on this run."""
        return Binding(self.model, self.tokens, self.positions, self.recording(), self.types)

    def evaluate(
        self,
        path: Path | Expr,
        positions: int | Sequence[int] | None = None,
        tokens: int | Sequence[int] | None = None,
    ) -> Float[Tensor, "batch at out"]:
        """The exact sum over all paths that ``path`` matches, at this run's patterns.

        Args:
            path: an expression of the path language such as ``0.7 > 1.4`` (summed over its
                sources), ``pos > 0.3``, ``0.* > ..``, ``direct``, or ``..`` for all paths, whose
                value is the logits; a term, or a set of terms, of this model's expansion; or any
                algebraic expression from the input to the logits. Nothing is enumerated: the cost
                is that of a few frozen passes, whatever the number of paths.
            positions: which positions, from 0 or from the end; None is all.
            tokens: which token ids; None is the whole vocabulary.

        Returns:
            float64 ``[batch, positions, tokens]``, in logits.

        Raises:
            NotationError, UnknownComponentError: for a path that is not one of this model's.
            InputError: for positions or tokens out of range.
            LimitError: if the result would be larger than the memory budget.
        """
        at, out = self._positions(positions), self._token_ids(tokens)
        self._check_memory(at, out)
        if isinstance(path, Expr):
            value = self.binding.evaluate(path)
            value = value if at is None else value[:, at]
            return value if out is None else value[..., out]
        frozen = self.frozen().model
        ending = sum_of_states(frozen, state_tables(self.paths(path)))
        return self._read_out(ending, Readout.of(frozen, at, out))

    def by_order(
        self,
        positions: int | Sequence[int] | None = None,
        tokens: int | Sequence[int] | None = None,
    ) -> Float[Tensor, "order batch at out"]:
        """The sums over all paths of each order, the number of their attention heads.

        The orders add up to the logits. The arguments are those of :meth:`evaluate`; the cost is
        about that of half as many frozen passes as there are orders.

        Returns:
            float64 ``[order, batch, positions, tokens]``, in logits; ``b_U`` has order 0.

        Raises:
            InputError: for positions or tokens out of range.
            LimitError: if the result would be larger than the memory budget.
        """
        at, out = self._positions(positions), self._token_ids(tokens)
        frozen = self.frozen().model
        self._check_memory(at, out, 1 + sum(1 for block in frozen.blocks if block.heads))
        readout = Readout.of(frozen, at, out)
        values = readout.logits(order_outputs(frozen), frozen)
        if readout.b_U is not None:
            values[0] += readout.b_U
        return values

    def partition(
        self,
        parts: Mapping[str, Path | EllipsisType],
        positions: int | Sequence[int] | None = None,
        tokens: int | Sequence[int] | None = None,
    ) -> dict[str, Float[Tensor, "batch at out"]]:
        """Split the logits among sets of paths that share none and leave none out.

        Args:
            parts: a name for each set: a path expression or a set of terms, as
                :meth:`evaluate` takes them; one of them may be ``...``: all other paths.
            positions: as :meth:`evaluate` takes them.
            tokens: as :meth:`evaluate` takes them.

        Returns:
            For each name what its paths add, float64 ``[batch, positions, tokens]``: they add up
            to the logits. All parts are summed in one pass.

        Raises:
            InputError: if two parts share a path, or if a path is in none and no part is ``...``;
                it names one.
            LimitError: if the result would be larger than the memory budget.
        """
        at, out = self._positions(positions), self._token_ids(tokens)
        self._check_memory(at, out, len(parts))
        sets = self._disjoint(parts)
        frozen = self.frozen().model
        endings = sums_of_states(frozen, [state_tables(paths) for paths in sets.values()])
        readout = Readout.of(frozen, at, out)
        values = [self._read_out(ending, readout) for ending in endings]
        return dict(zip(sets, values, strict=True))

    def _disjoint(self, parts: Mapping[str, Path | EllipsisType]) -> dict[str, PathSum]:
        others = [name for name, path in parts.items() if path is ...]
        if len(others) > 1:
            raise InputError(f"only one part can be ...: {others[0]!r} and {others[1]!r} are")
        sets = {name: self.paths(path) for name, path in parts.items() if path is not ...}
        left = self.model.architecture.logits.expand()
        for number, (name, paths) in enumerate(sets.items()):
            for earlier, others_paths in list(sets.items())[:number]:
                shared = (paths & others_paths).example
                if shared is not None:
                    raise InputError(
                        f"the parts {earlier!r} and {name!r} share paths, such as {shared.path}"
                    )
            left = left - paths
        missing = left.example
        if others:
            sets[others[0]] = left
        elif missing is not None:
            raise InputError(
                f"the parts leave out {left.count:,} paths, such as {missing.path}; "
                "name the others with a part that is ..."
            )
        return {name: sets[name] for name in parts}

    def _read_out(self, ending: Ending, readout: Readout) -> Float[Tensor, "batch at out"]:
        frozen = self.frozen().model
        if ending.output is not None:
            value = readout.logits(ending.output, frozen)
            return value + readout.b_U if ending.biased and readout.b_U is not None else value
        if ending.biased:
            return readout.logits(None, frozen).clone()
        at = self.tokens.shape[1] if readout.positions is None else len(readout.positions)
        return frozen.W_U.new_zeros(len(self.tokens), at, readout.W_U.shape[1])

    def terms(
        self,
        paths: Path = "..",
        positions: int | Sequence[int] | None = None,
        tokens: int | Sequence[int] | None = None,
    ) -> Iterator[tuple[PathTerm, Float[Tensor, "batch at out"]]]:
        """Each term of a sum with its value, lazily; terms that share a prefix share its work.

        The arguments are those of :meth:`evaluate`; the order is depth first.
        """
        at, out = self._positions(positions), self._token_ids(tokens)
        self._check_memory(at, out)
        found = self.paths(paths)
        values = path_logits(self.frozen().model, map(numbered, found.depth_first()), at, out)
        return zip(found.depth_first(), values, strict=True)

    def paths(self, path: Path) -> PathSum:
        """The set of paths of this model that ``path`` names."""
        architecture = self.model.architecture
        if isinstance(path, PathTerm):
            self._check_architecture(path.architecture)
            path = path.path
        if isinstance(path, Logits):
            path = path.expand()
        if isinstance(path, PathSum):
            self._check_architecture(path.architecture)
            return path
        return architecture.logits.expand().where(path)

    def _check_architecture(self, architecture: Architecture) -> None:
        own = self.model.architecture
        if architecture != own:
            raise InputError(f"these are paths of {architecture!r}, the model is {own!r}")

    def _positions(self, positions: int | Sequence[int] | None) -> list[int] | None:
        length = self.tokens.shape[1]
        return _indices(positions, length, "position", negative=True)

    def _token_ids(self, tokens: int | Sequence[int] | None) -> list[int] | None:
        return _indices(tokens, self.model.config.d_vocab, "token id", negative=False)

    def _check_memory(
        self, positions: list[int] | None, tokens: list[int] | None, times: int = 1
    ) -> None:
        at = self.tokens.shape[1] if positions is None else len(positions)
        out = self.model.config.d_vocab if tokens is None else len(tokens)
        size = 8 * len(self.tokens) * at * out * times
        if size > MEMORY_BUDGET:
            raise LimitError(
                f"the result would take {size / 2**30:.1f} GiB, more than the budget of "
                f"{MEMORY_BUDGET / 2**30:.0f} GiB; choose positions= or tokens=",
                size,
                MEMORY_BUDGET,
            )

    def __repr__(self) -> str:
        batch, length = self.tokens.shape
        return f"<Run of {self.model.name} on {batch} × {length} tokens>"


def _check_recording(size: int, batch: int, length: int) -> None:
    """Refuse a recording that is too large, before any work."""
    if size > RECORDING_BUDGET:
        raise LimitError(
            f"recording a run of {batch} × {length:,} tokens would take {size / 2**30:.3g} GiB, "
            f"more than the budget of {RECORDING_BUDGET / 2**30:.3g} GiB: give fewer tokens, or "
            "fewer sequences at once, or set otimes.bridge.run.RECORDING_BUDGET to more bytes",
            size,
            RECORDING_BUDGET,
        )


def _indices(
    chosen: int | Sequence[int] | None, size: int, what: str, *, negative: bool
) -> list[int] | None:
    if chosen is None:
        return None
    return [index_of(what, one, size, negative=negative) for one in each(chosen)]
