"""The families of models that otimes reads, one page each.

To add one: write a page (``llama.py`` is the plainest), add its table here, and a tiny random model
to ``tests/bridge/loading/tiny.py``, which the tests hold against the original module.
"""

from __future__ import annotations

from collections.abc import Mapping

from otimes.bridge.loading.families.gemma import GEMMA, GEMMA2, GEMMA3
from otimes.bridge.loading.families.gpt2 import GPT2
from otimes.bridge.loading.families.gpt_neox import GPT_NEOX
from otimes.bridge.loading.families.gptj import GPTJ
from otimes.bridge.loading.families.granite import GRANITE
from otimes.bridge.loading.families.llama import LLAMA
from otimes.bridge.loading.families.llama2c import LLAMA2C
from otimes.bridge.loading.families.mistral import MISTRAL
from otimes.bridge.loading.families.nano import MINGPT, NANOGPT
from otimes.bridge.loading.families.olmo2 import OLMO2
from otimes.bridge.loading.families.phi3 import PHI3
from otimes.bridge.loading.families.qwen import QWEN2, QWEN3
from otimes.bridge.loading.families.settings import Settings
from otimes.bridge.loading.families.stablelm import STABLELM
from otimes.bridge.loading.families.table import Family, Places, Take
from otimes.bridge.loading.families.transformer_lens import TRANSFORMER_LENS

FAMILIES: tuple[Family, ...] = (
    GPT2,
    GPT_NEOX,
    GPTJ,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    GEMMA,
    GEMMA2,
    GEMMA3,
    OLMO2,
    PHI3,
    GRANITE,
    STABLELM,
    NANOGPT,
    MINGPT,
    LLAMA2C,
    TRANSFORMER_LENS,
)
BY_MODEL_TYPE: Mapping[str, Family] = {
    model_type: family for family in FAMILIES for model_type in family.model_types
}

__all__ = [
    "BY_MODEL_TYPE",
    "FAMILIES",
    "TRANSFORMER_LENS",
    "Family",
    "Places",
    "Settings",
    "Take",
]
