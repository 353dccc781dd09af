"""The models of ``../shared/weights``, loaded by the lines of docs/models.md, and what they do."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path

import torch

import otimes as ox


def induction(shared: Path) -> ox.Model:
    """An attention-only model of TransformerLens."""
    return ox.load(
        shared / "weights/induction-2l1h/l_2_2_model.safetensors",
        config={"model_type": "transformer_lens", "n_layers": 2, "n_heads": 1, "d_model": 64,
                "d_head": 64, "n_ctx": 8, "d_vocab": 26, "attn_only": True,
                "normalization_type": None},
    )  # fmt: skip


def nano_sort(shared: Path, mlp: str = "source") -> ox.Model:
    """A minGPT, whose tensors are in a JSON file."""
    stored = json.loads((shared / "weights/nano-sort/gpt-nano-sort-model.json").read_text())
    config = stored.pop("config")
    state = {
        name: torch.frombuffer(
            bytearray(base64.b64decode(tensor["data"])), dtype=torch.float32
        ).reshape(tensor["shape"])
        for name, tensor in stored.items()
    }
    return ox.load(state, config={**config, "model_type": "mingpt"}, mlp=mlp)


def induction_accuracy(model: ox.Model, count: int = 2000) -> float:
    """How often the token after the second occurrence of a token is that after the first."""
    generator = torch.Generator().manual_seed(0)
    prompts, targets = list[torch.Tensor](), list[int]()
    for _ in range(count):
        ids = torch.randperm(26, generator=generator)[:7]
        first = int(torch.randint(6, (1,), generator=generator))
        prompts.append(torch.cat([ids, ids[first : first + 1]]))
        targets.append(int(ids[first + 1]))
    guessed = model.reference()(torch.stack(prompts)).logits[:, -1].argmax(-1)
    return float((guessed == torch.tensor(targets)).double().mean())


def sorted_inputs(model: ox.Model) -> int:
    """How many of the 729 sequences of six digits the model sorts, greedily."""
    digits = torch.tensor(list(itertools.product(range(3), repeat=6)))
    ids = digits
    for _ in range(6):
        ids = torch.cat([ids, model.reference()(ids).logits[:, -1:].argmax(-1)], dim=1)
    return int((ids[:, 6:] == digits.sort(-1).values).all(-1).sum())
