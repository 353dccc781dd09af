"""Plain numpy values of expressions, and a plain forward pass of a frozen transformer.

``Dense`` turns an expression into one matrix: ``A ⊗ W`` is ``kron(A, W)`` on the row-major
flattening. ``forward`` computes the logits from the description of the architecture alone, layer by
layer as a model would, and knows nothing of expressions.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from otimes.algebra import (
    Architecture,
    Expr,
    Factor,
    Identity,
    Product,
    Scaled,
    Sum,
    Tensor,
    Transpose,
)

SIZES = {
    "pos": 3, "d_model": 4, "d_head": 2, "vocab": 5, "n_ctx": 6, "types": 2, "1": 1,
}  # fmt: skip

Ends = tuple[tuple[str, ...], tuple[str, ...]]


class Dense:
    """Random matrices for all symbols, the same for the same name and seed."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def symbol(self, name: str, codomain: Sequence[str], domain: Sequence[str]) -> np.ndarray:
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        shape = tuple(int(np.prod([SIZES[s] for s in side])) for side in (codomain, domain))
        value = rng.normal(size=shape)
        # scales and slopes are diagonal, a multiplier is a number, ones are ones
        if name.partition("[")[0] in ("D", "S"):
            return np.diag(np.diag(value))
        if name.startswith("μ"):
            return np.eye(shape[0]) * value[0, 0]
        return np.ones(shape) if name == "ones" else value

    def __call__(self, expr: Expr, codomain: Sequence[str]) -> np.ndarray:
        """The matrix of an expression whose codomain is the product of these spaces."""
        return self.value(expr, tuple(codomain))[0]

    def value(self, expr: Expr, codomain: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
        """The matrix, and the domain."""
        match expr:
            case Identity():
                return np.eye(int(np.prod([SIZES[s] for s in codomain]))), codomain
            case Factor():
                slots = [slot for slot in expr.type.slots or () if slot is not None]
                ends = tuple(s[0] for s in slots), tuple(s[1] for s in slots)
                assert ends[0] == codomain, f"{expr}: {ends} for {codomain}"
                return self.symbol(str(expr), *ends), ends[1]
            case Scaled():
                inner, domain = self.value(expr.arg, codomain)
                return float(expr.coefficient) * inner, domain
            case Sum():
                parts = [self.value(arg, codomain) for arg in expr.args]
                assert len({domain for _, domain in parts}) == 1
                return np.sum([part for part, _ in parts], axis=0), parts[0][1]
            case Product():
                whole, at = np.eye(int(np.prod([SIZES[s] for s in codomain]))), codomain
                for arg in expr.args:
                    part, at = self.value(arg, at)
                    whole = whole @ part
                return whole, at
            case Tensor():
                parts = [self.value(a, (s,)) for a, s in zip(expr.args, codomain, strict=True)]
                whole = np.eye(1)
                for part, _ in parts:
                    whole = np.kron(whole, part)
                return whole, tuple(s for _, domain in parts for s in domain)
            case Transpose():
                # an open slot is that of an identity: it takes the space that it meets
                slots = expr.type.slots or (None,) * len(codomain)
                domain = tuple(s[1] if s else c for s, c in zip(slots, codomain, strict=True))
                inner, _ = self.value(expr.arg, domain)
                return inner.T, domain
            case _:
                raise TypeError(type(expr))


def forward(arch: Architecture, dense: Dense) -> np.ndarray:  # noqa: C901 - a model in full
    """The logits [pos, vocab] of the frozen model, computed on the stream ``x [pos, d_model]``."""
    m, biases = "d_model", arch.biases

    def get(name: str, codomain: str, domain: str) -> np.ndarray:
        return dense.symbol(name, (codomain,), (domain,))

    def bias(name: str, layer: int, symbol: str, space: str = m) -> Any:
        return get(symbol, space, "1")[:, 0] if f"{name}[{layer}]" in biases else 0.0

    def vector(name: str, space: str) -> np.ndarray:
        return dense.symbol(name, ("pos", space), ("1", "1")).reshape(SIZES["pos"], SIZES[space])

    def norm(x: np.ndarray, label: str, has_bias: bool) -> np.ndarray:
        out = get(f"D[{label}]", "pos", "pos") @ x @ get(f"Γ[{label}]", m, m).T
        return out + get(f"β[{label}]", m, "1")[:, 0] if has_bias else out

    x = vector("t", "vocab") @ get("W_E", m, "vocab").T
    if "embed" in arch.multipliers:
        x = get("μ_embed", m, m)[0, 0] * x
    if arch.positions == "learned":
        x = x + vector("p", "n_ctx") @ get("W_pos", m, "n_ctx").T
    if arch.token_types:
        x = x + vector("s", "types") @ get("W_type", m, "types").T
    if arch.embed_norm:
        x = norm(x, "embed", "b_embed" in biases)
    residual = get("μ_res", m, m)[0, 0] if "residual" in arch.multipliers else 1.0

    def heads(x: np.ndarray, layer: int) -> np.ndarray:
        out = np.zeros_like(x) + bias("b_O", layer, f"b_O[{layer}]")
        for h in range(arch.heads[layer]):
            name = f"{layer}.{h}"
            moved = x @ get(f"W_OV[{name}]", m, m).T
            if f"b_V[{layer}]" in biases:
                b = get(f"W_O[{name}]", m, "d_head") @ get(f"b_V[{name}]", "d_head", "1")
                moved = moved + b[:, 0]
            out = out + get(f"A[{name}]", "pos", "pos") @ moved
        return out

    def mlp(x: np.ndarray, layer: int) -> np.ndarray:
        if arch.mlp == "source":
            return vector(f"m[{layer}]", m)
        out = np.zeros_like(x) + bias("b_out", layer, f"b_out[{layer}]")
        for n in range(arch.neurons[layer]):
            name = f"{layer}.n{n}"
            z = x @ get(f"w_in[{name}]", m, "1")  # [pos, 1]
            if f"b_in[{layer}]" in biases:
                z = z + get(f"b_in[{name}]", "1", "1")
            slope = np.diag(get(f"S[{name}]", "pos", "pos"))[:, None]
            out = out + (slope * z) @ get(f"w_out[{name}]", m, "1").T
        return out

    def branch(x: np.ndarray, layer: int, which: str) -> np.ndarray:
        """What a branch adds to the stream, for all norms but post-norms."""
        ln = "ln1" if which == "attn" or arch.parallel == "shared" else "ln2"
        post = "ln1_post" if which == "attn" else "ln2_post"
        reads_normed = arch.norm is not None and arch.norm_placement != "output"
        read = norm(x, f"{layer}.{ln}", f"b_{ln}[{layer}]" in biases) if reads_normed else x
        out = heads(read, layer) if which == "attn" else mlp(read, layer)
        if arch.norm is not None and arch.norm_placement in ("sandwich", "output"):
            out = norm(out, f"{layer}.{post}", f"b_{post}[{layer}]" in biases)
        return residual * out

    for layer in range(arch.layers):
        if arch.norm is not None and arch.norm_placement == "post":
            x = norm(x + residual * heads(x, layer), f"{layer}.ln1", f"b_ln1[{layer}]" in biases)
            if arch.mlp is not None:
                x = norm(x + residual * mlp(x, layer), f"{layer}.ln2", f"b_ln2[{layer}]" in biases)
        elif arch.parallel:
            x = x + branch(x, layer, "attn") + branch(x, layer, "mlp")
        else:
            x = x + branch(x, layer, "attn")
            if arch.mlp is not None:
                x = x + branch(x, layer, "mlp")
    if arch.final_norm:
        x = norm(x, "final", "b_final" in biases)
    logits = x @ get("W_U", "vocab", m).T
    if "logits" in arch.multipliers:
        logits = get("μ_logits", "vocab", "vocab")[0, 0] * logits
    if "b_U" in biases:
        logits = logits + get("b_U", "vocab", "1")[:, 0]
    return logits


def logits_of(expr: Expr, arch: Architecture, dense: Dense) -> np.ndarray:
    """The value [pos, vocab] of a logits expression; an operator is applied to the tokens."""
    value, domain = dense.value(expr, ("pos", "vocab"))
    if domain == ("pos", "vocab"):
        assert len(arch.sources) == 1
        value = value @ dense.symbol("t", ("pos", "vocab"), ("1", "1"))
    return value.reshape(SIZES["pos"], SIZES["vocab"])
