"""Settings of the whole test run, made before anything of otimes is imported."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# One thread: the tests' models are small, sums come out in the same order on every machine, and
# programs that the tests start inherit it. torch reads it once, when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Time limits would make a result depend on what else the machine does.
_patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", **_patient)
settings.register_profile("ci", derandomize=True, print_blob=True, **_patient)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") == "true" else "dev")
)
