"""The plan of a profile as far as the profile alone says it, without the facts of any host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from runner.errors import InputError
from runner.planning.launchers.known import LAUNCHERS
from runner.planning.launchers.place import Place
from runner.planning.layout import size_arguments
from runner.planning.network import LOOPBACK
from runner.planning.plan import HostPlan, Plan
from runner.profile import Host, Profile
from runner.profile.addresses import is_ip
from runner.profile.references import references
from runner.profile.sections import Target

Need = Literal["python", "master"]
BUILTIN = "bytegpt.zip"
"""The built-in job as a file, beside what is exported."""


def explicit_plan(profile: Profile, *, needs: Sequence[Need] = ()) -> Plan:
    """What a profile says.

    Args:
        needs: What is needed besides the counts. Else python3 and loopback stand in its place.

    Raises:
        InputError: A value depends on the hosts.
    """
    lacking = [f"hosts.{rank}.num_processes" for rank, host in enumerate(profile.hosts) if host.num_processes is None]
    master = master_of(profile)
    if "python" in needs:
        lacking += [f"hosts.{rank}.python" for rank, host in enumerate(profile.hosts) if not _python(profile, host)]
    if "master" in needs and not master:
        lacking.append("launch.master")
    if lacking:
        shown = ", ".join(lacking[:6]) + (f" and {len(lacking) - 6} more" if len(lacking) > 6 else "")
        cure = "Give them in the profile or by --set, or add --probe: the hosts are asked, as by disttui plan."
        raise InputError(f"{profile.name}: these values depend on the hosts: {shown}", cure)
    kind, value, args = profile.job.target
    words = args + _chosen(profile)
    target = Target(kind, BUILTIN if kind == "builtin" else value, words)
    hosts = tuple(_host(profile, rank, target, master or LOOPBACK) for rank in range(len(profile.hosts)))
    return Plan(
        profile=profile,
        hosts=hosts,
        backend=profile.launch.backend,
        strategy=profile.parallel.strategy,
        layout=None,
        precision=profile.precision,
        world_size=sum(host.num_processes for host in hosts),
        master=master or LOOPBACK,
        job_args=words,
    )


def master_of(profile: Profile) -> str | None:
    """The address of the first host, as the profile says it; None where it does not."""
    first = profile.hosts[0]
    if len(profile.hosts) == 1:
        return LOOPBACK
    if profile.launch.master and is_ip(profile.launch.master):
        return profile.launch.master
    return first.address or (first.host if is_ip(first.host) else None)


def _python(profile: Profile, host: Host) -> str:
    return host.python or ("python3" if host.activate or profile.job.wrap else "")


def _chosen(profile: Profile) -> tuple[str, ...]:
    """Options of the built-in job that the profile gives by keys of their own."""
    if not profile.job.builtin:
        return ()
    given = {
        "--strategy": profile.parallel.strategy,
        **dict(size_arguments(profile, None)),
        "--precision": profile.precision,
        "--backend": profile.launch.backend,
    }
    return tuple(word for name, value in given.items() if value != "auto" for word in (name, value))


def _host(profile: Profile, rank: int, target: Target, master: str) -> HostPlan:
    host = profile.hosts[rank]
    launcher, python = LAUNCHERS[profile.launch.launcher], _python(profile, host) or "python3"
    place = Place(
        profile=profile,
        counts=tuple(one.num_processes or 1 for one in profile.hosts),
        gpus=tuple(one.gpus for one in profile.hosts),
        node_rank=rank,
        python=python,
        target=target,
        backend=profile.launch.backend,
        master=master,
        port=profile.launch.ports[0],
    )
    own = profile.host_env(rank)
    return HostPlan(
        node_rank=rank,
        name=host.name,
        num_processes=place.num_processes,
        first_rank=place.first_rank,
        python=python,
        workdir=profile.workdir(rank),
        command=launcher.by_hand(place),
        env={**_devices(profile, host), **{name: one.value for name, one in launcher.variables(place).items()}, **own},
        activate=host.activate,
        gpus=host.gpus,
        interface=host.interface,
        reasons={},
        references=frozenset(name for name, text in own.items() if references(text)),
        launcher_args=launcher.launcher_args(place),
    )


def _devices(profile: Profile, host: Host) -> dict[str, str]:
    """As the plan of a run has them."""
    if host.gpus:
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, host.gpus)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if profile.launch.backend != "gloo" and host.gpus is None:
        return {}
    alone = not any(one.gpus for one in profile.hosts)
    return {"CUDA_VISIBLE_DEVICES": "", **({"ACCELERATE_USE_CPU": "true"} if alone else {})}
