"""Conclusions of `disttui check` from what hosts report about themselves and their connections. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from disttui.runner.formatting import gibibytes
from disttui.runner.hosts.facts import HostFacts, Interpreter
from disttui.runner.planning import network
from disttui.runner.planning.interpreter import release
from disttui.runner.planning.preflight import CLOCKS_APART, LITTLE_DISK, different_packages, judged
from disttui.runner.protocol.checks import Dialled, FileSystem, GpuHealth, Inspected, Listening

Level = Literal["ok", "info", "warning", "error"]

_MIB, _GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Check:
    """One conclusion; `hosts` is empty if it concerns no particular host."""

    id: str
    level: Level
    hosts: tuple[str, ...]
    what: str
    """What was observed."""
    why: str = ""
    """Why it matters."""
    cure: str = ""


@dataclass(frozen=True)
class HostDifference:
    """A property that is not the same on all hosts."""

    name: str
    values: tuple[str, ...]
    """One per host; "" if the host does not have it."""
    level: Level
    why: str


@dataclass(frozen=True)
class Way:
    """One connection attempt from a host to an address and port of another."""

    source: str
    target: str
    address: str
    port: int
    fixed: bool
    """Whether the port is in `launch.ports`; otherwise the kernel chose it."""
    ms: float | None
    error: str
    """Empty if connected and the target proved its identity."""
    stranger: bool = False
    """Whether another host or program answered."""


@dataclass(frozen=True)
class HostFigures:
    """Measurements of a host. Rates are per second, those of compute and copies of its slowest rank."""

    host: str
    device: str
    ranks: int
    t: float
    product: float | None = None
    """Floating-point operations of matrix products."""
    memory: float | None = None
    copy: float | None = None
    """Bytes from the host to the GPU."""
    network: float | None = None
    """Bytes to the host with which it is fastest."""
    ms: float | None = None
    """Milliseconds for a message to the host with which it is fastest."""


@dataclass(frozen=True)
class CheckReport:
    """Results of a check of hosts."""

    hosts: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    differences: tuple[HostDifference, ...] = ()
    ways: tuple[Way, ...] = ()
    skipped: tuple[str, ...] = field(default=())
    """Ids or prefixes of ids that the user excluded."""
    figures: tuple[HostFigures, ...] = ()
    """One per measured host, if measurements were requested."""
    advice: str = ""
    """Text on whether one host is faster than all; empty if unknown."""

    @property
    def passed(self) -> bool:
        """Whether no check is an error."""
        return not any(check.level == "error" for check in self.checks)


IDS: Mapping[str, str] = {
    "host.reach": "SSH login and a Python that runs the node program",
    "host.shm": "size and free space of /dev/shm",
    "host.nofile": "open files per process",
    "host.memlock": "locked memory, if InfiniBand is up",
    "host.nproc": "processes and threads that may still start",
    "host.disk": "free space of the run's and the job's folders",
    "host.inodes": "free inodes of these folders",
    "host.clock": "difference of the clocks",
    "host.logout": "whether systemd ends processes at logout",
    "host.leftovers": "processes of earlier runs",
    "host.cpu": "frequency governor and throttling by the control group",
    "host.report": "measurements that failed, and without a profile: torch, and the folder of runs",
    "gpu.memory-errors": "memory errors that ECC could not correct, and row remapping",
    "gpu.slowdown": "clocks reduced for heat or power supply",
    "gpu.pcie": "PCIe lanes below the card's",
    "gpu.power": "power limit below the card's default",
    "gpu.mig": "MIG mode",
    "gpu.hidden-memory": "memory that no visible process holds",
    "across.versions": "versions, hardware and variables that differ",
    "network.reach": "TCP connections between all hosts, on the ports of a run",
    "network.master": "an address of the first host that all others reach",
    "network.same-address": "addresses that lead to a wrong host",
    "network.public": "a master with a public address",
    "network.latency": "pairs of hosts that are far slower than the others",
    "network.port": "a free port of launch.ports",
    "network.fabric": "InfiniBand and RoCE ports that are down",
    "plan": "what `profile plan` checks before a start, and the folder of job.sync",
    "train.start": "whether a run of the plan starts and ends (train.*: with --train)",
    "train.silent": "hosts that block the measurement",
    "train.results": "world size; all_reduce, all_gather, reduce_scatter and broadcast",
    "train.bits": "matrix products, compared bit by bit",
    "train.compute": "matrix products per second, compared with peers and earlier measurements",
    "train.memory": "copies in memory, likewise",
    "train.copy": "copies to the GPU, likewise",
    "train.network": "latency and bandwidth of pairs of hosts",
}
"""Id → what is checked."""


def selected(name: str, only: Sequence[str], skip: Sequence[str]) -> bool:
    """Whether an id is selected; `host` in `only` or `skip` covers all ids that begin with `host.`.

    Those without which no other conclusion can be drawn always are.
    """
    needed = name in ("host.reach", "train.start", "train.silent")
    return needed or ((not only or _named(name, only)) and not _named(name, skip))


def _named(name: str, given: Sequence[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in given)


def of_host(
    name: str,
    facts: HostFacts,
    found: Inspected,
    needed: int,
    *,
    alone: bool = False,
    gpus: Sequence[int] | None = None,
) -> Iterator[Check]:
    """Yield conclusions about one host.

    Args:
        needed: Bytes that must be free in the job's folders.
        alone: There is no profile, whose plan would report what the probe found.
        gpus: The GPUs that the profile uses; None: any.
    """
    if alone:
        yield from _of_probe(name, facts)
    yield from _shm(name, found["shm"])
    yield from _limits(name, facts, found)
    for room in found["rooms"]:
        yield from _room(name, room, needed)
    yield from _cpu(name, found)
    if facts.kill_user_processes and not facts.linger:
        yield Check(
            "host.logout", "warning", (name,), "systemd ends all your processes when you log out (KillUserProcesses)",
            "a detached run ends with your last login there", f"Run once there: loginctl enable-linger {facts.user}",
        )  # fmt: skip
    for gpu in found["gpus"]:
        if gpus is None or gpu["index"] in gpus:
            yield from _gpu(name, gpu, found)
    for port in found["fabric"]:
        if port["state"] not in ("ACTIVE", ""):
            what = f"{port['device']} port {port['port']} ({port['link'] or 'unknown link'}) is {port['state']}"
            yield Check(
                "network.fabric", "warning", (name,), what, "NCCL falls back to a slower network without an error",
                "Check cable and subnet manager (ibstat), or set NCCL_IB_HCA to the ports that are up",
            )  # fmt: skip
    for problem in found["problems"]:
        yield Check("host.report", "warning", (name,), problem, "part of this host was not checked", "")


def _of_probe(name: str, facts: HostFacts) -> Iterator[Check]:
    for problem in facts.problems:
        level, cure = judged(problem)
        no_folder = problem.startswith("run_dir ")
        why = "a run needs its folder" if no_folder else ""
        yield Check("host.report", "error" if no_folder else level, (name,), problem, why, cure)
    if not any(one.is_eligible for one in facts.interpreters):
        why = "a run needs one, unless job.environment installs it"
        cure = "Install torch there, or set `python` in a profile"
        yield Check("host.report", "warning", (name,), "no Python with torch was found", why, cure)


def _shm(name: str, shm: FileSystem | None) -> Iterator[Check]:
    if shm is None:
        yield Check(
            "host.shm", "error", (name,), "no /dev/shm found",
            "DataLoader workers and NCCL share memory through it", "Mount a tmpfs there",
        )  # fmt: skip
        return
    why = "DataLoader workers and NCCL use it; when it is full, ranks end with `Bus error`"
    cure = "In Docker: --shm-size=8g or --ipc=host; elsewhere: mount -o remount,size=8g /dev/shm"
    if shm["free"] < 16 * _MIB:
        full = f"only {gibibytes(shm['free'])} of {gibibytes(shm['total'])} free in /dev/shm"
        cure = cure if shm["total"] < _GIB else "Remove leftovers of earlier programs (ls -la /dev/shm)"
        yield Check("host.shm", "error", (name,), full, why, cure)
    elif shm["total"] < _GIB:
        yield Check("host.shm", "warning", (name,), f"{shm['path']} has only {gibibytes(shm['total'])}", why, cure)


def _limits(name: str, facts: HostFacts, found: Inspected) -> Iterator[Check]:
    nofile, most = found["nofile"], found["nofile_most"]
    if nofile is not None and nofile < 1024:
        raised = f"ulimit -n {most or 65536}" if most is None or most >= 1024 else "a line in /etc/security/limits.conf"
        yield Check(
            "host.nofile", "error" if nofile < 256 else "warning", (name,), f"a process may open only {nofile} files",
            "each rank needs sockets to all others and files of its DataLoader: `Too many open files`",
            f"Raise it by {raised}, for example in `activate`",
        )  # fmt: skip
    locked = found["memlock"]
    if locked is not None and locked < 64 * _MIB and any(port["state"] == "ACTIVE" for port in found["fabric"]):
        yield Check(
            "host.memlock", "error", (name,), f"only {gibibytes(locked)} of memory may be locked, but InfiniBand is up",
            "RDMA registers its buffers as locked memory: NCCL fails with `ibv_reg_mr … Cannot allocate memory`",
            "Set `memlock unlimited` for your user in /etc/security/limits.conf and log in again",
        )  # fmt: skip
    left = [] if found["tasks_left"] is None else [found["tasks_left"]]
    left += [] if found["nproc"] is None else [max(0, found["nproc"] - found["processes"])]
    if left and min(left) < 64 * max(1, len(facts.gpus)):
        yield Check(
            "host.nproc", "error" if min(left) < 32 else "warning", (name,),
            f"only {min(left)} more processes or threads can be started",
            "a rank starts some 30 threads and its DataLoader workers: `Resource temporarily unavailable`",
            "Raise `ulimit -u`, or pids.max of the container",
        )  # fmt: skip


def _room(name: str, room: FileSystem, needed: int) -> Iterator[Check]:
    where = f"{room['path']} ({room['kind']})" if room["kind"] else room["path"]
    if room["free"] < max(LITTLE_DISK, needed):
        level: Level = "error" if room["free"] < max(100 * _MIB, needed) else "warning"
        yield Check(
            "host.disk", level, (name,), f"{gibibytes(room['free'])} free in {where}",
            "logs and checkpoints fill the disk, and a full disk ends the run", "Free space, or choose another folder",
        )  # fmt: skip
    inodes = room["inodes_free"]
    if inodes is not None and inodes < 10_000:
        yield Check(
            "host.inodes", "error" if inodes < 1000 else "warning", (name,), f"{inodes} free inodes in {where}",
            "every file needs an inode: `No space left on device` despite free space", "Remove small files there",
        )  # fmt: skip


def _cpu(name: str, found: Inspected) -> Iterator[Check]:
    if found["governor"] == "powersave":
        yield Check(
            "host.cpu", "info", (name,), "the CPU frequency governor is powersave",
            "with some drivers cores stay slow under short loads", "cpupower frequency-set -g performance (as root)",
        )  # fmt: skip
    if (throttled := found["throttled"] or 0.0) > 0.1:
        yield Check(
            "host.cpu", "warning", (name,), f"the control group throttles its CPU in {throttled:.0%} of all periods",
            "one throttled host slows every step of all others", "Raise the CPU quota of the container or slice",
        )  # fmt: skip


def _gpu(name: str, gpu: GpuHealth, found: Inspected) -> Iterator[Check]:
    card = f"GPU {gpu['index']} ({gpu['name']})"
    if gpu["uncorrected"] or gpu["remap_failed"]:
        what = f"{card}: " + (
            "a faulty memory row could not be remapped" if gpu["remap_failed"]
            else f"{gpu['uncorrected']} memory errors that ECC could not correct"
        )  # fmt: skip
        yield Check(
            "gpu.memory-errors", "error", (name,), what, "ranks there end with `uncorrectable ECC error` (Xid 48)",
            "Exclude the GPU with `gpus`, and reset or replace it",
        )  # fmt: skip
    elif gpu["remap_pending"]:
        yield Check(
            "gpu.memory-errors", "warning", (name,), f"{card}: a faulty memory row is not remapped yet",
            "the row stays in use until the GPU is reset", "Reset the GPU when it is idle",
        )  # fmt: skip
    if gpu["slowdown"]:
        yield Check(
            "gpu.slowdown", "warning", (name,), f"{card} reduces its clocks: {', '.join(gpu['slowdown'])}",
            "one slow GPU slows every step of all ranks", "Check cooling and power supply, or exclude it with `gpus`",
        )  # fmt: skip
    if gpu["width"] and gpu["width_max"] and gpu["width"] < gpu["width_max"]:
        yield Check(
            "gpu.pcie", "warning", (name,), f"{card} has {gpu['width']} of {gpu['width_max']} PCIe lanes",
            "copies to and from it take several times as long", "Check riser, slot and BIOS; reboot",
        )  # fmt: skip
    limit, default = gpu["power_limit"], gpu["power_default"]
    if limit and default and limit < 0.9 * default:
        yield Check(
            "gpu.power", "info", (name,), f"{card} is limited to {limit:.0f} W of {default:.0f} W",
            "it is slower than other GPUs of its model", f"nvidia-smi -i {gpu['index']} -pl {default:.0f} (as root)",
        )  # fmt: skip
    if gpu["mig"]:
        yield Check(
            "gpu.mig", "warning", (name,), f"{card} is in MIG mode",
            "NCCL cannot connect MIG slices, and a rank sees only one", "Choose slices with `env`, or disable MIG",
        )  # fmt: skip
    hidden = gpu["memory_used"] - gpu["memory_seen"]
    if hidden > 2 * _GIB and not any("nvidia-smi" in problem for problem in found["problems"]):
        yield Check(
            "gpu.hidden-memory", "warning", (name,), f"{card}: {gibibytes(hidden)} held by no visible process",
            "a process in another container, or a dead one, takes memory from your ranks",
            "Search on the host (fuser -v /dev/nvidia*)",
        )  # fmt: skip


def clocks(names: Sequence[str], facts: Sequence[HostFacts]) -> Iterator[Check]:
    """Yield a warning for each host whose clock is more than CLOCKS_APART seconds from the median of all."""
    ahead = [found.time - found.seen for found in facts]
    middle = median(ahead)
    for name, own in zip(names, ahead, strict=True):
        if len(names) > 1 and abs(own - middle) > CLOCKS_APART:
            yield Check(
                "host.clock", "warning", (name,),
                f"its clock is {duration(abs(own - middle))} {'ahead of' if own > middle else 'behind'} the others",
                "times in logs do not match; certificates and tokens may seem expired",
                "Synchronize the clocks of all hosts (timedatectl set-ntp true)",
            )  # fmt: skip


_ROWS: Mapping[str, tuple[Level, str]] = {
    "python": ("warning", "pickled objects and compiled modules may not load elsewhere"),
    "torch": ("error", "collectives of different versions hang or fail without a clear error"),
    "cuda": ("warning", "results and memory use differ"),
    "nccl": ("error", "different versions of NCCL cannot connect reliably"),
    "driver": ("warning", "an older driver may not support torch's CUDA"),
    "kernel": ("info", ""),
    "cores": ("info", "CPU ranks of unequal hosts wait for the slowest"),
    "GPUs": ("info", "unequal hosts are supported: each gets its own number of processes"),
    "MTU": ("warning", "some switches drop packets above the smaller MTU: transfers start, then hang"),
    "NIC speed": ("warning", "every all-reduce is as slow as the slowest link"),
}


def differences(
    names: Sequence[str], facts: Sequence[HostFacts], found: Sequence[Inspected], pythons: Sequence[Interpreter | None]
) -> Iterator[HostDifference]:
    """Yield the versions, hardware, packages and variables that are not the same on all hosts."""
    rows: dict[str, list[str]] = {name: [] for name in _ROWS}
    for one, python, more in zip(facts, pythons, found, strict=True):
        rows["python"].append(".".join(map(str, release(python.version)[:2])) if python else "")
        rows["torch"].append((python.torch or "") if python else "")
        rows["cuda"].append((python.cuda or "") if python else "")
        rows["nccl"].append((python.nccl or "") if python else "")
        rows["driver"].append(one.gpus[0].driver if one.gpus else "")
        rows["kernel"].append(one.kernel)
        rows["cores"].append(str(one.cpu.available))
        models = sorted({gpu.name for gpu in one.gpus})
        rows["GPUs"].append(f"{len(one.gpus)} × {', '.join(models)}" if models else "none")
        card = next((network.owner(one, address) for address in network.candidates(one)), None)
        rows["MTU"].append(next((str(each["mtu"]) for each in more["interfaces"] if each["name"] == card), ""))
        speed = network.speed(one, card)
        rows["NIC speed"].append(f"{speed} Mbit/s" if speed else "")
    for name, values in rows.items():
        if len(set(values)) > 1:
            yield HostDifference(name, tuple(values), *_ROWS[name])
    for name, versions in different_packages(facts):
        if name != "torch":
            yield HostDifference(name, versions, "warning", "ranks run different versions of this package")
    variables = sorted({name for more in found for name in more["variables"]})
    for name in variables:
        values = [more["variables"].get(name, "") for more in found]
        if len(set(values)) > 1:
            level: Level = "info" if name.startswith(("OMP_", "MKL_")) else "warning"
            yield HostDifference(
                name, tuple(values), level, "set by a login script; ranks of these hosts behave differently"
            )


def ways(
    names: Sequence[str],
    targets: Mapping[str, Sequence[tuple[str, str, int, bool]]],
    answers: Mapping[str, Sequence[Dialled]],
    proofs: Mapping[str, Mapping[str, str]],
) -> list[Way]:
    """Return the results of all connections.

    Args:
        targets: Host → what it dialled: target host, address, port, and whether the port is in launch.ports.
        answers: Host → its results, in the same order.
        proofs: Dialling host → target host → the proof that the target would answer.
    """
    found: list[Way] = []
    for name in names:
        own = answers.get(name, ())
        for number, (target, address, port, fixed) in enumerate(targets.get(name, ())):
            one: Dialled = own[number] if number < len(own) else {"ms": None, "proof": "", "error": "not tried"}
            stranger = bool(one["proof"]) and one["proof"] != proofs[name][target]
            whose = next((host for host, proof in proofs[name].items() if proof == one["proof"]), "")
            error = f"{whose or 'another program'} answered" if stranger else one["error"]
            if not error and not one["proof"]:
                error = "nothing answers"
            found.append(Way(name, target, address, port, fixed, one["ms"], error, stranger))
    return found


def of_network(
    names: Sequence[str], facts: Mapping[str, HostFacts], found: Sequence[Way], listening: Mapping[str, Listening]
) -> Iterator[Check]:
    """Yield conclusions from the connections between all hosts; the first of `names` is the master."""
    for name in names:
        if name in listening and listening[name]["fixed"] is None:
            held = facts[name].ports_held
            yield Check(
                "network.port", "error" if name == names[0] else "info", (name,),
                "no port of launch.ports is free" + (f": {held}" if held else ""),
                "the first host listens there for all others", "Set other ports with `launch.ports`",
            )  # fmt: skip
    pairs: dict[tuple[str, str], list[Way]] = {}
    for way in found:
        pairs.setdefault((way.source, way.target), []).append(way)
    for (source, target), own in pairs.items():
        yield from _pair(source, target, own)
    strange = sorted({(way.target, way.address) for way in found if way.stranger})
    shared: dict[str, list[str]] = {}
    for target, address in strange:
        shared.setdefault(address, []).append(target)
    for address, targets in shared.items():
        card = network.owner(facts[targets[0]], address) or "an interface"
        yield Check(
            "network.same-address", "info", tuple(targets),
            f"{address} ({card}) leads to another host; it is not used",
            "NCCL and gloo connect to a wrong host if a bridge or VPN has the same address on every host",
            f"Nothing to do if disttui chooses the interface; otherwise exclude {card} by NCCL_SOCKET_IFNAME",
        )  # fmt: skip
    yield from _master(names, found)
    yield from _latency(pairs)


def _pair(source: str, target: str, own: Sequence[Way]) -> Iterator[Check]:
    good = [way for way in own if not way.error]
    addresses = list(dict.fromkeys(way.address for way in own if not way.stranger))
    complete = [address for address in addresses if all(not way.error for way in own if way.address == address)]
    if complete or not own:
        return
    why = "torch connects all ranks with each other; it waits for minutes, then fails without naming the pair"
    both = (source, target)
    if good:
        bad = next(way for way in own if way.error and way.address == good[0].address)
        kind = (
            f"port {bad.port} of launch.ports"
            if bad.fixed
            else "ports that the kernel chooses (gloo and NCCL use them)"
        )
        what = f"{source} reaches {target} at {bad.address}:{good[0].port}, but not {kind}: {bad.error}"
        yield Check("network.reach", "error", both, what, why, f"Open it in the firewall of {target} for {source}")
        return
    tried = "; ".join(f"{way.address}:{way.port} {way.error}" for way in own[:4])
    what = f"{source} cannot reach {target}: {tried}"
    refused = all("refused" in way.error for way in own)
    cure = (
        f"Open the ports in the firewall of {target} for {source}, or name addresses in a common network with `address`"
    )
    yield Check(
        "network.reach", "error", both, what, why, "Check for a firewall that rejects connections" if refused else cure
    )


def common_address(names: Sequence[str], found: Sequence[Way], target: str) -> str | None:
    """Return the first address of `target` that all other hosts reach on all tried ports, or None."""
    others = {name for name in names if name != target}
    by: dict[str, dict[str, list[Way]]] = {}
    for way in found:
        if way.target == target:
            by.setdefault(way.address, {}).setdefault(way.source, []).append(way)
    return next(
        (
            address for address, sources in by.items()
            if others <= sources.keys() and all(not way.error for own in sources.values() for way in own)
        ),
        None,
    )  # fmt: skip


def _master(names: Sequence[str], found: Sequence[Way]) -> Iterator[Check]:
    if len(names) < 2:
        return
    address = common_address(names, found, names[0])
    if address is None:
        yield Check(
            "network.master", "error", (names[0],), f"no address of {names[0]} is reachable from all other hosts",
            "all other hosts connect to the first, the master",
            "Put another host first, or set its `address` in a network that all share",
        )  # fmt: skip
        return
    if ipaddress.ip_address(address).is_global:
        yield Check(
            "network.public", "warning", (names[0],), f"the master would be {address}, a public address",
            "torch's ports have no password: anyone who reaches them can break the run or run code as you",
            "Name addresses in a private network with `address`, or close the ports (docs/security.md)",
        )  # fmt: skip


def _latency(pairs: Mapping[tuple[str, str], Sequence[Way]]) -> Iterator[Check]:
    times = {pair: latency(own) for pair, own in pairs.items()}
    known = {pair: ms for pair, ms in times.items() if ms is not None}
    if len(known) < 3:
        return
    middle = median(known.values())
    slow = {pair: ms for pair, ms in known.items() if ms > max(5.0, 10 * middle)}
    for (source, target), ms in slow.items():
        yield Check(
            "network.latency", "warning", (source, target),
            f"connecting from {source} to {target} takes {ms:.1f} ms (median of all pairs: {middle:.2f} ms)",
            "every collective waits for the slowest link", "Check the route and the load of this link",
        )  # fmt: skip


def latency(own: Iterable[Way]) -> float | None:
    """Return the shortest connection time in milliseconds, or None if no attempt connected."""
    return min((way.ms for way in own if way.ms is not None and not way.error), default=None)


def duration(seconds: float) -> str:
    """Format seconds, as `90 s` or `5 min`."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
