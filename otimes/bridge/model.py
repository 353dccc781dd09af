"""Loaded models: where they come from, what they are, and how they run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from otimes.algebra import Architecture
from otimes.bridge.inputs import Prompt, Tokens, from_text, from_tokens
from otimes.bridge.loading import (
    PACKAGED,
    Checkpoint,
    Config,
    Original,
    Source,
    Tokenizer,
    Weights,
    load_native,
    load_source,
)
from otimes.errors import CheckpointError, InputError, UnsupportedError
from otimes.models import folder, shipped

if TYPE_CHECKING:
    from otimes.bridge.run import Run
    from otimes.models.reference import Reference

_MLP_MODES = ("source", "frozen")


class Model:
    """A checkpoint: its config, weights, symbols and tokenizer, and the modules that judge it.

    Attributes:
        name: what results call it.
        path: the folder or file that it came from; None where it came from memory.
        config: the architecture.
        weights: the canonical tensors, in their storage dtypes.
        tokenizer: text to ids.
        original: the module that the weights came from, where there is one (Hugging Face, …); a
            native checkpoint has none.
        notes: what happened when it was loaded, in words.
        mlp: ``source`` or ``frozen``.
    """

    def __init__(self, checkpoint: Checkpoint, *, mlp: str = "source") -> None:
        """Wrap a loaded checkpoint; use :func:`load` to get one."""
        if mlp not in _MLP_MODES:
            raise UnsupportedError(
                f"unknown mlp {mlp!r}: use source, where paths start, or frozen, where each neuron "
                "is a component of paths"
            )
        self.mlp = mlp
        self.name: str = checkpoint.name
        self.path: Path | None = checkpoint.path
        self.config: Config = checkpoint.config
        self.weights: Weights = checkpoint.weights
        self.tokenizer: Tokenizer = checkpoint.tokenizer
        self.original: Original | None = checkpoint.original
        self.notes: tuple[str, ...] = checkpoint.notes
        self._native = checkpoint.native
        self._references: dict[torch.dtype, Reference] = {}

    @cached_property
    def architecture(self) -> Architecture:
        """The symbolic architecture; a bias is in it where its tensor is in the file.

        Its MLPs are sources or frozen, as the model was loaded. Printed it is a few formulas, one
        for each kind of part, and what of it is held fixed.
        """
        config = self.config
        mlp = self.mlp if config.d_mlp is not None else None
        return Architecture(
            config.n_layers,
            config.n_heads,
            kv_heads=config.n_kv_heads,
            positions=config.positions,
            token_types=config.n_token_types is not None,
            norm=config.norm,
            norm_placement=config.norm_placement,
            final_norm=config.final_norm,
            embed_norm=config.embed_norm,
            mlp=mlp,
            neurons=config.d_mlp if mlp == "frozen" else None,
            parallel=config.parallel,
            multipliers=[
                name
                for name in ("embed", "residual", "logits")
                if getattr(config, f"{name}_multiplier") is not None
            ],
            biases=_biases(self.weights),
            qk_norm=config.qk_norm,
            rotary_layers=_turning(config) if config.positions == "rotary" else None,
            attention_scale=_own_scale(config),
            softcaps=[
                name
                for name in ("attention", "logits")
                if getattr(config, f"{name}_softcap") is not None
            ],
        )

    def reference(self, dtype: torch.dtype = torch.float64) -> Reference:
        """The judge: a plain torch module that computes by the definition, in ``dtype``.

        Of a native checkpoint it reads the file by itself; of any other it has the canonical
        weights, and :attr:`original` judges these. Its parameters stay in their storage dtype and
        are converted where they are used.
        """
        if dtype not in self._references:
            self._references[dtype] = self._read_again(dtype) if self._native else self._fed(dtype)
        return self._references[dtype]

    def _read_again(self, dtype: torch.dtype) -> Reference:
        from otimes.models.reference import load as load_reference

        assert self.path is not None
        try:
            return load_reference(self.path, dtype)
        except (OSError, SafetensorError, RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"the reference module cannot read {self.path}, which could be read before: {error}"
            ) from error

    def _fed(self, dtype: torch.dtype) -> Reference:
        from otimes.models.reference import build

        return build(self.config.to_json(), self.weights.tensors(), dtype)

    def run(
        self,
        text: str | Sequence[str] | None = None,
        *,
        tokens: Tokens | None = None,
        mask: Tensor | np.ndarray | Sequence[object] | None = None,
        types: Tokens | None = None,
    ) -> Run:
        """Run the reference module and record what it did.

        Args:
            text: a prompt or several; the model's BOS is put in front.
            tokens: ids ``[pos]`` or ``[batch, pos]`` instead; nothing is put in front.
            mask: with ``tokens``: ``[batch, pos]``, False at padding, left or right.
            types: with ``tokens``, in their form: the type of each, for a model that has token
                types; left out they are 0.

        Raises:
            InputError: for input that the model cannot take.
        """
        from otimes.bridge.run import Run

        return Run(self, self.prompt(text, tokens=tokens, mask=mask, types=types))

    def prompt(
        self,
        text: str | Sequence[str] | None = None,
        *,
        tokens: Tokens | None = None,
        mask: Tensor | np.ndarray | Sequence[object] | None = None,
        types: Tokens | None = None,
    ) -> Prompt:
        """Check an input and turn it into ids, as :meth:`run` does."""
        if (text is None) == (tokens is None):
            raise InputError("give either a text or tokens=[…]")
        if tokens is not None:
            return from_tokens(tokens, self.config, mask, types)
        if types is not None:
            raise InputError("types go with tokens=…; those of a text are 0")
        if mask is not None:
            raise InputError("a mask goes with tokens=…; texts are padded by themselves")
        assert text is not None
        return from_text(text, self.config, self.tokenizer)

    def __repr__(self) -> str:
        c = self.config
        return (
            f"<Model {self.name}: {c.n_layers} layers × {c.n_heads} heads, d_model "
            f"{c.d_model}, d_head {c.d_head}, context {c.n_ctx}, vocabulary {c.d_vocab}, "
            f"positions {c.positions}, weights in {' and '.join(self.weights.dtypes)}>"
        )


def _turning(config: Config) -> list[int]:
    """The layers whose queries and keys turn with their positions."""
    return [layer for layer in range(config.n_layers) if config.rotary_of(layer) is not None]


def _own_scale(config: Config) -> float | None:
    """The scale of attention scores where it is not ``1/√d_head``."""
    usual = math.isclose(config.attention_scale, config.d_head**-0.5, rel_tol=1e-9)
    return None if usual else config.attention_scale


def _biases(weights: Weights) -> set[str]:
    """The biases that exist, by the names that an architecture gives them."""
    found = {"b_U"} if weights.b_U is not None else set[str]()
    parts = (
        (weights.layers, ("b_Q", "b_K", "b_V", "b_O")),
        # the bias of a gate is inside its neurons' slopes
        (weights.mlps, ("b_in", "b_out")),
    )
    for layers, names in parts:
        for layer, tensors in enumerate(layers):
            found |= {f"{n}[{layer}]" for n in names if getattr(tensors, n) is not None}
    for label, norm in weights.norms.items():
        layer, _, name = label.rpartition(".")
        if norm.b is not None:
            found.add(f"b_{name}[{layer}]" if layer else f"b_{name}")
    return found


def load(
    source: Source,
    *,
    config: Mapping[str, object] | None = None,
    tokenizer: object = None,
    original: nn.Module | None = None,
    mlp: str = "source",
) -> Model:
    """Load a model.

    Args:
        source: the name of a checkpoint that ships (see ``otimes.shipped()``), of a model in an
            installed package (``smollm2-135m``) or of one on the Hub (``org/name``); a folder,
            native or of Hugging Face; a file (``.safetensors``, ``.gguf``, ``.pt``, llama2.c's
            ``.bin``); a module of transformers or TransformerLens; a mapping of tensors. A name
            wins over a folder of that name; write ``./name`` for the folder.
        config: for tensors alone: the fields of a native ``config.json``, or of a family's config
            with its ``model_type`` (``gpt2``, ``mingpt``, ``transformer_lens``, …).
        tokenizer: of transformers or tokenizers, or the path of a ``tokenizer.json``, for sources
            that bring none.
        original: for a mapping of tensors: the module that they are the weights of, which maps ids
            ``[batch, pos]`` to logits.
        mlp: ``source``: paths start at the output of an MLP; ``frozen``: each neuron, at its
            recorded slope, is a component of paths.

    Raises:
        CheckpointError: if it is none of these, or cannot be used; it says why.
        UnsupportedError: a model of a kind that otimes does not read; it says what would be needed.
    """
    if not isinstance(source, str | Path | nn.Module | Mapping):
        raise CheckpointError(
            f"cannot load a {type(source).__name__}: give the name of a shipped checkpoint, a "
            "folder, a file, a module or a mapping of tensors"
        )
    names = [str(card["name"]) for card in shipped()]
    if isinstance(source, str) and source in names:
        return Model(load_native(folder(source)), mlp=mlp)
    if isinstance(source, str | Path) and not str(source).strip():
        raise CheckpointError(
            f"the model's name is empty; give a folder or one of {', '.join(names)}"
        )
    found = load_source(source, config=config, tokenizer=tokenizer, original=original)
    if found is None:
        raise CheckpointError(
            f"no model {str(source)[:200]!r}: it is no folder here and no checkpoint that ships; "
            f"those are {', '.join(names)} and, in a package, {', '.join(PACKAGED)}"
        )
    return Model(found, mlp=mlp)
