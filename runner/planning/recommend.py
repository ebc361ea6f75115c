"""Facts → backend, strategy, precision and master of the run, and what each host gets; all with reasons. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from disttui.runner.hosts.facts import HostFacts
from disttui.runner.planning import bytegpt, network
from disttui.runner.planning.advice import Advice, advise
from disttui.runner.planning.interpreter import SAID, find_python, release
from disttui.runner.planning.launchers.torchrun import preload
from disttui.runner.planning.layout import choose_layout
from disttui.runner.planning.processes import HostChoice, Reasons, Share, choose, free_gpus, offered_gpus
from disttui.runner.profile import Profile
from disttui.runner.train.layout import Layout


@dataclass(frozen=True)
class Recommendation:
    """The choices for every host and for the whole run. `reasons` is keyed by field name."""

    hosts: tuple[HostChoice, ...]
    backend: str
    strategy: str
    layout: Layout | None
    """How the built-in job's ranks divide the work; None: not its job, or the sizes do not fit (see preflight)."""
    precision: str
    world_size: int
    master: str
    warnings: tuple[Advice, ...]
    reasons: Reasons


def recommend(
    profile: Profile, facts: Sequence[HostFacts], measured: tuple[Sequence[int], str] | None = None
) -> Recommendation:
    """Decide what the profile leaves open. Never fails: what cannot work is found by `preflight.check`.

    Args:
        facts: One per host of the profile, in its order.
        measured: Whether one host is faster, as was measured with so many ranks on each.
    """
    shares = _shares(facts)
    backend, why_backend = _backend(profile, facts, shares)
    choices = tuple(choose(profile, rank, found, backend, shares[rank]) for rank, found in enumerate(facts))
    counts = [choice.num_processes for choice in choices]
    world = sum(counts)
    chosen = choose_layout(profile, facts, choices)
    precision, why_precision = _precision(profile, facts, choices)
    master, why_master = _master(profile, facts)
    known = measured[1] if measured and list(measured[0]) == counts else None
    total = " + ".join(map(str, counts))
    return Recommendation(
        hosts=choices,
        backend=backend,
        strategy=chosen.strategy,
        layout=chosen.layout,
        precision=precision,
        world_size=world,
        master=master,
        warnings=advise(profile, facts, choices, backend, chosen.layout, precision, known),
        reasons={
            "backend": why_backend,
            "strategy": chosen.why_strategy,
            **({"layout": chosen.why_layout} if chosen.layout else {}),
            "precision": why_precision,
            "world_size": f"{world}: {total}" if len(choices) > 1 else f"{world}: all on one host",
            "master": why_master,
            "preload": preload(profile)[1],
        },
    )


_AMD_BF16 = re.compile(r"gfx(?:90[8a]|94\d|95\d|1[12]\d\d)")
"""AMD's GPUs with bf16."""


def _backend(profile: Profile, facts: Sequence[HostFacts], shares: Sequence[Share]) -> tuple[str, str]:
    if profile.launch.backend != "auto":
        return profile.launch.backend, f"{profile.launch.backend}: {SAID}"
    if (given := _given(profile, "backend")) and given != "auto":
        return given, f"{given}: the job's --backend"
    for host, found, share in zip(profile.hosts, facts, shares, strict=True):
        _, python, _ = find_python(profile, host, found)
        if not found.gpus and not host.gpus and python and python.rocm and not profile.enclosed:
            return "gloo", f"gloo: the torch of {host.name} is built for ROCm, but no GPU was found"
        if not offered_gpus(host, found, share):
            why = "has no free GPU" if found.gpus else "has no GPU"
            why = "has no GPU left in your quota" if free_gpus(found) else why
            return "gloo", f"gloo: {host.name} {why}, and all ranks must use one backend"
        if not profile.enclosed and not (python and python.on_gpus):
            torch = f"torch {python.torch}" if python and python.torch else "no torch"
            return "gloo", f"gloo: {host.name} has {torch}, without CUDA"
    return "nccl", "nccl: every host has a free GPU and a torch with CUDA"


def _shares(facts: Sequence[HostFacts]) -> list[Share]:
    """Hosts that boot and own GPUs as one are one machine (a sandbox, containers): each may take its part."""
    machines = [(found.boot_id, tuple(gpu.uuid for gpu in found.gpus)) for found in facts]
    return [
        (machines[:rank].count(machine), machines.count(machine)) if machine[0] else (0, 1)
        for rank, machine in enumerate(machines)
    ]


def _precision(profile: Profile, facts: Sequence[HostFacts], choices: Sequence[HostChoice]) -> tuple[str, str]:
    if profile.precision != "auto":
        return profile.precision, f"{profile.precision}: {SAID}"
    if given := _given(profile, "precision"):
        return given, f"{given}: the job's --precision"
    if not all(choice.gpus for choice in choices):
        return "fp32", "fp32: bf16 is seldom faster on CPUs"
    used = [gpu for found, choice in zip(facts, choices, strict=True) for gpu in choice.used(found)]
    if unknown := next((gpu for gpu in used if not gpu.compute_capability), None):
        return "fp32", f"fp32: whether {unknown.name} has bf16 is unknown"
    if all(_AMD_BF16.match(gpu.compute_capability) for gpu in used):
        return "bf16", "bf16: every GPU has it"
    weak = next((gpu for gpu in used if release(gpu.compute_capability) < (8, 0)), None)
    if weak:
        return "fp32", f"fp32: {weak.name} has no bf16 (compute capability {weak.compute_capability}, 8.0 is needed)"
    return "bf16", "bf16: every GPU has compute capability 8.0 or more"


def fixed_master(profile: Profile) -> str | None:
    """The master's address where the profile gives one; the first host's name leaves it to the hosts."""
    return None if profile.launch.master == profile.hosts[0].name else profile.launch.master


def _given(profile: Profile, option: str) -> str | None:
    target = profile.job.target
    if target.kind != "builtin" or not bytegpt.given(target.args, f"--{option}"):
        return None
    return str(getattr(bytegpt.read(target.args), option))


def _master(profile: Profile, facts: Sequence[HostFacts]) -> tuple[str, str]:
    first = profile.hosts[0]
    if explicit := fixed_master(profile) or first.address:
        written = profile.as_written().get("launch") or {}
        said = first.address or written.get("master") not in (None, "auto")
        return explicit, f"{explicit}: {SAID if said else 'a sandbox stays on this machine'}"
    if len(profile.hosts) == 1:
        return network.LOOPBACK, f"{network.LOOPBACK}: everything stays on one host"
    found = network.candidates(facts[0])
    if not found:
        return network.LOOPBACK, f"{network.LOOPBACK}: {first.name} has no address that others could reach"
    others = f" (also {', '.join(found[1:])})" if len(found) > 1 else ""
    return found[0], f"{found[0]}{others}: the first of {first.name}; the run takes the one that all hosts reach"
