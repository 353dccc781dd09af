"""The reference module: the layers around the residual stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from otimes.models.reference.attention import Attention, Weighed
from otimes.models.reference.layers import (
    MLP,
    Embed,
    Fired,
    Norm,
    PositionEmbed,
    TypeEmbed,
    Unembed,
    like,
    plus,
)
from otimes.models.reference.memory import Sizes
from otimes.models.reference.recording import Recording, Tape

_ATTENTION_BIASES = ("b_Q", "b_K", "b_V", "b_O")
_MLP_OPTIONS = ("W_gate", "b_in", "b_gate", "b_out")


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
        tape.attended(self.layer, x, attended.weighed)
        written = self._written(self.ln1_post, "ln1_post", attended.written, tape)
        if self.mlp is not None and self.parallel:
            if self.parallel != "shared":
                reads = self._read(self.ln2, "ln2", x, tape)
            written = written + self._fire(self.mlp, x, reads, tape)
        x = self._added(0, self.ln1, "ln1", x, written, tape)
        if self.mlp is not None and not self.parallel:
            reads = self._read(self.ln2, "ln2", x, tape)
            x = self._added(1, self.ln2, "ln2", x, self._fire(self.mlp, x, reads, tape), tape)
        return x

    def weigh(
        self, x: Tensor, position_vectors: Tensor | None, positions: Tensor, allowed: Tensor
    ) -> Weighed:
        """Do again what the attention did with a stream: its scores and patterns."""
        reads = self._read(self.ln1, "ln1", x, Tape())
        return self.attn.weigh(reads, position_vectors, positions, allowed)

    def fire(self, x: Tensor) -> Fired:
        """Do again what the MLP did with a stream."""
        norm = self.ln1 if self.parallel == "shared" else self.ln2
        assert self.mlp is not None
        return self.mlp.forward(self._read(norm, "", x, Tape()))

    def _read(self, norm: nn.Module | None, name: str, x: Tensor, tape: Tape) -> Tensor:
        return x if self.post else tape.normed(norm, f"{self.layer}.{name}", x)

    def _written(self, norm: nn.Module | None, name: str, output: Tensor, tape: Tape) -> Tensor:
        output = tape.normed(norm, f"{self.layer}.{name}", output)
        return output if self.multiplier is None else self.multiplier * output

    def _fire(self, mlp: MLP, x: Tensor, reads: Tensor, tape: Tape) -> Tensor:
        fired = mlp(reads)
        tape.fire(self.layer, x, fired)
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

    Parameters stay in the dtype that they have; with a ``dtype`` the module computes in it, and
    converts each of them where it is used. Each stream passes through an identity on its way, the
    place for a hook: see ``points``.
    """

    def __init__(
        self,
        config: dict[str, Any],
        tensors: frozenset[str] = frozenset(),
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dtype = dtype
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
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        types: Tensor | None = None,
        *,
        budget: int | None = None,
    ) -> Recording:
        """Run the model.

        Args:
            tokens: ids ``[batch, pos]``.
            mask: bool ``[batch, pos]``, False at padding (left or right); None is all True.
                Position ids count the real tokens alone, and padding is never attended to.
            types: token types ``[batch, pos]`` for a model that has them; None is all 0.
            budget: bytes that the recording may take; what does not fit is computed again when it
                is asked for (see :class:`~otimes.models.reference.memory.Sizes`). None keeps all.
        """
        real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
        positions = (real.cumsum(-1) - 1).clamp(min=0)
        length = tokens.shape[1]
        allowed = real[:, None, None, :].expand(-1, 1, length, -1)  # [batch, 1, dest, src]
        if self.config.get("causal", True):
            allowed = allowed & torch.ones(length, length, dtype=torch.bool).tril()
        shortformer = None
        if self.config["positions"] == "shortformer":
            shortformer = self._rows(self.pos_embed.W_pos, positions)
        plan = None if budget is None else self.sizes(*tokens.shape).plan(budget)
        tape = Tape(plan)
        x = self.stream(self._embedded(tokens, positions, types, tape))
        tape.streams.append(x)
        for block in self.blocks:
            x = block(x, shortformer, positions, allowed, tape)
        logits = self._unembedded(tape.normed(self.ln_final, "final", x))
        cap = self.config.get("logits_softcap")
        capped = logits if cap is None else cap * torch.tanh(logits / cap)

        @torch.no_grad()
        def weigh(layer: int) -> Weighed:
            stream = tape.inputs[layer][0]
            return self.layers[layer].weigh(stream, shortformer, positions, allowed)

        @torch.no_grad()
        def fire(layer: int) -> Fired:
            return self.layers[layer].fire(tape.inputs[layer][1])

        return tape.recording(logits, capped, positions, weigh, fire)

    def sizes(self, batch: int, length: int) -> Sizes:
        """What a recording of tokens ``[batch, length]`` takes."""
        width = (self.dtype or self.embed.W_E.dtype).itemsize
        return Sizes.of(self.config, batch, length, width)

    @property
    def points(self) -> list[nn.Module]:
        """The identities that the recorded ``streams`` pass through, in their order."""
        return [self.stream, *(point for block in self.layers for point in block.streams)]

    @property
    def layers(self) -> list[Block]:
        """The blocks, one for each layer."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def _embedded(
        self, tokens: Tensor, positions: Tensor, types: Tensor | None, tape: Tape
    ) -> Tensor:
        x = self._rows(self.embed.W_E, tokens)
        multiplier = self.config.get("embed_multiplier")
        x = x if multiplier is None else multiplier * x
        if self.config["positions"] == "learned":
            x = x + self._rows(self.pos_embed.W_pos, positions)
        if self.type_embed is not None:
            ids = torch.zeros_like(tokens) if types is None else types
            x = x + self._rows(self.type_embed.W_type, ids)
        return tape.normed(self.ln_embed, "embed", x)

    def _rows(self, weight: Tensor, ids: Tensor) -> Tensor:
        """Rows of an embedding; they alone are converted."""
        rows = weight[ids]
        return rows if self.dtype is None else rows.to(self.dtype)

    def _unembedded(self, x: Tensor) -> Tensor:
        W_U = self.embed.W_E.T if self.config.get("tied", False) else self.unembed.W_U
        logits = x @ like(W_U, x)
        multiplier = self.config.get("logits_multiplier")
        logits = logits if multiplier is None else multiplier * logits
        return plus(logits, self.unembed.b_U)


def build(
    config: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype | None = None
) -> Reference:
    """The module of a config and tensors by their names in a native file, which it shares.

    It computes in ``dtype``, by default in that of the tensors. A tied ``unembed.W_U`` may be
    among them.
    """
    if config.get("tied", False):
        tensors = {name: tensor for name, tensor in tensors.items() if name != "unembed.W_U"}
    return _filled(_empty(config, tensors, dtype), tensors)


def load(folder: str | Path, dtype: torch.dtype = torch.float64) -> Reference:
    """Read a native checkpoint: ``config.json`` and ``model.safetensors``.

    It computes in ``dtype``; its parameters are views of the mapped file, as they are stored.
    """
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "model.safetensors")
    model = _empty(config, tensors, dtype)
    known = model.state_dict().keys()  # a file may hold tensors that the model does not have
    return _filled(model, {name: tensors[name] for name in tensors if name in known})


def _empty(
    config: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype | None
) -> Reference:
    """The module without storage for its parameters."""
    with torch.device("meta"):
        return Reference(config, frozenset(tensors), dtype)


def _filled(model: Reference, tensors: dict[str, Tensor]) -> Reference:
    """The module with these tensors as its parameters, without gradients."""
    # detached, because a parameter of another module must not lose its gradient here; and a header
    # of odd length leaves tensors of a mapped file unaligned, which some kernels do not forgive
    state = {
        name: tensor.clone() if tensor.data_ptr() % tensor.element_size() else tensor
        for name, tensor in ((name, tensor.detach()) for name, tensor in tensors.items())
    }
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()
