"""The present load of hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from disttui.runner.api.viewer import Viewer
from disttui.runner.runs.places import chosen
from disttui.runner.runs.watch import HostNow, HostsWatch

PATIENCE = 20.0
"""Seconds to connect to hosts; slower ones are returned as they are then."""


def watch_hosts(
    viewer: Viewer,
    hosts: Sequence[str] = (),
    *,
    profile: Path | None = None,
    changed: Callable[[], None] = lambda: None,
    interval: float = 1.0,
) -> HostsWatch:
    """Follow the load of hosts in threads: `start` it, read `now`, `close` it.

    Args:
        hosts: Names of hosts, or of one profile; none: all hosts of runs that are known here, of the user's and the
            team's profiles, and this machine.
        profile: The file of a profile, in place of names.
        changed: Called, in any thread, when the result of `now` has changed.
        interval: Seconds between two records of a host.

    Raises:
        InputError: A name is not a host, or the profile is invalid.
    """
    return HostsWatch(chosen(hosts, profile, viewer.environ), viewer.connector, changed, interval)


def top(viewer: Viewer, hosts: Sequence[str] = ()) -> tuple[HostNow, ...]:
    """The load of hosts, after all have sent rates or failed. Arguments and errors as of `watch_hosts`."""
    watch = watch_hosts(viewer, hosts, interval=0.5)
    watch.start()
    deadline = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline and not all(_settled(host) for host in watch.now()):
            time.sleep(0.05)
        return watch.now()
    finally:
        watch.close()


def _settled(host: HostNow) -> bool:
    return host.state == "failed" or (host.load is not None and host.load.cpu is not None)
