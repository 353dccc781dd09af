"""Attention scores of a frozen transformer by definition, in plain numpy; imports no otimes.

A ``Model`` draws a random matrix for every symbol (``W_O[0.1]``, ``D[1.ln1]``, …), in the column
convention and with rectangular shapes. ``stream`` and ``scores`` compute layer by layer,
``carried`` walks one path, ``word`` evaluates a term as it is printed. Attention patterns and the
scales of norms are given, not computed: the sum over paths holds for any.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field

import numpy as np

LENGTH, D_MODEL, D_HEAD, D_VOCAB, N_CTX, N_TYPES = 4, 5, 6, 7, 8, 3
SIZES = {"pos": LENGTH, "model": D_MODEL, "head": D_HEAD, "vocab": D_VOCAB, "ctx": N_CTX}
SIZES |= {"types": N_TYPES, "1": 1}

SHAPES = {
    "W_E": ("model", "vocab"), "W_pos": ("model", "ctx"), "W_type": ("model", "types"),
    "W_O": ("model", "head"), "W_V": ("head", "model"), "W_Q": ("head", "model"),
    "W_K": ("head", "model"), "b_V": ("head", "1"), "b_Q": ("head", "1"), "b_K": ("head", "1"),
    "Γ": ("model", "model"), "β": ("model", "1"), "b_O": ("model", "1"), "b_out": ("model", "1"),
    "w_out": ("model", "1"), "w_in": ("model", "1"), "b_in": ("1", "1"), "m": ("pos", "model"),
    "B": ("pos", "pos"), "W_U": ("vocab", "model"), "b_U": ("vocab", "1"),
}  # fmt: skip


@dataclass
class Model:
    """What a model has, by the names that ``otimes.Architecture`` takes.

    ``rotary`` is (number of rotated coordinates, ``half`` or ``interleaved``). ``qk_norm`` is of
    each ``head`` or of ``all``; if these are ``centred`` too, one takes a mean over all heads.
    """

    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    positions: str = "none"
    token_types: bool = False
    norm: bool = False
    placement: str = "pre"
    embed_norm: bool = False
    mlp: str | None = None
    neurons: tuple[int, ...] = ()
    parallel: bool | str = False
    multipliers: frozenset[str] = frozenset()
    biases: frozenset[str] = frozenset()
    rotary: tuple[int, str] = (0, "half")
    qk_norm: str | None = None
    centred: bool = False
    seed: int = 0
    drawn: dict[str, np.ndarray] = field(default_factory=dict)

    def __getitem__(self, symbol: str) -> np.ndarray:
        if symbol not in self.drawn:
            self.drawn[symbol] = self._draw(symbol)
        return self.drawn[symbol]

    def group(self, head: str) -> str:
        """The label of a query head's key-value group."""
        layer, index = map(int, head.split("."))
        return f"{layer}.kv{index // (self.heads[layer] // self.kv_heads[layer])}"

    @property
    def coupled(self) -> bool:
        return self.qk_norm == "all" and self.centred

    def labels(self, layer: int, side: str) -> list[str]:
        """The heads of a layer that have queries (``Q``) or keys (``K``) of their own."""
        heads, kv = self.heads[layer], self.kv_heads[layer]
        shared = "kv" if side == "K" and kv != heads else ""
        return [f"{layer}.{shared}{n}" for n in range(kv if side == "K" else heads)]

    def _draw(self, symbol: str) -> np.ndarray:
        name, _, label = symbol.rstrip("]").partition("[")
        rng = np.random.default_rng([self.seed, zlib.crc32(symbol.encode())])
        if name == "W_OV":
            return self[f"W_O[{label}]"] @ self[f"W_V[{label}]"]
        if name == "W_QK":
            return self[f"W_Q[{label}]"].T @ self[f"W_K[{label}]"]
        if name in ("W_Q", "W_K", "b_Q", "b_K") and "." not in label:
            labels = self.labels(int(label), name[-1])
            return np.vstack([self[f"{name}[{one}]"] for one in labels])
        if name == "Γ" and label.endswith(("q_norm", "k_norm")):
            layer, side = int(label.partition(".")[0]), label[-6].upper()
            columns = len(self.labels(layer, side)) if self.coupled else 1
            return rng.standard_normal((D_HEAD, columns * D_HEAD))
        if name in ("W_K", "W_V", "b_K", "b_V") and "kv" not in label:
            return self[f"{name}[{self.group(label)}]"]
        if name in ("t", "p", "s"):
            rows = {"t": D_VOCAB, "p": N_CTX, "s": N_TYPES}[name]
            ids = np.arange(LENGTH) if name == "p" else rng.integers(rows, size=LENGTH)
            return np.eye(rows)[ids]
        if name == "ones":
            return np.ones((LENGTH, 1))
        if name == "A":
            return np.tril(rng.uniform(0.1, 1, (LENGTH, LENGTH)))
        if name in ("D", "S"):
            return np.diag(rng.uniform(0.5, 2, LENGTH))
        if name.startswith("μ"):
            return rng.uniform(0.5, 2) * np.eye(D_VOCAB if name == "μ_logits" else D_MODEL)
        if name in ("cos", "sin", "P", "J"):
            return self._rotary(name, label)
        return rng.standard_normal([SIZES[space] for space in SHAPES[name]])

    def pair(self, frequency: int) -> tuple[int, int]:
        """The two coordinates of d_head that turn at one frequency."""
        size, pairing = self.rotary
        if pairing == "half":
            return frequency, frequency + size // 2
        return 2 * frequency, 2 * frequency + 1

    def _rotary(self, name: str, label: str) -> np.ndarray:
        if label == "rest":
            return np.diag((np.arange(D_HEAD) >= self.rotary[0]).astype(float))
        a, b = self.pair(int(label))
        if name in ("cos", "sin"):
            return np.diag(getattr(np, name)(np.arange(LENGTH) * theta(int(label))))
        basis = np.eye(D_HEAD)
        if name == "P":
            return np.outer(basis[a], basis[a]) + np.outer(basis[b], basis[b])
        return np.outer(basis[b], basis[a]) - np.outer(basis[a], basis[b])


def theta(frequency: int) -> float:
    return 0.9 / (1 + frequency)


# the forward pass -------------------------------------------------------------------------------


def normed(model: Model, x: np.ndarray, norm: str, biased: bool = True) -> np.ndarray:
    out = model[f"D[{norm}]"] @ x @ model[f"Γ[{norm}]"].T
    layer, _, name = norm.partition(".")
    bias = f"b_{name}[{layer}]" if name else f"b_{norm}"
    return out + model[f"β[{norm}]"].T if biased and bias in model.biases else out


def reading(model: Model, layer: int, branch: str) -> str | None:
    if not model.norm or model.placement in ("post", "output"):
        return None
    second = branch == "mlp" and model.parallel != "shared"
    return f"{layer}.ln2" if second else f"{layer}.ln1"


def read(model: Model, x: np.ndarray, layer: int, branch: str, biased: bool = True) -> np.ndarray:
    norm = reading(model, layer, branch)
    return x if norm is None else normed(model, x, norm, biased)


def scaled(model: Model, x: np.ndarray) -> np.ndarray:
    return x @ model["μ_res"].T if "residual" in model.multipliers else x


def written(
    model: Model, x: np.ndarray, layer: int, branch: str, biased: bool = True
) -> np.ndarray:
    """What a branch adds to the stream, before a norm that follows the addition."""
    if model.norm and model.placement in ("sandwich", "output"):
        x = normed(model, x, f"{layer}.{'ln1' if branch == 'attn' else 'ln2'}_post", biased)
    return scaled(model, x)


def after_addition(
    model: Model, x: np.ndarray, layer: int, branch: str, biased: bool = True
) -> np.ndarray:
    if model.norm and model.placement == "post":
        return normed(model, x, f"{layer}.{'ln1' if branch == 'attn' else 'ln2'}", biased)
    return x


def inputs(model: Model) -> dict[str, np.ndarray]:
    embedded = model["t"] @ model["W_E"].T
    if "embed" in model.multipliers:
        embedded = embedded @ model["μ_embed"].T
    found = {"embed": embedded}
    if model.positions == "learned":
        found["pos"] = model["p"] @ model["W_pos"].T
    if model.token_types:
        found["type"] = model["s"] @ model["W_type"].T
    return found


def attention_out(model: Model, x: np.ndarray, layer: int) -> np.ndarray:
    out = np.zeros_like(x)
    for h in range(model.heads[layer]):
        name = f"{layer}.{h}"
        v = read(model, x, layer, "attn") @ model[f"W_V[{name}]"].T
        if f"b_V[{layer}]" in model.biases:
            v = v + model[f"b_V[{name}]"].T
        out = out + model[f"A[{name}]"] @ v @ model[f"W_O[{name}]"].T
    return out + model[f"b_O[{layer}]"].T if f"b_O[{layer}]" in model.biases else out


def mlp_out(model: Model, x: np.ndarray, layer: int) -> np.ndarray:
    if model.mlp == "source":
        return model[f"m[{layer}]"]
    out = np.zeros_like(x)
    for n in range(model.neurons[layer]):
        name = f"{layer}.n{n}"
        z = read(model, x, layer, "mlp") @ model[f"w_in[{name}]"]
        if f"b_in[{layer}]" in model.biases:
            z = z + model[f"b_in[{name}]"]
        out = out + model[f"S[{name}]"] @ z @ model[f"w_out[{name}]"].T
    return out + model[f"b_out[{layer}]"].T if f"b_out[{layer}]" in model.biases else out


def stream(model: Model, layers: int) -> np.ndarray:
    """The stream [pos, d_model] after the first ``layers`` layers."""
    x = sum(inputs(model).values())
    if model.embed_norm:
        x = normed(model, x, "embed")
    for layer in range(layers):
        attn = written(model, attention_out(model, x, layer), layer, "attn")
        if model.parallel:
            x = x + attn + written(model, mlp_out(model, x, layer), layer, "mlp")
            continue
        x = after_addition(model, x + attn, layer, "attn")
        if model.mlp is not None:
            x = x + written(model, mlp_out(model, x, layer), layer, "mlp")
            x = after_addition(model, x, layer, "mlp")
    return x


def normed_side(
    model: Model, layer: int, head: int, side: str, x: np.ndarray | None, biased: bool
) -> np.ndarray:
    """Queries (``Q``) or keys [pos, d_head] of what is read, None being nothing; not yet turned."""
    labels = model.labels(layer, side)
    number = head * len(labels) // model.heads[layer]

    def made(label: str) -> np.ndarray:
        out = np.zeros((LENGTH, D_HEAD)) if x is None else x @ model[f"W_{side}[{label}]"].T
        return out + model[f"b_{side}[{label}]"].T if biased else out

    if model.qk_norm is None:
        return made(labels[number])
    name = f"{side.lower()}_norm"
    of_layer, own = f"{layer}.{name}", f"{labels[number]}.{name}"
    scale, gain = (own, of_layer) if model.qk_norm == "head" else (of_layer, own)
    parts = labels if model.coupled else [labels[number]]
    out = np.hstack([made(label) for label in parts])
    return model[f"D[{scale}]"] @ out @ model[f"Γ[{gain}]"].T


def rotated(model: Model, x: np.ndarray) -> np.ndarray:
    """Turn row i of ``x [pos, d_head]`` by i times the angle of each frequency."""
    out = x.copy()
    for f in range(model.rotary[0] // 2):
        a, b = model.pair(f)
        for i in range(len(x)):
            c, s = np.cos(i * theta(f)), np.sin(i * theta(f))
            out[i, a] = c * x[i, a] - s * x[i, b]
            out[i, b] = s * x[i, a] + c * x[i, b]
    return out


def scores(model: Model, layer: int, head: int) -> np.ndarray:
    """The scores [dest, src] of a head by definition, without a mask."""
    name = f"{layer}.{head}"
    x = read(model, stream(model, layer), layer, "attn")
    if model.positions == "shortformer":
        x = x + model["p"] @ model["W_pos"].T
    q, k = (
        normed_side(model, layer, head, side, x, f"b_{side}[{layer}]" in model.biases)
        for side in "QK"
    )
    if model.positions == "rotary":
        q, k = rotated(model, q), rotated(model, k)
    found = q @ k.T / np.sqrt(D_HEAD)
    return found + model[f"B[{name}]"] if model.positions in ("alibi", "relative") else found


# one path ---------------------------------------------------------------------------------------


def steps(model: Model, layers: int) -> list[tuple[int, tuple[str, ...]]]:
    """The additions to the stream in their order: (layer, branches)."""
    if model.mlp is None:
        return [(layer, ("attn",)) for layer in range(layers)]
    if model.parallel:
        return [(layer, ("attn", "mlp")) for layer in range(layers)]
    return [(layer, (branch,)) for layer in range(layers) for branch in ("attn", "mlp")]


def place(component: str) -> tuple[int, str]:
    match = re.fullmatch(r"mlp(\d+)\.n\d+", component)
    return (int(match[1]), "mlp") if match else (int(component.partition(".")[0]), "attn")


def through(model: Model, x: np.ndarray, component: str) -> np.ndarray:
    """What a component writes of a part of the stream that it reads; constants left out."""
    layer, branch = place(component)
    x = read(model, x, layer, branch, biased=False)
    if branch == "attn":
        x = model[f"A[{component}]"] @ x @ model[f"W_OV[{component}]"].T
    else:
        name = component.removeprefix("mlp")
        x = model[f"S[{name}]"] @ x @ model[f"w_in[{name}]"] @ model[f"w_out[{name}]"].T
    x = written(model, x, layer, branch, biased=False)
    return after_addition(model, x, layer, branch, biased=False)


def constant_inside(model: Model, component: str) -> np.ndarray:
    """What a component writes with nothing in the stream: its b_V or b_in, its norm's bias."""
    layer, branch = place(component)
    norm = reading(model, layer, branch)
    x = np.zeros((LENGTH, D_MODEL))
    if norm is not None and f"b_{norm.split('.')[1]}[{layer}]" in model.biases:
        x = x + model[f"β[{norm}]"].T
    if branch == "attn":
        v = x @ model[f"W_V[{component}]"].T
        if f"b_V[{layer}]" in model.biases:
            v = v + model[f"b_V[{component}]"].T
        x = model[f"A[{component}]"] @ v @ model[f"W_O[{component}]"].T
    else:
        name = component.removeprefix("mlp")
        z = x @ model[f"w_in[{name}]"]
        if f"b_in[{layer}]" in model.biases:
            z = z + model[f"b_in[{name}]"]
        x = model[f"S[{name}]"] @ z @ model[f"w_out[{name}]"].T
    x = written(model, x, layer, branch, biased=False)
    return after_addition(model, x, layer, branch, biased=False)


def _start(model: Model, source: str) -> tuple[np.ndarray, tuple[int, str] | None]:
    """What a source of the stream writes, and in which step (None: before all)."""
    if source in inputs(model):
        x = inputs(model)[source]
        return (normed(model, x, "embed", biased=False) if model.embed_norm else x), None
    nothing = np.zeros((LENGTH, D_MODEL))
    if source == "bias[embed]":
        return nothing + model["β[embed]"].T, None
    if match := re.fullmatch(r"mlp(\d+)", source):
        layer, branch = int(match[1]), "mlp"
        x = written(model, model[f"m[{layer}]"], layer, branch, biased=False)
        return after_addition(model, x, layer, branch, biased=False), (layer, branch)
    match = re.fullmatch(r"bias\[(\d+)\.(attn|mlp)\]", source)
    assert match is not None, source
    layer, branch = int(match[1]), match[2]
    name = f"b_{'O' if branch == 'attn' else 'out'}[{layer}]"
    there = name in model.biases and not (branch == "mlp" and model.mlp == "source")
    x = nothing + model[name].T if there else nothing
    # the norms' own biases are added once, to whatever is written
    x = written(model, x, layer, branch)
    return after_addition(model, x, layer, branch), (layer, branch)


def carried(model: Model, layer: int, head: int, side: str, path: str) -> np.ndarray:
    """The part [pos, d_head] of a head's queries or keys that one path brings.

    ``path`` starts with its source: ``embed > 0.1 > mlp0.n2``.
    """
    source, *components = path.split(" > ")
    name, letter = f"{layer}.{head}", {"query": "Q", "key": "K"}[side]

    def projected(x: np.ndarray | None) -> np.ndarray:
        return normed_side(model, layer, head, letter, x, biased=x is None)

    if source == f"bias[{name}.{letter.lower()}]":
        return projected(None)
    if source == "pos" and model.positions == "shortformer":
        return projected(model["p"] @ model["W_pos"].T)
    if source == f"bias[{layer}.ln1]":
        return projected(np.ones((LENGTH, 1)) @ model[f"β[{layer}.ln1]"].T)
    inside = components and source == f"bias[{components[0]}]"
    if inside:
        x, at = constant_inside(model, components[0]), place(components[0])
        components = components[1:]
    else:
        x, at = _start(model, source)
    passed = at is None
    for number, branches in steps(model, layer):
        own = [c for c in components if place(c)[0] == number and place(c)[1] in branches]
        if passed:
            x = through(model, x, *own) if own else skipped(model, x, number, branches[0])
        else:
            assert not own
            passed = at in [(number, branch) for branch in branches]
    return projected(read(model, x, layer, "attn", biased=False))


def skipped(model: Model, x: np.ndarray, layer: int, branch: str) -> np.ndarray:
    return after_addition(model, x, layer, branch, biased=False)


def pair_scores(model: Model, layer: int, head: int, query: str, key: str) -> np.ndarray:
    """The scores [dest, src] of a pair of paths."""
    q = carried(model, layer, head, "query", query)
    k = carried(model, layer, head, "key", key)
    if model.positions == "rotary":
        q, k = rotated(model, q), rotated(model, k)
    return q @ k.T / np.sqrt(D_HEAD)


# what is printed --------------------------------------------------------------------------------

_TOKEN = re.compile(r"\s*(?:(\()|(\))|(ᵀ)|([+-])|([\w]+(?:\[[\w.]+\])?))")


def word(model: Model, text: str) -> np.ndarray | None:
    """The matrix of a printed word such as ``W_OV[0.1]ᵀ (b_O[0] + W_E)``; None for Id."""
    if text == "Id":
        return None
    python, position = "", 0
    glue = False
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None, (text, position)
        opened, closed, transpose, sign, name = match.groups()
        python += " @ " if glue and (opened or name) else ""
        if name:
            # an underscore within a name is no superscript
            tail = name.endswith("ᵀ")
            python += f"m[{name.rstrip('ᵀ')!r}]" + (".T" if tail else "")
        python += opened or closed or (".T" if transpose else "") or (f" {sign} " if sign else "")
        glue = bool(closed or transpose or name)
        position = match.end()
    return eval(python, {"m": model})


def term(model: Model, text: str, query_input: str, key_input: str) -> np.ndarray:
    """The matrix ``A_q X_q W X_kᵀ A_kᵀ`` [dest, src] of a printed term, unscaled."""
    sign = -1 if text.startswith("-") else 1
    left, right, form = text.removeprefix("-").split(" ⊗ ")
    found = vector(model, query_input) @ word(model, form) @ vector(model, key_input).T
    a, b = word(model, left), word(model, right)
    found = found if a is None else a @ found
    return sign * (found if b is None else found @ b.T)


def vector(model: Model, text: str) -> np.ndarray:
    """A printed input [pos, n]: a symbol, or a sum of ``(A ⊗ W) symbol``."""
    if "⊗" not in text:
        return model[text]
    total = 0
    for part in re.split(r" \+ (?=\()", text):
        match = re.fullmatch(r"\((.*) ⊗ (.*)\) (\w+)", part)
        assert match is not None, part
        pattern, matrix = word(model, match[1]), word(model, match[2])
        x = model[match[3]] if matrix is None else model[match[3]] @ matrix.T
        total = total + (x if pattern is None else pattern @ x)
    return total
