"""What hosts do now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.api.viewer import Viewer
from runner.runs.places import chosen
from runner.runs.watch import HostNow, HostsWatch

PATIENCE = 20.0
"""Seconds that hosts may take to be reached; slower ones are as they are then."""


def watch_hosts(
    viewer: Viewer,
    hosts: Sequence[str] = (),
    *,
    profile: Path | None = None,
    changed: Callable[[], None] = lambda: None,
    interval: float = 1.0,
) -> HostsWatch:
    """Follow what hosts do, in threads: `start` it, ask it for `now`, `close` it.

    Args:
        hosts: Names of hosts, or of one profile; none: all hosts of runs that are known here, of the user's and the
            team's profiles, and this machine.
        profile: The file of a profile, in the place of names.
        changed: Called, in any thread, whenever `now` would answer something new.
        interval: Seconds between two answers of a host.

    Raises:
        InputError: A name is none, or the profile is broken.
    """
    return HostsWatch(chosen(hosts, profile, viewer.environ), viewer.connector, changed, interval)


def top(viewer: Viewer, hosts: Sequence[str] = ()) -> tuple[HostNow, ...]:
    """What hosts do, once all have told their rates or cannot be reached. Arguments and errors as of `watch_hosts`."""
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
