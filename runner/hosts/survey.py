"""Connects to all hosts of a profile and probes them concurrently."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
"""Takes progress of a host: node rank, its present step, a note."""

_OWN = "python3"
"""The interpreter that a host finds on its PATH."""
CONNECTS = 16
"""Concurrent connects; more of them are slower for all (sshd's own limits, key exchanges)."""


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def together(errors: Iterable[DisttuiError]) -> str:
    """The texts of several errors; what is the same on several hosts is there once."""
    said = each_once((error.host, (error.place, error.reason, error.cure)) for error in errors)
    return "\n".join(str(DisttuiError(what, cure, host=hosts, place=place)) for hosts, (place, what, cure) in said)


class HostsError(DisttuiError):
    """Several hosts cannot be used; the message names each with its reason."""

    exit_code = 3
    code = "host"

    def __init__(self, errors: Sequence[DisttuiError]) -> None:
        super().__init__(together(errors))
        self.parts = tuple(errors)


@dataclass(frozen=True)
class Surveyed:
    """A host that was reached, and its facts."""

    host: Host
    link: Link
    facts: HostFacts


def open_link(host: Host, connector: Connector, *, any_python: bool = False) -> Link:
    """Reach one host and start its node program. Raises HostError.

    Args:
        any_python: Use the host's own python3 if the given interpreter does not start, as after an environment was
            moved: it serves for all but a start.
    """
    # An interpreter given by name may be on the PATH only after `activate`, which the node program does not need.
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
    """Connect to all hosts and probe them concurrently. A link that breaks is opened a second time.

    Raises:
        HostsError: Some hosts cannot be used; the links to the others are closed.
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
                return one(node, host, again=False)  # the network may have been cut for some seconds
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
"""Launcher → the Python package that it is in."""
_PROGRAMS = {"mpirun": ("mpirun", "orted"), "mpirun-per-host": ("mpirun",)}
"""Launcher → its programs."""


def side_by_side(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Do `work` for all items, `CONNECTS` at a time; the results in the items' order.

    An interrupt ends the waiting immediately: work in progress, such as a connect to a dead host, is abandoned.
    """
    pool = ThreadPoolExecutor(max_workers=CONNECTS, thread_name_prefix="hosts")
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def probe_request(profile: Profile, node: int) -> ProbeRequest:
    """The arguments of the `probe` op for one host of a profile."""
    host, sent = profile.hosts[node], profile.job.sync is not None
    # Code that is sent is checked on this machine: the host does not have it yet.
    return {
        "workdir": "~" if sent else profile.workdir(node),
        "script": None if sent and not _absolute(profile.job.script) else profile.job.script,
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


def _absolute(script: str | None) -> bool:
    return bool(script) and script[:1] in ("/", "~")  # type: ignore[index]


def _wanted_module(profile: Profile, node: int) -> str:
    """The module that the probe searches for; none inside a container or with other search paths."""
    target = profile.job.target
    if profile.job.sync is not None:
        return ""
    return target.value if target.kind == "module" and not _elsewhere(profile, node) else ""


def _elsewhere(profile: Profile, node: int) -> bool:
    paths = {"PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH"}
    return bool(profile.enclosed or paths & profile.host_env(node).keys())


def _wanted_programs(profile: Profile, node: int) -> list[str]:
    """The programs that it searches for; none with another search path."""
    target = profile.job.target
    slurm = [] if profile.slurm is None else list(PROGRAMS)
    if "PATH" in profile.host_env(node):
        return slurm
    if profile.container:
        return [*slurm, profile.container.runtime]
    if profile.job.wrap:
        return [*slurm, profile.job.wrap[0]]
    # A program among the code that is sent is not there yet.
    own = target.kind == "command" and not (profile.job.sync and "/" in target.value)
    return [*slurm, *_launcher_programs(profile, node), *([target.value] if own else [])]


def _launcher_programs(profile: Profile, node: int) -> tuple[str, ...]:
    """Those of the launcher, where the job's search path is known."""
    known = not profile.enclosed and "PATH" not in profile.host_env(node)
    return _PROGRAMS.get(profile.launch.launcher, ()) if known else ()
