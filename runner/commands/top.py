"""`disttui top` without the app: one table, or a line of JSON a second."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from runner.render.top import render_top, top_json
from runner.runs.places import Place
from runner.runs.watch import HostNow, HostsWatch
from runner.transport import Connector

PATIENCE = 20.0
"""Seconds that hosts may take to be reached; slower ones stand in the table as what they are."""


def top_once(
    places: Sequence[Place], connect: Callable[[str | None], Connector], *, as_json: bool = False, width: int = 0
) -> tuple[str, int]:
    """One table of all hosts as soon as all have told their rates, and the exit code: 3 when one could not be seen."""
    watch = HostsWatch(places, connect, interval=0.5)
    watch.start()
    deadline = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline and not all(_settled(host) for host in watch.now()):
            time.sleep(0.05)
        hosts = watch.now()
    finally:
        watch.close()
    text = json.dumps(top_json(hosts)) if as_json else render_top(hosts, width)
    return text, 0 if all(host.state == "seen" for host in hosts) else 3


def top_lines(
    places: Sequence[Place],
    connect: Callable[[str | None], Connector],
    say: Callable[[str], None],
    interval: float = 1.0,
) -> None:
    """Print all hosts as one line of JSON every `interval` seconds, until it is interrupted."""
    watch = HostsWatch(places, connect, interval=interval)
    watch.start()
    try:
        while True:
            time.sleep(interval)
            say(json.dumps(top_json(watch.now())))
    finally:
        watch.close()


def _settled(host: HostNow) -> bool:
    return host.state == "failed" or (host.load is not None and host.load.cpu is not None)
