"""The complete output of ranks and launchers, from the mirror and from the hosts."""

from __future__ import annotations

import re
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from disttui.runner.api.questions import HostNotice, problem_of
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.ids import short
from disttui.runner.runs.contents import growth_of
from disttui.runner.runs.follow import LinkNews, LogRead, Notice
from disttui.runner.runs.following import CaughtUp, Following, RunControl, Update
from disttui.runner.runs.registry import KnownRun, mirror_of
from disttui.runner.runs.remote import Reached, fill, missing, sync
from disttui.runner.runs.state import RunState
from disttui.runner.runs.store import HostStore, held, host_folder
from disttui.runner.text import LineMaker, clean, without_colours
from disttui.runner.untrusted.records import Unfinished

_RANK_LOG = re.compile(r"attempt-(\d+)/(?:rank-(\d+)|launcher)\.log|setup\.log")
_LAUNCHER = -1
"""Used as the rank of the launcher's log, with the output of `activate` and the job's wrapper, and of `setup.log`."""


@dataclass(frozen=True)
class LineFilter:
    """The requested lines; None: all."""

    rank: int | None = None
    host: str | None = None
    since: float | None = None
    """Unix time."""
    grep: re.Pattern[str] | None = None
    tail: int | None = None
    """Number of last lines of each log before `follow`; None: all."""
    times: bool = False
    """Whether to split the lines by the times at which they were written."""

    def file(self, host: str, name: str) -> bool:
        """Whether a host's file is requested."""
        return bool(_RANK_LOG.fullmatch(name)) and self.rank in (None, _numbers(name)[1]) and self.host in (None, host)


class LogLines(NamedTuple):
    """Lines of one log, in order; safe to print."""

    host: str
    attempt: int
    rank: int | None
    """None: the launcher's output; of attempt 0: that of `job.setup`."""
    lines: list[str]
    time: float | None = None
    """Host time when the last of them was written, at most a second late; None: not recorded."""


LogItem = LogLines | HostNotice | CaughtUp


def logs(
    viewer: Viewer,
    run: KnownRun,
    wanted: LineFilter | None = None,
    *,
    follow: bool = False,
    colours: bool = False,
    control: RunControl | None = None,
    local: bool = False,
) -> Iterator[LogItem]:
    """Yield the lines of a run's logs, rank by rank; if `follow`, then `CaughtUp`, and lines as they arrive.

    Args:
        colours: Keep colours in the lines.
        control: Ends the following when its `leave` is set.
        local: Use the mirror alone.

    Raises:
        InputError: The run has no such host or rank.
    """
    wanted, control = wanted or LineFilter(), control or RunControl()
    names = [host.name for host in run.hosts]
    if wanted.host is not None and wanted.host not in names:
        raise InputError(f"{short(run.run)} has no host {clean(wanted.host)!r}", f"It has {', '.join(names)}.")
    if wanted.rank is not None and not 0 <= wanted.rank < sum(host.nproc for host in run.hosts):
        last = sum(host.nproc for host in run.hosts) - 1
        raise InputError(f"{short(run.run)} has no rank {wanted.rank}", f"Its ranks are 0 to {last}.")
    return _Reading(run, names, wanted, colours).everything(viewer, follow, control, local)


class _Reading:
    """Reads the requested lines of logs, from the mirror and from hosts."""

    def __init__(self, run: KnownRun, names: list[str], wanted: LineFilter, colours: bool) -> None:
        self._run = run
        self._names = names
        self._wanted = wanted
        self._colours = colours
        self._makers: dict[tuple[str, str], LineMaker] = {}
        self._missed: dict[int, str] = {}

    def everything(self, viewer: Viewer, follow: bool, control: RunControl, local: bool) -> Iterator[LogItem]:
        """Yield the lines of the completed mirror and, if `follow`, `CaughtUp` and new lines."""
        run = self._run
        with mirror_of(run) as folder:
            # A complete mirror may still lack the beginning of a log after an attach.
            nodes = [node for node in range(len(run.hosts)) if not local and self._lacks(folder, node)]
            with viewer.reach(run, nodes) as reached:
                for node, error in reached.errors.items():
                    yield problem_of(self._names[node], error, "; showing local records")
                for node, error in sync(run, folder, reached).items():
                    yield problem_of(self._names[node], error)
                follow = follow and bool(missing(run, folder))
                yield from self._history(folder, reached, follow)
                if follow:
                    yield CaughtUp()
                    links = [reached.links.get(node) for node in range(len(run.hosts))]
                    opener = partial(viewer.link_to, run)
                    with closing(Following(run, folder, opener, links, control=control, only_look=True)) as following:
                        for update in following:
                            yield from self._take(following.state, update)
                for (host, file), maker in self._makers.items():
                    yield from self._lines(host, file, maker.flush(), time.time())

    def _lacks(self, folder: Path, node: int) -> bool:
        files = held(host_folder(folder, node))
        return "exit.json" not in files or any(
            start > 0 and self._wanted.file(self._names[node], file) for file, (_, start, _) in files.items()
        )

    def _history(self, folder: Path, reached: Reached, follow: bool) -> Iterator[LogItem]:
        """Yield the existing lines; beginnings of logs that the mirror lacks are fetched."""
        found = []
        for node, host in enumerate(self._names):
            store = HostStore(host_folder(folder, node))
            found += [(_place(name), node, name, store) for name in store.files() if self._wanted.file(host, name)]
        for _, node, name, store in sorted(found, key=lambda item: item[:3]):
            found_lines = self._file(node, name, store, reached, follow)
            if self._wanted.tail is None:
                yield from found_lines
            else:
                yield from _last(found_lines, self._wanted.tail)

    def _file(self, node: int, name: str, store: HostStore, reached: Reached, follow: bool) -> Iterator[LogItem]:
        host = self._names[node]
        begin_at = _offset_at(store, name, self._wanted.since) if self._wanted.since else 0
        if begin_at is None:
            return
        if store.files()[name][0] > begin_at:
            if node not in reached.links:
                yield HostNotice(host, f"the beginning of {name} is not stored here")
            else:
                try:
                    fill(reached.links[node], self._run, node, store, name, begin_at)
                except DisttuiError as error:
                    yield problem_of(host, error)
        growth = _growth_of(store, name) if self._wanted.times else _Grown(array("q"), array("d"))
        if self._wanted.times and not growth.sizes:
            yield HostNotice(host, f"{name}: times were not recorded")
        for offset, data in store.read(name, begin_at):
            for moment, piece in _timed(growth, offset, data):
                yield from self._feed(host, name, piece, moment)
        if not follow and (maker := self._makers.pop((host, name), None)):
            yield from self._lines(host, name, maker.flush(), growth.times[-1] if growth.times else None)
        store.close()

    def _take(self, state: RunState, update: Update) -> Iterator[LogItem]:
        if isinstance(update, LogRead):
            host = self._names[update.node]
            if update.restart:
                self._makers.pop((host, update.file), None)
            elif self._wanted.file(host, update.file):
                yield from self._feed(host, update.file, update.data, time.time())
        elif isinstance(update, Notice):
            yield HostNotice(self._names[update.node], update.text)
        elif isinstance(update, LinkNews):
            yield from self._link(state, update)

    def _link(self, state: RunState, news: LinkNews) -> Iterator[HostNotice]:
        """Yield a notice that a host is unreachable, once per reason."""
        if news.kind == "seen":
            self._missed.pop(news.node, None)
            return
        open_ = news.kind == "not seen" and state.hosts[news.node].exit is None
        if open_ and self._missed.get(news.node) != news.note:
            self._missed[news.node] = news.note
            why = f" ({news.note})" if news.note else ""
            yield HostNotice(self._names[news.node], f"unreachable{why}; trying again")

    def _feed(self, host: str, file: str, data: bytes, moment: float | None) -> Iterator[LogLines]:
        maker = self._makers.setdefault((host, file), LineMaker(colours=self._colours))
        yield from self._lines(host, file, maker.feed(data), moment)

    def _lines(self, host: str, file: str, lines: list[str], moment: float | None) -> Iterator[LogLines]:
        grep = self._wanted.grep
        shown = [line for line in lines if grep.search(without_colours(line))] if grep else lines
        if shown:
            attempt, rank = _numbers(file)
            yield LogLines(host, attempt, None if rank == _LAUNCHER else rank, shown, moment)


def _numbers(name: str) -> tuple[int, int]:
    """Attempt and rank (or `_LAUNCHER`) of a log's name; attempt 0 for `setup.log`."""
    found = _RANK_LOG.fullmatch(name)
    return (int(found[1] or 0), int(found[2] or _LAUNCHER)) if found else (0, 0)


def _place(name: str) -> tuple[int, bool, int]:
    """Sort key of a log: by attempt; within an attempt, ranks before the launcher."""
    attempt, rank = _numbers(name)
    return attempt, rank == _LAUNCHER, rank


def _offset_at(store: HostStore, name: str, since: float) -> int | None:
    """The size of a log at a host time; None if it has not grown since."""
    growth = _growth_of(store, name)
    before = max((size for size, moment in zip(*growth, strict=True) if moment < since), default=0)
    return before if not growth.sizes or before < store.files()[name][1] else None


class _Grown(NamedTuple):
    """Sizes of a rank's log in bytes at Unix times; empty if not recorded."""

    sizes: array[int]
    times: array[float]


def _growth_of(store: HostStore, name: str) -> _Grown:
    attempt, rank = _numbers(name)
    growth = f"attempt-{attempt}/growth.jsonl"
    found = _Grown(array("q"), array("d"))
    if rank == _LAUNCHER or growth not in store.files():
        return found
    unfinished = Unfinished()
    for offset, piece in store.read(growth):
        for _, record in unfinished.lines(offset, piece):
            grown = growth_of(record or {})
            if grown and rank in grown.sizes:
                found.sizes.append(grown.sizes[rank])
                found.times.append(grown.t)
    return found


def _timed(growth: _Grown, offset: int, data: bytes) -> Iterator[tuple[float | None, bytes]]:
    """Split a log's data by the times at which it was written: yield (time or None, piece)."""
    sizes, times = growth
    at = bisect_right(sizes, offset)
    begin = 0
    while begin < len(data):
        size, moment = (sizes[at], times[at]) if at < len(sizes) else (offset + len(data), times[-1] if times else None)
        end = max(begin, size - offset)
        if piece := data[begin:end]:
            yield moment, piece
        begin, at = end, at + 1


def _last(items: Iterator[LogItem], most: int) -> Iterator[LogItem]:
    """Yield the last `most` lines of one log, after all its notices."""
    kept: deque[LogLines] = deque(maxlen=most)
    for item in items:
        if isinstance(item, LogLines):
            kept.extend(item._replace(lines=[line]) for line in item.lines[-most:] if most)
        else:
            yield item
    yield from kept
