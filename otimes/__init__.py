"""otimes (for ⊗): the algebra of transformer circuits, on symbols and on real weights."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otimes.algebra import (
        Architecture,
        Derivation,
        Id,
        PathSum,
        PathTerm,
        check_derivation,
        equivalent,
        parse,
        partial_expansion,
        pattern,
        tensor,
        vector,
        weight,
    )
    from otimes.bridge import (
        Model,
        Run,
        attribute,
        causal_effects,
        load,
        logit_shares,
        scores,
        verify,
    )
    from otimes.errors import OtimesError
    from otimes.models import shipped
    from otimes.results import (
        Attribution,
        CausalEffects,
        Certificate,
        LogitShares,
        ScoreAttribution,
    )

_HOMES = {
    "otimes.algebra": (
        "Architecture", "Derivation", "Id", "PathSum", "PathTerm", "check_derivation", "equivalent",
        "parse", "partial_expansion", "pattern", "tensor", "vector", "weight",
    ),
    "otimes.bridge": (
        "Model", "Run", "attribute", "causal_effects", "load", "logit_shares", "scores", "verify",
    ),
    "otimes.errors": ("OtimesError",),
    "otimes.models": ("shipped",),
    "otimes.results": (
        "Attribution", "CausalEffects", "Certificate", "LogitShares", "ScoreAttribution",
    ),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = version("otimes")
__all__ = [
    "Architecture",
    "Attribution",
    "CausalEffects",
    "Certificate",
    "Derivation",
    "Id",
    "LogitShares",
    "Model",
    "OtimesError",
    "PathSum",
    "PathTerm",
    "Run",
    "ScoreAttribution",
    "attribute",
    "causal_effects",
    "check_derivation",
    "equivalent",
    "load",
    "logit_shares",
    "parse",
    "partial_expansion",
    "pattern",
    "scores",
    "shipped",
    "tensor",
    "vector",
    "verify",
    "weight",
]


def __getattr__(name: str) -> object:
    """Load a public name from its package when it is first used: ``import otimes`` stays light."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'otimes' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
