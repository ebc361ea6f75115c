"""Chooses how the built-in job's ranks divide model and data: strategy and sizes, with reasons. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from disttui.runner.formatting import gibibytes
from disttui.runner.hosts.facts import HostFacts
from disttui.runner.planning import bytegpt
from disttui.runner.planning.processes import HostChoice, usable_memory
from disttui.runner.profile.schema import Profile, asked, link_options
from disttui.runner.train.layout import ORDER, Flaw, Layout, Sizes, crossings, settle

FULL = 0.7
"""Fraction of a rank's memory that model and optimizer may take; the remainder is for activations and buffers."""


@dataclass(frozen=True)
class LayoutChoice:
    """The choice for the whole run. `layout` is None for a job that is not built in, and if the sizes do not fit."""

    strategy: str
    why_strategy: str
    layout: Layout | None = None
    why_layout: str = ""


def choose_layout(profile: Profile, facts: Sequence[HostFacts], choices: Sequence[HostChoice]) -> LayoutChoice:
    """Decide strategy and sizes that the profile leaves open; `facts` and `choices` have one item per host."""
    if profile.job.target.kind != "builtin":
        if profile.parallel.strategy != "auto":
            return LayoutChoice(profile.parallel.strategy, f"{profile.parallel.strategy}: set in the profile")
        return LayoutChoice("ddp", "ddp: assumed, since the script itself decides")
    hosts = [choice.num_processes for choice in choices]
    sizes, strategy = asked(profile.parallel, bytegpt.read(profile.job.target.args))
    if strategy != "auto":
        said = "set in the profile" if profile.parallel.strategy != "auto" else "the job's --strategy"
        why = f"{strategy}: {said}"
    elif key := _spared_link(profile):
        strategy, why = "ddp", f"ddp: {key} is for copies of the whole model"
    elif sizes.dp_replicate or sizes.dp_shard:
        settled = settle(sizes, strategy, hosts)
        strategy = "auto" if isinstance(settled, Flaw) else settled.strategy
        why = f"{strategy}: from the sizes"
    else:
        strategy, why = _by_memory(profile, facts, choices, sizes)
    layout = settle(sizes, strategy, hosts)
    if isinstance(layout, Flaw):
        return LayoutChoice(strategy, why)
    return LayoutChoice(strategy, why, layout, f"{layout} = {layout.world_size}: {_where(layout, hosts)}")


def _spared_link(profile: Profile) -> str:
    """Return the option for slow links that is set, such as `sync_interval 8`, or ""."""
    sync_interval, compress = link_options(profile.parallel, bytegpt.read(profile.job.target.args))
    return f"compress {compress}" if compress != "none" else f"sync_interval {sync_interval}" * (sync_interval > 1)


def link_arguments(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the job's options for slow links that the profile sets, as (option, value)."""
    if profile.parallel.sync_interval > 1:
        yield "--sync-interval", str(profile.parallel.sync_interval)
    if profile.parallel.compress != "none":
        yield "--compress", profile.parallel.compress


def size_arguments(profile: Profile, layout: Layout | None) -> Iterator[tuple[str, str]]:
    """Yield the job's size options that do not follow from the strategy alone, as (option, value)."""
    asked_for = [name for name in Sizes._fields if getattr(profile.parallel, name)]
    for name in Sizes._fields:
        size = getattr(layout, name) if layout else getattr(profile.parallel, name)
        if name in asked_for or (layout and layout.strategy == "hsdp" and name.startswith("dp_")):
            yield f"--{name.replace('_', '-')}", str(size)


def _by_memory(
    profile: Profile, facts: Sequence[HostFacts], choices: Sequence[HostChoice], sizes: Sizes
) -> tuple[str, str]:
    parts = (sizes.tp or 1) * (sizes.pp or 1)
    states = bytegpt.parameters(bytegpt.read(profile.job.target.args)) * bytegpt.BYTES_PER_PARAMETER // parts
    rooms = [_rank_memory(found, choice) for found, choice in zip(facts, choices, strict=True)]
    room = None if None in rooms else min(one for one in rooms if one is not None)
    share = f", cut into {parts} by tp and pp" if parts > 1 else ""
    need = (
        f"model and optimizer take {gibibytes(states)} a rank ({bytegpt.BYTES_PER_PARAMETER} bytes a parameter{share})"
    )
    if room is None:
        return "ddp", f"ddp: {need}; the memory of a GPU is unknown"
    world = sum(choice.num_processes for choice in choices)
    if not room or states <= FULL * room or world == 1:
        return "ddp", f"ddp: {need}; the smallest has {gibibytes(room)}"
    much = f"{need}, more than the {gibibytes(room)} of the smallest rank"
    hosts = {choice.num_processes for choice in choices}
    inside = min(hosts) // ((sizes.tp or 1) * (sizes.cp or 1))
    if len(choices) > 1 and len(hosts) == 1 and inside > 1 and states / inside <= FULL * room:
        return "hsdp", f"hsdp: {much}; {inside} ranks of one host together have room, so weights stay inside hosts"
    return "fsdp", f"fsdp: {much}"


def _rank_memory(facts: HostFacts, choice: HostChoice) -> float | None:
    """Return the bytes of memory that a rank has, or None if a GPU does not report its memory."""
    totals = [gpu.memory_total for gpu in choice.used(facts)]
    if totals and not all(totals):
        return None
    return min(totals) if totals else usable_memory(facts) / choice.num_processes


def _where(layout: Layout, hosts: Sequence[int]) -> str:
    """Describe the placement, as `tp and dp_shard inside hosts, dp_replicate between hosts`."""
    if len(hosts) == 1:
        return "all on one host"
    used = [name for name in reversed(ORDER) if getattr(layout, name) > 1]
    between = [name for name in used if any(crossings(layout, name, hosts))]
    places = {"inside hosts": [name for name in used if name not in between], "between hosts": between}
    return ", ".join(f"{' and '.join(names)} {where}" for where, names in places.items() if names)
