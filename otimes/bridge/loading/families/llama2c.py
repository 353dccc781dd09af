"""llama2.c: Llama whose rotary positions turn neighbouring coordinates."""

from __future__ import annotations

from dataclasses import replace

from otimes.bridge.loading.families import llama
from otimes.bridge.loading.families.settings import Settings


def config(settings: Settings) -> dict[str, object]:
    """The fields of Llama; the file's header holds them in this project's own order."""
    width = llama.d_head(settings)
    return {**llama.config(settings), "rotary": settings.rotary(width, pairing="interleaved")}


LLAMA2C = replace(
    llama.LLAMA,
    name="llama2.c",
    model_types=("llama2c",),
    config=config,
    defaults={**llama.DEFAULTS, "rms_norm_eps": 1e-5},
)
