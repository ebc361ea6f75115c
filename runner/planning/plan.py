"""Turns profile, facts and choices into the exact command and environment of every host. No I/O."""

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
"""Collectives kept by NCCL's flight recorder, a few hundred bytes each; 2000 is torch's own recommendation."""


@dataclass(frozen=True)
class HostPlan:
    """What one host will run. `reasons` maps a value or an added variable to why it was chosen."""

    node_rank: int
    name: str
    num_processes: int
    first_rank: int
    python: str
    workdir: str
    command: tuple[str, ...]
    """The launcher's command as typed by hand, to be run in `workdir` with `env`."""
    env: Mapping[str, str]
    """Variables set in addition to the login's environment; references such as `${env:NAME}` are not yet resolved."""
    activate: str
    gpus: tuple[int, ...] | None
    interface: str | None
    """None if the host takes the interface on its route to the master."""
    reasons: Reasons
    launcher_args: tuple[str, ...]
    container: ContainerSpec | None
    around: tuple[str, ...]
    """The words of the command before the launcher."""
    references: frozenset[str]
    """Names of the variables in `env` that contain a reference such as `${env:NAME}`."""
    any_of: tuple[int, ...] | None = None
    """GPUs from which a queued run takes as many as `gpus` has when it starts; None if it takes `gpus`."""


@dataclass(frozen=True)
class Plan:
    """What all hosts will run. `master` is the first candidate: the run uses the address that all hosts reach."""

    profile: Profile
    hosts: tuple[HostPlan, ...]
    backend: str
    strategy: str
    layout: Layout | None
    precision: str
    world_size: int
    master: str
    job_args: tuple[str, ...]
    """The profile's arguments, and for the built-in job also the options that were decided."""
    batch: Batch | None = None
    """The request to Slurm, if the run is a Slurm job."""

    def spec(self, node_rank: int, run_id: str) -> PlannedSpec:
        """Return the spec of one host's supervisor (docs/formats.md, "spec.json"), without secrets and `leader`."""
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
            "master": fixed_master(profile) or (profile.hosts[0].address if len(profile.hosts) > 1 else None),
            "interface": profile.hosts[node_rank].interface,
            "leader": None,
            "metrics_pattern": profile.metrics.pattern,
            "watch": profile.watch.rules(),
            "outputs": list(profile.job.outputs),
            "profile": profile.as_written(),
        }


def make_plan(profile: Profile, facts: Sequence[HostFacts], recommendation: Recommendation, train_zip: str) -> Plan:
    """Make the plan of a run.

    Args:
        facts: One per host of the profile, in its order.
        train_zip: Path of the built-in job on the hosts, such as `~/.cache/disttui/train-….zip`.
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
    """Format process counts, as `node1 4 + node2 2 = 6 processes (Accelerate: num_machines 2, num_processes 6)`."""
    counts = " + ".join(f"{host.name} {host.num_processes}" for host in plan.hosts)
    total = f"{plan.world_size} process{'' if plan.world_size == 1 else 'es'}"
    return f"{counts} = {total} (Accelerate: num_machines {len(plan.hosts)}, num_processes {plan.world_size})"


def job_words(profile: Profile, strategy: str, layout: Layout | None, precision: str, backend: str) -> tuple[str, ...]:
    """Return the job's arguments; the built-in job also gets decided options that are not in its arguments."""
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
        workdir=here.workdir.path if workdir.startswith("~") else workdir,  # only the probe can expand ~user
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
    """Return the plan of one host.

    Args:
        added: Variables to set, unless the profile's own environment does.
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
    """Return variable → (value, reason). The profile's own environment overrides all of these."""
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
        # Otherwise a script that checks torch.cuda.is_available() would put all ranks of this host on one GPU, busy
        # or not, and use another backend than the ranks of hosts without GPUs.
        env["CUDA_VISIBLE_DEVICES"] = ("", "hides the GPUs: this run computes on the CPU")
    if recommendation.backend == "gloo" and not any(one.gpus for one in recommendation.hosts):
        why = "without it a script that uses Accelerate trains separately on every rank without a warning"
        env["ACCELERATE_USE_CPU"] = ("true", why)
    if recommendation.backend == "nccl":
        # torch 2.9 renamed the variable, and warns on every rank if the old name is set.
        old = python is not None and python.torch is not None and release(python.torch) < (2, 9)
        name = "TORCH_NCCL_TRACE_BUFFER_SIZE" if old else "TORCH_FR_BUFFER_SIZE"
        env[name] = (str(FLIGHT_RECORDER_ENTRIES), "remembers the last collectives, for the question who hangs")
        env["TORCH_NCCL_DUMP_ON_TIMEOUT"] = ("true", "writes them down when a collective times out")
    if choice.interface:
        # Without `=`, NCCL takes the name as a prefix: eth1 would match eth10.
        env["NCCL_SOCKET_IFNAME"] = (f"={choice.interface}", choice.reasons["interface"])
        env["GLOO_SOCKET_IFNAME"] = (choice.interface, choice.reasons["interface"])
    return env
