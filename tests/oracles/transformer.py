"""The forward pass of any native model by definition, in plain numpy: a token, a head at a time.

``config`` is the object of ``config.json``, ``weights`` are float64 arrays by tensor name. What a
pass did comes back by the names that the judge's recording has, each with a leading batch axis.
Attention-only models have a shorter oracle of their own, ``numpy_model``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.oracles.numpy_model import Arrays, Config, kv_head, kv_heads, position_ids, softmax

PER_LAYER = (
    "scores", "capped_scores", "patterns", "streams", "preactivations", "gates", "neurons",
    "mlp_outputs",
)  # fmt: skip


def gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: Mapping[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def frequencies(rotary: Mapping[str, Any], d_head: int) -> list[float]:
    """The angle of each plane from one position to the next."""
    dim, theta = rotary.get("dim") or d_head, rotary["theta"]
    scaling = rotary.get("scaling")
    kind = None if scaling is None else scaling["type"]
    if kind == "ntk":
        theta = theta * scaling["factor"] ** (dim / (dim - 2))
    angles = [theta ** (-2 * f / dim) for f in range(dim // 2)]
    if kind == "linear":
        return [angle / scaling["factor"] for angle in angles]
    if kind == "factors":
        return [angle / factor for angle, factor in zip(angles, scaling["factors"], strict=True)]
    if kind == "llama3":
        return [llama3(angle, scaling) for angle in angles]
    return angles


def llama3(angle: float, scaling: Mapping[str, Any]) -> float:
    """As in the code that came with Llama 3.1."""
    old, factor = scaling["original_n_ctx"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelength = 2 * math.pi / angle
    if wavelength < old / high:
        return angle
    if wavelength > old / low:
        return angle / factor
    smooth = (old / wavelength - low) / (high - low)
    return (1 - smooth) * angle / factor + smooth * angle


def rotated(vector: np.ndarray, position: int, rotary: Mapping[str, Any]) -> np.ndarray:
    """A query or key [d_head] turned, plane by plane, with a rotation matrix."""
    angles = frequencies(rotary, len(vector))
    out = vector.copy()
    for plane, angle in enumerate(angles):
        if rotary["pairing"] == "half":
            pair = [plane, plane + len(angles)]
        else:
            pair = [2 * plane, 2 * plane + 1]
        turn = position * angle
        matrix = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
        out[pair] = matrix @ vector[pair]
    return out


def alibi_slopes(heads: int) -> list[float]:
    """As in the code that came with ALiBi."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return alibi_slopes(closest) + alibi_slopes(2 * closest)[0::2][: heads - closest]


def forward(
    config: Config, weights: Arrays, tokens: Any, mask: Any = None, types: Any = None
) -> dict[str, Any]:
    """Run ``tokens [batch, pos]``; ``mask`` is False at padding, to which nothing attends."""
    tokens = np.asarray(tokens)
    mask = np.ones(tokens.shape, bool) if mask is None else np.asarray(mask, bool)
    types = np.zeros_like(tokens) if types is None else np.asarray(types)
    each = [
        _Sequence(config, weights, *item).run() for item in zip(tokens, mask, types, strict=True)
    ]
    found: dict[str, Any] = {
        name: np.stack([one[name] for one in each])
        for name in ("logits", "uncapped_logits", "positions")
    }
    for name in PER_LAYER:
        found[name] = [np.stack(layer) for layer in zip(*(one[name] for one in each), strict=True)]
    found["scales"] = {
        label: np.stack([one["scales"][label] for one in each]) for label in each[0]["scales"]
    }
    return found


class _Sequence:
    """One sequence and what its pass did."""

    def __init__(
        self, config: Config, w: Arrays, tokens: np.ndarray, real: np.ndarray, types: np.ndarray
    ) -> None:
        self.config, self.w = config, w
        self.tokens, self.real, self.types = tokens, real, types
        self.ids = position_ids(real)
        self.did: dict[str, Any] = {name: [] for name in PER_LAYER} | {"scales": {}}

    def run(self) -> dict[str, Any]:
        c, w = self.config, self.w
        placement = c.get("norm_placement", "pre")
        x = w["embed.W_E"][self.tokens] * _or_one(c.get("embed_multiplier"))
        if c["positions"] == "learned":
            x = x + w["pos_embed.W_pos"][self.ids]
        if c.get("n_token_types"):
            x = x + w["type_embed.W_type"][self.types]
        if c.get("embed_norm"):
            x = self.norm(x, "embed", "ln_embed")
        self.did["streams"].append(x)
        for layer in range(c["n_layers"]):
            branches = [self.attention] if c["d_mlp"] is None else [self.attention, self.mlp]
            if c.get("parallel"):
                x = x + sum(self.branch(x, layer, branch) for branch in branches)
                self.did["streams"].append(x)
                continue
            for branch in branches:
                x = x + self.branch(x, layer, branch)
                if placement == "post" and c["norm"] is not None:
                    name = "ln1" if branch == self.attention else "ln2"
                    x = self.norm(x, f"{layer}.{name}", f"blocks.{layer}.{name}")
                self.did["streams"].append(x)
        if c.get("final_norm", c["norm"] is not None and placement != "post"):
            x = self.norm(x, "final", "ln_final")
        W_U = w["embed.W_E"].T if c.get("tied") else w["unembed.W_U"]
        logits = _or_one(c.get("logits_multiplier")) * (x @ W_U) + w.get("unembed.b_U", 0)
        self.did["uncapped_logits"] = logits
        self.did["logits"] = capped(logits, c.get("logits_softcap"))
        self.did["positions"] = self.ids
        return self.did

    def branch(self, x: np.ndarray, layer: int, branch: Callable[..., np.ndarray]) -> np.ndarray:
        """What attention or MLP adds to the stream."""
        c = self.config
        placement = c.get("norm_placement", "pre")
        name = "ln1" if branch == self.attention else "ln2"
        reads = x
        if c["norm"] is not None and placement in ("pre", "sandwich"):
            own = "ln1" if c.get("parallel") == "shared" else name
            reads = self.norm(x, f"{layer}.{own}", f"blocks.{layer}.{own}")
        writes = branch(reads, layer)
        if c["norm"] is not None and placement in ("sandwich", "output"):
            writes = self.norm(writes, f"{layer}.{name}_post", f"blocks.{layer}.{name}_post")
        return _or_one(c.get("residual_multiplier")) * writes

    def norm(self, x: np.ndarray, label: str, tensor: str) -> np.ndarray:
        out = np.zeros_like(x)
        scales = np.zeros(len(x))
        for i, row in enumerate(x):
            normed, scales[i] = self.unit(row)
            out[i] = normed * self.w[tensor + ".w"] + self.w.get(tensor + ".b", 0)
        self.did["scales"][label] = scales
        return out

    def unit(self, row: np.ndarray) -> tuple[np.ndarray, float]:
        """A vector divided by its σ, and 1/σ."""
        if self.config["norm"] == "layer":
            row = row - row.mean()
        sigma = math.sqrt((row**2).mean() + self.config["eps"])
        return row / sigma, 1 / sigma

    def projected(self, x: np.ndarray, layer: int, letter: str, heads: int) -> np.ndarray:
        """Queries, keys or values [head, pos, d_head] before any rotation."""
        at = f"blocks.{layer}.attn."
        out = np.zeros((heads, len(x), self.config["d_head"]))
        for h in range(heads):
            out[h] = x @ self.w[f"{at}W_{letter}"][h]
            if f"{at}b_{letter}" in self.w:
                out[h] += self.w[f"{at}b_{letter}"][h]
        kind = self.config.get("qk_norm")
        if kind is None or letter == "V":
            return out
        gain = self.w[f"{at}{letter.lower()}_norm.w"]
        scales = np.zeros(out.shape[:2])
        for i in range(len(x)):
            if kind == "all":
                row, scale = self.unit(out[:, i].reshape(-1))
                out[:, i], scales[:, i] = row.reshape(heads, -1) * gain, scale
            else:
                for h in range(heads):
                    row, scales[h, i] = self.unit(out[h, i])
                    out[h, i] = row * gain
        self.did["scales"][f"{layer}.{letter.lower()}_norm"] = scales
        return out

    def attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        c, at, length = self.config, f"blocks.{layer}.attn.", len(x)
        reads = x + self.w["pos_embed.W_pos"][self.ids] if c["positions"] == "shortformer" else x
        q = self.projected(reads, layer, "Q", c["n_heads"])
        k = self.projected(reads, layer, "K", kv_heads(c))
        v = self.projected(x, layer, "V", kv_heads(c))
        rotary = c["rotary"][layer] if isinstance(c["rotary"], list) else c["rotary"]
        if rotary is not None:
            for vectors in (*q, *k):
                for i in range(length):
                    vectors[i] = rotated(vectors[i], self.ids[i], rotary)
        scores = np.zeros((c["n_heads"], length, length))
        patterns = np.zeros_like(scores)
        written = np.zeros((length, c["d_model"]))
        for h in range(c["n_heads"]):
            g = kv_head(c, h)
            for dest in range(length):
                for src in range(length):
                    scores[h, dest, src] = c["attention_scale"] * np.dot(q[h, dest], k[g, src])
                    if c["positions"] == "alibi":
                        slope = alibi_slopes(c["n_heads"])[h]
                        scores[h, dest, src] -= slope * abs(int(self.ids[dest] - self.ids[src]))
                seen = [src for src in range(length) if self.sees(dest, src, layer)]
                if seen:
                    row = capped(scores[h, dest], c.get("attention_softcap"))
                    patterns[h, dest, seen] = softmax(row[seen])
            written = written + patterns[h] @ v[g] @ self.w[at + "W_O"][h]
        self.did["scores"].append(scores)
        self.did["capped_scores"].append(capped(scores, c.get("attention_softcap")))
        self.did["patterns"].append(patterns)
        return written + self.w.get(at + "b_O", 0)

    def sees(self, dest: int, src: int, layer: int) -> bool:
        """Whether a query may attend to a key."""
        if not self.real[src] or (self.config.get("causal", True) and src > dest):
            return False
        windows = self.config.get("windows")
        return windows is None or windows[layer] is None or abs(dest - src) < windows[layer]

    def mlp(self, x: np.ndarray, layer: int) -> np.ndarray:
        at, act = f"blocks.{layer}.mlp.", np.vectorize(ACTIVATIONS[self.config["activation"]])
        z = x @ self.w[at + "W_in"] + self.w.get(at + "b_in", 0)
        if at + "W_gate" in self.w:
            gate = x @ self.w[at + "W_gate"] + self.w.get(at + "b_gate", 0)
            neurons = act(gate) * z
            self.did["gates"].append(gate)
        else:
            neurons = act(z)
        self.did["preactivations"].append(z)
        self.did["neurons"].append(neurons)
        output = neurons @ self.w[at + "W_out"] + self.w.get(at + "b_out", 0)
        self.did["mlp_outputs"].append(output)
        return output


def capped(x: np.ndarray, cap: float | None) -> np.ndarray:
    return x if cap is None else cap * np.tanh(x / cap)


def _or_one(multiplier: float | None) -> float:
    return 1.0 if multiplier is None else multiplier
