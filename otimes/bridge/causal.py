"""The causal check: what really happens to a target when what a path writes is taken away.

A frozen value holds at the run's patterns. Here the path's vector is subtracted from the stream of
the reference module, and everything behind it is computed anew, patterns and all, by that module.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from otimes.algebra import PathSum, PathTerm
from otimes.bridge.binding import numbered
from otimes.bridge.freezing import ACTIVATIONS, Frozen
from otimes.bridge.indices import each, index_of
from otimes.bridge.loading.weights import MLPWeights
from otimes.bridge.run import Run
from otimes.errors import InputError
from otimes.models.reference import Reference
from otimes.numeric.branches import FrozenHeads, FrozenNeurons
from otimes.numeric.frozen import Stream
from otimes.numeric.live import LiveRules, change_behind, live_head, live_neuron
from otimes.numeric.paths import PrefixStack, boundary_of, carried
from otimes.results.causal import CausalEffect, CausalEffects

At = Literal["output", "input"]

_BYTES_AT_ONCE = 2**28


def causal_effects(
    run: Run,
    paths: PathTerm | str | Iterable[PathTerm | str],
    target: int | Sequence[int] | Float[Tensor, " d_vocab"],
    position: int = -1,
    *,
    batch: int = 0,
    at: At = "output",
) -> CausalEffects:
    """Take each path away, recompute what follows, and compare with the path's frozen value.

    Each path is taken away by itself, from the run as it was. A path without a component is
    subtracted where its source is written; one that begins inside its last component (``bias[1.4] >
    1.4``) does not pass what that reads, so it is subtracted from what it writes in both cases.
    The scales of norms are recomputed as all else is: those that the last component reads and
    writes through at ``input``, those behind it in both cases. Targets are of the logits before a
    soft-cap.

    Args:
        run: a recorded run.
        paths: terms of this model, or texts that match one path each; or one of these.
        target: a token id (its logit), two ids (the first's logit less the second's), or weights
            ``[d_vocab]`` for a sum of logits.
        position: where the target is read, from 0 or from the end.
        batch: which sequence of the run.
        at: ``output``: the vector that the path writes is subtracted from the stream right behind
            its last component. ``input``: what arrives at the path's last component is subtracted
            from what its layer reads (queries, keys and values, and their norms), and what that
            one component writes is recomputed.

    Returns:
        Frozen values and causal effects, in logits. The effect is the target of the run less that
        of the changed run.

    Raises:
        InputError: for positions, sequences, ids or weights that do not fit the run.
        NotationError, UnknownComponentError: for a text that matches no path or several.
        LimitError: for a sum of more terms than are listed.
    """
    if at not in ("output", "input"):
        raise InputError(f"at={at!r}: a path is taken away at 'output' or at 'input'")
    sequence = index_of("sequence", batch, len(run.tokens))
    place = index_of("position", position, run.tokens.shape[1])
    weights, name = _target(run, target)
    given = paths.terms() if isinstance(paths, PathSum) else each(paths)
    terms = [path if isinstance(path, PathTerm) else run.paths("..")[path] for path in given]
    for term in terms:
        run.paths(term)  # refused if it is of another model
    removals = _Removals(run, sequence, at)
    original = float(run.uncapped_logits[sequence, place] @ weights)
    read = removals.model.W_U @ weights
    constant = 0.0 if removals.model.b_U is None else float(removals.model.b_U @ weights)
    frozen, causal = list[float](), list[float]()
    waiting, many = dict[int, _Removal](), _at_once(run)
    for term in terms:
        output = removals.stack.output(*numbered(term))
        frozen.append(constant if output is None else float(output[0, place] @ read))
        removal = removals.of(term)
        if removal is None:  # it reaches the logits alone, so nothing else changes
            causal.append(frozen[-1])
            continue
        waiting[len(causal)] = removal
        causal.append(0.0)
        if len(waiting) == many:
            _measure(run, sequence, place, weights, original, waiting, causal)
    _measure(run, sequence, place, weights, original, waiting, causal)
    return CausalEffects(
        model=run.model.name,
        tokens=tuple(run.tokens[sequence].tolist()),
        position=place,
        target=name,
        at=at,
        original=original,
        effects=tuple(
            CausalEffect(term.short_path, *values)
            for term, *values in zip(terms, frozen, causal, strict=True)
        ),
    )


@dataclass(frozen=True)
class _Removal:
    """What is subtracted, ``[1, pos, d_model]``, from the stream before block ``boundary``."""

    boundary: int
    stream: Stream


class _Removals:
    """What has to be subtracted for each path, of one sequence of a run."""

    def __init__(self, run: Run, sequence: int, at: At) -> None:
        frozen: Frozen = run.frozen()
        self.run, self.sequence, self.at = run, sequence, at
        self.model = frozen.model.sequence(sequence)
        self.readers = [reader.sequence(sequence) for reader in frozen.readers]
        self.streams = [stream[sequence : sequence + 1] for stream in run.recording().streams]
        self.stack = PrefixStack(self.model)

    def of(self, term: PathTerm) -> _Removal | None:
        """None where nothing but the unembedding reads what the path writes."""
        source, components = numbered(term)
        inside = 0 if self.model.sources[source].component is None else 1
        if self.at == "input" and len(components) > inside:
            return self._through_last(source, components)
        stream = self.stack.stream(source, components)
        if stream is None or self.model.sources[source].joins != "stream":
            return None
        return _Removal(boundary_of(self.model, source, components), stream)

    def _through_last(self, source: int, components: tuple[tuple[int, int], ...]) -> _Removal:
        number, index = components[-1]
        prefix = self.stack.stream(source, components[:-1])
        assert prefix is not None
        boundary = boundary_of(self.model, source, components[:-1])
        arriving = carried(self.model, prefix, boundary, number)
        block, before = self.model.blocks[number], self.streams[number]
        branch, own = block.of(index)
        layer = self.run.model.architecture.blocks[number].layer
        read = torch.cat([before, before - arriving])
        if isinstance(branch, FrozenHeads):
            rules = self._rules(layer, self.run.model.weights.layers[layer].b_O)
            old, new = live_head(self.readers[layer], branch, own, read, rules)
        else:
            assert isinstance(branch, FrozenNeurons)
            mlp = self.run.model.weights.mlps[layer]
            rules = self._rules(layer, mlp.b_out)
            old, new = live_neuron(branch, own, read, rules, self._fire(mlp, own))
        change = change_behind(block, branch, before, (new - old)[None], rules)
        return _Removal(number + 1, -change)

    def _rules(self, layer: int, output_bias: Tensor | None) -> LiveRules:
        config = self.run.model.config
        return LiveRules(
            config.eps,
            config.attention_softcap,
            self.run.attended(layer)[self.sequence],
            None if output_bias is None else output_bias.double(),
        )

    def _fire(self, mlp: MLPWeights, neuron: int) -> Callable[[Stream], Tensor]:
        activation = self.run.model.config.activation
        assert activation is not None  # a config with an MLP has one
        act = ACTIVATIONS[activation]

        def linear(read: Stream, weight: Tensor, bias: Tensor | None) -> Tensor:
            value = read @ weight[:, neuron].double()
            return value if bias is None else value + bias[neuron].double()

        def fire(read: Stream) -> Tensor:
            value = linear(read, mlp.W_in, mlp.b_in)
            if mlp.W_gate is None:
                return act(value)
            return act(linear(read, mlp.W_gate, mlp.b_gate)) * value

        return fire


def _measure(
    run: Run,
    sequence: int,
    place: int,
    weights: Tensor,
    original: float,
    waiting: dict[int, _Removal],
    causal: list[float],
) -> None:
    """Run the reference once for all paths that wait, one path in each row of the batch."""
    if not waiting:
        return
    many = len(waiting)
    reference = run.model.reference()
    tokens = run.tokens[sequence].expand(many, -1)
    mask, types = (
        None if one is None else one[sequence].expand(many, -1) for one in (run.mask, run.types)
    )
    with torch.no_grad(), _subtracted(reference, list(waiting.values())):
        # nothing of what the layers do is kept
        logits = reference(tokens, mask, types, budget=0).uncapped_logits[:, place]
    for number, value in zip(waiting, (logits @ weights).tolist(), strict=True):
        causal[number] = original - value
    waiting.clear()


@contextmanager
def _subtracted(reference: Reference, removals: Sequence[_Removal]) -> Generator[None]:
    """The reference with a vector subtracted from the stream, another one in each row."""
    handles = list[torch.utils.hooks.RemovableHandle]()
    try:
        for boundary in {removal.boundary for removal in removals}:
            rows = torch.cat(
                [r.stream if r.boundary == boundary else 0 * r.stream for r in removals]
            )
            handles.append(reference.points[boundary].register_forward_hook(_less(rows)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _less(rows: Tensor) -> Callable[..., Tensor]:
    def hook(_: nn.Module, __: object, stream: Tensor) -> Tensor:
        return stream - rows

    return hook


def _at_once(run: Run) -> int:
    """How many rows of a batch the reference takes within a fixed amount of memory."""
    config, length = run.model.config, run.tokens.shape[1]
    layer = 3 * config.n_heads * length**2 + 4 * length * (config.d_model + (config.d_mlp or 0))
    row = config.n_layers * layer + length * (config.d_vocab + config.d_model)
    return max(1, _BYTES_AT_ONCE // (8 * row))


def _target(
    run: Run, target: int | Sequence[int] | Tensor
) -> tuple[Float[Tensor, " d_vocab"], str]:
    """Weights over the vocabulary, and a name for them."""
    size, tokenizer = run.model.config.d_vocab, run.model.tokenizer
    if isinstance(target, Tensor) and target.is_floating_point():
        if tuple(target.shape) != (size,) or not bool(torch.isfinite(target).all()):
            raise InputError(f"a target's weights are {size} finite numbers, one for each token")
        return target.double(), "weighted sum of logits"
    ids = each(target)
    if len(ids) not in (1, 2):
        raise InputError(f"a target is a token id or two, not {len(ids)}")
    weights = torch.zeros(size, dtype=torch.float64)
    for one, sign in zip(ids, (1, -1), strict=False):
        number = index_of("token id", one, size, negative=False)
        weights[number] += sign
    texts = [repr(tokenizer.token_text(int(one))) for one in ids]
    return weights, f"logit of {' − '.join(texts)}"
