"""Connects to all hosts of a profile and probes them concurrently."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeVar

from disttui.runner.errors import DisttuiError, HostError, LinkLostError
from disttui.runner.formatting import each_once
from disttui.runner.hosts.facts import HostFacts, facts_of
from disttui.runner.hosts.link import Link
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Host
from disttui.runner.protocol.requests import ProbeRequest
from disttui.runner.protocol.slurm import PROGRAMS
from disttui.runner.transport import Connector

Tell = Callable[[int, str, str], None]
"""Called with the progress of a host: node rank, current step, note."""

_OWN = "python3"
"""The default interpreter, found in the host's PATH."""
CONNECTS = 16
"""Concurrent connections being opened; more would be slower for all (sshd's limits, key exchanges)."""


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def together(errors: Iterable[DisttuiError]) -> str:
    """Join the texts of several errors; an error that is the same on several hosts appears once."""
    said = each_once((error.host, (error.place, error.reason, error.cure)) for error in errors)
    return "\n".join(str(DisttuiError(what, cure, host=hosts, place=place)) for hosts, (place, what, cure) in said)


class HostsError(DisttuiError):
    """Several hosts cannot be used; the message names each with its reason. Exit code 3."""

    exit_code = 3
    code = "host"

    def __init__(self, errors: Sequence[DisttuiError]) -> None:
        super().__init__(together(errors))
        self.parts = tuple(errors)


@dataclass(frozen=True)
class Surveyed:
    """A connected host and its facts."""

    host: Host
    link: Link
    facts: HostFacts


def open_link(host: Host, connector: Connector, *, any_python: bool = False) -> Link:
    """Connect to a host and start its node program. Raises HostError.

    Args:
        any_python: Use the host's python3 if the profile's interpreter does not start, for example because its
            environment was moved. This is sufficient for everything but starting a run.
    """
    # An interpreter without a path may be in PATH only after `activate`, which the node program does not run.
    python = host.python if host.python and host.python[0] in "/~" else _OWN
    try:
        connection = connector.connect(host.endpoint)
        try:
            return Link(connection, host.name, python)
        except HostError as error:
            if not any_python or python == _OWN or isinstance(error, LinkLostError):
                raise
            problem = error
        connection = connector.connect(host.endpoint)
        try:
            link = Link(connection, host.name, _OWN)
        except HostError:
            raise problem from None
    except ConnectionError as error:
        raise LinkLostError(host.name, f"the link broke while starting: {error}") from None
    link.note = f"{problem.what.splitlines()[0]}; using {_OWN} instead"
    return link


def survey(profile: Profile, connector: Connector, tell: Tell) -> list[Surveyed]:
    """Connect to all hosts and probe them concurrently. A link that breaks is reopened once.

    Raises:
        DisttuiError: A host cannot be used (HostsError for several); all links are closed.
    """

    def one(node: int, host: Host, *, again: bool = True) -> Surveyed | DisttuiError:
        link = None
        try:
            tell(node, "connecting", "")
            link = open_link(host, connector)
            tell(node, "probing", "")
            facts = facts_of(host.name, link.request("probe", **probe_request(profile, node)))
            tell(node, "ready", "")
            return Surveyed(host, link, facts)
        except DisttuiError as error:
            if link:
                link.close()
            if again and isinstance(error, LinkLostError):
                return one(node, host, again=False)  # the network may have been interrupted briefly
            tell(node, "failed", error.sentence)
            return error

    results = side_by_side(lambda item: one(*item), enumerate(profile.hosts))
    errors = [result for result in results if isinstance(result, DisttuiError)]
    if errors:
        for result in results:
            if isinstance(result, Surveyed):
                result.link.close()
        raise errors[0] if len(errors) == 1 else HostsError(errors)
    return [result for result in results if isinstance(result, Surveyed)]


_PACKAGES = {"accelerate-launch": "accelerate", "deepspeed": "deepspeed"}
"""Launcher → its Python package."""
_PROGRAMS = {"mpirun": ("mpirun", "orted"), "mpirun-per-host": ("mpirun",)}
"""Launcher → its programs."""


def side_by_side(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Do `work` for all items, `CONNECTS` at a time; return the results in the items' order.

    An interrupt returns immediately: work in progress, such as connecting to an unreachable host, is abandoned.
    """
    pool = ThreadPoolExecutor(max_workers=CONNECTS, thread_name_prefix="hosts")
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def own_python(host: Host) -> dict[str, str]:
    """The key `python` for `local` without one: disttui's own interpreter, if it has torch; else no key."""
    chosen = host.python or host.activate or not host.endpoint.is_local
    return {} if chosen or find_spec("torch") is None else {"python": sys.executable}


def probe_request(profile: Profile, node: int) -> ProbeRequest:
    """Return the arguments of the `probe` op for one host of a profile."""
    host, sent = profile.hosts[node], profile.job.sync is not None
    # With job.sync the host does not have the code yet, so it is checked on this machine.
    return {
        "workdir": "~" if sent else profile.workdir(node),
        "script": None if sent and not (profile.job.script or "").startswith(("/", "~")) else profile.job.script,
        "command": [] if sent else list(profile.job.command or ()),
        "python": host.python,
        "activate": host.activate,
        "run_dir": profile.launch.run_dir,
        "ports": list(profile.launch.ports),
        "module": _wanted_module(profile, node),
        "programs": _wanted_programs(profile, node),
        "package": "" if _elsewhere(profile, node) else _PACKAGES.get(profile.launch.launcher, ""),
        "version_of": "mpirun" if "mpirun" in _launcher_programs(profile, node) else "",
    }


def _wanted_module(profile: Profile, node: int) -> str:
    """Return the module that the probe looks for; "" in a container, with job.sync or with other search paths."""
    target = profile.job.target
    if profile.job.sync is not None:
        return ""
    return target.value if target.kind == "module" and not _elsewhere(profile, node) else ""


def _elsewhere(profile: Profile, node: int) -> bool:
    paths = {"PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH"}
    return bool(profile.enclosed or paths & profile.host_env(node).keys())


def _wanted_programs(profile: Profile, node: int) -> list[str]:
    """Return the programs that the probe looks for; only Slurm's if the profile sets PATH."""
    target = profile.job.target
    slurm = [] if profile.slurm is None else list(PROGRAMS)
    if "PATH" in profile.host_env(node):
        return slurm
    if profile.container:
        return [*slurm, profile.container.runtime]
    if profile.job.wrap:
        return [*slurm, profile.job.wrap[0]]
    # A program that job.sync sends is not on the host yet.
    own = target.kind == "command" and not (profile.job.sync and "/" in target.value)
    return [*slurm, *_launcher_programs(profile, node), *([target.value] if own else [])]


def _launcher_programs(profile: Profile, node: int) -> tuple[str, ...]:
    """Return the launcher's programs, or () if the job's PATH is unknown."""
    known = not profile.enclosed and "PATH" not in profile.host_env(node)
    return _PROGRAMS.get(profile.launch.launcher, ()) if known else ()
