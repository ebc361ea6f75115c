"""Plays a run from its mirror: a cursor in time, and the state of the run at that time."""

from __future__ import annotations

import re
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from textual.message import Message
from textual.message_pump import MessagePump

from disttui.runner.errors import InputError
from disttui.runner.formatting import number
from disttui.runner.protocol.regular import read_regular
from disttui.runner.runs.contents import MetricsLine, read_content
from disttui.runner.runs.state import RunState, begin, fold, link
from disttui.runner.runs.store import host_folder
from disttui.runner.untrusted.records import json_object, records
from disttui.tui.run.feed import PACE, Feed, Playback, RunChanged, Snapshot, SnapshotBuilder

KEEP = 2048
"""Minimum records between two kept states. Seeking folds up to this many; in a long run, 1/KEPT of all records."""
KEPT = 128
"""Approximate maximum of states kept of a long run: each holds the newest record of every rank."""
SCANNED = 0.2
"""Share of the loading time that finding the records takes."""
_TIME = re.compile(rb'\{"t": ?(\d{1,12}(?:\.\d{1,18})?)[,}]')
"""The beginning of nearly all records, which gives their time without parsing the rest."""
_CLOSING = ord("}")
SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_ROUNDING = 0.001
"""Seconds by which a record's time may differ from its place on the tape without having been moved into the run."""
_BEYOND = 900.0
"""Seconds for which a host may begin before the leader, or continue after the leader's end."""
END = 0.001
"""Seconds between the last record and the end of the tape."""
LAST = 1.0
"""Seconds before the end within which the last event counts as the end: the run's own record of its end precedes those
of its hosts, and in between the run would be shown as running."""

LEFT = 1.0
"""Seconds of playing after a moment within which it still counts as the cursor's place."""


class ReplayLoading(Message):
    """A share (0 to 1) of the run has been fetched or read; `state` is "fetching" or "loading"."""

    def __init__(self, share: float, state: str = "loading") -> None:
        super().__init__()
        self.share = share
        self.state = state

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ReplayLoading)


class Tape:
    """All records of a mirror in the order of their times. Raises InputError if the folder is not a mirror.

    Keeps the bytes of the files, and the time and place of each record; parses a record when it is folded.
    """

    def __init__(self, mirror: Path) -> None:
        self.mirror = mirror
        self.empty = _empty_state(mirror)
        self.builder = SnapshotBuilder(self.empty, mirror)
        self._files: list[tuple[int, str, bytes]] = []
        self._file = array("L")
        self._start = array("Q")
        self._states: list[RunState] = []
        self._pace = KEEP
        self._last = (0, self.empty)
        """Number of records folded up to the last call of `at`, and the state after them."""
        self.times = array("d")
        self._shifts: dict[int, float] = {}
        """Node rank → seconds by which its clock is ahead of the leader's."""

    def load(self) -> Iterator[float]:
        """Read all files; yield the share that is done, from 0 to 1. Raises InputError if nothing was recorded."""
        self._shifts = self.builder.offsets = self._offsets()
        paths = [(node, path) for node in range(len(self.empty.hosts)) for path in self._paths(node)]
        for done, (node, path) in enumerate(paths):
            self._scan(node, path, self._shifts.get(node, 0.0))
            yield SCANNED * (done + 1) / len(paths)
        count = len(self.times)
        if not count:
            raise InputError(f"{self.mirror}: nothing was recorded", "Give a run's id, or its mirror's folder.")
        self._clamp()
        self.builder.latest = max(self.times)
        order = sorted(range(count), key=self.times.__getitem__)
        self.times = array("d", map(self.times.__getitem__, order))
        self._file = array("L", map(self._file.__getitem__, order))
        self._start = array("Q", map(self._start.__getitem__, order))
        self._pace = max(KEEP, count // KEPT)
        state = self.empty
        for at in range(count):
            if at % self._pace == 0:
                self._states.append(state)
            if at % KEEP == 0:
                yield SCANNED + (1 - SCANNED) * at / count
            state = self._fold(state, at, take=True)
        self._last = (count, state)

    def at(self, now: float) -> Snapshot:
        """The run at a unix time (s)."""
        upto = bisect_right(self.times, now)
        kept = min(upto // self._pace, len(self._states) - 1)
        folded, state = self._last
        if not kept * self._pace <= folded <= upto:
            folded, state = kept * self._pace, self._states[kept]
        for place in range(folded, upto):
            state = self._fold(state, place)
        self._last = (upto, state)
        snapshot = self.builder.snapshot
        moments = snapshot.moments[: bisect_right([moment.time for moment in snapshot.moments], now)]
        seen = {node: now for node, host in enumerate(state.hosts) if host.story.last}
        lost = _lost(state)
        for host in state.hosts:
            # A replay has no links, so a host counts as seen from its first record on.
            if host.story.last:
                state = link(state, host.node, "ended" if host.exit else "gone" if host.node in lost else "seen")
        return replace(snapshot, state=state, moments=moments, now=now, seen=seen)

    def _fold(self, state: RunState, at: int, *, take: bool = False) -> RunState:
        node, name, data = self._files[self._file[at]]
        start = self._start[at]
        record = json_object(data[start : _end(name, data, start)])
        if record is None:
            return state
        try:
            content = read_content(name, record)
            if isinstance(content, MetricsLine):
                now, said = self.times[at] + self._shifts.get(node, 0.0), content.metrics.get("t")
                if type(said) is not float or abs(said - now) > _ROUNDING:
                    content = content._replace(metrics={**content.metrics, "t": now})
            state = fold(state, node, content)
        except ValueError:
            return state
        if take:
            self.builder.take(state, node, content)
        return state

    def _scan(self, node: int, path: Path, offset: float) -> None:
        """Record the time and the place of every record of a file."""
        name = path.relative_to(host_folder(self.mirror, node)).as_posix()
        data = _bytes(path)
        self._files.append((node, name, data))
        start = 0
        while start < len(data):
            end = _end(name, data, start)
            now = _time_of(data, start, end)
            if now is not None or (name == "spec.json" and json_object(data) is not None):
                self.times.append(0.0 if now is None else now - offset)
                self._file.append(len(self._files) - 1)
                self._start.append(start)
            start = end + 1

    def _clamp(self) -> None:
        """Move records from outside of the run to its nearest end: those of ranks, because any script may write them,
        and those of hosts that are more than _BEYOND seconds outside of the leader's records of an ended run."""
        self._clamp_hosts()
        of_rank = [name.endswith(".metrics.jsonl") for _, name, _ in self._files]
        known = [now for now, file in zip(self.times, self._file, strict=True) if now > 0 and not of_rank[file]]
        if known:
            first, last = min(known), max(known)
            for at, file in enumerate(self._file):
                if of_rank[file]:
                    self.times[at] = max(first, min(last, self.times[at]))

    def _clamp_hosts(self) -> None:
        whole = any(node == 0 and name == "exit.json" for node, name, _ in self._files)
        led = [node == 0 and not name.endswith(".metrics.jsonl") for node, name, _ in self._files]
        known = [now for now, file in zip(self.times, self._file, strict=True) if now > 0 and led[file]]
        if whole and known:
            first, last = min(known) - _BEYOND, max(known) + _BEYOND
            for at, file in enumerate(self._file):
                if not led[file] and self.times[at]:  # spec.json has no time
                    self.times[at] = max(first, min(last, self.times[at]))

    def _offsets(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for _, record in records(_bytes(self.mirror / "0" / "events.jsonl"), 0):
            node, offset = (record.get("node", 0), number(record.get("offset"))) if record else (None, None)
            if record and record.get("e") == "clock" and isinstance(node, int) and offset is not None:
                found[node] = offset
        return found

    def _paths(self, node: int) -> list[Path]:
        folder = host_folder(self.mirror, node)
        fixed = [folder / "spec.json", folder / "events.jsonl", folder / "telemetry.jsonl", folder / "exit.json"]
        grown = [*folder.glob("stacks-*.json"), *folder.glob("attempt-*/rank-*.metrics.jsonl")]
        return [path for path in fixed if path.exists()] + sorted(grown)


class ReplayFeed(Feed):
    """Plays a mirror. Its methods may be called from any thread.

    Args:
        lacking: Why part of the run is missing in the mirror.
        lost: Why no host will report how the run ended; empty if one will or has.
        playing: Whether to play from the beginning instead of showing the end.
    """

    def __init__(
        self, target: MessagePump, mirror: Path, lacking: Sequence[str] = (), lost: str = "", *, playing: bool = False
    ) -> None:
        super().__init__(target)
        self._mirror = mirror
        self._lacking = tuple(lacking)
        self._lost = lost
        self._tape: Tape | None = None
        self._wake = threading.Event()
        self._closed = False
        self._playing = playing
        self._speed = 1.0
        self._cursor = 0.0

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def play(self) -> None:
        """Play, or pause; at the end, play from the beginning."""
        self._playing = not self._playing
        if self._playing and self._tape and self._cursor >= self._end:
            self._cursor = self._begin
        self._wake.set()

    def go(self, seconds: float) -> None:
        self.seek(self._cursor + seconds)

    def seek(self, now: float) -> None:
        """Move the cursor to a unix time (s), or to the nearest end of the run if the time is outside of it."""
        if self._tape:
            self._cursor = max(self._begin, min(self._end, now))
            self._wake.set()

    def faster(self, by: int) -> None:
        """Switch to the next higher or lower speed."""
        at = SPEEDS.index(self._speed) + by
        self._speed = SPEEDS[max(0, min(len(SPEEDS) - 1, at))]
        self._wake.set()

    def to_moment(self, by: int) -> None:
        """Go to the next or previous moment."""
        if not self._tape:
            return
        times = [moment.time for moment in self._tape.builder.snapshot.moments]
        if times and self._end - times[-1] < LAST:
            times[-1] = self._end
        # While playing, the cursor has already left the moment that the last key press went to.
        before = self._cursor - (LEFT * self._speed if self._playing else 1e-6)
        at = bisect_right(times, self._cursor + 1e-6) if by > 0 else bisect_left(times, before) - 1
        if 0 <= at < len(times):
            self.seek(times[at])

    @property
    def _begin(self) -> float:
        assert self._tape
        began = self._tape.builder.snapshot.began
        return next((time for time in self._tape.times if time > 0), self._end) if began is None else began

    @property
    def _end(self) -> float:
        assert self._tape
        return self._tape.times[-1] + END

    def run(self) -> None:
        """Load the mirror, show its end or play it, then play and seek as requested."""
        tape = Tape(self._mirror)
        reported = 0.0
        for share in tape.load():
            if self._closed:
                return
            if time.monotonic() - reported > PACE:
                reported = time.monotonic()
                self._target.post_message(ReplayLoading(share))
        self._tape = tape
        self._cursor = self._begin if self._playing else self._end
        shown = None
        last, played = time.monotonic(), False
        while not self._closed:
            passed, last = time.monotonic() - last, time.monotonic()
            if self._playing and played:  # otherwise the time passed during a pause
                self._cursor = min(self._end, self._cursor + passed * self._speed)
                self._playing = self._cursor < self._end
            played = self._playing
            now = (self._cursor, self._playing, self._speed)
            if now != shown:
                shown = now
                moments = tape.builder.snapshot.moments
                playback = Playback(self._begin, self._end, self._playing, self._speed, self._lacking, moments)
                seen = tape.at(self._cursor)
                if self._lost and self._cursor >= self._end:
                    seen = replace(seen, state=_end_without_report(seen.state, self._lost))
                self._target.post_message(RunChanged(replace(seen, playback=playback)))
            if self._wake.wait(PACE if self._playing else None):
                self._wake.clear()


def _end_without_report(state: RunState, why: str) -> RunState:
    for host in state.hosts:
        if host.exit is None:
            state = link(state, host.node, "gone")
    return replace(state, lost=why)


def _lost(state: RunState) -> frozenset[int]:
    """Node ranks of hosts that another host's end reports as lost, and that have no records after that end."""
    ends = [
        (cause.get("node"), end.get("t", 0.0))
        for end in state.exits
        if (cause := end.get("cause")) and cause.get("kind") == "host lost"
    ]
    heard = {host.node: max(host.story.last, host.telemetry["t"] if host.telemetry else 0.0) for host in state.hosts}
    return frozenset(node for node, t in ends if node is not None and heard.get(node, t) < t)


def _empty_state(mirror: Path) -> RunState:
    spec = json_object(_bytes(mirror / "0" / "spec.json"))
    run = json_object(_bytes(mirror / "run.json"))
    try:
        if run is not None:
            hosts = run["hosts"]
            names, counts = tuple(str(h["name"]) for h in hosts), tuple(int(h["nproc"]) for h in hosts)
            one_way = len({(h.get("host"), h.get("user"), h.get("port")) for h in hosts}) == 1
            return begin(str(run["run"]), names, counts, one_way=one_way)
        if spec is not None:
            names, nproc = spec["hosts"], spec["nproc"]
            return begin(str(spec["run"]), tuple(str(name) for name in names), tuple(int(count) for count in nproc))
    except (KeyError, TypeError, ValueError):
        pass
    raise InputError(f"{mirror}: not a run's mirror", "Give a run's id, its mirror's folder, or `example`.")


def _end(name: str, data: bytes, start: int) -> int:
    """The offset of the end of the record that begins at `start`."""
    end = -1 if name.endswith(".json") else data.find(b"\n", start)
    return len(data) if end < 0 else end


def _time_of(data: bytes, start: int, end: int) -> float | None:
    found = _TIME.match(data, start, end)
    if found and data[end - 1] == _CLOSING:
        return float(found[1])
    return number((json_object(data[start:end]) or {}).get("t"))


def _bytes(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError:
        return b""
