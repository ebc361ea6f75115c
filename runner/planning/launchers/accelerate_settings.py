"""The profile's precision and parallel settings as the variables that Accelerate reads (accelerate 1.15)."""

from __future__ import annotations

from collections.abc import Mapping

from runner.planning.launchers.place import Place, Reasoned

MIXED_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Our words for precision → Accelerate's."""


def settings(place: Place) -> Mapping[str, Reasoned]:
    """What the profile gives, not what is left to `auto`: there the script decides."""
    profile, found = place.profile, dict[str, Reasoned]()
    if profile.precision != "auto":
        why = f"precision: {profile.precision}"
        found["ACCELERATE_MIXED_PRECISION"] = Reasoned(MIXED_PRECISION[profile.precision], why)
    if profile.parallel.strategy == "fsdp":
        why = "parallel.strategy: fsdp"
        found["ACCELERATE_USE_FSDP"] = Reasoned("true", why)
        found["FSDP_VERSION"] = Reasoned("2", why)
    return found
