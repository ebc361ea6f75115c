"""`disttui logs`: what the ranks and the launchers printed, whole, from the mirror and from the hosts."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from runner.cli.render.printer import show_update
from runner.cli.signals import Signals
from runner.errors import DisttuiError, InputError
from runner.formatting import number
from runner.hosts.survey import open_link
from runner.ids import short
from runner.records import records
from runner.runs.backfill import fill
from runner.runs.contents import Content
from runner.runs.history import KnownRun, mirror_of
from runner.runs.remote import Reached, missing, reach, sync
from runner.runs.session import Session
from runner.runs.state import RunState
from runner.runs.store import HostStore, held, host_folder
from runner.text import LineMaker, clean, clean_lines, without_colours
from runner.transport import Connector

_RANK_LOG = re.compile(r"attempt-(\d+)/(?:rank-(\d+)|launcher)\.log")
_LAUNCHER = -1
"""In place of a rank: what torchrun, `activate` and the job's wrapper print themselves."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Wanted:
    """Which lines are asked for; None: all."""

    rank: int | None = None
    host: str | None = None
    since: float | None = None
    grep: re.Pattern[str] | None = None

    def file(self, host: str, name: str) -> bool:
        """Whether a host's file is asked for."""
        return bool(_RANK_LOG.fullmatch(name)) and self.rank in (None, _numbers(name)[1]) and self.host in (None, host)


def parse_since(text: str) -> float:
    """The moment that `10m`, `2h` or an ISO date means, as unix time. Raises InputError."""
    if found := re.fullmatch(r"(\d{1,9})([smhd])", text):
        return time.time() - int(found[1]) * _UNITS[found[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        cure = "Give 90s, 10m, 2h, 3d or 2026-03-01T14:00."
        raise InputError(f"--since {clean(text)!r}: no span of time and no date", cure) from None


def parse_grep(text: str) -> re.Pattern[str]:
    """A regular expression. Raises InputError."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"--grep {clean(text)!r}: {error}", "Give a regular expression of Python's kind.") from None


def logs(run: KnownRun, connector: Connector, wanted: Wanted, *, follow: bool = False) -> int:
    """Print the logs, rank by rank, then as they grow if `follow`. Returns the exit code of the command.

    Raises:
        InputError: The run has no such host or rank.
    """
    printer = _Lines(sys.stdout, sys.stderr, run, wanted)
    if wanted.host is not None and wanted.host not in printer.names:
        raise InputError(f"{short(run.run)} has no host {clean(wanted.host)!r}", f"It has {', '.join(printer.names)}.")
    if wanted.rank is not None and not 0 <= wanted.rank < sum(host.nproc for host in run.hosts):
        last = sum(host.nproc for host in run.hosts) - 1
        raise InputError(f"{short(run.run)} has no rank {wanted.rank}", f"Its ranks are 0 to {last}.")
    signals = Signals(only_leave=True)
    with mirror_of(run) as folder:
        # A mirror that is whole may still lack the beginning of a log that somebody attached to.
        nodes = [node for node in range(len(run.hosts)) if _lacks(run, folder, node, wanted)]
        with reach(run, connector, nodes) as reached:
            for error in reached.errors.values():
                printer.say(f"{error.sentence}; shown is what is held here")
            for problem in sync(run, folder, reached):
                printer.say(problem)
            printer.history(folder, reached)
            if not follow or not missing(run, folder):
                printer.flush()
                return 0
            with signals.caught():
                signals.hold_back()
                session = Session(
                    run.begin(),
                    folder=folder,
                    request=run.request(),
                    reopen=lambda node: open_link(run.hosts[node].as_host(), connector),
                    wishes=signals,
                    only_look=True,
                )
                for update in session.follow([reached.links.get(node) for node in range(len(run.hosts))]):
                    show_update(printer, session.state, update)
            printer.flush()
    return 0


def _lacks(run: KnownRun, folder: Path, node: int, wanted: Wanted) -> bool:
    files = held(host_folder(folder, node))
    name = run.hosts[node].name
    return "exit.json" not in files or any(
        start > 0 and wanted.file(name, file) for file, (_, start, _) in files.items()
    )


class _Lines:
    """Prints wanted lines with host and rank before them; a `Printer` for what comes live."""

    def __init__(self, out: TextIO, err: TextIO, run: KnownRun, wanted: Wanted) -> None:
        self._out = out
        self._err = err
        self._run = run
        self._wanted = wanted
        self.names = [host.name for host in run.hosts]
        env = os.environ
        self._colours = out.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
        self._makers: dict[tuple[str, str], LineMaker] = {}
        self._missed: dict[int, str] = {}
        ranks = len(str(max(0, sum(host.nproc for host in run.hosts) - 1)))
        self._width = max(map(len, self.names)) + 1 + ranks
        """Of `host:rank`; `host:launcher` is seldom, and may be longer."""

    def history(self, folder: Path, reached: Reached) -> None:
        """Print what there is, fetching the beginnings that are not held."""
        found = []
        for node, host in enumerate(self._run.hosts):
            store = HostStore(host_folder(folder, node))
            chosen = [name for name in store.files() if self._wanted.file(host.name, name)]
            found += [(_place(name), node, name, store) for name in chosen]
        for _, node, name, store in sorted(found, key=lambda item: item[:3]):
            self._file(node, name, store, reached)

    def _file(self, node: int, name: str, store: HostStore, reached: Reached) -> None:
        host = self.names[node]
        begin_at = _offset_at(store, name, self._wanted.since) if self._wanted.since else 0
        if begin_at is None:
            return
        if store.files()[name][0] > begin_at:
            try:
                if node not in reached.links:
                    raise InputError(f"{host}: the beginning of {name} is not held here")
                fill(reached.links[node], self._run, node, store, name)
            except DisttuiError as error:
                self.say(error.sentence)
        for _, data in store.read(name, begin_at):
            self._feed(host, name, data)
        store.close()

    def log(self, host: str, file: str, data: bytes, *, restart: bool) -> None:
        """Print the wanted lines that these bytes complete."""
        if restart:
            self._makers.pop((host, file), None)
        elif self._wanted.file(host, file):
            self._feed(host, file, data)

    def _feed(self, host: str, file: str, data: bytes) -> None:
        self._print(host, file, self._makers.setdefault((host, file), LineMaker(colours=self._colours)).feed(data))

    def flush(self) -> None:
        """Print unfinished lines."""
        for (host, file), maker in self._makers.items():
            self._print(host, file, maker.flush())

    def _print(self, host: str, file: str, lines: list[str]) -> None:
        grep = self._wanted.grep
        shown = [line for line in lines if grep.search(without_colours(line))] if grep else lines
        if shown:
            attempt, rank = _numbers(file)
            whose = "launcher" if rank == _LAUNCHER else rank
            prefix = f"{host}:{whose}".ljust(self._width) + (f" #{attempt}" if attempt > 1 else "") + " │ "
            self._out.write(prefix + ("\n" + prefix).join(shown) + "\n")
            self._out.flush()

    def record(self, state: RunState, node: int, content: Content) -> None:
        """Nothing: these are logs."""

    def link(self, state: RunState, node: int, kind: str, note: str) -> None:
        """Say when a host is not seen any more, once for every reason."""
        if kind == "seen":
            self._missed.pop(node, None)
        elif kind == "not seen" and state.hosts[node].exit is None and self._missed.get(node) != note:
            self._missed[node] = note
            self.say(f"{self.names[node]}: not seen{f' ({note})' if note else ''}, trying again")

    def caught_up(self, state: RunState) -> None:
        """Nothing: every line has been printed."""

    def refresh(self, state: RunState) -> None:
        """Nothing: every line has been printed."""

    def say(self, text: str) -> None:
        """Say something in disttui's own words."""
        with suppress(OSError):
            self._err.write("".join(f"disttui: {line}\n" for line in clean_lines(text).split("\n")))
            self._err.flush()


def _numbers(name: str) -> tuple[int, int]:
    """Attempt and rank of a log."""
    found = _RANK_LOG.fullmatch(name)
    return (int(found[1]), int(found[2] or _LAUNCHER)) if found else (0, 0)


def _place(name: str) -> tuple[int, bool, int]:
    """Where a log stands among all: by attempt, then the ranks, then the launchers."""
    attempt, rank = _numbers(name)
    return attempt, rank == _LAUNCHER, rank


def _offset_at(store: HostStore, name: str, since: float) -> int | None:
    """Where a log stood at a moment, by the host's clock; None: it did not grow after it."""
    attempt, rank = _numbers(name)
    if rank == _LAUNCHER:
        return 0
    growth = f"attempt-{attempt}/growth.jsonl"
    if growth not in store.files():
        return 0
    before = 0
    for record in _growth(store, growth):
        sizes, moment = record.get("sizes"), number(record.get("t"))
        size = sizes.get(str(rank)) if isinstance(sizes, Mapping) else None
        if isinstance(size, int) and moment is not None and moment < since:
            before = size
    return before if before < store.files()[name][1] else None


def _growth(store: HostStore, name: str) -> Iterator[Mapping[str, Any]]:
    data = b"".join(piece for _, piece in store.read(name))
    return (record for _, record in records(data, 0) if record is not None)
