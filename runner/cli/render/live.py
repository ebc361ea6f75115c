"""The live view of the command line: ranks' lines on standard output, disttui's messages on standard error."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from disttui.runner.cli.render.output import check_reader, put
from disttui.runner.diagnose.hang import sentences, standings
from disttui.runner.formatting import duration, when
from disttui.runner.hosts.link import SILENCE
from disttui.runner.ids import short
from disttui.runner.protocol.events import AttemptBegins, Event, Stall
from disttui.runner.render.status import (
    loss_of,
    metric_words,
    progress_words,
    stall_words,
    status_line,
    ungrouped,
)
from disttui.runner.runs.contents import Content, EventLine, StacksFile
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.state import RunState
from disttui.runner.text import LineMaker, clean, clean_lines, without_colours

PATIENCE = 1.5
"""Seconds that lines of an apparent traceback wait for the rank's own report of it."""

# torch puts this in front of every line of an uncaught exception once a process group is up.
_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_FIRST = ("Traceback (most recent call last):", "  + Exception Group Traceback (most recent call last):")


class TracebackBuffer:
    """Forwards one rank's lines, except a traceback that the rank also reports as an event."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._since = 0.0
        self._reported: list[str] = []

    def feed(self, lines: list[str]) -> list[str]:
        """Take lines; return those to print now."""
        if not self._held:
            first = next((i for i, line in enumerate(lines) if _bare(line).startswith(_FIRST)), None)
            if first is None:
                return lines
            ready, self._held = lines[:first], lines[first:]
            self._since = time.monotonic()
        else:
            ready, self._held = [], self._held + lines
        return ready + self._match()

    def report(self, traceback: Sequence[str]) -> list[str]:
        """Take a reported traceback; return held lines that are not part of it."""
        self._reported = list(traceback)
        return self._match()

    def release(self, *, everything: bool = False) -> list[str]:
        """Return lines that have waited long enough, or all of them."""
        if not self._held or not (everything or time.monotonic() - self._since > PATIENCE):
            return []
        held, self._held = self._held, []
        return held

    def _match(self) -> list[str]:
        wanted, held = self._reported, self._held
        if not wanted or len(held) < len(wanted):
            return []
        for start in range(len(held) - len(wanted) + 1):
            if [_bare(line) for line in held[start : start + len(wanted)]] == wanted:
                self._held, self._reported = [], []
                return held[:start] + held[start + len(wanted) :]
        return []


def _bare(line: str) -> str:
    return _PREFIX.sub("", without_colours(line))


REDRAW = 0.1
"""Seconds between redraws of the live line."""
PLAIN_EVERY = 10.0
"""Seconds between status lines without a terminal."""
TAIL = 4096
"""Most characters of torchrun's own output kept for the report of a failed launch."""
PAST_LINES = 10
"""Lines of every rank that are shown at first."""

_OF_A_HOST = frozenset({"note", "alarm", "ungrouped"})
_OF_THE_RUN = frozenset({"failed", "straggler", "host"})
"""Kinds of events that are printed; others are in the status line, or at the end."""
_NAMED = 3
"""Most hosts named in a message."""
RANK_LOG = re.compile(r"attempt-(\d+)/rank-(\d+)\.log")
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95)
"""Colours of the hosts' prefixes, in turn; never the only distinction."""


class TextPrinter:
    """Prints a run as text.

    Args:
        out: Takes the ranks' lines.
        err: Takes disttui's messages, and a status line if it is a terminal.
        names: The hosts' names, for a column of even width.
        colour: Whether to use colours.
    """

    def __init__(self, out: TextIO, err: TextIO, names: tuple[str, ...], world_size: int, *, colour: bool) -> None:
        self._out = out
        self._err = err
        # A terminal without control codes, as in an editor, gets none: neither colours nor a redrawn line.
        codes = os.environ.get("TERM") != "dumb"
        self._live = codes and err.isatty()
        self._mixed = self._live and out.isatty()
        self._colour = codes and colour and out.isatty()
        self._width = max(map(len, names), default=0) + 1 + len(str(max(0, world_size - 1)))
        self._places = {name: index for index, name in enumerate(names)}
        self._lines: dict[tuple[str, str], LineMaker] = {}
        self._buffers: dict[tuple[str, str], TracebackBuffer] = {}
        self._missed: dict[int, tuple[str, set[str]]] = {}
        """Node → since when the host is unreachable, and the reported reasons without numbers, which change."""
        self._begun: float | None = None
        """When following began (monotonic clock, s): a question before it may have waited for an answer."""
        self._drawn_at = 0.0
        self._drawn = ""
        self._stall = ""
        self._resumed = 0
        """The attempt last reported as continuing, or not continuing, an earlier one."""
        self._launcher_tails: dict[str, str] = {}

    def log(self, host: str, file: str, data: bytes, *, restart: bool) -> None:
        """Print the lines that these bytes complete."""
        place = (host, file)
        if restart:
            self._lines.pop(place, None)
            return
        rank = RANK_LOG.fullmatch(file)
        if rank is None:
            if file.endswith("/launcher.log"):
                self._launcher_tails[host] = (
                    self._launcher_tails.get(host, "") + clean_lines(data.decode("utf-8", "replace")) + "\n"
                )[-TAIL:]
            return
        lines = self._lines.setdefault(place, LineMaker(colours=self._colour)).feed(data)
        self._print(place, self._buffer(place).feed(lines))

    def record(self, state: RunState, node: int, content: Content) -> None:
        """Print a line for an important event."""
        if isinstance(content, StacksFile):
            self._say_stacks(state)
        elif isinstance(content, EventLine):
            self._say_event(state, node, content.event)

    def _say_event(self, state: RunState, node: int, event: Event) -> None:
        host = state.hosts[node].name
        if event["e"] == "error":
            place = (host, f"attempt-{event['attempt']}/rank-{event.get('rank')}.log")
            traceback = clean_lines((event.get("traceback") or "").rstrip()).split("\n")
            self._print(place, self._buffer(place).report(traceback))
        elif event["e"] == "waiting":
            if event["missing"]:
                self._say_missing(state, event["missing"])
        elif event["e"] == "dial":
            if state.attempt == 0:
                where = f"{clean(event['address'])}:{event['port']}"
                self.say(f"{host} cannot reach {state.hosts[0].name} at {where}: {clean(event['problem'])}")
        elif event["e"] == "attempt":
            if node == 0:
                self._say_attempt(state, event)
        elif event["e"] == "stall":
            self._say_stall(event)
        elif event["e"] == "ungrouped" and (event.get("unknown") or len(ungrouped(state)) > _NAMED):
            pass  # the closing lines say it
        elif event["e"] in _OF_A_HOST or (event["e"] in _OF_THE_RUN and node == 0):
            self._say_described(state, node, event)

    def _say_described(self, state: RunState, node: int, event: Event) -> None:
        from disttui.runner.render.story import describe  # rarely used, and slow to load

        if described := describe(state, node, event):
            self.say((f"{state.hosts[node].name}: " if event["e"] in _OF_A_HOST else "") + described.text)

    def link(self, state: RunState, node: int, kind: str, note: str) -> None:
        """Report when a host becomes unreachable, and when it is back."""
        host = state.hosts[node]
        if kind == "seen":
            self._missed.pop(node, None)
        elif kind == "not seen" and host.exit is None:
            # Without a reason the host has only been silent, since its last frame.
            last = time.localtime(time.time() - (0.0 if note else SILENCE))
            since, reported = self._missed.setdefault(node, (time.strftime("%H:%M:%S", last), set()))
            kind_of_reason = re.sub(r"\d+", "", note)
            if kind_of_reason not in reported:
                reported.add(kind_of_reason)
                why = f" ({note.removeprefix(f'{host.name}: ')})" if note else ""
                # Where a host has ended, the run is ending: only the end of this host is awaited.
                goes_on = "" if state.exits else "the run may still be going, "
                self.say(f"{host.name}: unreachable since {since}{why}; {goes_on}trying again")
        elif kind == "gone":
            self.say(f"{host.name}: {note}")
        elif kind == "failed":
            self.say(f"{note}\nthis viewer cannot continue; the run continues")

    def refresh(self, state: RunState, lag: str = "") -> None:
        """Print lines that were held long enough, and update the status line."""
        check_reader(self._out)
        for place, buffer in self._buffers.items():
            self._print(place, buffer.release())
        now = time.monotonic()
        self._begun = now if self._begun is None else self._begun
        if now - self._drawn_at < (REDRAW if self._live else PLAIN_EVERY):
            return
        over = state.result is not None
        elapsed = state.elapsed if over else max(state.elapsed, now - self._begun)  # this machine may have slept
        if lag and over:
            lag += ", Ctrl-C skips it"
        if state.attempt > 1 and state.attempt != self._resumed and not over:
            self._say_resumption(state)
        if self._live:
            self._drawn_at = now
            line = status_line(state, elapsed, shutil.get_terminal_size().columns, lag)
            if line != self._drawn:
                self._drawn = line
                self._tell(f"\r\x1b[2K{line}")
        elif self._drawn_at == 0.0:
            self._drawn_at = now
        else:
            self._drawn_at = now
            self._tell(f"disttui: {status_line(state, elapsed, 500, lag)}\n")

    def _say_resumption(self, state: RunState) -> None:
        from disttui.runner.render.story import resumption  # rarely used, and slow to load

        if resumed := resumption(state):
            self._resumed = state.attempt
            self.say(resumed.text)

    def say(self, text: str) -> None:
        """Print a message of disttui."""
        self._clear()
        self._tell("".join(f"disttui: {line}\n" for line in clean_lines(text).split("\n")))

    def end(self, state: RunState, folder: Path) -> None:
        """Print all held lines, then the closing lines."""
        from disttui.runner.render.story import ending  # slow to load

        for place, maker in self._lines.items():
            self._print(place, self._buffer(place).feed(maker.flush()))
        for place, buffer in self._buffers.items():
            self._print(place, buffer.release(everything=True))
        self._clear()
        self._tell("\n".join(ending(state, state.elapsed, folder, self._launcher_tails)) + "\n")

    def detached(self, run: str) -> None:
        """Print the id of a run that continues without this viewer."""
        put(self._out, f"{run}\n")

    def _buffer(self, place: tuple[str, str]) -> TracebackBuffer:
        return self._buffers.setdefault(place, TracebackBuffer())

    def _say_missing(self, state: RunState, missing: list[int]) -> None:
        words = []
        for node in missing:
            host = state.hosts[node]
            problems = "; ".join(f"{where}: {clean(why)}" for where, why in host.story.dials.items())
            words.append(f"{host.name} ({problems or host.link})")
        self.say(f"waiting for {', '.join(words)} to join")

    def _say_attempt(self, state: RunState, event: AttemptBegins) -> None:
        number = f"attempt {event['attempt']}: " if event["attempt"] > 1 else ""
        joined = f"all {len(state.hosts)} hosts have joined; " if len(state.hosts) > 1 else ""
        self.say(f"{number}{joined}world size {event['world_size']}, master {clean(event['master'])}:{event['port']}")

    def _say_stall(self, event: Stall) -> None:
        if event.get("over"):
            self.say(stall_words(event))
            return
        pace = event.get("pace")
        usual = f" (usual: every {pace:.0f} s)" if pace else ""
        self.say(f"{stall_words(event)}{usual}; asking every rank for its stack")
        self._stall = event.get("stacks", "")

    def _say_stacks(self, state: RunState) -> None:
        """Print once what the ranks wait for, when every live host has sent its stacks."""
        came = [
            host.exit is not None or (host.stacks is not None and host.stacks.name == self._stall)
            for host in state.hosts
        ]
        if self._stall and all(came):
            self._stall = ""
            for sentence in sentences(standings(state)):
                self.say(sentence)

    def _print(self, place: tuple[str, str], lines: list[str]) -> None:
        if not lines:
            return
        host, file = place
        found = RANK_LOG.fullmatch(file)
        rank = found.group(2) if found else "?"
        prefix = f"{host}:{rank}".ljust(self._width)
        if self._colour:
            prefix = f"\x1b[{_COLOURS[self._places.get(host, 0) % len(_COLOURS)]}m{prefix} │\x1b[0m "
        else:
            prefix += " │ "
        if self._mixed:
            self._clear()
        put(self._out, prefix + ("\n" + prefix).join(lines) + "\n")

    def _clear(self) -> None:
        if self._drawn:
            self._drawn = ""
            self._drawn_at = 0.0
            self._tell("\r\x1b[2K")

    def _tell(self, text: str) -> None:
        put(self._err, text)


class AttachPrinter(TextPrinter):
    """Prints a run that was started elsewhere; `disttui logs` has its earlier output."""

    def __init__(self, run: KnownRun, *, colour: bool) -> None:
        names = tuple(host.name for host in run.hosts)
        super().__init__(sys.stdout, sys.stderr, names, sum(host.nproc for host in run.hosts), colour=colour)
        self._run = run
        self._history: dict[tuple[str, str], deque[str]] | None = {}
        self._begun = time.monotonic() - max(0.0, time.time() - run.started)

    def caught_up(self, state: RunState) -> None:
        """Print the first lines, once all existing records were taken."""
        history, self._history = self._history or {}, None
        self.say(headline(self._run, state))
        newest = f"attempt-{max(1, state.attempt)}/"
        for place in sorted(history, key=lambda place: [int(word) for word in re.findall(r"\d+", place[1])]):
            if place[1].startswith(newest):
                self._print(place, list(history[place]))

    def log(self, host: str, file: str, data: bytes, *, restart: bool) -> None:
        """Keep the last lines until all existing records were taken, then print."""
        if self._history is None or restart or not re.search(r"/rank-\d+\.log$", file):
            super().log(host, file, data, restart=restart)
            return
        place = (host, file)
        lines = self._lines.setdefault(place, LineMaker(colours=self._colour)).feed(data)
        self._history.setdefault(place, deque(maxlen=PAST_LINES)).extend(lines)

    def record(self, state: RunState, node: int, content: Content) -> None:
        """Print only new events."""
        if self._history is None:
            super().record(state, node, content)

    def refresh(self, state: RunState, lag: str = "") -> None:
        """Draw nothing before the first lines."""
        if self._history is None:
            super().refresh(state, lag)


def headline(run: KnownRun, state: RunState) -> str:
    """The state of a run, in one line."""
    counts = " + ".join(f"{host.name} {host.nproc}" for host in run.hosts)
    words = [f"{short(run.run)}, started {when(run.started)} by {clean(run.by)}: {counts}"]
    if state.attempt > 1:
        words.append(f"attempt {state.attempt}")
    words += progress_words(state)
    words += metric_words(state.metrics, loss_of(state))
    if state.result is None:
        words.append(f"{duration(time.time() - run.started)} so far")
    return ", ".join(words)
