"""Profile, facts and choices → the exact command and environment of every host. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runner.hosts.facts import HostFacts
from runner.planning import bytegpt, network
from runner.planning.interpreter import expand, find_python, release
from runner.planning.launchers.known import LAUNCHERS
from runner.planning.launchers.place import Place
from runner.planning.layout import link_arguments, size_arguments
from runner.planning.processes import HostChoice, Reasons
from runner.planning.recommend import Recommendation, fixed_master
from runner.profile import Profile
from runner.profile.references import references
from runner.profile.sections import Target
from runner.protocol.files import PlannedSpec
from runner.protocol.slurm import Batch
from runner.train.layout import Layout

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
    """What is set on top of the login's environment; `${env:NAME}` stands for what only the start resolves."""
    activate: str
    gpus: tuple[int, ...] | None
    interface: str | None
    """None: the one on the route to the master, found on the host."""
    reasons: Reasons
    launcher_args: tuple[str, ...]
    references: frozenset[str]
    """Names of the variables in `env` that hold a `${env:NAME}`."""


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
        launch, target = profile.launch, profile.job.target
        return {
            "disttui": 1,
            "run": run_id,
            "node_rank": node_rank,
            "hosts": [one.name for one in self.hosts],
            "nproc": [one.num_processes for one in self.hosts],
            "run_dir": launch.run_dir,
            "workdir": host.workdir,
            "python": host.python,
            "activate": host.activate,
            "wrap": list(profile.job.wrap),
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
            },
            "master": fixed_master(profile),
            "interface": profile.hosts[node_rank].interface,
            "leader": None,
            "metrics_pattern": profile.metrics.pattern,
            "outputs": list(profile.job.outputs),
            "profile": profile.as_written(),
        }


def make_plan(profile: Profile, facts: Sequence[HostFacts], recommendation: Recommendation, train_zip: str) -> Plan:
    """Put everything together.

    Args:
        facts: One per host of the profile, in its order.
        train_zip: Where the built-in job lies on the hosts, such as `~/.cache/disttui/train-….zip`.
    """
    job_args = _job_args(profile, recommendation)
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


def _job_args(profile: Profile, recommendation: Recommendation) -> tuple[str, ...]:
    """The job's arguments; the built-in job also gets what was decided."""
    kind, _, args = profile.job.target
    if kind != "builtin":
        return args
    decided = {
        "--strategy": recommendation.strategy,
        **dict(size_arguments(profile, recommendation.layout)),
        **dict(link_arguments(profile)),
        "--precision": recommendation.precision,
        "--backend": recommendation.backend,
    }
    return args + tuple(
        word for name, value in decided.items() if not bytegpt.given(args, name) for word in (name, value)
    )


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
    return HostPlan(
        node_rank=rank,
        name=choice.name,
        num_processes=place.num_processes,
        first_rank=place.first_rank,
        python=choice.python,
        workdir=here.workdir.path if workdir.startswith("~") else workdir,  # ~somebody: known to the probe
        command=launcher.by_hand(place),
        env={**{name: text for name, (text, _) in added.items()}, **own},
        activate=profile.hosts[rank].activate,
        gpus=choice.gpus,
        interface=choice.interface or owner,
        reasons={
            **choice.reasons,
            **interface,
            **{name: "the profile says so" if name in own else why for name, (_, why) in added.items()},
        },
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
    elif facts.gpus or python is None or python.cuda:
        # Otherwise a script that asks "is there a GPU?" would put all ranks of this host on one, busy or not, and
        # speak another backend than the ranks of hosts without.
        env["CUDA_VISIBLE_DEVICES"] = ("", "hides the GPUs: this run computes on the CPU")
    if recommendation.backend == "gloo" and not any(one.gpus for one in recommendation.hosts):
        why = "without it a script that uses Accelerate trains alone on every rank, and says nothing"
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
