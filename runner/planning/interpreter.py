"""Chooses the Python that runs the job on a host. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from disttui.runner.hosts.facts import HostFacts, Interpreter
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Host
from disttui.runner.protocol.names import ENVIRONMENT

SAID = "set in the profile"
"""The reason given for a value from the profile."""


def find_python(profile: Profile, host: Host, facts: HostFacts) -> tuple[str, Interpreter | None, str]:
    """Return the path of the job's interpreter, what the probe found out about it (or None), and why it was chosen."""
    if profile.enclosed:
        return (
            expand(host.python or "python3", facts),
            None,
            f"as found inside {profile.enclosed}, which the probe does not enter",
        )
    if host.python:
        path = expand(host.python, facts)
        known = next((one for one in facts.interpreters if one.source == "profile" or one.path == path), None)
        if profile.job.environment and has_environment(profile, host):
            return path, known, f"the environment of {profile.job.environment.source}"
        said = is_written(profile, "python", host.python)
        return (known.path if known else path), known, SAID if said else "the one that runs disttui"
    if host.activate:
        known = next((one for one in facts.interpreters if one.source == "activate"), None)
        if known:
            return known.path, known, f"what `{host.activate}` gives"
    known = next((one for one in facts.interpreters if one.is_eligible), None)
    if known:
        return known.path, known, f"the first interpreter found that has torch ({known.torch})"
    return "python3", None, "no interpreter with torch was found"


def has_environment(profile: Profile, host: Host) -> bool:
    """Whether the profile has no `job.environment`, or the host's Python is in one that was built."""
    return profile.job.environment is None or bool(host.python and ENVIRONMENT.search(host.python))


def is_written(profile: Profile, key: str, value: str) -> bool:
    """Whether the profile sets `key` to this value, for all hosts or for one; a sandbox adds values of its own."""
    written = profile.as_written()
    hosts = [host for host in written.get("hosts") or () if isinstance(host, Mapping)]
    return value in [one.get(key) for one in (written, *hosts)]


def in_sandbox(profile: Profile, host: Host) -> bool:
    """Whether the host is simulated on this machine by a sandbox, which sets an interface that the profile does not."""
    return host.interface is not None and not is_written(profile, "interface", host.interface)


def expand(path: str, facts: HostFacts) -> str:
    """Replace a leading `~` by the host's home folder; `~user` stays as it is."""
    if path == "~" or path.startswith("~/"):
        return facts.home.rstrip("/") + path[1:]
    return path


def release(version: str) -> tuple[int, int]:
    """Return major and minor of a version such as `2.13.0+cpu`; (0, 0) if it cannot be parsed."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)
