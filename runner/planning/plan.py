"""Profile, facts and choices → the exact command and environment of every host. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from disttui.runner.hosts.facts import HostFacts
from disttui.runner.planning import bytegpt, network
from disttui.runner.planning.interpreter import expand, find_python, release
from disttui.runner.planning.launchers import LAUNCHERS, Place, preload
from disttui.runner.planning.layout import link_arguments, size_arguments
from disttui.runner.planning.processes import HostChoice, Reasons
from disttui.runner.planning.recommend import Recommendation, fixed_master
from disttui.runner.profile.references import references
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Target
from disttui.runner.protocol.containers import ContainerSpec
from disttui.runner.protocol.files import PlannedSpec
from disttui.runner.protocol.slurm import Batch
from disttui.runner.train.layout import Layout

FLIGHT_RECORDER_ENTRIES = 2000
"""Collectives that NCCL's flight recorder remembers, torch's own recommendation; a few hundred bytes each."""


@dataclass(frozen=True)
class HostPlan:
    """What one host will run. `reasons` has why each value and each added variable is what it is."""

    node_rank: int
    name: str
    num_processes: int
    first_rank: int
    python: str
    workdir: str
    command: tuple[str, ...]
    """The launcher as it would be typed by hand, to be run in `workdir` with `env`."""
    env: Mapping[str, str]
    """What is set on top of the login's environment; `${env:NAME}` is resolved only at the start."""
    activate: str
    gpus: tuple[int, ...] | None
    interface: str | None
    """None: the one on the route to the master, found on the host."""
    reasons: Reasons
    launcher_args: tuple[str, ...]
    container: ContainerSpec | None
    around: tuple[str, ...]
    """The words of the command before the launcher."""
    references: frozenset[str]
    """Names of the variables in `env` that hold a `${env:NAME}`."""
    any_of: tuple[int, ...] | None = None
    """The GPUs that a queued run chooses from at its turn, as many as `gpus` has; None: it takes `gpus`."""


@dataclass(frozen=True)
class Plan:
    """What all hosts will run. `master` is the first candidate: the run takes the one that all hosts reach."""

    profile: Profile
    hosts: tuple[HostPlan, ...]
    backend: str
    strategy: str
    layout: Layout | None
    precision: str
    world_size: int
    master: str
    job_args: tuple[str, ...]
    """The profile's, and for the built-in job what was decided."""
    batch: Batch | None = None
    """What is asked of Slurm where the run is a job of it."""

    def spec(self, node_rank: int, run_id: str) -> PlannedSpec:
        """The spec of one host's supervisor (docs/formats.md, "spec.json"); no secrets, `leader` still open."""
        host, profile = self.hosts[node_rank], self.profile
        launch, target, sync = profile.launch, profile.job.target, profile.job.sync
        return {
            "disttui": 1,
            "run": run_id,
            "node_rank": node_rank,
            "hosts": [one.name for one in self.hosts],
            "nproc": [one.num_processes for one in self.hosts],
            "run_dir": launch.run_dir,
            "workdir": sync.folder(launch.run_dir, run_id) if sync else host.workdir,
            "python": host.python,
            "activate": host.activate,
            "wrap": list(profile.job.wrap),
            "container": host.container,
            "target": {"kind": target.kind, "value": target.value, "args": list(self.job_args)},
            "env": {name: value for name, value in host.env.items() if name not in host.references},
            "gpus": None if host.gpus is None else list(host.gpus),
            "quota": profile.hosts[node_rank].quota,
            "backend": self.backend,
            "precision": self.precision,
            "launcher": LAUNCHERS[launch.launcher].PART,
            "launcher_args": list(host.launcher_args),
            "launch": {
                "ports": list(launch.ports),
                "join_timeout": launch.join_timeout,
                "host_timeout": launch.host_timeout,
                "rejoin_timeout": launch.rejoin_timeout,
                "restarts": launch.restarts,
                "resume_args": list(launch.resume_args),
                "grace": launch.grace,
                "instrument": launch.instrument,
                "log_limit": launch.log_limit,
                "preload": list(preload(profile)[0]),
            },
            "master": fixed_master(profile),
            "interface": profile.hosts[node_rank].interface,
            "leader": None,
            "metrics_pattern": profile.metrics.pattern,
            "watch": profile.watch.rules(),
            "outputs": list(profile.job.outputs),
            "profile": profile.as_written(),
        }


def make_plan(profile: Profile, facts: Sequence[HostFacts], recommendation: Recommendation, train_zip: str) -> Plan:
    """Put everything together.

    Args:
        facts: One per host of the profile, in its order.
        train_zip: Where the built-in job lies on the hosts, such as `~/.cache/disttui/train-….zip`.
    """
    job_args = job_words(
        profile, recommendation.strategy, recommendation.layout, recommendation.precision, recommendation.backend
    )
    kind, value, _ = profile.job.target
    hosts = []
    for rank, found in enumerate(facts):
        target = Target(kind, expand(train_zip, found) if kind == "builtin" else value, job_args)
        hosts.append(_host(profile, facts, recommendation, rank, target))
    return Plan(
        profile=profile,
        hosts=tuple(hosts),
        backend=recommendation.backend,
        strategy=recommendation.strategy,
        layout=recommendation.layout,
        precision=recommendation.precision,
        world_size=recommendation.world_size,
        master=recommendation.master,
        job_args=job_args,
    )


def counts_line(plan: Plan) -> str:
    """`node1 4 + node2 2 = 6 processes (Accelerate: num_machines 2, num_processes 6)`."""
    counts = " + ".join(f"{host.name} {host.num_processes}" for host in plan.hosts)
    total = f"{plan.world_size} process{'' if plan.world_size == 1 else 'es'}"
    return f"{counts} = {total} (Accelerate: num_machines {len(plan.hosts)}, num_processes {plan.world_size})"


def job_words(profile: Profile, strategy: str, layout: Layout | None, precision: str, backend: str) -> tuple[str, ...]:
    """The job's arguments; the built-in job also gets what was decided."""
    kind, _, args = profile.job.target
    if kind != "builtin":
        return args
    decided = {
        "--strategy": strategy,
        **dict(size_arguments(profile, layout)),
        **dict(link_arguments(profile)),
        "--precision": precision,
        "--backend": backend,
    }
    left = [(name, value) for name, value in decided.items() if value != "auto" and not bytegpt.given(args, name)]
    return args + tuple(word for pair in left for word in pair)


def _host(
    profile: Profile, facts: Sequence[HostFacts], recommendation: Recommendation, rank: int, target: Target
) -> HostPlan:
    choice, here, master = recommendation.hosts[rank], facts[rank], recommendation.master
    launcher = LAUNCHERS[profile.launch.launcher]
    place = Place(
        profile=profile,
        counts=tuple(one.num_processes for one in recommendation.hosts),
        gpus=tuple(one.gpus for one in recommendation.hosts),
        node_rank=rank,
        python=choice.python,
        target=target,
        backend=recommendation.backend,
        master=master,
        port=facts[0].free_port or profile.launch.ports[0],
    )
    added = {**_added_env(profile, here, recommendation, choice), **launcher.variables(place)}
    own = profile.host_env(rank)
    place = replace(place, exported=tuple(dict.fromkeys((*added, *own))))
    owner = network.owner(here, master) if len(profile.hosts) > 1 else None
    interface = {} if choice.interface or not owner else {"interface": f"{owner}: it has the master's address"}
    workdir = expand(profile.workdir(rank), here)
    return host_plan(
        place,
        {name: text for name, (text, _) in added.items()},
        workdir=here.workdir.path if workdir.startswith("~") else workdir,  # ~user: known to the probe
        gpus=choice.gpus,
        interface=choice.interface or owner,
        reasons={
            **choice.reasons,
            **interface,
            **{name: "set in the profile" if name in own else why for name, (_, why) in added.items()},
        },
    )


def host_plan(
    place: Place,
    added: Mapping[str, str],
    *,
    workdir: str,
    gpus: tuple[int, ...] | None,
    interface: str | None,
    reasons: Reasons,
) -> HostPlan:
    """The plan of one host.

    Args:
        added: Variables that the profile's own environment wins over.
    """
    profile, rank = place.profile, place.node_rank
    place = replace(place, workdir=workdir)
    launcher, own = LAUNCHERS[profile.launch.launcher], profile.host_env(rank)
    return HostPlan(
        node_rank=rank,
        name=profile.hosts[rank].name,
        num_processes=place.num_processes,
        first_rank=place.first_rank,
        python=place.python,
        workdir=workdir,
        command=launcher.by_hand(place),
        env={**added, **own},
        activate=profile.hosts[rank].activate,
        gpus=gpus,
        interface=interface,
        reasons=reasons,
        container=place.container,
        around=place.around,
        references=frozenset(name for name, text in own.items() if references(text)),
        launcher_args=launcher.launcher_args(place),
    )


def _added_env(
    profile: Profile, facts: HostFacts, recommendation: Recommendation, choice: HostChoice
) -> dict[str, tuple[str, str]]:
    """Variable → (value, reason). The profile's own environment wins over all of these."""
    grace = str(max(1, math.ceil(profile.launch.grace)))
    env = {
        "PYTHONUNBUFFERED": ("1", "a line is seen when it is printed"),
        "OMP_NUM_THREADS": (str(choice.omp_num_threads), choice.reasons["omp_num_threads"]),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": (grace, "launch.grace: seconds between asking ranks to end and ending them"),
    }
    _, python, _ = find_python(profile, profile.hosts[choice.node_rank], facts)
    if choice.gpus:
        env["CUDA_VISIBLE_DEVICES"] = (",".join(map(str, choice.gpus)), choice.reasons["gpus"])
        env["CUDA_DEVICE_ORDER"] = ("PCI_BUS_ID", "counts GPUs as nvidia-smi does, not fastest first")
    elif facts.gpus or python is None or python.on_gpus:
        # Otherwise a script that asks "is there a GPU?" would put all ranks of this host on one, busy or not, and
        # speak another backend than the ranks of hosts without.
        env["CUDA_VISIBLE_DEVICES"] = ("", "hides the GPUs: this run computes on the CPU")
    if recommendation.backend == "gloo" and not any(one.gpus for one in recommendation.hosts):
        why = "without it a script that uses Accelerate trains separately on every rank without a warning"
        env["ACCELERATE_USE_CPU"] = ("true", why)
    if recommendation.backend == "nccl":
        # Torch renamed the variable, and warns on every rank where the old name is set.
        old = python is not None and python.torch is not None and release(python.torch) < (2, 9)
        name = "TORCH_NCCL_TRACE_BUFFER_SIZE" if old else "TORCH_FR_BUFFER_SIZE"
        env[name] = (str(FLIGHT_RECORDER_ENTRIES), "remembers the last collectives, for the question who hangs")
        env["TORCH_NCCL_DUMP_ON_TIMEOUT"] = ("true", "writes them down when a collective times out")
    if choice.interface:
        # NCCL takes a bare name as a prefix, so that eth1 would match eth10.
        env["NCCL_SOCKET_IFNAME"] = (f"={choice.interface}", choice.reasons["interface"])
        env["GLOO_SOCKET_IFNAME"] = (choice.interface, choice.reasons["interface"])
    return env
