"""The runs, profiles and hosts that this machine knows, for the home screen and the palette. Read in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from disttui.runner.errors import InputError
from disttui.runner.formatting import gibibytes, number
from disttui.runner.paths import PathError, inside
from disttui.runner.protocol.leases import LATEST
from disttui.runner.protocol.metrics import NOT_FINITE
from disttui.runner.protocol.regular import open_regular
from disttui.runner.runs.summary import cause_text
from disttui.runner.text import clean
from disttui.runner.untrusted.records import json_object
from disttui.runner.user.config import config_file

if TYPE_CHECKING:
    from disttui.runner.api.libraries import LibraryProfile
    from disttui.runner.runs.registry import KnownRun

QUIET = 30.0
"""Seconds without data from its hosts after which a run's state is "not seen"."""
POINTS = 96
"""Maximum number of losses kept for a run."""
LOOK_BACK = 1 << 18
"""Bytes read from the end of a metrics file for the losses."""
ENDED = ("finished", "failed", "stopped", "lost")


@dataclass(frozen=True)
class RunRow:
    """A run of the list, with times as unix times (s)."""

    run: str
    state: str
    """A word that `disttui.tui.theme.look` knows."""
    hosts: tuple[str, ...]
    processes: int
    step: int | None
    steps: int | None
    loss: float | str | None
    """Loss of rank 0; nan, inf or -inf if not finite."""
    started: float
    began: float | None
    """Start by its first host's clock; before that it may have been queued."""
    ended: float | None
    seen: float
    """When this machine last received data of it."""
    by: str
    folder: Path
    profile: str
    """Name of its profile."""
    source: str | None
    """File of its profile."""
    problem: str
    losses: tuple[float, ...] = ()
    """Its losses in the local mirror, the oldest first, thinned out to POINTS, then `loss` if it is newer."""
    pace: float | None = None
    """Seconds per step over its latest records, if known."""
    cause: str = ""
    """Why it failed."""
    doubt: str = ""
    """A sign of trouble in a run that has not failed."""
    tags: tuple[str, ...] = ()
    note: str = ""
    places: tuple[str, ...] = ()
    """What to connect to in place of its hosts, which are reached through it alone."""
    waits: str = ""
    """What it is queued for."""
    waited: bool = False
    """Whether it was only queued: none of its processes has started."""
    saved: str = ""
    """Its newest checkpoint: step (or name) and size."""
    saved_as: str = ""
    """Name, host and size of that checkpoint."""
    sandbox: bool = False
    """Whether its hosts are sandbox hosts on this machine, whose names are not real."""
    foreign: bool = False
    """Whether only its hosts know it, because it was started from another machine."""

    @property
    def over(self) -> bool:
        """Whether it is known to have ended."""
        return self.state in ENDED

    @property
    def may_go(self) -> bool:
        """Whether it may be deleted; if its state is "not seen", deleting asks its hosts whether it still runs."""
        return self.over or self.state in ("not seen", "unknown")


@dataclass(frozen=True)
class ProfileRow:
    """A profile of a library."""

    name: str
    """The shortest name that selects it."""
    path: Path
    origin: str
    """own, team or built in."""
    hosts: tuple[str, ...] = ()
    processes: tuple[int | None, ...] = ()
    """Processes per host; None where the probe decides."""
    description: str = ""
    problem: str = ""
    """The first error in it, with its place."""
    library: str = ""
    """The library that it is in."""
    shadowed_by: str = ""
    """Full name of the other profile that its bare name selects; empty if none."""

    @property
    def example(self) -> bool:
        """Whether its hosts are placeholders."""
        return self.origin == "built in" and self.hosts != ("local",)


@dataclass(frozen=True)
class HostRow:
    """A host that a profile or a run names."""

    name: str
    runs: tuple[RunRow, ...]
    """The known runs that are running there."""
    profiles: tuple[str, ...]

    @property
    def used(self) -> bool:
        """Whether it is this machine or named by a run or profile; others are from the ssh configuration."""
        return self.name == "local" or bool(self.runs or self.profiles)


@dataclass(frozen=True)
class Inventory:
    """All runs, profiles and hosts, as they were at one moment."""

    runs: tuple[RunRow, ...] = ()
    profiles: tuple[ProfileRow, ...] = ()
    hosts: tuple[HostRow, ...] = ()
    problems: tuple[str, ...] = ()
    remotes: tuple[str, ...] = ()
    """The libraries that have a git repository."""
    read: bool = False
    """Whether it has been read; False initially."""

    def stale(self, now: float) -> bool:
        """Whether a run has been silent for longer than QUIET seconds, so that its state must become "not seen"."""
        return any(now - row.seen > QUIET and not row.over and row.state != "not seen" for row in self.runs)

    @property
    def newcomer(self) -> bool:
        """Whether the user has no runs, and no profiles except the built-in ones."""
        return self.read and not self.runs and all(row.origin == "built in" for row in self.profiles)


def read_inventory(
    environ: Mapping[str, str],
    now: float,
    ssh_config: str | None = None,
    take_runs: Callable[[tuple[RunRow, ...]], object] = lambda runs: None,
) -> Inventory:
    """Read everything again; a new user gets the hosts of their ssh configuration.

    Args:
        ssh_config: The ssh configuration file, as for ssh's -F.
        take_runs: Called with the runs before the profiles are read, because shared libraries may be slow.
    """
    from disttui.runner.api.libraries import list_library
    from disttui.runner.runs.registry import known_runs

    known, problems = known_runs(environ)
    runs = tuple(_run_row(run, now) for run in known)
    take_runs(runs)
    try:
        listed = list_library(environ, runs=False)
    except InputError as error:  # in the libraries of the config
        listed, problems = [], [*problems, str(error)]
    problems += [f"library {each.library.name}: {each.problem}" for each in listed if each.problem]
    profiles = tuple(_profile_row(one) for each in listed for one in each.profiles if not one.entry.problem)
    remotes = tuple(each.library.name for each in listed if each.library.url)
    hosts = tuple(_hosts(runs, profiles))
    found = Inventory(runs, profiles, hosts, tuple(map(clean, problems)), remotes, read=True)
    if not found.newcomer:
        return found
    from disttui.runner.hosts.discovery import ssh_hosts

    named = [HostRow(one.host, (), ()) for one in ssh_hosts(ssh_config).candidates]
    return replace(found, hosts=(*named, *hosts))


def fingerprint(environ: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """A value that changes when `read_inventory` would return something new.

    Reads the config, walks through all libraries, and makes one stat call per profile and a few per run.
    """
    from disttui.runner.profile.composition import PERSONAL
    from disttui.runner.profile.library import inventories_in, libraries, profiles_in
    from disttui.runner.runs.store import mirrors_folder

    config = config_file(environ)
    watched = [config, config.with_name(PERSONAL)]  # type: ignore[unsafe-path]
    with suppress(InputError):  # `read_inventory` reports it
        for library in libraries(environ):
            watched += [entry.path for entry in (*profiles_in(library), *inventories_in(library))]
    with suppress(OSError):
        for run in mirrors_folder(environ).iterdir():
            watched += [run / name for name in ("run.json", "seen.json", "ends.json", "notes.json", "saved.json")]
            watched.append(run / "0" / "exit.json")
            if not watched[-1].exists():
                watched += [run / "0" / "events.jsonl", run / "0" / "telemetry.jsonl"]
    found = []
    for path in watched:
        with suppress(OSError):
            found.append((str(path), path.stat().st_mtime_ns))
    return tuple(sorted(found))


def _run_row(run: KnownRun, now: float) -> RunRow:
    from disttui.runner.runs.notes import kept_checkpoint, read_notes

    kept = kept_checkpoint(run.folder)

    noted = read_notes(run.folder)
    summary = run.summary()
    seen = _newest(run.folder)
    known = clean(str(summary.get("state") or "unknown"))
    state = "not seen" if known not in ENDED and now - seen > QUIET else known
    doubt = f"the loss is {summary['loss']}" if summary.get("loss") in NOT_FINITE else ""
    if state == "running" and summary.get("silent"):
        state, doubt = "silent", f"no step for {summary['silent']:.0f} s at the last check"
    began = number(summary.get("began"))
    trend = trend_of(run.folder, _whole(summary.get("attempt")) or 1, summary.get("loss"))
    login = {clean(host.as_host().label()) for host in run.hosts} if run.one_way and len(run.hosts) > 1 else ()
    return RunRow(
        run=run.run, state=state, hosts=tuple(clean(host.name) for host in run.hosts),
        processes=sum(host.nproc for host in run.hosts),
        step=_whole(summary.get("step")), steps=_whole(summary.get("steps")),
        loss=summary.get("loss"),
        started=run.started, began=began, ended=number(summary.get("ended")), seen=seen, by=clean(run.by),
        folder=run.folder, profile=run.name, source=run.source, problem=clean(run.problem),
        losses=trend.losses, pace=trend.pace,
        doubt=doubt, cause=_dropped(summary) or cause_text(summary),
        saved=clean(f"checkpoint {kept.step or kept.name}  {gibibytes(kept.size)}") if kept else "",
        saved_as=clean(f"{kept.name} on {kept.host}, {gibibytes(kept.size)}") if kept else "",
        tags=noted.tags, note=noted.note, waits=_waits(summary) if state == "queued" else "",
        waited=known == "queued" or "dropped" in summary or (began is None and "slurm" in run.profile),
        sandbox=run.sandbox,
        places=tuple(login),
    )  # fmt: skip


def _waits(summary: Mapping[str, object]) -> str:
    from disttui.runner.render.waiting import waiting_words

    job, waits, start = (str(summary.get(name) or "") for name in ("job", "waits", "start"))
    return (f"job {clean(job)}: " if job else "") + waiting_words(waits, start)


def _dropped(summary: Mapping[str, object]) -> str:
    from disttui.runner.ids import short
    from disttui.runner.render.waiting import dropped_words

    why = str(summary.get("dropped") or "")
    return dropped_words(short(str(summary["run"])), why) if why else ""


class Trend(NamedTuple):
    """A run's losses, the oldest first, and its pace (s per step)."""

    losses: tuple[float, ...] = ()
    pace: float | None = None


def trend_of(folder: Path, attempt: int, newest: float | str | None) -> Trend:
    """The latest losses of rank 0 in a mirror, with `newest` (which may be from a host) at the end, and the pace."""
    try:
        path = inside(folder, "0", f"attempt-{attempt}", "rank-0.metrics.jsonl")
    except PathError:  # a link, or a folder that only another user can read
        found = Trend()
    else:
        found = _trend(path, _changed(path))
    if isinstance(newest, float) and found.losses[-1:] != (newest,):
        return found._replace(losses=(*found.losses, newest))
    return found


@lru_cache(256)
def _trend(path: Path, changed: int) -> Trend:
    lines: list[bytes] = []
    with suppress(OSError), open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOOK_BACK))
        lines = file.read(LOOK_BACK).splitlines()[int(size > LOOK_BACK) :]
    records = [json_object(line) or {} for line in lines]
    found = [value for record in records if (value := number(record.get("loss"))) is not None]
    at = [(t, step) for record in records if (t := number(record.get("t"))) and (step := number(record.get("step")))]
    pace = (at[-1][0] - at[0][0]) / (at[-1][1] - at[0][1]) if at and at[-1][1] > at[0][1] else 0.0
    return Trend(tuple(thinned(found, POINTS)), pace if 0 < pace < LATEST else None)


def thinned(values: Sequence[float], most: int) -> Sequence[float]:
    """At most `most` values at equal distances, including the first and the last."""
    step = max(1.0, (len(values) - 1) / (most - 1))
    return [values[round(at * step)] for at in range(min(most, len(values)))]


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _profile_row(one: LibraryProfile) -> ProfileRow:
    entry, header = one.entry, one.header
    return ProfileRow(
        clean(one.name), entry.path, entry.origin, header.hosts, header.processes, header.description, header.problem,
        library=entry.library, shadowed_by=clean(one.shadowed_by),
    )  # fmt: skip


def _hosts(runs: Iterable[RunRow], profiles: Iterable[ProfileRow]) -> Iterable[HostRow]:
    """Yield the hosts of running runs and of all profiles except the built-in ones, and `local`."""
    mine = [row for row in profiles if row.origin != "built in"]
    going = [(row, ("local",) if row.sandbox else row.places or row.hosts) for row in runs if not row.over]
    names = {host for _, hosts in going for host in hosts}
    names |= {host for row in mine for host in row.hosts}
    for name in sorted(names | {"local"}, key=lambda name: (name == "local", name)):
        alive = tuple(row for row, hosts in going if name in hosts)
        yield HostRow(name, alive, tuple(row.name for row in mine if name in row.hosts))


def _newest(folder: Path) -> float:
    newest = 0.0
    for name in ("run.json", "seen.json", "ends.json", "0/events.jsonl", "0/telemetry.jsonl", "0/exit.json"):
        with suppress(OSError):
            newest = max(newest, (folder / name).stat().st_mtime)
    return newest


def _whole(value: object) -> int | None:
    known = number(value)
    return None if known is None else int(known)
