"""Follows the ranks of one attempt on this host: their reports, metrics and deaths."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, Dict, Sequence

from ...protocol.cause import FailureReport
from ...protocol.events import Death, Error, Event, FirstStep, Group, RankBegins, Report, ReportKind
from ...protocol.regular import records as records_in
from ...protocol.watch import Judge
from .. import procs
from ..host import HostPart
from ..journal import Journal, Tail, note, stamp
from ..loop import Loop
from . import deaths
from .deaths import OomWatch
from .log_limit import GrowthWriter, LogLimit
from .reports import report, whole
from .signs import ProcessGroupCheck, Signs

if TYPE_CHECKING:
    from ...protocol.files import LauncherFailure

MESSAGE_LIMIT = 4000
"""Longest error message that a cause keeps, in characters."""
_WORKS = 3.0
"""Seconds that a process group must be up, or logs must grow, until an attempt counts as begun."""


class Ranks:
    """Turns the reports, metrics and deaths of an attempt's ranks into events and failures.

    Args:
        say: Called with an event.
        fail: Called with a failure (a `cause` of docs/formats.md without its node).
    """

    _already_dying: frozenset[int] = frozenset()
    """Ranks that were dying when we asked all ranks to end."""

    def __init__(
        self,
        host: HostPart,
        attempt: int,
        loop: Loop,
        say: Callable[[Event], None],
        fail: Callable[[FailureReport], None],
    ) -> None:
        self._folder = folder = host.attempt_folder(attempt)
        self._host = host
        self._attempt = attempt
        self._loop = loop
        self._say = say
        self._fail = fail
        path = os.path.join(folder, "ranks.jsonl")
        self._reports, self._ends = Tail(path), Journal(path)
        self._metrics = {rank: Tail(os.path.join(folder, f"rank-{rank}.metrics.jsonl")) for rank in host.ranks}
        self._growth = GrowthWriter(folder, host.ranks)
        self._log_limit = LogLimit(folder, host.launch.get("log_limit"), say)
        self._oom = OomWatch()
        self._reported = 0
        self._watched: dict[int, tuple[int | None, procs.Proc]] = {}
        self._over: set[int] = set()
        self._finished: set[int] = set()
        self._due: float | None = None
        """Unix time after which a rank's SIGKILL counts as sent by us."""
        self._grace = 0.0
        self._vanished: dict[int, float] = {}
        """Rank → when it was first found gone or exiting without a reported end."""
        self.pids: dict[int, int] = {}
        self.failed: set[int] = set()
        self.step: int | None = None
        self.started = False
        self.begun = False
        """Whether the ranks have begun to work: there is a metric, or a process group has been up for some seconds, or
        logs have grown for some seconds."""
        self._handlers: Dict[ReportKind, Callable[[Report, int], None]] = {
            "start": self._on_start,
            "group": self._on_group,
            "grouped": lambda record, rank: self.process_group.join(),
            "error": self._on_error,
            "exit": self._on_exit,
        }
        self.process_group = ProcessGroupCheck(host, attempt, say)
        self.signs = Signs(host.ranks, time.monotonic())
        self.watch = Judge(host.spec.get("watch") or [])
        self._grouped: float | None = None
        self._grew: set[int] = set()
        """The seconds in which logs have grown."""
        self._began = time.monotonic()
        self._began_at: set[int] = set()
        """Ranks whose first metrics have been read."""

    def poll(self) -> None:
        """Handle the reports since the last call."""
        for record in map(report, self._reports.records()):
            self._reported += 1
            # Records of ranks.jsonl that are accepted per rank; a rank usually writes about four
            if record is None or self._reported > 100 * len(self._host.ranks):
                continue
            self._handlers[record["e"]](record, record["rank"])
        for rank in [rank for rank, (fd, _) in self._watched.items() if fd is None]:
            self._check(rank)

    def poll_metrics(self) -> None:
        """Process new metrics and the growth of logs."""
        now = time.monotonic()
        grown = self._growth.look()
        for rank in grown:
            self.signs.alive(rank, now)
            self._log_limit.look(rank, self._growth.sizes[rank])
        self._log_limit.look_at_launcher()
        self._note_work(bool(grown), now)
        for rank, tail in self._metrics.items():
            lines = tail.lines()
            # New metrics of a rank that are read at each poll: enough for its usual step time, at a bounded cost
            records = records_in(lines[-64:])
            if records and rank not in self._began_at:
                self._began_at.add(rank)
                for first in records_in(lines[:1]):
                    self.signs.begins(rank, first)
            if records:
                self.signs.steps(rank, records, now)
            for record in records:
                self.watch.hear(rank, record)
            if records and not self.started:
                self.started = self.begun = True
                self._say(FirstStep(t=stamp(), e="step", attempt=self._attempt))
            step = whole(records[-1].get("step"), 1 << 53) if records else None
            if step is not None:
                self.step = max(self.step or 0, step)
        self.process_group.look(self.living(), self.started, now)

    def _note_work(self, grown: bool, now: float) -> None:
        if self.begun:
            return
        if grown:
            self._grew.add(int(now - self._began))
        grouped = self._grouped is not None and now - self._grouped >= _WORKS and bool(self._watched)
        self.begun = grouped or len(self._grew) >= _WORKS

    def living(self) -> set[int]:
        """The pids of the ranks that have not ended."""
        return {proc.pid for _, proc in self._watched.values()}

    def look_for_dead(self) -> None:
        """Record all deaths so far, before ending the other ranks causes more."""
        self.poll()
        for rank in list(self._watched):
            self._check(rank)

    def reaped(self, pid: int, status: int) -> None:
        """Handle the end of an adopted orphan, which may not be a rank."""
        for rank in [rank for rank, (_, proc) in self._watched.items() if proc.pid == pid]:
            self._unwatch(rank)
            self.poll()  # read its last report before its death is noted
            self._ended(rank, procs.exit_code(status), pid)

    def launcher_says(self, failures: Sequence[LauncherFailure]) -> None:
        """Use the launcher's report on how ranks ended, for ranks without a better one."""
        for one in failures:
            self._ended(self._host.ranks[one["local_rank"]], one["code"], one["pid"], one["t"])

    def asked_to_end(self, grace: float) -> None:
        """Note that ranks still alive in `grace` seconds will be killed."""
        # Seconds by which torchrun, which ends its ranks with the same grace, may have begun before us
        self._grace, self._due = grace, time.time() + max(0.0, grace - 1.0)
        self._already_dying = self._already_dying.union(self._vanished)

    def unexplained(self) -> bool:
        """Whether the launcher may still explain the death of a rank that was dying before we asked it to end."""
        return bool(self._already_dying.difference(self._over, self._finished))

    def ask_for_checkpoint(self) -> None:
        """Send SIGUSR1 to the ranks that handle it: it would kill the others."""
        asked = [
            rank
            for rank, (_, proc) in self._watched.items()
            if procs.catches(proc.pid, signal.SIGUSR1) and (now := procs.read(proc.pid)) and now.start == proc.start
        ]
        for rank in asked:
            with suppress(ProcessLookupError):
                os.kill(self._watched[rank][1].pid, signal.SIGUSR1)
        whom = "sent SIGUSR1 to ranks %s" % ", ".join(map(str, sorted(asked)))
        self._say(note("snapshot: %s" % (whom if asked else "no rank of this host handles SIGUSR1")))

    def close(self) -> None:
        for rank in list(self._watched):
            self._unwatch(rank)
        self._oom.close()

    def _on_start(self, record: Report, rank: int) -> None:
        pid, world_size = record["pid"], record["world_size"]
        assert pid is not None
        self.pids[rank] = pid
        # Before it is announced: a process that then kills it must find it watched.
        proc = procs.read(pid)
        # In a container a rank's pid may differ from the one we see.
        if proc is not None and record.get("start_time") in (None, proc.start) and rank not in self._over:
            fd = procs.pidfd(pid)
            self._watched[rank] = (fd, proc)
            if fd is not None:
                self._loop.watch(fd, lambda: self._check(rank))
        self._say(
            RankBegins(
                t=record["t"],
                e="rank",
                attempt=self._attempt,
                rank=rank,
                local_rank=record["local_rank"],
                pid=pid,
                world_size=world_size,
            )
        )
        self._check_world_size(rank, world_size, record["t"])

    def _on_group(self, record: Report, rank: int) -> None:
        self._grouped = self._grouped or time.monotonic()
        self.process_group.join()
        size, backend = record["world_size"], record["backend"]
        self._say(Group(t=record["t"], e="group", attempt=self._attempt, rank=rank, world_size=size, backend=backend))
        self._check_world_size(rank, size, record["t"])

    def _on_error(self, record: Report, rank: int) -> None:
        self._say(
            Error(
                t=record["t"],
                e="error",
                attempt=self._attempt,
                rank=rank,
                type=record["type"],
                message=record["message"],
                traceback=record["traceback"],
                at=record["t"],
            )
        )
        self._fail_once(rank, "exception", record["type"] or "", record["message"] or "", None, record["t"])

    def _on_exit(self, record: Report, rank: int) -> None:
        if record.get("code") == 0:
            self._finished.add(rank)
        elif record.get("code"):
            self._ended(rank, record["code"], record.get("pid"), record["t"], record["said"] or "")

    def _check(self, rank: int) -> None:
        if rank not in self._watched:
            return
        known = self._watched[rank][1]
        now = procs.read(known.pid)
        if now is not None and now.start == known.start and not now.dead:
            if now.dying:
                self._vanished.setdefault(rank, time.time())
            return
        self._unwatch(rank)
        self.poll()  # read its last report before its death is noted
        if now is not None and now.start == known.start:
            self._ended(rank, procs.exit_code(now.status), known.pid)
        else:
            self._vanished.setdefault(rank, time.time())

    def _ended(self, rank: int, code: int | None, pid: int | None, at: float | None = None, said: str = "") -> None:
        if rank in self._over:
            return
        if code == 0:
            self._report_finished(rank, pid)
            return
        self._over.add(rank)
        seen = [when for when in (at, self._vanished.get(rank)) if when is not None]
        at = min(seen, default=time.time())
        if code is not None and rank not in self.failed and not said:
            words = deaths.read(self._log(rank), code)
            if words:
                self._say({**words, "t": stamp(), "e": "error", "attempt": self._attempt, "rank": rank, "at": at})
                self._fail_once(rank, "exception", words["type"], words["message"], None, at)
        if code is not None and code > 0 and rank not in self.failed:
            said = (said or deaths.said(self._log(rank), code)).strip()[:MESSAGE_LIMIT]
        elif code is not None and code < 0 and rank not in self.failed:
            said = deaths.crash(self._log(rank), code)[:MESSAGE_LIMIT]
        death = Death(t=stamp(), e="death", attempt=self._attempt, rank=rank, pid=pid, code=code, at=at)
        if said:
            death["said"] = said
        if code == -signal.SIGKILL and self._due is not None and at >= self._due:
            death["grace"] = self._grace
        elif code in (-signal.SIGKILL, 128 + signal.SIGKILL) and (evidence := self._oom.evidence(pid)):
            death["oom"] = evidence  # a shell reports the second number of its program
        self._say(death)
        if code is not None and code < 0:
            name = procs.signal_name(-code)
            self._fail_once(rank, "signal", name, f"killed by {name}{said and ': ' + said}", code, at)
        else:
            self._fail_once(rank, "exit", "", f"ended with exit code {code}{said and ': ' + said}", code, at)

    def _report_finished(self, rank: int, pid: int | None) -> None:
        """Report the end of a rank that exited with 0 without reporting it, as after os._exit(0)."""
        # For another user's process the system shows 0 as every exit code.
        if rank not in self._finished and pid is not None and procs.owner(pid) == os.getuid():
            self._finished.add(rank)
            self._ends.add({"t": self._vanished.get(rank, stamp()), "rank": rank, "pid": pid, "e": "exit", "code": 0})

    def _log(self, rank: int) -> str:
        return os.path.join(self._folder, f"rank-{rank}.log")

    def _check_world_size(self, rank: int, world_size: Any, at: float) -> None:
        planned = self._host.world_size
        if world_size != planned:
            text = f"rank {rank} has world size {world_size} instead of {planned}"
            self._fail_once(rank, "launch", "WorldSize", text, None, at)

    def _fail_once(self, rank: int, kind: str, type_: str, message: str, code: int | None, at: float) -> None:
        if rank in self.failed:
            return
        self.failed.add(rank)
        # A cause must fit into a frame of the gang, whatever a script raises.
        text = message[:MESSAGE_LIMIT]
        self._fail(FailureReport(rank=rank, kind=kind, type=type_[:200], message=text, code=code, at=at))

    def _unwatch(self, rank: int) -> None:
        fd, _ = self._watched.pop(rank)
        if fd is not None:
            self._loop.forget(fd)
            os.close(fd)
