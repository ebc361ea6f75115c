"""Launchers: the options, variables and full command of each for one host of a run. No I/O."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from disttui.runner.planning.processes import hosts_by_value
from disttui.runner.profile.effects import names
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Target
from disttui.runner.protocol import open_mpi
from disttui.runner.protocol.containers import ContainerSpec, start_words
from disttui.runner.protocol.files import LauncherPart
from disttui.runner.train.layout import Flaw, Layout, Sizes, settle

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True)
class Place:
    """One host's part of a run: what it runs, and the address and port at which the hosts connect."""

    profile: Profile
    counts: tuple[int, ...]
    """Number of processes on each host, by node rank."""
    gpus: tuple[tuple[int, ...] | None, ...]
    """GPU indices of each host, by node rank; None for a host that computes on the CPU or whose GPUs are unknown."""
    node_rank: int
    python: str
    target: Target
    """The job; `value` is the path of the zip file for the built-in job."""
    backend: str
    master: str
    port: int
    exported: tuple[str, ...] = ()
    """Names of the host's variables that a launcher forwards to other hosts or a container."""
    workdir: str = "~"
    """The job's folder, which a container mounts."""

    @property
    def container(self) -> ContainerSpec | None:
        """The container that this host's launcher runs in, or None."""
        box = self.profile.container
        # With nccl they may be unknown here: Slurm chooses them, or a file is exported without asking the hosts.
        return box.spec(self.backend == "nccl" or bool(self.gpus[self.node_rank])) if box else None

    @property
    def around(self) -> tuple[str, ...]:
        """The words before the launcher in the command: its container and `job.wrap`."""
        names = (*(self.exported or self.profile.host_env(self.node_rank)), *INTERFACES)
        mounts = (self.workdir,)
        box = start_words(self.container, self.workdir, mounts=mounts, variables=names) if self.container else ()
        return (*box, *self.profile.job.wrap)

    @property
    def first_rank(self) -> int:
        """The rank of this host's first process."""
        return sum(self.counts[: self.node_rank])

    @property
    def world_size(self) -> int:
        """Number of processes on all hosts."""
        return sum(self.counts)

    @property
    def num_processes(self) -> int:
        """Number of processes on this host."""
        return self.counts[self.node_rank]


class Reasoned(NamedTuple):
    """A variable's value and why it is set."""

    value: str
    why: str


class Refusal(NamedTuple):
    """Why a launcher cannot start a run, and the cure."""

    what: str
    cure: str


class Launcher:
    """Turns a place into a command."""

    PART: ClassVar[LauncherPart]
    """The part of the node program that runs it."""

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        """Return the options that are known before the start; the others are sent with the start line."""
        raise NotImplementedError

    def variables(self, _place: Place) -> Mapping[str, Reasoned]:
        """Return the variables that it sets for every rank of the host, known before the hosts have connected."""
        return {}

    def by_hand(self, place: Place) -> tuple[str, ...]:
        """Return the words of the command that starts the same without disttui."""
        raise NotImplementedError

    def refusal(self, _profile: Profile, _counts: Mapping[str, int], _backend: str) -> Refusal | None:
        """Return why it cannot start this run, or None; `_counts` maps a host to its number of processes."""
        return None


RENDEZVOUS_TIMEOUT = 90
"""Seconds that torchrun waits for the other hosts. Its default, a silent 600 s, hides a host that never connects."""


def torchrun_options(*, nnodes: int, num_processes: int, node_rank: int) -> tuple[str, ...]:
    """Return the options known before the start; master, port and rendezvous id are sent with the start line.

    TORCH_ELASTIC_SHUTDOWN_TIMEOUT is set instead of `--shutdown-timeout`, which torch before 2.11 rejects.
    """
    return (
        "--nnodes", str(nnodes),
        "--nproc-per-node", str(num_processes),
        "--node-rank", str(node_rank),
        "--rdzv-backend", "static",
        "--rdzv-conf", f"timeout={RENDEZVOUS_TIMEOUT}",
        "--max-restarts", "0",
    )  # fmt: skip


def preload(profile: Profile) -> tuple[tuple[str, ...], str]:
    """Return the modules that a host imports once before it forks its ranks, and why; () if each rank imports them."""
    launch, job = profile.launch, profile.job
    own = "each rank imports for itself: "
    if not launch.preload:
        return (), f"{own}launch.preload is empty"
    if launch.launcher not in ("torchrun", "accelerate", "slurm"):
        return (), f"{own}{launch.launcher} starts the ranks"
    for key, used in (
        ("container", profile.container), ("job.wrap", job.wrap), ("job.command", job.command),
        ("launch.instrument: false", not launch.instrument),
    ):  # fmt: skip
        if used:
            return (), f"{own}{key}"
    return launch.preload, f"{', '.join(launch.preload)}: imported once on each host, which forks its ranks"


class Torchrun(Launcher):
    """torchrun, which sets all variables that ranks need."""

    PART = "torchrun"

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        return torchrun_options(nnodes=len(place.counts), num_processes=place.num_processes, node_rank=place.node_rank)

    def by_hand(self, place: Place) -> tuple[str, ...]:
        address = ("--master-addr", place.master, "--master-port", str(place.port))
        words = (place.python, "-m", "torch.distributed.run", *self.launcher_args(place), *address)
        return (*place.around, *words, *torchrun_target(*place.target))


_NAMES_OF_TORCHRUN = (
    "--nnodes", "--node-rank", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf",
    "--standalone", "--max-restarts", "--monitor-interval", "--start-method", "--event-log-handler", "--role",
    "--module", "--no-python", "--run-path", "--log-dir", "--redirects", "--tee", "--local-ranks-filter",
    "--local-addr", "--logs-specs", "--master-addr", "--master-port", "--numa-binding", "--signals-to-handle",
    "--shutdown-timeout", "--virtual-local-rank", "--duplicate-stdout-filters", "--duplicate-stderr-filters",
)  # fmt: skip


def torchrun_target(kind: str, value: str, args: tuple[str, ...]) -> tuple[str, ...]:
    """Return `target_words`, after `--` if torchrun would otherwise misread an argument of the script.

    Its parser looks for abbreviations of its own options in the script's arguments as well: `--logs` is an error, and
    removes a `--` behind the script.
    """
    words = target_words(kind, value, args)
    given = {arg.partition("=")[0].replace("_", "-") for arg in args if arg[:2] == "--" and arg != "--"}
    if args[:1] != ("--",) and not any(name.startswith(one) for one in given for name in _NAMES_OF_TORCHRUN):
        return words
    at = len(words) - len(args) - 1
    return (*words[:at], "--", *words[at:])


def target_words(kind: str, value: str, args: Sequence[str]) -> tuple[str, ...]:
    """Return the end of torchrun's command line: what it starts for each rank.

    Args:
        kind: builtin, script, module or command.
        value: The zip, script, module or first word of the command.
    """
    if kind == "module":
        return ("-m", value, *args)
    if kind == "command":
        return ("--no-python", value, *args)
    # A leading dash would be read as one of torchrun's own options.
    return (f"./{value}" if value.startswith("-") else value, *args)


def job_in_other_words(place: Place) -> tuple[str, ...]:
    """Return `target_words` with the flags that DeepSpeed and Accelerate have for torchrun's -m and --no-python."""
    words = target_words(*place.target)
    flags = {"-m": "--module", "--no-python": "--no_python"}
    return (flags.get(words[0], words[0]), *words[1:])


class DeepSpeed(Launcher):
    """DeepSpeed's launcher; the job need not use DeepSpeed."""

    PART = "deepspeed"

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        """Return the options. A script or module gets `--local_rank=N`, as DeepSpeed's own examples expect."""
        flags = () if place.target.kind in ("script", "module") else ("--no_local_rank",)
        return (f"--world_info={_world_info(place)}", f"--node_rank={place.node_rank}", *flags)

    def variables(self, place: Place) -> Mapping[str, Reasoned]:
        """Return DS_ACCELERATOR for a CPU run; otherwise each rank detects its device."""
        return {"DS_ACCELERATOR": Reasoned("cpu", "this run computes on the CPU")} if place.backend == "gloo" else {}

    def by_hand(self, place: Place) -> tuple[str, ...]:
        address = (f"--master_addr={place.master}", f"--master_port={place.port}")
        words = (place.python, "-m", "deepspeed.launcher.launch", *self.launcher_args(place), *address)
        return (*place.around, *words, *job_in_other_words(place))


def _world_info(place: Place) -> str:
    """Encode the devices of each host, from which DeepSpeed sets CUDA_VISIBLE_DEVICES; -1 hides all GPUs."""
    found = {}
    for host, count, gpus in zip(place.profile.hosts, place.counts, place.gpus, strict=True):
        if place.backend == "gloo" and not gpus:
            found[host.name] = [-1] * count
        else:
            found[host.name] = [gpus[rank % len(gpus)] for rank in range(count)] if gpus else list(range(count))
    return base64.urlsafe_b64encode(json.dumps(found, separators=(",", ":")).encode()).decode()


_MIXED_PRECISION = {"fp32": "no"}
"""Profile precision → Accelerate's name, if it differs."""
_SIZES = ("dp_replicate", "dp_shard", "tp", "cp")


def settings(place: Place) -> Mapping[str, Reasoned]:
    """Return Accelerate's variables for the profile's settings; what is `auto` is left to the script."""
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
    """Refuse sizes that do not fit the processes, and sharding on the CPU, which Accelerate does not support."""
    if profile.job.builtin:
        return None
    layout = _layout(profile, [*counts.values()])
    if isinstance(layout, Flaw):
        return Refusal(f"parallel: {layout.what}", layout.cure)
    if backend == "gloo" and (layout.strategy != "ddp" or _sized(profile)):
        given = f"{layout}" if _sized(profile) else layout.strategy
        # Accelerate would silently train with DDP if only FSDP is requested, and raise an exception if sizes are set.
        what = f"parallel sets {given}, but Accelerate shards models only on GPUs"
        return Refusal(what, "Remove `parallel`, or use a script that shards its model itself")
    return None


def _sized(profile: Profile) -> bool:
    return profile.parallel.strategy == "hsdp" or any(getattr(profile.parallel, name) for name in Sizes._fields)


def _layout(profile: Profile, counts: Sequence[int]) -> Layout | Flaw:
    sizes = Sizes(**{name: getattr(profile.parallel, name) for name in Sizes._fields})
    return settle(sizes, profile.parallel.strategy, counts)


class Accelerate(Torchrun):
    """torchrun with the variables from which Accelerate reads its settings.

    Unlike `accelerate launch`, it supports unequal numbers of processes, and no host trains alone.
    """

    def variables(self, place: Place) -> Mapping[str, Reasoned]:
        return settings(place)

    def refusal(self, profile: Profile, counts: Mapping[str, int], backend: str) -> Refusal | None:
        return layout_refusal(profile, counts, backend)


class AccelerateLaunch(Launcher):
    """`accelerate launch`, once on each host. It starts equally many processes on every machine."""

    PART = "accelerate-launch"

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        """Return the options.

        `--multi_gpu` is also used on CPUs, with ACCELERATE_USE_CPU: with `--cpu` each host would train alone.
        """
        given = settings(place).get("ACCELERATE_MIXED_PRECISION")
        several = ("--multi_gpu",) if place.world_size > 1 else ("--cpu",) if place.backend == "gloo" else ()
        return (
            *several,
            "--num_machines", str(len(place.counts)),
            "--num_processes", str(place.world_size),
            "--machine_rank", str(place.node_rank),
            "--mixed_precision", given.value if given else "no",
            "--dynamo_backend", "no",
            "--rdzv_backend", "static",
            "--rdzv_conf", f"timeout={RENDEZVOUS_TIMEOUT}",
            "--max_restarts", "0",
            "--same_network",
        )  # fmt: skip

    def variables(self, place: Place) -> Mapping[str, Reasoned]:
        """Return the profile's parallel settings, which `accelerate launch` passes to the script unchanged."""
        return {name: one for name, one in settings(place).items() if name != "ACCELERATE_MIXED_PRECISION"}

    def by_hand(self, place: Place) -> tuple[str, ...]:
        address = ("--main_process_ip", place.master, "--main_process_port", str(place.port))
        words = (place.python, "-m", "accelerate.commands.launch", *self.launcher_args(place), *address)
        return (*place.around, *words, *job_in_other_words(place))

    def refusal(self, profile: Profile, counts: Mapping[str, int], backend: str) -> Refusal | None:
        """Refuse unequal hosts, since `accelerate launch` divides the total by the machines and silently drops the
        remainder, and what `layout_refusal` finds."""
        if len(set(counts.values())) == 1:
            return layout_refusal(profile, counts, backend)
        shown = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:6])
        return Refusal(
            f"accelerate launch needs equal num_processes on all hosts, not {shown}",
            "Set launch.launcher to accelerate, or make num_processes equal",
        )


_MPI_NUMBERS = {"RANK": "RANK", "LOCAL_RANK": "LOCAL_RANK", "WORLD_SIZE": "SIZE", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}
NUMBERS_OF_OPEN_MPI = " ".join(f"{name}=$OMPI_COMM_WORLD_{theirs}" for name, theirs in _MPI_NUMBERS.items())
"""Assignments of a rank's numbers from the variables of Open MPI."""


class MpirunPerHost(Launcher):
    """One mpirun on each host for the processes of that host, which form an MPI world.

    MPI's rank numbers begin at 0 on each host: a shell, or the rank shim under disttui, adds the host's first rank.
    """

    PART: ClassVar[LauncherPart] = "mpirun-per-host"

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        return _mpi_options(place.num_processes, ":OVERSUBSCRIBE")

    def by_hand(self, place: Place) -> tuple[str, ...]:
        shared = {
            "MASTER_ADDR": place.master,
            "MASTER_PORT": place.port,
            "WORLD_SIZE": place.world_size,
            "LOCAL_WORLD_SIZE": place.num_processes,
            "GROUP_RANK": place.node_rank,
        }
        local = "OMPI_COMM_WORLD_LOCAL_RANK"
        each = f"LOCAL_RANK=${local} RANK=$(({place.first_rank} + {local}))"
        exported = [f"{name}={value}" for name, value in shared.items()]
        return _by_mpirun(place, MpirunPerHost.launcher_args(self, place), exported, each)

    def refusal(self, profile: Profile, _counts: Mapping[str, int], _backend: str) -> Refusal | None:
        """Refuse a `:` among the job's words: anywhere in a command, mpirun takes it as the start of a new program."""
        target = profile.job.target
        if ":" not in (target.value, *target.args, *profile.launch.resume_args):
            return None
        return Refusal(
            "mpirun interprets the job's argument ':' as the start of another program",
            "Set launch.launcher to torchrun, or remove this argument",
        )


class Mpirun(MpirunPerHost):
    """One mpirun, on the first host, that starts the processes of all hosts as one MPI world."""

    PART = "mpirun"

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        """Return the options of the first host; the other hosts get theirs with the start line.

        The other hosts' names need only be distinct, since mpirun has disttui start its daemon on each. Numeric
        addresses need no name lookup, and these (RFC 1112, class E) belong to no machine.
        """
        if len(place.counts) == 1:
            return super().launcher_args(place)
        if place.node_rank:
            return ()
        return _mpi_world(
            place, ["localhost", *(f"240.0.{node >> 8}.{node & 255}" for node in range(1, len(place.counts)))]
        )

    def by_hand(self, place: Place) -> tuple[str, ...]:
        if len(place.counts) == 1:
            return super().by_hand(place)
        hosts = [host.name for host in place.profile.hosts]
        if place.node_rank:
            return ("echo", f"mpirun on {hosts[0]} also starts the ranks of {hosts[place.node_rank]}")
        exported = (f"MASTER_ADDR={place.master}", f"MASTER_PORT={place.port}", *place.exported)
        return _by_mpirun(place, _mpi_world(place, hosts), exported, NUMBERS_OF_OPEN_MPI)


def _mpi_options(processes: int, map_by: str) -> tuple[str, ...]:
    """Return the options of every mpirun.

    `--bind-to none` because each rank would be bound to one core; the others allow more processes than cores, and root.
    """
    return ("-np", str(processes), "--bind-to", "none", "--map-by", map_by, "--allow-run-as-root")


def _mpi_world(place: Place, hosts: Sequence[str]) -> tuple[str, ...]:
    listed = ",".join(f"{name}:{count}" for name, count in zip(hosts, place.counts, strict=True))
    # By slot, so that ranks are numbered host by host, as torchrun does.
    return ("--host", listed, *_mpi_options(place.world_size, "slot:OVERSUBSCRIBE"))


def _by_mpirun(place: Place, options: Sequence[str], exported: Sequence[str], each: str) -> tuple[str, ...]:
    """Return the command; `each` is the assignments that a shell exports in every rank."""
    job = target_words(*place.target)
    rank = job[1:] if job[0] == "--no-python" else (place.python, "-u", *job)
    words = ("mpirun", *options, *(word for one in exported for word in ("-x", one)))
    return (*place.around, *words, "bash", "-c", f'export {each}; exec "$@"', "rank", *rank)


MPI_INSTALL = "Install Open MPI, add it to PATH in `activate`, or choose another `launch.launcher`"
_MPI_APART = "set launch.launcher to mpirun-per-host"


def mpi_refusals(profile: Profile, versions: Mapping[str, str]) -> Iterator[Refusal]:
    """Yield what prevents mpirun from starting on these hosts.

    Args:
        versions: Host → the first line of its `mpirun --version`, for hosts where it is known.
    """
    hosts = hosts_by_value(versions.items())
    others = {version: where for version, where in hosts.items() if not open_mpi.is_open_mpi(version)}
    for version, where in others.items():
        yield Refusal(f"mpirun on {names(where)} is not Open MPI but {version}", MPI_INSTALL)
    if others or profile.launch.launcher != "mpirun" or len(profile.hosts) == 1:
        return
    if len(hosts) > 1:
        sides = "; ".join(f"{version} on {names(where)}" for version, where in hosts.items())
        what = f"one MPI world needs the same Open MPI on all hosts: {sides}"
        yield Refusal(what, f"Install the same, or {_MPI_APART}")
    for version, where in hosts.items():
        if not open_mpi.forms_worlds(version):
            what = f"mpirun over several hosts needs Open MPI 4, but {version} is on {names(where)}"
            yield Refusal(what, f"{_MPI_APART[:1].upper()}{_MPI_APART[1:]}")


LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": Torchrun(),
    "accelerate": Accelerate(),
    "accelerate-launch": AccelerateLaunch(),
    "mpirun": Mpirun(),
    "mpirun-per-host": MpirunPerHost(),
    "deepspeed": DeepSpeed(),
}
