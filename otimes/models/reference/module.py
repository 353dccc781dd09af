"""The reference module: the layers around the residual stream, and what they record."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from otimes.models.reference.attention import Attention
from otimes.models.reference.layers import (
    MLP,
    Embed,
    Fired,
    Norm,
    PositionEmbed,
    TypeEmbed,
    Unembed,
)

_ATTENTION_BIASES = ("b_Q", "b_K", "b_V", "b_O")
_MLP_OPTIONS = ("W_gate", "b_in", "b_gate", "b_out")


@dataclass(frozen=True)
class Recording:
    """What one forward pass did.

    Attributes:
        logits: the module's output ``[batch, pos, d_vocab]``, through the cap where there is one.
        scores: for each layer ``[batch, head, dest, src]``, the attention scale applied and ALiBi
            added, before cap, mask and softmax.
        patterns: for each layer ``[batch, head, dest, src]``.
        streams: ``[batch, pos, d_model]``: ``streams[n]`` is the input of block n, the last one is
            what the final norm reads, or the unembedding where there is none. A layer is two
            blocks, attention and MLP, or one where they are parallel or there is no MLP.
        positions: the position ids ``[batch, pos]``.
        capped_scores: the scores after their cap; the same tensors where there is none.
        uncapped_logits: the logits before their cap; the same tensor where there is none.
        scales: 1/σ of each norm ``[batch, pos]`` by its label: ``0.ln1``, ``0.ln2_post``,
            ``final``, ``embed``; of the norms of queries ``0.q_norm [batch, head, pos]`` and keys
            ``0.k_norm [batch, kv_head, pos]``.
        preactivations: for each MLP ``x W_in + b_in`` ``[batch, pos, d_mlp]``.
        gates: for each MLP ``x W_gate + b_gate``, before the activation; None where it has none.
        neurons: for each MLP what ``W_out`` multiplies ``[batch, pos, d_mlp]``.
        mlp_outputs: for each MLP its output ``[batch, pos, d_model]``, ``b_out`` added, before a
            norm behind it and the residual multiplier.
    """

    logits: Tensor
    scores: tuple[Tensor, ...]
    patterns: tuple[Tensor, ...]
    streams: tuple[Tensor, ...]
    positions: Tensor
    capped_scores: tuple[Tensor, ...]
    uncapped_logits: Tensor
    scales: dict[str, Tensor]
    preactivations: tuple[Tensor, ...]
    gates: tuple[Tensor | None, ...]
    neurons: tuple[Tensor, ...]
    mlp_outputs: tuple[Tensor, ...]


@dataclass
class Tape:
    """A recording while it is made."""

    scores: list[Tensor] = field(default_factory=list[Tensor])
    capped: list[Tensor] = field(default_factory=list[Tensor])
    patterns: list[Tensor] = field(default_factory=list[Tensor])
    streams: list[Tensor] = field(default_factory=list[Tensor])
    scales: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    fired: list[Fired] = field(default_factory=list[Fired])

    def normed(self, norm: nn.Module | None, label: str, x: Tensor) -> Tensor:
        """``x`` through a norm, whose scales are recorded; ``x`` itself without one."""
        if norm is None:
            return x
        y, self.scales[label] = norm(x)
        return y


class Block(nn.Module):
    """One layer; ``tensors`` names all tensors of the file."""

    def __init__(self, config: dict[str, Any], layer: int, tensors: frozenset[str]) -> None:
        super().__init__()
        at = f"blocks.{layer}."
        self.layer = layer
        self.attn = Attention(
            config, layer, frozenset(b for b in _ATTENTION_BIASES if f"{at}attn.{b}" in tensors)
        )
        self.mlp = None
        if config.get("d_mlp") is not None:
            self.mlp = MLP(config, frozenset(t for t in _MLP_OPTIONS if f"{at}mlp.{t}" in tensors))
        self.parallel = config.get("parallel", False)
        self.multiplier = config.get("residual_multiplier")
        placement = config.get("norm_placement", "pre")
        if placement not in ("pre", "post", "sandwich", "output"):
            raise NotImplementedError(f"this reference has no {placement!r} norms")
        self.post = placement == "post"
        names = set[str]()
        if config.get("norm") is not None:
            names |= {"ln1", "ln2"} if placement != "output" else set[str]()
            names |= {"ln1_post", "ln2_post"} if placement in ("sandwich", "output") else set[str]()
            names -= {"ln2"} if self.parallel == "shared" else set[str]()
            names -= {"ln2", "ln2_post"} if self.mlp is None else set[str]()

        def norm(name: str) -> Norm | None:
            return make_norm(config, at + name, tensors) if name in names else None

        self.ln1, self.ln1_post = norm("ln1"), norm("ln1_post")
        self.ln2, self.ln2_post = norm("ln2"), norm("ln2_post")
        blocks = 1 if self.mlp is None or self.parallel else 2
        self.streams = nn.ModuleList(nn.Identity() for _ in range(blocks))

    def forward(
        self,
        x: Tensor,
        position_vectors: Tensor | None,
        positions: Tensor,
        allowed: Tensor,
        tape: Tape,
    ) -> Tensor:
        """Return the stream behind the layer; each block's output goes onto the tape."""
        reads = self._read(self.ln1, "ln1", x, tape)
        attended = self.attn(reads, position_vectors, positions, allowed)
        tape.scores.append(attended.scores)
        tape.capped.append(attended.capped)
        tape.patterns.append(attended.pattern)
        for name, scale in attended.scales.items():
            tape.scales[f"{self.layer}.{name}"] = scale
        written = self._written(self.ln1_post, "ln1_post", attended.written, tape)
        if self.mlp is not None and self.parallel:
            if self.parallel != "shared":
                reads = self._read(self.ln2, "ln2", x, tape)
            written = written + self._fire(self.mlp, reads, tape)
        x = self._added(0, self.ln1, "ln1", x, written, tape)
        if self.mlp is not None and not self.parallel:
            reads = self._read(self.ln2, "ln2", x, tape)
            x = self._added(1, self.ln2, "ln2", x, self._fire(self.mlp, reads, tape), tape)
        return x

    def _read(self, norm: nn.Module | None, name: str, x: Tensor, tape: Tape) -> Tensor:
        return x if self.post else tape.normed(norm, f"{self.layer}.{name}", x)

    def _written(self, norm: nn.Module | None, name: str, output: Tensor, tape: Tape) -> Tensor:
        output = tape.normed(norm, f"{self.layer}.{name}", output)
        return output if self.multiplier is None else self.multiplier * output

    def _fire(self, mlp: MLP, reads: Tensor, tape: Tape) -> Tensor:
        fired = mlp(reads)
        tape.fired.append(fired)
        return self._written(self.ln2_post, "ln2_post", fired.output, tape)

    def _added(
        self, block: int, norm: nn.Module | None, name: str, x: Tensor, written: Tensor, tape: Tape
    ) -> Tensor:
        x = x + written
        x = tape.normed(norm, f"{self.layer}.{name}", x) if self.post else x
        x = self.streams[block](x)
        tape.streams.append(x)
        return x


def make_norm(config: dict[str, Any], name: str, tensors: frozenset[str]) -> Norm:
    """The norm over d_model whose tensors have this name in the file."""
    shape = (config["d_model"],)
    return Norm(config["norm"], config["eps"], shape, bias=f"{name}.b" in tensors)


class Reference(nn.Module):
    """The transformer that a native checkpoint's ``config.json`` describes.

    The names in its ``state_dict`` are the tensor names of the format. ``tensors`` are the names
    of the optional tensors (biases, gates) that exist, for example ``{"blocks.0.attn.b_V"}``.

    Each stream passes through an identity on its way, the place for a hook: see ``points``.
    """

    def __init__(self, config: dict[str, Any], tensors: frozenset[str] = frozenset()) -> None:
        super().__init__()
        positions, placement = config["positions"], config.get("norm_placement", "pre")
        if positions not in ("none", "learned", "shortformer", "rotary", "alibi"):
            raise NotImplementedError(f"this reference has no {positions!r} positions")
        self.config = dict(config)
        d_model, d_vocab = config["d_model"], config["d_vocab"]
        self.embed = Embed(d_vocab, d_model)
        if positions in ("learned", "shortformer"):
            self.pos_embed = PositionEmbed(config["n_ctx"], d_model)
        types = config.get("n_token_types")
        self.type_embed = None if types is None else TypeEmbed(types, d_model)
        self.stream = nn.Identity()
        embed_norm = config.get("embed_norm", False)
        self.ln_embed = make_norm(config, "ln_embed", tensors) if embed_norm else None
        self.blocks = nn.ModuleList(
            Block(config, layer, tensors) for layer in range(config["n_layers"])
        )
        default = config.get("norm") is not None and placement != "post"
        final_norm = config.get("final_norm", default)
        self.ln_final = make_norm(config, "ln_final", tensors) if final_norm else None
        self.unembed = Unembed(
            d_model, d_vocab, bias="unembed.b_U" in tensors, tied=config.get("tied", False)
        )

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Recording:
        """Run the model.

        Args:
            tokens: ids ``[batch, pos]``.
            mask: bool ``[batch, pos]``, False at padding (left or right); None is all True.
                Position ids count the real tokens alone, and padding is never attended to.
            types: token types ``[batch, pos]`` for a model that has them; None is all 0.
        """
        real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
        positions = (real.cumsum(-1) - 1).clamp(min=0)
        length = tokens.shape[1]
        allowed = real[:, None, None, :].expand(-1, 1, length, -1)  # [batch, 1, dest, src]
        if self.config.get("causal", True):
            allowed = allowed & torch.ones(length, length, dtype=torch.bool).tril()
        shortformer = None
        if self.config["positions"] == "shortformer":
            shortformer = self.pos_embed.W_pos[positions]
        tape = Tape()
        x = self.stream(self._embedded(tokens, positions, types, tape))
        tape.streams.append(x)
        for block in self.blocks:
            x = block(x, shortformer, positions, allowed, tape)
        logits = self._unembedded(tape.normed(self.ln_final, "final", x))
        cap = self.config.get("logits_softcap")
        return Recording(
            logits=logits if cap is None else cap * torch.tanh(logits / cap),
            scores=tuple(tape.scores),
            patterns=tuple(tape.patterns),
            streams=tuple(tape.streams),
            positions=positions,
            capped_scores=tuple(tape.capped),
            uncapped_logits=logits,
            scales=tape.scales,
            preactivations=tuple(fired.preactivation for fired in tape.fired),
            gates=tuple(fired.gate for fired in tape.fired),
            neurons=tuple(fired.neurons for fired in tape.fired),
            mlp_outputs=tuple(fired.output for fired in tape.fired),
        )

    @property
    def points(self) -> list[nn.Module]:
        """The identities that the recorded ``streams`` pass through, in their order."""
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return [self.stream, *(point for block in blocks for point in block.streams)]

    def _embedded(
        self, tokens: Tensor, positions: Tensor, types: Tensor | None, tape: Tape
    ) -> Tensor:
        x = self.embed.W_E[tokens]
        multiplier = self.config.get("embed_multiplier")
        x = x if multiplier is None else multiplier * x
        if self.config["positions"] == "learned":
            x = x + self.pos_embed.W_pos[positions]
        if self.type_embed is not None:
            x = x + self.type_embed.W_type[torch.zeros_like(tokens) if types is None else types]
        return tape.normed(self.ln_embed, "embed", x)

    def _unembedded(self, x: Tensor) -> Tensor:
        logits = x @ (self.embed.W_E.T if self.config.get("tied", False) else self.unembed.W_U)
        multiplier = self.config.get("logits_multiplier")
        logits = logits if multiplier is None else multiplier * logits
        return logits if self.unembed.b_U is None else logits + self.unembed.b_U


def build(config: dict[str, Any], tensors: dict[str, Tensor]) -> Reference:
    """The module of a config and tensors by their names in a native file, which it shares.

    A tied ``unembed.W_U`` may be among them.
    """
    if config.get("tied", False):
        tensors = {name: tensor for name, tensor in tensors.items() if name != "unembed.W_U"}
    with torch.device("meta"):  # no storage for parameters that are replaced at once
        model = Reference(config, frozenset(tensors))
    model.load_state_dict(tensors, assign=True)
    return model.requires_grad_(False).eval()


def load(folder: str | Path, dtype: torch.dtype = torch.float64) -> Reference:
    """Read a native checkpoint: ``config.json`` and ``model.safetensors``, as ``dtype``."""
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    state = load_file(folder / "model.safetensors")
    # in dtype before the weights come in: parameters start as float32, which rounds float64 weights
    model = Reference(config, frozenset(state)).to(dtype)
    known = model.state_dict().keys()  # a file may hold tensors that the model does not have
    model.load_state_dict({name: tensor for name, tensor in state.items() if name in known})
    return model.requires_grad_(False).eval()
