"""Chooses backend, strategy, precision, master and each host's share from facts, with reasons and advice. No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from disttui.runner.formatting import amount
from disttui.runner.hosts.facts import HostFacts
from disttui.runner.planning import bytegpt, network
from disttui.runner.planning.interpreter import SAID, find_python, release
from disttui.runner.planning.launchers import preload
from disttui.runner.planning.layout import choose_layout
from disttui.runner.planning.processes import (
    HostChoice,
    Reasons,
    Share,
    choose,
    free_gpus,
    gpus_within_quota,
    hosts_by_value,
    offered_gpus,
    who_uses,
)
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Host
from disttui.runner.train.batching import DEFAULT_BATCH_SIZE
from disttui.runner.train.layout import Layout, crossings

SMALL_MODEL = 50_000_000
"""Parameters. A smaller model on CPUs loses more to the network than a second host of the same kind gains: every step
sends its gradients, 4 bytes per parameter, which at 1 Gbit/s takes as long as some cores need to compute them."""


@dataclass(frozen=True)
class Advice:
    """A note to read before the start. `host` is None if it concerns the whole run."""

    host: str | None
    text: str


def advise(
    profile: Profile,
    facts: Sequence[HostFacts],
    choices: Sequence[HostChoice],
    backend: str,
    layout: Layout | None,
    precision: str,
    measured: str | None = None,
) -> tuple[Advice, ...]:
    """Return all advice on a run, that on single hosts first.

    Args:
        measured: Text on whether one host is faster, if that was measured.
    """
    found: list[Advice] = []
    for host, choice in zip(facts, choices, strict=True):
        found += (Advice(choice.name, text) for text in _of_host(host, choice))
    found += _idle_gpus(profile, facts, choices, backend)
    if len(choices) > 1:
        texts = [
            *([measured] if measured else _needless_hosts(profile, facts, choices)),
            *_global_batch(profile, choices, layout),
        ]
        if layout:
            texts += _crossing(profile, facts, choices, layout, precision)
        texts += _differences(profile, facts, choices)
        found += (Advice(None, text) for text in texts)
    return tuple(found)


def _of_host(facts: HostFacts, choice: HostChoice) -> Iterator[str]:
    cores = facts.cpu.available
    if choice.num_processes > cores:
        yield (
            f"{amount(choice.num_processes, 'process')} for {amount(cores, 'physical core')}: they will compete; "
            f"set num_processes to at most {cores}"
        )
    if choice.gpus:
        for gpu in facts.gpus:
            if gpu.busy and gpu.index not in choice.gpus:
                yield f"GPU {gpu.index} is skipped: held by {who_uses(gpu, facts.time)}"
        if " and " in (kinds := _kinds(facts, choice)):
            yield f"GPUs of different kinds, {kinds}: the slowest sets the pace"


def _idle_gpus(
    profile: Profile, facts: Sequence[HostFacts], choices: Sequence[HostChoice], backend: str
) -> Iterator[Advice]:
    if backend != "gloo":
        return
    for given, host, choice in zip(profile.hosts, facts, choices, strict=True):
        if (free := gpus_within_quota(given, host)) and not choice.gpus:
            names = amount(len(free), "free GPU")
            yield Advice(choice.name, f"{names} will be idle, because this run computes on the CPU")


def _needless_hosts(profile: Profile, facts: Sequence[HostFacts], choices: Sequence[HostChoice]) -> Iterator[str]:
    """Advise a single host if it has room for all ranks, or if the model is too small to gain from the network."""
    if len({host.boot_id for host in facts}) == 1:
        return  # all hosts are one machine, as in a sandbox
    world = sum(choice.num_processes for choice in choices)
    on_gpus = all(choice.gpus for choice in choices)
    for given, host, choice in zip(profile.hosts, facts, choices, strict=True):
        room = len(gpus_within_quota(given, host)) if on_gpus else host.cpu.available
        if room >= world:
            what = "free GPUs" if on_gpus else "physical cores"
            yield (
                f"{choice.name} alone has {room} {what} for all {amount(world, 'process')}: on one host nothing "
                f"crosses the network. Remove the other hosts unless you want to try the network"
            )
            return
    if profile.job.target.kind == "builtin" and not on_gpus:
        parameters = bytegpt.parameters(bytegpt.read(profile.job.target.args))
        if parameters < SMALL_MODEL:
            yield (
                f"a model of {parameters / 1e6:.1f} million parameters is small for {amount(len(choices), 'host')}: "
                f"every step sends {parameters * 4 / 1e6:.0f} MB of gradients through the network; one host alone "
                f"may be faster"
            )


def _crossing(
    profile: Profile, facts: Sequence[HostFacts], choices: Sequence[HostChoice], layout: Layout, precision: str
) -> Iterator[str]:
    """Yield the cost of tensor parallelism across hosts: every layer waits for the network eight times per step."""
    groups = crossings(layout, "tp", [choice.num_processes for choice in choices])
    crossing = next(groups, None)
    if crossing is None or len({host.boot_id for host in facts}) == 1:
        return
    options = bytegpt.read(profile.job.target.args)
    samples = (options.batch_size or DEFAULT_BATCH_SIZE) * (options.accumulate or 1)
    if options.global_batch:
        samples = options.global_batch // layout.dp
    stream = samples * (options.context // layout.cp) * options.width * (4 if precision == "fp32" else 2)
    sent = 8 * math.ceil(options.layers / layout.pp) * stream * (layout.tp - 1) / layout.tp
    speeds = [network.speed(host, choice.interface) for host, choice in zip(facts, choices, strict=True)]
    known = [speed for speed in speeds if speed]
    speed, source = min(known, default=1000), "the slowest interface's"
    if len(known) < len(speeds):
        speed, source = 1000, "a supposed"
    others = " and others" if next(groups, None) else ""
    yield (
        f"tp {layout.tp} crosses hosts (ranks {' and '.join(map(str, crossing))}{others}): each of them sends "
        f"{sent / 1e6:.1f} MB a step through the network and waits for it, {sent * 8 / (speed * 1e6):.2g} s at "
        f"{source} {speed / 1000:g} Gbit/s. Have every host run a multiple of {layout.tp} processes"
    )


def _global_batch(profile: Profile, choices: Sequence[HostChoice], layout: Layout | None) -> Iterator[str]:
    world = sum(choice.num_processes for choice in choices)
    first = choices[0].num_processes
    if profile.job.target.kind != "builtin":
        yield (
            f"if each rank has its own batch, the global batch grows with the ranks: {world} ranks "
            f"here, {first} on {choices[0].name} alone. If so, reduce each rank's batch, or scale the learning rate"
        )
        return
    options = bytegpt.read(profile.job.target.args)
    if options.global_batch is None and options.lr_scaling == "none":
        micro, rounds = options.batch_size or DEFAULT_BATCH_SIZE, options.accumulate or 1
        one = micro * rounds
        dp = layout.dp if layout else world
        ranks, alone = f"{world} ranks", f"; on {choices[0].name} alone it would be {one * first}"
        if dp < world:
            ranks, alone = f"{dp} data-parallel ranks", ""
        if dp > 1:
            yield (
                f"the global batch grows with the ranks: {micro} (--batch-size) × {rounds} (--accumulate) × {ranks} "
                f"= {one * dp}{alone}. Fix it with --global-batch, or scale the learning rate with --lr-scaling sqrt"
            )


def _differences(profile: Profile, facts: Sequence[HostFacts], choices: Sequence[HostChoice]) -> Iterator[str]:
    names = [choice.name for choice in choices]
    pythons = [find_python(profile, host, found)[1] for host, found in zip(profile.hosts, facts, strict=True)]
    known = [(name, python) for name, python in zip(names, pythons, strict=True) if python]
    yield from _differ("torch", {name: python.torch for name, python in known})
    yield from _differ("CUDA", {name: python.cuda for name, python in known})
    yield from _differ("NCCL", {name: python.nccl for name, python in known})
    kinds = {choice.name: _kinds(host, choice) for host, choice in zip(facts, choices, strict=True)}
    yield from _differ("GPUs", kinds, "; the slowest sets the pace")


def _kinds(facts: HostFacts, choice: HostChoice) -> str:
    return " and ".join(sorted({gpu.name for gpu in choice.used(facts)}))


def _differ(what: str, values: Mapping[str, str | None], then: str = "; install the same on all") -> Iterator[str]:
    by_value = hosts_by_value(values.items())
    if len(by_value) > 1:
        shown = ", ".join(f"{value} on {' and '.join(names)}" for value, names in by_value.items())
        yield f"different {what}: {shown}{then}"


@dataclass(frozen=True)
class Recommendation:
    """The choices for each host and for the whole run. `reasons` is keyed by field name."""

    hosts: tuple[HostChoice, ...]
    backend: str
    strategy: str
    layout: Layout | None
    """How the built-in job's ranks divide the work; None for other jobs or if sizes do not fit (see preflight)."""
    precision: str
    world_size: int
    master: str
    warnings: tuple[Advice, ...]
    reasons: Reasons


def recommend(
    profile: Profile, facts: Sequence[HostFacts], measured: tuple[Sequence[int], str] | None = None
) -> Recommendation:
    """Choose what the profile leaves open. Never fails: `preflight.check` finds what cannot work.

    Args:
        facts: One per host of the profile, in its order.
        measured: Ranks on each host in a measurement, and its text on whether one host is faster.
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
"""AMD's architectures with bf16."""


def _backend(profile: Profile, facts: Sequence[HostFacts], shares: Sequence[Share]) -> tuple[str, str]:
    if profile.launch.backend != "auto":
        return profile.launch.backend, f"{profile.launch.backend}: {SAID}"
    if (given := _given(profile, "backend")) and given != "auto":
        return given, f"{given}: the job's --backend"
    for host, found, share in zip(profile.hosts, facts, shares, strict=True):
        _, python, _ = find_python(profile, host, found)
        if not found.gpus and not host.gpus and python and python.rocm and not profile.enclosed:
            return "gloo", f"gloo: the torch of {host.name} is built for ROCm, but no GPU was found"
        if not found.gpus and python and "+xpu" in (python.torch or "") and not profile.enclosed:
            return "gloo", f"gloo: the torch of {host.name} is built for Intel's GPUs, which disttui does not detect"
        if not offered_gpus(host, found, share):
            why = _without_gpus(host, found)
            return "gloo", f"gloo: {host.name} {why}, and all ranks must use one backend"
        if not profile.enclosed and not (python and python.on_gpus):
            torch = f"torch {python.torch}" if python and python.torch else "no torch"
            return "gloo", f"gloo: {host.name} has {torch}, without CUDA"
    return "nccl", "nccl: every host has a free GPU and a torch with CUDA"


def _without_gpus(host: Host, found: HostFacts) -> str:
    if not found.gpus:
        return "has no GPU"
    if host.gpus is not None:
        return "gets no GPU by the profile"
    if not free_gpus(found):
        return "has no free GPU"
    return (
        "leaves its free GPUs to other hosts on that machine"
        if gpus_within_quota(host, found)
        else "has no GPU left in your quota"
    )


def _shares(facts: Sequence[HostFacts]) -> list[Share]:
    """Return each host's share: hosts with the same boot id and GPUs are one machine, as in a sandbox or containers."""
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
    """Return the master's address if the profile sets one, or None; the first host's name is the default."""
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
    return found[0], f"{found[0]}{others}: the first of {first.name}; the run uses the one that all hosts reach"
