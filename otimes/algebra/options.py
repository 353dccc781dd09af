"""What an architecture can be: its options are checked here, before anything is built of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from otimes.errors import UnsupportedError

if TYPE_CHECKING:
    from otimes.algebra.architecture import Architecture

POSITIONS = ("none", "learned", "shortformer", "rotary", "alibi", "relative")
NORMS = (None, "layer", "rms")
PLACEMENTS = ("pre", "post", "sandwich", "output")
QK_NORMS = (None, "head", "all")
SOFTCAPS = ("attention", "logits")
MLPS = (None, "source", "frozen")
PARALLEL = (False, True, "shared")
MAX_LAYERS = 100_000
MAX_WIDTH = 1_000_000
"""The most layers, and the most heads or neurons in one: far beyond any model, quick to refuse."""
ATTENTION_BIASES = ("b_Q", "b_K", "b_V", "b_O")


def size(what: str, value: object) -> None:
    """Refuse what is no size, or far beyond any model."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UnsupportedError(f"{what} must be an integer of 0 or more, not {value!r}")
    most = MAX_LAYERS if what == "layers" else MAX_WIDTH
    if value > most:
        raise UnsupportedError(f"{what} must be at most {most:,}, not {value:,}")


def per_layer(what: str, numbers: int | Sequence[int], layers: int) -> tuple[int, ...]:
    """One size for each layer, from one for all or from a sequence of them."""
    if isinstance(numbers, int):
        size(what, numbers)
        return (numbers,) * layers
    if isinstance(numbers, str) or not isinstance(numbers, Iterable):
        raise UnsupportedError(f"{what} must be an integer of 0 or more, not {numbers!r}")
    found = tuple(numbers)
    for number in found:
        size(what, number)
    if len(found) != layers:
        raise UnsupportedError(
            f"{what} has {len(found)} numbers for {layers} layers; give one for each layer"
        )
    return found


def one_of(what: str, value: object, known: Sequence[object]) -> None:
    """Refuse a value that is not among the known ones, which the error lists."""
    if value not in known:
        names = ", ".join(str(name) for name in known)
        raise UnsupportedError(f"unknown {what} {value!r}; known are {names}")


def check_groups(heads: tuple[int, ...], groups: tuple[int, ...]) -> None:
    """Refuse numbers of heads that key-value heads cannot be shared by evenly."""
    for layer, (own, shared) in enumerate(zip(heads, groups, strict=True)):
        if own and (not shared or own % shared):
            raise UnsupportedError(
                f"{own} heads cannot share {shared} key-value heads in layer {layer}: the number "
                "of heads must be a multiple of kv_heads"
            )


def check_combination(
    norm: str | None,
    placement: str,
    final_norm: bool | None,
    embed_norm: bool,
    qk_norm: str | None,
    mlp: str | None,
    neurons: object,
    parallel: bool | str,
) -> None:
    """Refuse options that contradict each other."""
    if norm is None and (final_norm or embed_norm):
        raise UnsupportedError("final_norm and embed_norm need a norm: layer or rms")
    if norm is None and qk_norm is not None:
        raise UnsupportedError("qk_norm needs a norm, which says of what kind it is: layer or rms")
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


def turning_layers(
    positions: str, rotary_layers: Iterable[int] | None, layers: int
) -> frozenset[int]:
    """The layers whose queries and keys turn; none without rotary positions."""
    if rotary_layers is None:
        return frozenset(range(layers) if positions == "rotary" else ())
    if positions != "rotary":
        raise UnsupportedError(f"rotary_layers need rotary positions, not {positions!r}")
    found = frozenset(rotary_layers)
    for layer in found:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < layers:
            raise UnsupportedError(f"rotary_layers are of 0 to {layers - 1}, not {layer!r}")
    return found


def scale_of_scores(scale: float | None) -> float | None:
    """A factor of attention scores, refused where it is no finite number."""
    if scale is None:
        return None
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise UnsupportedError(
            f"attention_scale is a finite number, or None for 1/√d_head; not {scale!r}"
        )
    return float(scale)


_LAYER_BIAS = re.compile(r"(b_(?:[QKVO]|in|out|ln[12](?:_post)?))(?:\[([0-9]+)\])?")


def bias_names(biases: bool | Iterable[str], arch: Architecture) -> frozenset[str]:
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
