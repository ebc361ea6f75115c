"""Plans a Slurm job as if its nodes were known: all alike, with what the profile requests. No I/O."""

from __future__ import annotations

from dataclasses import replace

from disttui.runner.hosts.facts import HostFacts
from disttui.runner.planning.interpreter import expand
from disttui.runner.planning.plan import Plan
from disttui.runner.planning.recommend import Recommendation
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Slurm

_OF_SLURM = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Variables that Slurm sets on the nodes."""
_FIRST = "the job's first node"
_GPUS = "which GPUs the nodes have is not known before the job runs"


def cpus(profile: Profile, slurm: Slurm) -> int:
    """Return the number of processors on each node."""
    return slurm.cpus_per_node or ranks(profile, slurm)


def ranks(profile: Profile, slurm: Slurm) -> int:
    """Return the number of ranks on each node."""
    return profile.hosts[0].num_processes or slurm.gpus_per_node


def on_nodes(profile: Profile, slurm: Slurm, login: HostFacts) -> tuple[Profile, tuple[HostFacts, ...]]:
    """Return the profile with nodes as hosts, and their facts: the login node's, with the processors of the job.

    Paths are those of the login node, since the nodes share its files.
    """
    available = cpus(profile, slurm)
    processors = replace(login.cpu, physical=available, logical=available, available=available)
    facts = replace(login, boot_id="", cpu=processors, gpus=(), resolves_to_loopback=False)
    nodes = with_nodes(profile, slurm)
    # Slurm does not expand a tilde.
    launch = nodes.launch.model_copy(update={"run_dir": expand(nodes.launch.run_dir, login)})
    return nodes.model_copy(update={"launch": launch}), (facts,) * slurm.nodes


def with_nodes(profile: Profile, slurm: Slurm) -> Profile:
    """Return the profile with one host per node, with the login node's settings."""
    host, count = profile.hosts[0], ranks(profile, slurm)
    hosts = tuple(
        host.model_copy(update={"name": f"slurm-{node}", "num_processes": count}) for node in range(slurm.nodes)
    )
    backend = profile.launch.backend
    if backend == "auto":
        backend = "nccl" if slurm.asks_gpus else "gloo"
    launcher = "torchrun" if profile.launch.launcher == "slurm" else profile.launch.launcher
    launch = profile.launch.model_copy(update={"backend": backend, "launcher": launcher})
    return profile.model_copy(update={"hosts": hosts, "launch": launch})


def by_slurm(profile: Profile, slurm: Slurm, recommendation: Recommendation, plan: Plan) -> tuple[Recommendation, Plan]:
    """Remove choices from the login node's facts that Slurm makes itself, and add what is submitted.

    Args:
        profile: The profile as written, whose host is the login node.
    """
    said: dict[str, str] = {**recommendation.reasons, "master": f"{_FIRST}, by the address that all nodes reach"}
    if profile.launch.backend == "auto":
        by = "gpus_per_node" if slurm.gpus_per_node else "options"
        said["backend"] = f"nccl: slurm.{by} asks for GPUs" if slurm.asks_gpus else "gloo: no GPU is asked for"
    if slurm.asks_gpus and profile.precision == "auto" and recommendation.precision == "fp32":
        said["precision"] = f"fp32: {_GPUS}"
    recommendation = replace(recommendation, master=_FIRST, reasons=said)
    python = profile.hosts[0].python
    hosts = []
    for host in plan.hosts:
        dropped = _OF_SLURM if slurm.asks_gpus or profile.launch.backend == "nccl" else ()
        reasons = {name: why for name, why in host.reasons.items() if name not in (*dropped, "interface", "addresses")}
        chosen = f"{slurm.gpus_per_node or 'as many as asked for'}: Slurm chooses them"
        gpus = chosen if dropped else host.reasons["gpus"]
        env = {name: text for name, text in host.env.items() if name not in dropped}
        hosts.append(replace(host, env=env, gpus=None, interface=None, reasons={**reasons, "gpus": gpus}))
    return recommendation, replace(
        plan,
        hosts=tuple(hosts),
        master=_FIRST,
        batch={
            "options": slurm.sbatch(),
            "cpus": cpus(profile, slurm),
            "python": python if python and python[0] in "/~" else "python3",
        },
    )
