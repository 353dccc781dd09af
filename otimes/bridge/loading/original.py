"""The module that weights came from, as the outside judge of what was made of them.

An original runs in any dtype and shows what it did at the places that the algebra's blocks have:
``streams[n]`` is the input of block n, as in the reference module's recording. A layer is two
blocks, attention and MLP, or one where they are parallel or there is no MLP. Nothing is done to the
module itself: what runs is a copy of its structure that shares the parameters where the dtype is
theirs already.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from otimes.bridge.loading.config import Config
from otimes.bridge.loading.families.table import FLOAT32_PARTS, Places
from otimes.errors import UnsupportedError


@dataclass(frozen=True, eq=False)
class OriginalRecording:
    """What one pass of the original module did, in the module's own dtype.

    Attributes:
        logits: its output.
        streams: the input of each block, and at last what the final norm reads; empty where the
            module's places are not known.
        attention_outputs: for each layer what its attention wrote, ``b_O`` added, before a norm
            behind it and a residual multiplier.
        mlp_outputs: for each MLP the same.
    """

    logits: Float[Tensor, "batch pos d_vocab"]
    streams: tuple[Tensor, ...] = ()
    attention_outputs: tuple[Tensor, ...] = ()
    mlp_outputs: tuple[Tensor, ...] = ()


Call = Callable[[nn.Module, Tensor], Tensor]
"""Runs a module: its logits ``[batch, pos, d_vocab]`` for ids ``[batch, pos]``."""


class Original:
    """An original module.

    Args:
        kind: its class, as messages call it.
        provide: returns the module in a dtype, without gradients, in evaluation mode.
        call: runs it.
        config: the canonical config, which says which blocks there are.
        places: the names of its modules; None: only its logits are known.
        float32: what the module computes in float32 whatever its dtype is, as a family says.
        renamed: names of tensors in files whose parameters the module may call otherwise.
    """

    def __init__(
        self,
        kind: str,
        provide: Callable[[torch.dtype], nn.Module],
        call: Call,
        config: Config,
        places: Places | None,
        float32: Collection[str] = FLOAT32_PARTS,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.renamed = dict(renamed or {})
        self.places = places
        self.float32 = frozenset(float32)
        self._provide = provide
        self._call = call
        self._config = config
        self._modules: dict[torch.dtype, nn.Module] = {}

    def module(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """The module in a dtype; the last one is kept."""
        if dtype not in self._modules:
            self.release()  # not two copies at once
            self._modules = {dtype: self._provide(dtype)}
        return self._modules[dtype]

    def release(self) -> None:
        """Let go of the module that was kept."""
        self._modules = {}

    def record(
        self,
        tokens: Int[Tensor, "batch pos"],
        mask: Bool[Tensor, "batch pos"] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> OriginalRecording:
        """Run the module and record its blocks.

        Args:
            tokens: the ids.
            mask: False at padding, where every tensor of the recording is 0; None is all True. The
                module sees the real tokens of each sequence alone, because many modules give NaN
                for padding where their softmax is in float32 and their mask in float64.
            dtype: what the module's parameters are converted to. Many modules compute norms and
                softmax in float32 whatever that is.

        Raises:
            UnsupportedError: it cannot run in this dtype.
        """
        if mask is None:
            return self._recorded(tokens, dtype)
        rows = [
            self._recorded(row[real][None], dtype) for row, real in zip(tokens, mask, strict=True)
        ]

        def padded(tensors: Sequence[Tensor]) -> Tensor:
            whole = tensors[0].new_zeros((*mask.shape, tensors[0].shape[-1]))
            for row, real, tensor in zip(whole, mask, tensors, strict=True):
                row[real] = tensor[0]
            return whole

        def each(field: str) -> tuple[Tensor, ...]:
            return tuple(map(padded, zip(*(getattr(row, field) for row in rows), strict=True)))

        return OriginalRecording(
            padded([row.logits for row in rows]),
            each("streams"),
            each("attention_outputs"),
            each("mlp_outputs"),
        )

    def _recorded(self, tokens: Tensor, dtype: torch.dtype) -> OriginalRecording:
        module = self.module(dtype)
        seen = dict[str, Tensor]()
        with torch.no_grad(), _hooks(self._watched(module), seen):
            try:
                logits = self._call(module, tokens)
            except (RuntimeError, TypeError, NotImplementedError) as error:
                reason = " ".join(str(error).split())[:200]
                raise UnsupportedError(
                    f"the original module, {self.kind}, does not run in "
                    f"{str(dtype).removeprefix('torch.')} ({type(error).__name__}: {reason}): "
                    "check that it runs by itself, or load the tensors without it"
                ) from error
        if self.places is None:
            return OriginalRecording(logits)
        layers = range(self._config.n_layers)
        names = [f"{layer}.{place}" for layer in layers for place in ("input", "middle")]
        mlps = [f"{layer}.mlp" for layer in layers]
        return OriginalRecording(
            logits,
            tuple(seen[name] for name in [*names, "final"] if name in seen),
            tuple(seen[f"{layer}.attention"] for layer in layers),
            tuple(seen[name] for name in mlps if name in seen),
        )

    def _watched(self, module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
        """The modules to watch by what is recorded of them: their input or their output."""
        places, config = self.places, self._config
        if places is None:
            return {}
        modules = dict(module.named_modules())
        found = dict[str, tuple[nn.Module, str]]()
        for index in range(config.n_layers):
            at = places.layer.replace("{l}", str(index))
            found[f"{index}.input"] = (modules[at], "input")
            found[f"{index}.attention"] = (modules[f"{at}.{places.attention}"], "output")
            if config.d_mlp is not None and places.mlp is not None:
                found[f"{index}.mlp"] = (modules[f"{at}.{places.mlp}"], "output")
                if places.middle is not None and not config.parallel:
                    found[f"{index}.middle"] = (modules[f"{at}.{places.middle}"], "input")
        final = next(name for name in places.final if name in modules)
        found["final"] = (modules[final], "input")
        return found


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a module's structure, in evaluation mode, with its parameters in a dtype.

    Parameters that have the dtype already are shared, not copied; the module stays as it is.
    """
    # what deepcopy finds in its memo it takes for copied: no second set of parameters is made
    memo = dict[int, object]()
    for tensor in (*module.parameters(), *module.buffers()):
        memo[id(tensor)] = _converted(tensor, dtype)
    clone = copy.deepcopy(module, memo)
    clone.eval()
    settings: object = getattr(clone, "cfg", None)
    if hasattr(settings, "dtype"):
        # modules of TransformerLens cast to the dtype of their config
        vars(settings)["dtype"] = dtype
    return clone


def _converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    value = tensor.detach()
    value = value.to(dtype) if value.is_floating_point() else value
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(value, requires_grad=False)
    return value


def call_transformers(module: nn.Module, tokens: Tensor) -> Tensor:
    """Run a model of the transformers package."""
    return module(input_ids=tokens, use_cache=False).logits


def call_plain(module: nn.Module, tokens: Tensor) -> Tensor:
    """Run a module that maps ids to logits, or to a tuple that begins with them."""
    output: object = module(tokens)
    logits: object = cast("tuple[object, ...]", output)[0] if isinstance(output, tuple) else output
    if not isinstance(logits, Tensor):
        raise UnsupportedError(
            f"the original module returns a {type(output).__name__}: it must map ids [batch, pos] "
            "to logits [batch, pos, d_vocab]"
        )
    return logits


@contextmanager
def _hooks(
    watched: Mapping[str, tuple[nn.Module, str]], seen: dict[str, Tensor]
) -> Generator[None]:
    """Watch modules while the body runs."""
    handles = list[torch.utils.hooks.RemovableHandle]()

    def on_input(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            seen[name] = _first_tensor(args or tuple(kwargs.values()))

        return hook

    def on_output(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: object, output: object) -> None:
            given = cast("tuple[object, ...]", output) if isinstance(output, tuple) else (output,)
            seen[name] = _first_tensor(given)

        return hook

    for name, (part, side) in watched.items():
        if side == "input":
            handles.append(part.register_forward_pre_hook(on_input(name), with_kwargs=True))
        else:
            handles.append(part.register_forward_hook(on_output(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_tensor(values: tuple[object, ...]) -> Tensor:
    return next(value for value in values if isinstance(value, Tensor)).detach()
