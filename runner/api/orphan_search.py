"""Reads the load of hosts, and finds what ended runs have left on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.hosts.survey import side_by_side
from disttui.runner.ids import pick
from disttui.runner.protocol.names import RUN
from disttui.runner.protocol.requests import Orphan
from disttui.runner.runs.places import Destination, chosen, of_runs
from disttui.runner.runs.registry import known_runs
from disttui.runner.runs.watch import HostNow, HostsWatch
from disttui.runner.text import clean

_LOAD_PATIENCE = 20.0
"""Seconds to connect to hosts; slower ones are returned unconnected."""


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
    """The load of hosts, after all have sent rates or failed. Arguments and errors as for `watch_hosts`."""
    watch = watch_hosts(viewer, hosts, interval=0.5)
    watch.start()
    deadline = time.monotonic() + _LOAD_PATIENCE
    try:
        while time.monotonic() < deadline and not all(
            host.state == "failed" or (host.load and host.load.cpu is not None) for host in watch.now()
        ):
            time.sleep(0.05)
        return watch.now()
    finally:
        watch.close()


PATIENCE = 60.0
"""Seconds that a host may take to search, and to end what it finds."""


@dataclass(frozen=True)
class Orphans:
    """The answers of hosts."""

    found: Mapping[str, Sequence[Orphan]]
    """Host → its orphans (docs/formats.md, op `orphans`)."""
    problems: tuple[DisttuiError, ...]
    """Why the other hosts could not be asked."""

    @property
    def left(self) -> bool:
        """Whether an orphan is still alive."""
        return any(not one["ended"] for ones in self.found.values() for one in ones)


def orphans(viewer: Viewer, hosts: Sequence[str] = (), *, end: bool = False, run: str | None = None) -> Orphans:
    """Find processes, ports and GPU memory left by ended runs.

    Args:
        hosts: The hosts to search; none: those of all runs that are known here, or this machine.
        end: End them.
        run: Only of this run, by its id or the beginning of it.

    Raises:
        InputError: A name is not a host, `run` no id, or several runs with such an id have left something.
        HostError: No host can be asked.
    """
    if run is None:
        return _search(viewer, hosts, end=end)
    if not RUN.fullmatch(run):
        raise InputError(f"{clean(run)[:100]!r} is not a run id", "Copy it from disttui runs orphans, or omit --run.")
    seen = _search(viewer, hosts, run=run)
    ids = {one["run"] for ones in seen.found.values() for one in ones}
    fits = sorted(one for one in ids if RUN.fullmatch(one) and one.startswith(run))
    whole = pick(run, fits) if fits else run
    if end and fits:
        return _search(viewer, hosts, end=True, run=whole)
    of_run = {host: [one for one in ones if one["run"] == whole] for host, ones in seen.found.items()}
    return Orphans(of_run, seen.problems)


def _search(viewer: Viewer, hosts: Sequence[str], *, end: bool = False, run: str = "") -> Orphans:
    environ = viewer.environ
    places = chosen(hosts, None, environ) if hosts else of_runs(environ) or chosen(["local"], None, environ)
    asked = {"end": end, "run": run, "run_dirs": sorted({known.run_dir for known in known_runs(environ)[0]})}
    answers = side_by_side(lambda place: _ask(viewer, place, asked), places)
    found = {place.name: answer for place, answer in zip(places, answers, strict=True) if isinstance(answer, list)}
    problems = tuple(answer for answer in answers if isinstance(answer, DisttuiError))
    if not found:
        raise problems[0]
    return Orphans(found, problems)


def _ask(viewer: Viewer, place: Destination, asked: Mapping[str, object]) -> list[Orphan] | DisttuiError:
    try:
        found: list[Orphan] = viewer.ask(place.host, "orphans", place.ssh_config, timeout=PATIENCE, **asked)["found"]
        return found
    except DisttuiError as error:
        return error
