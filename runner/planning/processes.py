"""Chooses processes, GPUs, threads and addresses of one host, each with a reason. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from disttui.runner.formatting import amount, gibibytes
from disttui.runner.hosts.facts import Gpu, HostFacts
from disttui.runner.planning import network
from disttui.runner.planning.interpreter import SAID, find_python, in_sandbox
from disttui.runner.profile.fields import MOST_PROCESSES
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Host
from disttui.runner.protocol.leases import who_has

Reasons = Mapping[str, str]
Share = tuple[int, int]
"""The part of its machine that a host may use, as (index, parts): several hosts of a profile may be one machine."""

PROCESS_MEMORY = 3 * 2**29
"""Bytes that a CPU process is assumed to need: about 0.4 GiB for torch, the remainder for a model and its data."""

_INTERFACE = "that of the route to the master, found at the start"


@dataclass(frozen=True)
class HostChoice:
    """What one host gets. `reasons` is keyed by the names of the other fields."""

    node_rank: int
    name: str
    num_processes: int
    gpus: tuple[int, ...] | None
    """Indices, one for each local rank; None if this run computes on the CPU."""
    python: str
    omp_num_threads: int
    interface: str | None
    """None if the host chooses it at the start, from the route to the master."""
    addresses: tuple[str, ...]
    """Addresses at which other hosts may reach this one, best first."""
    reasons: Reasons
    any_of: tuple[int, ...] | None = None
    """GPUs from which a queued run takes as many as `gpus` has when it starts; None if it takes `gpus`."""

    def used(self, facts: HostFacts) -> tuple[Gpu, ...]:
        """Return the host's GPUs that the run uses."""
        return tuple(gpu for gpu in facts.gpus if self.gpus and gpu.index in self.gpus)


@dataclass(frozen=True)
class _Count:
    """Processes of one host, with the GPUs for them."""

    processes: int
    gpus: tuple[int, ...] | None
    reason: str
    gpu_reason: str = ""


def choose(profile: Profile, rank: int, facts: HostFacts, backend: str, share: Share) -> HostChoice:
    """Choose for the host with node rank `rank`."""
    host = profile.hosts[rank]
    # The built-in job computes on the CPU with gloo; another may use its GPUs.
    on_gpus = backend == "nccl" or (bool(host.gpus) and profile.job.target.kind != "builtin")
    count = _count_gpus(host, facts, share) if on_gpus else _count_cpu(host, facts, share)
    python, _, why_python = find_python(profile, host, facts)
    cores = _cores(facts, share)
    threads, why_threads = _threads(profile.host_env(rank).get("OMP_NUM_THREADS"), cores, count.processes)
    dial = (host.address,) if host.address else network.candidates(facts)
    interface = _INTERFACE
    if host.interface:
        why = "a sandbox stays on this machine" if in_sandbox(profile, host) else SAID
        interface = f"{host.interface}: {why}"
    return HostChoice(
        any_of=_alternatives(profile, host, facts, count.gpus) if share[1] == 1 else None,
        node_rank=rank,
        name=host.name,
        num_processes=count.processes,
        gpus=count.gpus,
        python=python,
        omp_num_threads=threads,
        interface=host.interface,
        addresses=dial,
        reasons={
            "num_processes": f"{count.processes}: {count.reason}",
            "gpus": count.gpu_reason or "none: this run computes on the CPU",
            "python": f"{python}: {why_python}",
            "omp_num_threads": why_threads,
            "interface": interface,
            "addresses": f"{', '.join(dial) or 'none'}: {SAID if host.address else 'its active network cards'}",
        },
    )


def _alternatives(
    profile: Profile, host: Host, facts: HostFacts, gpus: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Return the free GPUs of the same models, or None if the profile or the launcher's arguments fix the GPUs."""
    if not gpus or host.gpus is not None or profile.launch.launcher == "deepspeed":
        return None
    models = {(gpu.name, gpu.memory_total) for gpu in facts.gpus if gpu.index in gpus}
    return tuple(gpu.index for gpu in free_gpus(facts) if (gpu.name, gpu.memory_total) in models)


def free_gpus(facts: HostFacts) -> tuple[Gpu, ...]:
    """Return the GPUs that are not busy."""
    return tuple(gpu for gpu in facts.gpus if not gpu.busy)


def who_uses(gpu: Gpu, now: float) -> str:
    """Describe who holds a busy GPU: `alice (python, 11.2 GiB)`, `alice's llama-7f3a, 41 % done, about 3 h left`."""
    if gpu.lease is not None:
        return who_has(gpu.lease, now)
    if not gpu.processes:
        return f"hidden programs ({gibibytes(gpu.memory_used)})"
    first = gpu.processes[0]
    memory = f", {gibibytes(first.memory)}" if first.memory else ""
    return f"{first.user} ({first.command}{memory})"


def offered_gpus(host: Host, facts: HostFacts, share: Share) -> tuple[int, ...]:
    """Return the indices of GPUs for this run: those that the profile lists, or else the host's share of free ones."""
    if host.gpus is not None:
        return tuple(host.gpus)
    free = gpus_within_quota(host, facts)
    index, parts = share
    return tuple(free[len(free) * index // parts : len(free) * (index + 1) // parts])


def gpus_within_quota(host: Host, facts: HostFacts) -> list[int]:
    """Return the indices of free GPUs that this user may use within the host's quota."""
    free = [gpu.index for gpu in free_gpus(facts)]
    if host.quota is None:
        return free
    room = max(0, host.quota - len(facts.own_gpus))
    more = [one for one in free if one not in facts.own_gpus][:room]
    return [one for one in free if one in facts.own_gpus or one in more][: host.quota]


def _count_gpus(host: Host, facts: HostFacts, share: Share) -> _Count:
    offered = offered_gpus(host, facts, share)
    processes = host.num_processes or min(MOST_PROCESSES, len(offered)) or 1
    gpus = offered[:processes]
    limit = f", with a quota of {host.quota} per user" if host.quota else ""
    if host.quota and facts.own_gpus:
        limit += f" (you hold {' and '.join(map(str, facts.own_gpus))})"
    why = SAID if host.gpus is not None else gpu_state(facts) + limit + _among(share)
    reason = f"one per GPU in the profile ({len(offered)})" if host.gpus is not None else why
    if facts.gpus_now and host.gpus is None:
        reason = f"one per GPU that will be free ({len(offered)})"
    said = SAID if host.num_processes else reason
    return _Count(processes, gpus, said, f"{', '.join(map(str, gpus)) or 'none'}: {why}")


def gpu_state(facts: HostFacts) -> str:
    """Describe the current state, as `4 of 6 GPUs are free; 2 and 5 are held by alice (python, 11.2 GiB)`."""
    gpus = facts.gpus_now or facts.gpus
    free = [gpu for gpu in gpus if not gpu.busy]
    if len(free) == len(gpus):
        return f"{amount(len(free), 'GPU')}, all free"
    holders = hosts_by_value((str(gpu.index), who_uses(gpu, facts.time)) for gpu in gpus if gpu.busy)
    held = "; ".join(
        f"{' and '.join(', '.join(indices).rsplit(', ', 1))} {'is' if len(indices) == 1 else 'are'} held by {who}"
        for who, indices in holders.items()
    )
    verb = "is" if 1 in (len(free), len(gpus)) else "are"
    return f"{len(free)} of {amount(len(gpus), 'GPU')} {verb} free; {held}"


def _count_cpu(host: Host, facts: HostFacts, share: Share) -> _Count:
    if host.num_processes:
        return _Count(host.num_processes, None, SAID)
    cores, memory = _cores(facts, share), usable_memory(facts) // share[1]
    room = max(1, memory // PROCESS_MEMORY)
    if room < cores:
        basis = f"{gibibytes(memory)} of memory at {gibibytes(PROCESS_MEMORY)} for each process"
        return _Count(room, None, f"{basis}{_among(share)}; its {amount(cores, 'core')} would allow {cores}")
    basis = amount(facts.cpu.available, "physical core")
    if facts.cpu.available < facts.cpu.physical:
        basis += f" of {facts.cpu.physical}, the rest excluded by affinity or cgroup"
    return _Count(cores, None, basis + _among(share))


def _cores(facts: HostFacts, share: Share) -> int:
    return max(1, min(MOST_PROCESSES, facts.cpu.available // share[1]))


def _threads(given: str | None, cores: int, processes: int) -> tuple[int, str]:
    threads = max(1, cores // processes)
    if given is None:
        return threads, f"{threads}: {amount(cores, 'core')} for {amount(processes, 'process')}"
    number = int(given) if given.isdecimal() and len(given) < 10 else threads
    return number, f"{given}: set in the profile's environment"


def usable_memory(facts: HostFacts) -> int:
    """Return the bytes of memory that this login can still allocate."""
    return min(facts.memory.available, facts.memory.limit or facts.memory.available)


def hosts_by_value(found: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    """Group (host, value) pairs as value → hosts; hosts without a value are left out."""
    groups: dict[str, list[str]] = {}
    for name, value in found:
        if value:
            groups.setdefault(value, []).append(name)
    return groups


def _among(share: Share) -> str:
    return f", shared by {share[1]} hosts that are this machine" if share[1] > 1 else ""
