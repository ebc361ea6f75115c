"""What the home screen and the palette list: runs, profiles and hosts that this machine knows. Read in a thread."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import InputError
from runner.paths import inside
from runner.protocol.regular import open_regular, read_regular
from runner.text import clean
from runner.user.config import config_file

if TYPE_CHECKING:
    from runner.api.libraries import LibraryProfile
    from runner.runs.registry import KnownRun

QUIET = 30.0
"""Seconds without data from its hosts after which a run's state is "not seen"."""
POINTS = 24
"""The most losses kept for a run."""
LOOK_BACK = 1 << 18
"""Bytes read from the end of a metrics file for the losses."""
ENDED = ("finished", "failed", "stopped", "lost")


@dataclass(frozen=True)
class RunRow:
    """A run."""

    run: str
    state: str
    """A word that `tui.theme.look` knows."""
    hosts: tuple[str, ...]
    processes: int
    step: int | None
    steps: int | None
    loss: float | str | None
    """Of rank 0; nan, inf or -inf where it is not finite."""
    started: float
    began: float | None
    """By its first host; it may have waited in a queue before."""
    ended: float | None
    seen: float
    """When this machine last received data of it (unix time, s)."""
    by: str
    folder: Path
    profile: str
    """Name of its profile."""
    source: str | None
    """File of its profile."""
    problem: str
    losses: tuple[float, ...] = ()
    """Its losses in the local mirror, the oldest first, thinned out to at most POINTS, and `loss` where it is newer."""
    cause: str = ""
    """Why it failed."""
    tags: tuple[str, ...] = ()
    note: str = ""
    waits: str = ""
    """What it waits for in a queue."""
    waited: bool = False
    """Whether it has only waited in a queue: none of its processes has begun."""
    sandbox: bool = False
    """Whether its hosts are played by this machine: their names are no machine's."""

    @property
    def over(self) -> bool:
        """Whether it has ended for certain."""
        return self.state in ENDED

    @property
    def may_go(self) -> bool:
        """Whether it may be deleted; if its state is "not seen", deleting asks its hosts whether it still runs."""
        return self.over or self.state in ("not seen", "unknown")


@dataclass(frozen=True)
class ProfileRow:
    """A profile that can be named."""

    name: str
    """The shortest that means it."""
    path: Path
    origin: str
    """own, team or built in."""
    hosts: tuple[str, ...] = ()
    processes: tuple[int | None, ...] = ()
    """Per host; None where the probe decides."""
    description: str = ""
    problem: str = ""
    """The first error in it, with its place."""
    library: str = ""
    """The library that it lies in."""
    shadowed_by: str = ""
    """The full name of the profile that its bare name means; empty: itself."""


@dataclass(frozen=True)
class HostRow:
    """A host that a profile or a run names."""

    name: str
    runs: tuple[RunRow, ...]
    """The runs that go on there as far as is known here."""
    profiles: tuple[str, ...]


@dataclass(frozen=True)
class Shelf:
    """All runs, profiles and hosts, as they were at one moment."""

    runs: tuple[RunRow, ...] = ()
    profiles: tuple[ProfileRow, ...] = ()
    hosts: tuple[HostRow, ...] = ()
    problems: tuple[str, ...] = ()
    remotes: tuple[str, ...] = ()
    """The libraries that are shared by a git repository."""
    read: bool = False
    """False before the first read."""

    def stale(self, now: float) -> bool:
        """Whether a run has been silent for longer than QUIET seconds, so that its state must become "not seen"."""
        return any(now - row.seen > QUIET and not row.over and row.state != "not seen" for row in self.runs)

    @property
    def newcomer(self) -> bool:
        """Whether the user has no runs and no profiles but the built-in ones."""
        return self.read and not self.runs and all(row.origin == "built in" for row in self.profiles)


def read_shelf(environ: Mapping[str, str], now: float) -> Shelf:
    """Read everything anew."""
    from runner.api.libraries import list_library
    from runner.runs.registry import known_runs

    known, problems = known_runs(environ)
    runs = tuple(_run_row(run, now) for run in known)
    try:
        listed = list_library(environ, runs=False)
    except InputError as error:  # the config's libraries
        listed, problems = [], [*problems, str(error)]
    problems += [f"library {each.library.name}: {each.problem}" for each in listed if each.problem]
    profiles = tuple(_profile_row(one) for each in listed for one in each.profiles if not one.entry.problem)
    remotes = tuple(each.library.name for each in listed if each.library.url)
    return Shelf(runs, profiles, tuple(_hosts(runs, profiles)), tuple(map(clean, problems)), remotes, read=True)


def fingerprint(environ: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """A value that changes when `read_shelf` would return something new.

    Reads the config, walks through all libraries, and makes one stat call per profile and a few per run.
    """
    from runner.profile.composition import PERSONAL
    from runner.profile.library import INVENTORIES, libraries, profiles_in
    from runner.runs.store import mirrors_folder

    config = config_file(environ)
    watched = [config, config.with_name(PERSONAL)]  # type: ignore[unsafe-path]
    with suppress(InputError):  # `read_shelf` has it as a problem
        for library in libraries(environ):
            watched += [entry.path for entry in profiles_in(library)]
            watched += (library.folder / INVENTORIES).glob("*.y*ml")  # type: ignore[unsafe-path]
    with suppress(OSError):
        for run in mirrors_folder(environ).iterdir():
            watched += [run / "run.json", run / "seen.json", run / "notes.json", run / "0" / "exit.json"]
            if not watched[-1].exists():
                watched += [run / "0" / "events.jsonl", run / "0" / "telemetry.jsonl"]
    found = []
    for path in watched:
        with suppress(OSError):
            found.append((str(path), path.stat().st_mtime_ns))
    return tuple(sorted(found))


def _run_row(run: KnownRun, now: float) -> RunRow:
    from runner.runs.notes import read_notes

    noted = read_notes(run.folder)
    summary = run.summary()
    seen = _newest(run.folder)
    known = clean(str(summary.get("state") or "unknown"))
    state = "not seen" if known not in ENDED and now - seen > QUIET else known
    began = _number(summary.get("began"), float)
    return RunRow(
        run=run.run, state=state, hosts=tuple(clean(host.name) for host in run.hosts),
        processes=sum(host.nproc for host in run.hosts),
        step=_number(summary.get("step"), int), steps=_number(summary.get("steps"), int),
        loss=summary.get("loss"),
        started=run.started, began=began, ended=_number(summary.get("ended"), float), seen=seen, by=clean(run.by),
        folder=run.folder, profile=run.name, source=run.source, problem=clean(run.problem),
        losses=losses(run.folder, _number(summary.get("attempt"), int) or 1, summary.get("loss")),
        cause=_dropped(summary) or _cause(run.folder),
        tags=noted.tags, note=noted.note, waits=_waits(summary) if state == "queued" else "",
        waited=known == "queued" or "dropped" in summary or (began is None and "slurm" in run.profile),
        sandbox=run.sandbox,
    )  # fmt: skip


def _waits(summary: Mapping[str, object]) -> str:
    from runner.render.slurm import waiting_words

    job, waits, start = (str(summary.get(name) or "") for name in ("job", "waits", "start"))
    return (f"job {clean(job)}: " if job else "") + waiting_words(waits, start)


def _dropped(summary: Mapping[str, object]) -> str:
    from runner.ids import short
    from runner.render.waiting import dropped_words

    why = str(summary.get("dropped") or "")
    return dropped_words(short(str(summary["run"])), why) if why else ""


def losses(folder: Path, attempt: int, newest: float | str | None) -> tuple[float, ...]:
    """The latest losses of rank 0 in a mirror's files, thinned out, and the newest, which a host may have said."""
    path = inside(folder / "0", f"attempt-{attempt}") / "rank-0.metrics.jsonl"
    found = _losses(path, _changed(path))
    return (*found, newest) if isinstance(newest, float) and found[-1:] != (newest,) else found


@lru_cache(256)
def _losses(path: Path, changed: int) -> tuple[float, ...]:
    lines: list[bytes] = []
    with suppress(OSError), open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOOK_BACK))
        lines = file.read(LOOK_BACK).splitlines()[int(size > LOOK_BACK) :]
    found = [value for line in lines if (value := _loss_of(line)) is not None]
    step = max(1.0, (len(found) - 1) / (POINTS - 1))
    return tuple(found[round(at * step)] for at in range(min(POINTS, len(found))))


def _loss_of(line: bytes) -> float | None:
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict):
            value: float | None = _number(record.get("loss"), float)
            return value
    return None


def _cause(folder: Path) -> str:
    """The cause in the leader's exit.json, as `rank 3: ValueError: no such token`; empty without one."""
    end: object = None
    with suppress(OSError, ValueError, RecursionError):
        end = json.loads(read_regular(folder / "0" / "exit.json"))
    cause = end.get("cause") if isinstance(end, dict) else None
    if not isinstance(cause, dict):
        return ""
    parts = [str(cause.get(name) or "") for name in ("type", "message")]
    words = ": ".join(filter(None, parts)) or str(cause.get("kind") or "")
    rank = cause.get("rank")
    return clean(f"rank {rank}: {words}" if isinstance(rank, int) else words)[:300]


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
    """Hosts of running runs, and of the profiles of user and team; examples and sandboxes name no real machines."""
    mine = [row for row in profiles if row.origin != "built in"]
    going = [row for row in runs if not row.over and not row.sandbox]
    names = {host for row in going for host in row.hosts}
    names |= {host for row in mine for host in row.hosts}
    for name in sorted(names | {"local"}, key=lambda name: (name == "local", name)):
        alive = tuple(row for row in going if name in row.hosts)
        yield HostRow(name, alive, tuple(row.name for row in mine if name in row.hosts))


def _newest(folder: Path) -> float:
    newest = 0.0
    for name in ("run.json", "seen.json", "0/events.jsonl", "0/telemetry.jsonl", "0/exit.json"):
        with suppress(OSError):
            newest = max(newest, (folder / name).stat().st_mtime)
    return newest


def _number(value: Any, kind: type) -> Any:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return kind(value) if usable else None
