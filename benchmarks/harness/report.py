"""Turn what was measured into the page docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.processes import Samples
from benchmarks.harness.shapes import GPT2, SMALL
from benchmarks.harness.targets import (
    FORWARD,
    GEMM,
    GEMM_STREAM,
    PATCHING,
    SMALL_FORWARD,
    TARGETS,
    Target,
)

MARGINALS = "marginals through heads and edges"
_GIGA, _MIB = 1e9, 2**20


@dataclass(frozen=True)
class Setting:
    """One dtype and number of threads: all its samples, and profiles of what missed its target."""

    dtype: str
    threads: int
    samples: Mapping[str, Samples]
    profiles: Mapping[str, list[tuple[str, int, float]]] = field(
        default_factory=dict[str, list[tuple[str, int, float]]]
    )

    @property
    def title(self) -> str:
        """What the setting is called in a heading."""
        return f"{self.dtype}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def rate(self, item: str) -> float:
        """Operations a second of an item whose operations are known."""
        found = self.samples[item]
        assert found.operations is not None
        return found.operations / found.seconds


@dataclass(frozen=True)
class Results:
    """Everything that one call of the benchmark measured."""

    rounds: int
    load: float
    processor: str
    versions: Mapping[str, str]
    settings: Sequence[Setting]

    def to_json(self) -> dict[str, Any]:
        """The figures, every round of them."""
        return asdict(self)


def page(results: Results) -> str:
    """The page: how it was measured, one table of targets, then all figures of each setting."""
    lines = [_HEAD.format(**_sizes(), **_how(results)), *_table(results)]
    for setting in results.settings:
        lines += ["", f"## {setting.title}", "", *_machine(setting), "", *_figures(setting)]
        lines += ["", _patching(setting)]
        lines += [f"\n*{k}* {found.note}." for k, found in setting.samples.items() if found.note]
        for item, rows in setting.profiles.items():
            lines += ["", f"Where the time of *{item}* goes:", "", *_profile(rows)]
    return "\n".join([*lines, "", _TAIL])


def _sizes() -> dict[str, object]:
    return {
        "layers": GPT2.layers,
        "heads": GPT2.heads,
        "d_model": GPT2.d_model,
        "d_head": GPT2.d_head,
        "d_vocab": f"{GPT2.d_vocab:,}",
        "length": GPT2.length,
    }


def _how(results: Results) -> dict[str, object]:
    return {
        "rounds": results.rounds,
        "processor": results.processor,
        "load": f"{results.load:.1f}",
        "versions": ", ".join(f"{name} {number}" for name, number in results.versions.items()),
    }


def _table(results: Results) -> list[str]:
    lines = [
        "| what | setting | time | CPU time | peak memory | ratio to | wall | CPU | target | |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    for target in TARGETS:
        lines += [_row(target, setting) for setting in results.settings]
    return lines


def _row(target: Target, setting: Setting) -> str:
    samples, limit = setting.samples, f"≤ {target.limit:g}"
    if target.own not in samples:
        cells = [target.own, setting.title, "", "", "", target.against, "", "", limit]
        return _cells([*cells, "not there yet"])
    found = samples[target.own]
    wall, cpu = target.ratios(samples)
    return _cells(
        [
            target.own,
            setting.title,
            _time(found.seconds),
            _time(found.processor_seconds),
            _memory(found.peak),
            target.against,
            f"{wall:.2f}",
            f"{cpu:.2f}",
            limit,
            "met" if target.met(samples) else "MISSED",
        ]
    )


def _machine(setting: Setting) -> list[str]:
    rates = " and ".join(
        f"{setting.rate(item) / _GIGA:.1f} GFLOP/s ({item.removeprefix('GEMM, ')})"
        for item in (GEMM, GEMM_STREAM)
    )
    return [f"Matrix products of this machine in this setting: {rates}."]


def _figures(setting: Setting) -> list[str]:
    """All items: times, memory, and how far from the rate of large matrix products."""
    fastest = max(setting.rate(GEMM), setting.rate(GEMM_STREAM))
    lines = [
        "| what | median | fastest | CPU time | peak memory | of it above rest | × GEMM time |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for item, found in setting.samples.items():
        limit = ""
        if found.operations is not None:
            limit = f"{found.seconds * fastest / found.operations:.2f}"
        cells = [item, _time(found.seconds), _time(min(found.wall))]
        cells += [_time(found.processor_seconds), _memory(found.peak)]
        lines.append(_cells([*cells, _memory(found.peak - found.resting), limit]))
    return lines


def _patching(setting: Setting) -> str:
    """Path patching of the whole shape, from what it takes on a small model."""
    samples = setting.samples
    each = samples[PATCHING].seconds / SMALL.edges
    forwards = each / samples[SMALL_FORWARD].seconds
    whole = GPT2.edges * samples[FORWARD].seconds
    text = (
        f"Path patching: {SMALL.edges} value edges of a model of {SMALL.layers} layers × "
        f"{SMALL.heads} heads × {SMALL.d_model} took {_time(samples[PATCHING].seconds)}, "
        f"{forwards:.2f} plain forward passes of that model each. Extrapolated, not measured: one "
        f"GPT-2 forward pass for each of the {GPT2.edges:,} value edges of the large shape, "
        f"without that factor, is {whole:,.0f} s"
    )
    if MARGINALS in samples:
        text += f", {whole / samples[MARGINALS].seconds:,.0f} times that of the marginals"
    return text + "."


def _profile(rows: Iterable[tuple[str, int, float]]) -> list[str]:
    lines = ["| operation | calls | share of the time |", "| --- | ---: | ---: |"]
    return lines + [
        _cells([f"`{name}`", f"{calls:,}", f"{share:.0%}"]) for name, calls, share in rows
    ]


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def _memory(count: float) -> str:
    return f"{count / _MIB:,.0f} MiB"


_HEAD = """<!-- written by `make bench`; do not edit -->
# Benchmarks

`make bench` measures otimes beside its peers and writes this page. Ratios are what counts: times
are those of one machine, {processor}, with a load of {load} when it began.

The shape is that of GPT-2 small: {layers} layers × {heads} heads, width {d_model}, heads of
{d_head}, vocabulary {d_vocab}, {length} tokens, random weights.

- *GPT-2 forward pass*: Hugging Face's GPT-2 of this shape, MLPs and all logits included, with eager
  attention.
- *Frozen pass*: one stream through all attention blocks with recorded patterns, plain matrix
  products, without unembedding.
- *TransformerLens head attribution*: `stack_head_results` and `logit_attrs` on a filled cache;
  heads alone. That of otimes says in addition from which token each head took it.
- *Head words* are sequences of heads, their sources added up. *Marginals* are the sums of all paths
  through each head and each edge.

Every peer has an environment of its own and runs in a process of its own. All processes measure one
item after the other, in turn, after a round that warms up (rounds: {rounds}); while one works the
others wait. Ratios are medians over the rounds of both times of a round; a target is met when that
of wall clock and that of processor times are. Peak memory is the process's, with
torch and the model. Versions: {versions}.
"""

_TAIL = """## Other benchmarks

```{include} ../benchmarks/results/algebra.md
:heading-offset: 2
```

```{include} ../benchmarks/results/evaluate.md
:heading-offset: 2
```
"""
