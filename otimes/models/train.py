"""Train the checkpoints that ship: the whole recipe, from text to model card.

Three attention-only models without norms and with shortformer positions (positions enter queries
and keys only), on public-domain English:

======================== ======== ==========================================================
``attn-only-1l``         1 layer  natural text
``attn-only-2l``         2 layers natural text; one sequence in eight is repeated random tokens
``attn-only-2l-natural`` 2 layers natural text only: the independent evidence
======================== ======== ==========================================================

The recipe ``attn-only-4l`` is that of a small model of 4 layers that does not ship: the benchmarks
search its paths.

Use (CORPORA holds ``sotu``, ``moby_dick``, ``austen`` and ``kjv`` as ``.txt.gz``)::

    python -m otimes.models.train run attn-only-2l --seed 0 --corpora CORPORA --work WORK
    python -m otimes.models.train ship attn-only-2l --work WORK --models otimes/models

``run`` trains one seed and can be run for several at a time; ``ship`` compares all seeds found in
WORK, copies the best one and writes its card with the results of every seed.

The position vectors start as sinusoids with frequencies log-spaced from 0.95 pi to pi / context at
1.5 times the embedding's scale, and the unembedding as a small multiple of the transposed
embedding. Usual sinusoids (base 10,000) did not form the induction circuit in trials at this size.

From windows drawn at random, 12,000 steps of natural text form no induction heads (0.005 on the
stripe, less than uniform attention). So every second window of ``attn-only-2l-natural`` is the one
of 16 random windows in which rare pairs of tokens, such as names, return most.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional

from otimes.models.card import CORPORA, VALIDATION_BYTES_PER_TEXT, ship
from otimes.models.measure import head_scores, repeated_losses, stimulus, validation_loss
from otimes.models.reference import Block, Reference

BOS = "<|bos|>"
_COPIES = ("first_copy", "second_copy")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run but its seed."""

    n_layers: int
    repeated_one_in: int | None
    steps: int
    candidates: int = 1
    batch: int = 16
    learning_rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.01
    warmup: int = 100
    clip: float = 1.0
    embed_scale: float = 0.5
    position_scale: float = 1.5
    unembed_scale: float = 0.5
    d_model: int = 128
    n_heads: int = 8
    d_head: int = 32
    n_ctx: int = 128
    d_vocab: int = 1024


RECIPES = {
    "attn-only-1l": Recipe(n_layers=1, repeated_one_in=None, steps=12_000),
    "attn-only-2l": Recipe(n_layers=2, repeated_one_in=8, steps=12_000),
    "attn-only-2l-natural": Recipe(
        n_layers=2, repeated_one_in=None, steps=12_000, candidates=16, unembed_scale=0.1
    ),
    # for the benchmarks alone: benchmarks/models/attn-only-4l
    "attn-only-4l": Recipe(
        n_layers=4, repeated_one_in=8, steps=2_500, batch=8, d_model=64, d_head=16, n_ctx=64
    ),
}


def clean(name: str, text: str) -> str:
    """One paragraph a line, without hard wraps; the Bible without its verse labels."""
    if name == "kjv":
        text = re.sub(r"(?m)^\w+\d+:\d+ ", "", text).replace("\n", "\n\n")
    if name == "sotu":
        text = text.replace("\n", "\n\n")
    paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", text))
    return "\n".join(p for p in paragraphs if p) + "\n"


def split(corpora: Path) -> tuple[str, str]:
    """Return (training text, held-out text); the latter is the end of each source."""
    training, held_out = list[str](), list[str]()
    for name in CORPORA:
        with gzip.open(corpora / f"{name}.txt.gz", "rt", encoding="utf-8") as file:
            text = clean(name, file.read())
        # the cut falls on a sentence: some sources have one paragraph per speech
        cut = text.index(". ", len(text) - VALIDATION_BYTES_PER_TEXT) + 2
        training.append(text[:cut].rstrip() + "\n")
        held_out.append(text[cut:])
    return "".join(training), "".join(held_out)


def train_tokenizer(text: str, d_vocab: int) -> Tokenizer:
    """A byte-level BPE tokenizer; id 0 is BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        text.splitlines(keepends=True),
        trainers.BpeTrainer(
            vocab_size=d_vocab,
            special_tokens=[BOS],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return tokenizer


def config_of(recipe: Recipe) -> dict[str, Any]:
    """The config.json of a recipe's model."""
    return {
        "format": "otimes",
        "version": 1,
        "n_layers": recipe.n_layers,
        "n_heads": recipe.n_heads,
        "n_kv_heads": recipe.n_heads,
        "d_model": recipe.d_model,
        "d_head": recipe.d_head,
        "d_mlp": None,
        "n_ctx": recipe.n_ctx,
        "d_vocab": recipe.d_vocab,
        "bos_token_id": 0,
        "positions": "shortformer",
        "norm": None,
        "activation": None,
        "causal": True,
        "attention_scale": 1 / math.sqrt(recipe.d_head),
        "eps": None,
        "rotary": None,
    }


def initialise(model: Reference, recipe: Recipe) -> None:
    """Random weights; see the module's text for positions and unembedding."""
    with torch.no_grad():
        model.embed.W_E.normal_(0, recipe.embed_scale)
        half = recipe.d_model // 2
        frequency = torch.logspace(
            math.log10(0.95 * math.pi), math.log10(math.pi / recipe.n_ctx), half
        )
        angle = torch.arange(recipe.n_ctx)[:, None] * frequency
        waves = torch.cat([angle.sin(), angle.cos()], dim=-1)
        # sinusoids have a mean square of 1/2
        model.pos_embed.W_pos.copy_(
            waves * (math.sqrt(2) * recipe.position_scale * recipe.embed_scale)
        )
        for block in model.blocks:
            assert isinstance(block, Block)
            for name in ("W_Q", "W_K", "W_V"):
                getattr(block.attn, name).normal_(0, recipe.d_model**-0.5)
            block.attn.W_O.normal_(0, (recipe.n_heads * recipe.d_head) ** -0.5)
        model.unembed.W_U.copy_(recipe.unembed_scale * model.embed.W_E.T)


class Batches:
    """Training sequences: BOS and a random window of text, or BOS and repeated random tokens."""

    def __init__(self, ids: np.ndarray, recipe: Recipe, seed: int) -> None:
        self.ids, self.recipe = ids, recipe
        self.random = np.random.default_rng(seed)
        pairs = np.bincount(
            ids[:-1] * recipe.d_vocab + ids[1:], minlength=recipe.d_vocab**2
        ).reshape(recipe.d_vocab, recipe.d_vocab)
        #: how surprising each token is after each other one, in nats
        self.surprise = np.log((pairs.sum(1, keepdims=True) + 1) / (pairs + 1))

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens ``[batch, n_ctx]`` and weights ``[batch, n_ctx - 1]`` of the losses.

        In a repeated sequence a segment of 8 to (n_ctx - 1) / 2 uniformly random tokens (any id
        but BOS) is repeated to the end, and the losses on its first copy have weight 0.
        """
        length = self.recipe.n_ctx
        tokens = np.zeros((self.recipe.batch, length), dtype=np.int64)
        weights = np.ones((self.recipe.batch, length - 1), dtype=np.float32)
        for row in range(self.recipe.batch):
            one_in = self.recipe.repeated_one_in
            if one_in is not None and row % one_in == 0:
                period = int(self.random.integers(8, (length - 1) // 2 + 1))
                segment = self.random.integers(1, self.recipe.d_vocab, size=period)
                tokens[row, 1:] = np.resize(segment, length - 1)
                weights[row, :period] = 0
            else:
                candidates = self.recipe.candidates if row % 2 else 1
                tokens[row, 1:] = self._window(length - 1, candidates)
        return torch.from_numpy(tokens), torch.from_numpy(weights)

    def _window(self, length: int, candidates: int) -> np.ndarray:
        """A random window of text: of several candidates, the one that repeats itself most."""
        starts = self.random.integers(0, len(self.ids) - length, size=candidates)
        windows = [self.ids[start : start + length] for start in starts]
        return windows[0] if candidates == 1 else max(windows, key=self._repetition)

    def _repetition(self, window: np.ndarray) -> float:
        """The surprise of all pairs of neighbouring tokens that occurred earlier in the window.

        Common pairs repeat anyway and bigram statistics foresee them; a rare pair that returns,
        such as a name, can only be foreseen from the context.
        """
        pairs = window[:-1] * self.recipe.d_vocab + window[1:]
        _, first = np.unique(pairs, return_index=True)
        again = np.ones(len(pairs), dtype=bool)
        again[first] = False
        return float(self.surprise.ravel()[pairs[again]].sum())


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine to zero."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def run(name: str, recipe: Recipe, seed: int, corpora: Path, work: Path) -> dict[str, Any]:
    """Train one seed into ``work/NAME-seedS`` (checkpoint, log, metrics) and return the metrics."""
    out = work / f"{name}-seed{seed}"
    out.mkdir(parents=True, exist_ok=True)
    training, held_out = split(corpora)
    tokenizer = train_tokenizer(training, recipe.d_vocab)
    tokenizer.save(str(out / "tokenizer.json"))
    ids = np.array(tokenizer.encode(training).ids, dtype=np.int64)
    held_out_ids = np.array(tokenizer.encode(held_out).ids, dtype=np.int64)

    torch.manual_seed(seed)
    config = config_of(recipe)
    model = Reference(config)
    initialise(model, recipe)
    batches = Batches(ids, recipe, seed)
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
    )
    started, running = time.monotonic(), 0.0
    with (out / "log.csv").open("w", newline="") as file:
        log = csv.writer(file)
        for step in range(recipe.steps):
            rate = learning_rate(step, recipe)
            for group in optimiser.param_groups:
                group["lr"] = rate
            tokens, weights = batches.draw()
            logits = model(tokens).logits[:, :-1]
            losses = functional.cross_entropy(
                logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
            )
            loss = (losses * weights.flatten()).sum() / weights.sum()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimiser.step()
            running = loss.item() if step == 0 else 0.99 * running + 0.01 * loss.item()
            if step % 250 == 0 or step == recipe.steps - 1:
                repeated = stimulus(config, tokenizer, sequences=8, seed=1)
                heads = head_scores(model, repeated)
                row = {
                    "step": step,
                    "learning_rate": f"{rate:.6f}",
                    "loss": f"{running:.4f}",
                    **dict(zip(_COPIES, repeated_losses(model, repeated), strict=True)),
                    "previous_token": max(head["previous_token"] for head in heads),
                    "induction": max(head["induction"] for head in heads),
                    "seconds": f"{time.monotonic() - started:.1f}",
                }
                if step == 0:
                    log.writerow(row)
                log.writerow(row.values())
                file.flush()

    state = {key: value.detach().contiguous() for key, value in model.state_dict().items()}
    save_file(state, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (out / "validation.txt").write_text(held_out, encoding="utf-8")
    model = model.double().requires_grad_(False)
    metrics = {
        "seed": seed,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "training_tokens": len(ids),
        "training_loss": round(running, 4),
        "validation_loss": round(validation_loss(model, held_out_ids), 4),
        **measured(model, config, tokenizer),
    }
    (out / "metrics.json").write_text(
        json.dumps({"recipe": asdict(recipe), **metrics}, indent=1) + "\n", encoding="utf-8"
    )
    return metrics


def measured(model: Reference, config: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Losses on repeated random tokens and the attention scores of every head."""
    tokens = stimulus(config, tokenizer, sequences=32, seed=0)
    first, second = repeated_losses(model, tokens)
    return {
        "first_copy_loss": round(first, 4),
        "second_copy_loss": round(second, 4),
        "heads": head_scores(model, tokens),
    }


def main() -> None:
    """The command line of this script."""
    parser = argparse.ArgumentParser(description="Train the checkpoints that ship with otimes.")
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("run", help="train one seed")
    train.add_argument("name", choices=RECIPES)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument(
        "--set", action="append", default=[], metavar="NAME=NUMBER", help="instead of the recipe's"
    )
    train.add_argument("--corpora", type=Path, required=True)
    train.add_argument("--work", type=Path, required=True)
    train.add_argument("--threads", type=int, default=1)
    shipping = commands.add_parser("ship", help="copy the best seed and write its card")
    shipping.add_argument("name", choices=RECIPES)
    shipping.add_argument("--work", type=Path, required=True)
    shipping.add_argument("--models", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "ship":
        print(ship(options.name, options.work, options.models))
        return
    torch.set_num_threads(options.threads)
    recipe = RECIPES[options.name]
    changes = {name: json.loads(value) for name, value in (c.split("=") for c in options.set)}
    recipe = Recipe(**{**asdict(recipe), **changes})
    print(json.dumps(run(options.name, recipe, options.seed, options.corpora, options.work)))


if __name__ == "__main__":
    main()
