"""``config.json`` of a native checkpoint: every field of the format, checked.

>>> config = Config.parse(
...     {
...         "format": "otimes",
...         "version": 1,
...         "n_layers": 2,
...         "n_heads": 8,
...         "d_model": 128,
...         "d_head": 32,
...         "n_ctx": 128,
...         "d_vocab": 1024,
...         "positions": "shortformer",
...         "attention_scale": 0.1768,
...     }
... )
>>> config.n_kv_heads, config.causal, config.bos_token_id
(8, True, None)
>>> Config.parse(config.to_json()) == config
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Literal, cast

from otimes.bridge.loading.files import shown
from otimes.bridge.loading.reader import Reader, is_integer
from otimes.bridge.loading.rotary import Rotary
from otimes.errors import CheckpointError

FORMAT = "otimes"
VERSIONS = (1,)

_REQUIRED = ("n_layers", "n_heads", "d_model", "d_head", "n_ctx", "d_vocab", "positions",
             "attention_scale")  # fmt: skip
_POSITIONS = ("none", "learned", "shortformer", "rotary", "alibi")
_NORMS = ("layer", "rms")
_PLACEMENTS = ("pre", "post", "sandwich", "output")
_QK_NORMS = ("head", "all")
_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")

#: the largest sizes that are taken for meant, far above any model, far below an exhausted memory
_LIMITS: Mapping[str, int] = {
    "n_layers": 10_000, "n_heads": 65_536, "n_kv_heads": 65_536, "d_model": 2**20,
    "d_head": 2**20, "d_mlp": 2**24, "n_ctx": 2**24, "d_vocab": 2**24, "n_token_types": 65_536,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config:
    """The architecture of a native checkpoint; the fields are the keys of ``config.json``.

    The fields with defaults are those of later models; a file that leaves them out has the default.

    Attributes:
        n_layers: may be 0.
        d_mlp: neurons of each MLP; None: there are no MLPs. An MLP is gated where its ``W_gate`` is
            in the file.
        bos_token_id: put before a text, never before given tokens; None is none.
        positions: ``none``, ``learned``, ``shortformer``, ``rotary`` or ``alibi``.
        norm: ``layer``, ``rms`` or None; gains are stored as they multiply (Gemma's 1 + w as such).
        activation: ``relu``, ``gelu`` (by the error function), ``gelu_tanh`` or ``silu``.
        attention_scale: multiplies the raw dot products of queries and keys.
        eps: added to the mean square under a norm's root.
        rotary: one for all layers, or one for each, None where that layer's queries and keys do
            not turn.
        norm_placement: ``pre``: a branch reads through its norm; ``post``: the norm follows the
            addition to the stream; ``sandwich``: before the branch and behind it, before the
            addition; ``output``: behind the branch alone.
        final_norm: whether a norm stands before the unembedding; left out it is where norms are,
            unless they are ``post``.
        embed_norm: whether the sum of the embeddings is normed.
        qk_norm: norms of queries and keys, before they turn: over each ``head``, or over ``all``
            heads of a token together; None: none. They are of the kind that ``norm`` names.
        parallel: whether attention and MLP of a layer read the same stream, each through its own
            norm (True) or both through ``ln1`` (``"shared"``).
        embed_multiplier: multiplies the token embeddings; None: nothing does.
        residual_multiplier: multiplies what each branch adds to the stream.
        logits_multiplier: multiplies the logits, before their bias is added.
        attention_softcap: c of ``c · tanh(scores / c)``, before the mask; None: no cap.
        logits_softcap: the same of the logits, as the last step.
        windows: for each layer how many positions back a query sees, itself counted; None: all.
        tied: the unembedding is the transpose of the embedding, and not in the file.
        n_token_types: the number of token types (segments); None: there are none.
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int
    d_mlp: int | None
    n_ctx: int
    d_vocab: int
    bos_token_id: int | None
    positions: str
    norm: str | None
    activation: str | None
    causal: bool
    attention_scale: float
    eps: float | None
    rotary: Rotary | tuple[Rotary | None, ...] | None
    norm_placement: str = "pre"
    final_norm: bool = False
    embed_norm: bool = False
    qk_norm: str | None = None
    parallel: bool | Literal["shared"] = False
    embed_multiplier: float | None = None
    residual_multiplier: float | None = None
    logits_multiplier: float | None = None
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    windows: tuple[int | None, ...] | None = None
    tied: bool = False
    n_token_types: int | None = None

    @classmethod
    def parse(cls, mapping: Mapping[str, object], where: str = "config.json") -> Config:
        """Check the content of a ``config.json`` and return it.

        Missing: ``n_kv_heads`` is ``n_heads``, ``causal`` is true, ``norm_placement`` is ``pre``,
        other optional keys are false or null.

        Args:
            mapping: the parsed JSON object.
            where: the name of the file, for messages.

        Raises:
            CheckpointError: not this format or version, or unknown, missing or impossible values,
                or values that contradict one another.
        """
        _check_format(mapping, where)
        reader = Reader(mapping, where)
        reader.check_keys([f.name for f in fields(cls)], _REQUIRED, ignored=("format", "version"))
        heads = _size(reader, "n_heads")
        kv_heads = _size(reader, "n_kv_heads") if "n_kv_heads" in mapping else heads
        if heads % kv_heads:
            raise CheckpointError(
                f"{where}: n_heads {heads} is not a multiple of n_kv_heads {kv_heads}, but each KV "
                "head serves the same number of query heads: correct one of the two"
            )
        norm = reader.optional_choice("norm", _NORMS)
        placement = "pre"
        if "norm_placement" in mapping:
            placement = reader.choice("norm_placement", _PLACEMENTS)
        config = cls(
            n_layers=_size(reader, "n_layers", smallest=0),
            n_heads=heads,
            n_kv_heads=kv_heads,
            d_model=_size(reader, "d_model"),
            d_head=_size(reader, "d_head"),
            d_mlp=_size(reader, "d_mlp") if reader.has("d_mlp") else None,
            n_ctx=_size(reader, "n_ctx"),
            d_vocab=_size(reader, "d_vocab"),
            bos_token_id=_bos_token_id(reader),
            positions=reader.choice("positions", _POSITIONS),
            norm=norm,
            activation=reader.optional_choice("activation", _ACTIVATIONS),
            causal=reader.truth("causal", default=True),
            attention_scale=reader.number("attention_scale"),
            eps=reader.optional_positive("eps"),
            rotary=_rotary(reader),
            norm_placement=placement,
            final_norm=reader.truth("final_norm", default=_has_final_norm(norm, placement)),
            embed_norm=reader.truth("embed_norm", default=False),
            qk_norm=reader.optional_choice("qk_norm", _QK_NORMS),
            parallel=_parallel(reader),
            embed_multiplier=reader.optional_number("embed_multiplier"),
            residual_multiplier=reader.optional_number("residual_multiplier"),
            logits_multiplier=reader.optional_number("logits_multiplier"),
            attention_softcap=reader.optional_positive("attention_softcap"),
            logits_softcap=reader.optional_positive("logits_softcap"),
            windows=_windows(reader),
            tied=reader.truth("tied", default=False),
            n_token_types=_size(reader, "n_token_types") if reader.has("n_token_types") else None,
        )
        _check_norms(config, where)
        _check_branches(config, where)
        return config

    def to_json(self) -> dict[str, object]:
        """Return the object to write to ``config.json``; ``parse`` gives this config back.

        The fields of later models are in it where they are not what a file without them has.
        """
        found: dict[str, object] = {"format": FORMAT, "version": VERSIONS[-1]}
        for field in fields(self):
            value: object = getattr(self, field.name)
            default: object = field.default
            if field.name == "final_norm":
                default = _has_final_norm(self.norm, self.norm_placement)
            if default is MISSING or value != default:
                found[field.name] = _written(value)
        return found

    def rotary_of(self, layer: int) -> Rotary | None:
        """How the queries and keys of a layer turn; None: they do not."""
        return self.rotary[layer] if isinstance(self.rotary, tuple) else self.rotary

    def window_of(self, layer: int) -> int | None:
        """How many positions back a query of a layer sees, itself counted; None: all."""
        return None if self.windows is None else self.windows[layer]


def _written(value: object) -> object:
    if isinstance(value, Rotary):
        return value.to_json()
    if isinstance(value, tuple):
        return [_written(one) for one in cast("tuple[object, ...]", value)]
    return value


def _has_final_norm(norm: str | None, placement: str) -> bool:
    return norm is not None and placement != "post"


def _check_format(mapping: Mapping[str, object], where: str) -> None:
    if mapping.get("format") != FORMAT:
        found = f"format {shown(mapping['format'])}" if "format" in mapping else "no format"
        raise CheckpointError(
            f'{where} has {found}, not "format": "{FORMAT}": a native checkpoint says so, '
            "and one of Hugging Face its model_type: add the one that it is"
        )
    version = mapping.get("version")
    if isinstance(version, bool) or version not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        found = f"version {shown(version)}" if "version" in mapping else "no version"
        raise CheckpointError(
            f"{where} has {found}; this otimes knows version {known}: install a newer otimes or "
            f"write the checkpoint as version {VERSIONS[-1]}"
        )


def _size(reader: Reader, key: str, smallest: int = 1) -> int:
    return reader.integer(key, smallest, _LIMITS[key])


def _bos_token_id(reader: Reader) -> int | None:
    if not reader.has("bos_token_id"):
        return None
    last = _size(reader, "d_vocab") - 1
    value = reader.mapping["bos_token_id"]
    if not is_integer(value, 0, last):
        raise reader.refuse("bos_token_id", f"null or a token id from 0 to {last:,} (d_vocab - 1)")
    return cast("int", value)


def _parallel(reader: Reader) -> bool | Literal["shared"]:
    if reader.mapping.get("parallel") == "shared":
        return "shared"
    if not isinstance(reader.mapping.get("parallel", False), bool):
        raise reader.refuse("parallel", 'true, false or "shared"')
    return reader.truth("parallel", default=False)


def _windows(reader: Reader) -> tuple[int | None, ...] | None:
    if not reader.has("windows"):
        return None
    layers = _size(reader, "n_layers", smallest=0)
    each = "null or a list with an integer of 1 or more, or null, for each layer"
    found = reader.items("windows", layers, each)
    if not all(value is None or is_integer(value, 1, 2**40) for value in found):
        raise reader.refuse("windows", each)
    return tuple(cast("list[int | None]", found))


def _rotary(reader: Reader) -> Rotary | tuple[Rotary | None, ...] | None:
    where, value = reader.where, reader.mapping.get("rotary")
    rotates = reader.choice("positions", _POSITIONS) == "rotary"
    if value is None:
        if rotates:
            raise CheckpointError(
                f"{where}: positions is 'rotary', but rotary is null: say how, for example "
                '{"theta": 10000.0, "pairing": "half"}'
            )
        return None
    if not rotates:
        # ignoring it would analyse another model than the one that was meant
        positions = reader.mapping["positions"]
        raise CheckpointError(
            f"{where}: rotary is set, but positions is {positions!r}: set rotary to null"
        )
    d_head = _size(reader, "d_head")
    if not isinstance(value, list):
        return Rotary.parse(value, d_head, f"{where}: rotary")
    layers = _size(reader, "n_layers", smallest=0)
    found = reader.items("rotary", layers, "an object, or one or null for each layer")
    return tuple(
        None if one is None else Rotary.parse(one, d_head, f"{where}: rotary[{layer}]")
        for layer, one in enumerate(found)
    )


def _check_norms(config: Config, where: str) -> None:
    if config.norm is not None:
        if config.eps is None:
            raise CheckpointError(
                f"{where}: norm is {config.norm!r}, but eps is null: give the number that is added "
                "under the root, such as 1e-5"
            )
        return
    wrong = [name for name in ("final_norm", "embed_norm", "qk_norm") if getattr(config, name)]
    wrong += ["norm_placement"] if config.norm_placement != "pre" else []
    if wrong:
        raise CheckpointError(
            f"{where}: {wrong[0]} is {getattr(config, wrong[0])!r}, but norm is null: say which "
            f"norm, layer or rms, or leave {wrong[0]} out"
        )


def _check_branches(config: Config, where: str) -> None:
    if config.d_mlp is not None and config.activation is None:
        raise CheckpointError(
            f"{where}: d_mlp is {config.d_mlp}, but activation is null: give one of "
            + ", ".join(_ACTIVATIONS)
        )
    if config.parallel and config.d_mlp is None:
        raise CheckpointError(
            f"{where}: parallel is {config.parallel!r}, but d_mlp is null: a parallel block has an "
            "MLP beside its attention; give its d_mlp or leave parallel out"
        )
    if config.parallel and config.norm_placement == "post":
        raise CheckpointError(
            f"{where}: parallel blocks with post-norms are no known architecture: norm_placement "
            "is pre, sandwich or output there"
        )
