"""The profile's precision and parallel settings as the variables that Accelerate reads (accelerate 1.15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.planning.launchers.place import Place, Reasoned, Refusal
from runner.profile import Profile
from runner.train.layout import Flaw, Layout, Sizes, settle

_MIXED_PRECISION = {"fp32": "no"}
"""Our words for precision → Accelerate's, where they differ."""
_SIZES = ("dp_replicate", "dp_shard", "tp", "cp")


def settings(place: Place) -> Mapping[str, Reasoned]:
    """What the profile gives, not what is left to `auto`: there the script decides."""
    profile, found = place.profile, dict[str, Reasoned]()
    if profile.job.builtin:
        return found
    if profile.precision != "auto":
        value = _MIXED_PRECISION.get(profile.precision, profile.precision)
        found["ACCELERATE_MIXED_PRECISION"] = Reasoned(value, f"precision: {profile.precision}")
    layout = _layout(profile, place.counts)
    if isinstance(layout, Layout) and _sized(profile):
        why = f"parallel: {layout}"
        found["ACCELERATE_USE_PARALLELISM_CONFIG"] = Reasoned("true", why)
        for name in _SIZES:
            found[f"PARALLELISM_CONFIG_{name.upper()}_SIZE"] = Reasoned(str(getattr(layout, name)), why)
    if isinstance(layout, Layout) and (layout.dp_shard > 1 or layout.cp > 1):
        why = f"parallel: {layout}" if _sized(profile) else f"parallel.strategy: {profile.parallel.strategy}"
        found["ACCELERATE_USE_FSDP"] = Reasoned("true", why)
        found["FSDP_VERSION"] = Reasoned("2", why)
    return found


def layout_refusal(profile: Profile, counts: Mapping[str, int], backend: str) -> Refusal | None:
    """Sizes that do not fit the processes, and what Accelerate does on GPUs alone."""
    if profile.job.builtin:
        return None
    layout = _layout(profile, [*counts.values()])
    if isinstance(layout, Flaw):
        return Refusal(f"parallel: {layout.what}", layout.cure)
    if backend == "gloo" and (layout.strategy != "ddp" or _sized(profile)):
        given = f"{layout}" if _sized(profile) else layout.strategy
        # It trains with DDP where only FSDP is asked for, and raises an exception where sizes are given.
        what = f"parallel asks for {given}, and Accelerate divides models on GPUs only"
        return Refusal(what, "Leave `parallel` out on CPUs, or take a script that divides its model itself")
    return None


def _sized(profile: Profile) -> bool:
    return profile.parallel.strategy == "hsdp" or any(getattr(profile.parallel, name) for name in Sizes._fields)


def _layout(profile: Profile, counts: Sequence[int]) -> Layout | Flaw:
    sizes = Sizes(**{name: getattr(profile.parallel, name) for name in Sizes._fields})
    return settle(sizes, profile.parallel.strategy, counts)
