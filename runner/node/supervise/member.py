"""This host's part in the gang: carries out the leader's orders and reports the results."""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Callable, Literal

from ...protocol import cause, watch
from ...protocol.cause import FailureReport
from ...protocol.events import Alarm, AttemptBegins, Event, Held, LeftProcess, Stopping, Unhandled
from ...protocol.gang import (
    AttemptProgress,
    GoMessage,
    ListeningMessage,
    Order,
    Report,
    RestMessage,
    VerdictMessage,
    attempt_of,
)
from .. import disk, folders, parcel
from ..gang import messages
from ..host import HostPart
from ..journal import note, stamp
from ..loop import Loop, Timer
from ..observe import stacks
from .attempt import LauncherProcess
from .control import write_stop
from .stop import Ending, Leftover, remove_container

if TYPE_CHECKING:
    import subprocess

_LOOK = 0.25
_LISTENS = 0.02
_ASIDE = "rolled-back-"


Then = Literal["done", "ended"]
"""The messages for the leader once an attempt's processes have ended."""


class Member:
    """Runs attempts on this host.

    Args:
        say: Called with an event.
        send: Called with a message for the leader.
        over: Called once with the outcome when everything on this host has ended.
    """

    def __init__(
        self,
        host: HostPart,
        loop: Loop,
        say: Callable[[Event], None],
        send: Callable[[Report], None],
        over: Callable[[VerdictMessage], None],
    ) -> None:
        self._host = host
        self._zips = [Kept(path) for path in (host.node_zip, host.train_zip) if path]
        self._loop = loop
        self._say = say
        self._send = send
        self._over = over
        self._number = 0
        self._newest = 0
        self._queue: list[Order] = []
        """Orders for the newest attempt that wait until processes of an older one have ended."""
        self._attempt: LauncherProcess | None = None
        self._ending: Ending | None = None
        self._asked = 0.0
        self._held: list[FailureReport] = []
        self._reported: dict[str, float] = {}
        """Rules of `watch` that were reported to the leader → until when they are not reported again."""
        self._alarms: dict[str, watch.RuleName] = {}
        """Active alarms of this host → the rule that acts on them."""
        self._then: list[Then] = []
        self._verdict: VerdictMessage | None = None
        self._stopping = False
        self._listening: Timer | None = None
        self._well = False
        """Whether `done` was sent before the launcher ended."""
        self._lingers: Timer | None = None
        self.left: list[LeftProcess] = []
        self.held: Held = {}
        self.shows: Callable[[], list[str]] = list
        """Returns the conditions of this host that may slow its ranks down, as sentences."""
        self.master_socket: Callable[[], socket.socket | None] = lambda: None
        """On the first host, returns the socket that listens on the master port."""
        loop.every(_LOOK, self._look)
        loop.every(2.0, self._tell_signs)

    @property
    def number(self) -> int:
        """The attempt that this host is in."""
        return self._number

    @property
    def pids(self) -> dict[int, int]:
        """The pid of each rank that has reported."""
        return dict(self._attempt.ranks.pids) if self._attempt else {}

    @property
    def idle(self) -> bool:
        """Whether no process of an attempt runs or is being ended."""
        return self._ending is None and (self._attempt is None or self._attempt.launcher is None)

    @property
    def rest(self) -> RestMessage:
        """This host's attempt, and whether nothing of it remains to be run or reported."""
        return {"attempt": self._number, "idle": self.idle and not self._held and not self._queue}

    def warm(self, number: int) -> None:
        """Start the launcher of an attempt, unless the run has been stopped."""
        self._number = number
        self._newest = max(self._newest, number)
        self._well = False
        self._held.clear()
        self._reported.clear()
        try:
            # A stop file written from now on is read within a second, and ends what has been started.
            if self._stopping or os.path.exists(self._host.path("stop")):
                return
            for kept in self._zips:
                kept.restore()
            self._attempt = LauncherProcess(self._host, number, self._loop, self._say, self._fail)
        except OSError as error:
            name = os.fsdecode(error.filename) if error.filename else ""
            self._fail_launch(f"cannot start the launcher: {name}: {error.strerror}")

    def receive(self, message: Order) -> None:
        """Handle a message from the leader; messages of older attempts are dropped."""
        if message["k"] == "verdict":
            self._verdict = self._verdict or message
            self._queue.clear()
            self._maybe_over()
            return
        attempt = attempt_of(message, self._newest)
        if attempt < self._newest:
            return
        if attempt > self._newest:
            self._newest = attempt
            self._queue.clear()
        if attempt > self._number and message["k"] != "stop" and not self.idle:
            # Processes of both attempts carry the same tag: they could not be distinguished.
            self._queue.append(message)
            self.end("restart", False, [])
        else:
            self._obey(message)

    def _obey(self, message: Order) -> None:
        if message["k"] == "warm":
            if "before" in message:
                self._set_aside(message["before"])
            self.warm(message["attempt"])
        elif message["k"] == "go":
            self._go(message)
        elif message["k"] == "end":
            self.end(message["reason"], message["now"], ["ended"])
        elif message["k"] == "stop":
            self.stop(message["reason"], message["now"], ["ended"])
        elif message["k"] == "stacks":
            stacks.keep(self._host.folder, self._number, message["number"])
        elif message["k"] == "snapshot":
            if self._attempt:
                self._attempt.ranks.ask_for_checkpoint()
        elif message["k"] == "over" or message["k"] == "verdict":
            pass  # the first needs no action, the other was handled before
        elif message["k"] == "take" or message["k"] == "place":
            pass  # likewise
        else:
            raise Unhandled(message)

    def _set_aside(self, before: int) -> None:
        """Rename the checkpoints of this step and later ones, so that the next attempt resumes from an earlier one."""
        if all(rule["do"] != "rollback" for rule in self._host.spec.get("watch") or []):
            return  # the leader may be compromised
        folder, moved = self._host.checkpoints, []
        try:
            # Do not follow links: other runs may keep their checkpoints at the target.
            inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._say(note(f"cannot roll back: {folder} is a link, or not this run's folder"))
                return
        else:
            with suppress(OSError):
                for name in sorted(os.listdir(inside)):
                    step = None if name.startswith(_ASIDE) else watch.step_of_name(name)
                    if step is not None and step >= before:
                        aside = f"{_ASIDE}{self._number}-{name}"
                        with suppress(OSError):  # another host with the same disk has done it
                            os.rename(name, aside, src_dir_fd=inside, dst_dir_fd=inside)
                            moved.append(name)
            os.close(inside)
        if moved:
            self._say(note(f"rolled back to before step {before}: renamed {', '.join(moved[:8])} in {folder}"))
        else:
            self._say(note(f"no checkpoint of step {before} or later in {folder}", "info"))

    def stop(self, reason: str, now: bool, then: list[Then] | None = None) -> None:
        """Stop the run on this host: start no further launcher, and end the running one."""
        self._stopping = True
        try:
            write_stop(self._host.folder, reason, now)
        except OSError:
            pass  # the disk is full; the stop is kept in memory
        self.end(reason, now, then or [])

    def lose_folder(self) -> None:
        """Handle that the run directory was removed: fail, and end the processes, which no viewer could observe."""
        message = f"the run folder {self._host.folder} was removed"
        self._tell(FailureReport(rank=None, kind="folder", type="", message=message, code=None, at=time.time()))
        self.end("failure", False, [])

    def end(self, reason: str, now: bool, then: list[Then]) -> None:
        """End this attempt's processes and send `then` to the leader when they are gone."""
        self._then += then
        if self._ending:
            if now:
                self._ending.hurry()
                if self._attempt:
                    self._attempt.ranks.asked_to_end(0.0)
            return
        if self._attempt and (self._attempt.launcher or self._attempt.members()):
            self._attempt.ranks.look_for_dead()
            self._tell_held()
            self._asked = time.time()
            self._say(Stopping(t=stamp(), e="stopping", reason=reason, now=now, attempt=self._number))
            # A launcher that waits for its start line has nothing to save.
            grace = 0.0 if now or not self._attempt.started else float(self._host.launch["grace"])
            self._start_ending(grace, ask=True)
        else:
            self._ended()

    def child_ended(self, pid: int, status: int) -> None:
        """Handle the end of the launcher, or of an orphan of it."""
        attempt = self._attempt
        if attempt is None:
            return
        if pid != attempt.launcher:
            attempt.ranks.reaped(pid, status)
            return
        end = attempt.launcher_ended(status)
        attempt.ranks.launcher_says(end.get("failures") or [])
        if self._ending:
            return
        if end["code"] < 0:
            # Its ranks then got SIGTERM from the kernel: their ends are not causes.
            self._held.clear()
            self._fail(attempt.launch_failure(end))
            return
        self._tell_held()
        if end.get("port_in_use") and not attempt.ranks.failed:
            self._send({"k": "failed", "attempt": self._number, "cause": None, "port_in_use": True})
        elif end["code"] == 0 and attempt.started and not attempt.ranks.failed:
            attempt.ranks.process_group.end()
            self._then.append("done")
            self._start_ending(float(self._host.launch["grace"]), ask=False)
        elif not attempt.ranks.failed:
            self._fail(attempt.launch_failure(end))

    def _go(self, message: GoMessage) -> None:
        attempt, number = self._attempt, message["attempt"]
        if attempt is None or attempt.number != number or attempt.launcher is None:
            self.warm(number)
        attempt = self._attempt
        if attempt is None or attempt.launcher is None or attempt.started or self._ending:
            return
        master, port = message["master"], message["port"]
        if self._host.node:
            size = self._host.world_size
            self._say(AttemptBegins(t=stamp(), e="attempt", attempt=number, master=master, port=port, world_size=size))
        attempt.go(master, port, self.master_socket(), message.get("mpi"))
        if self._host.node == 0:
            self._await_listening(attempt, port)

    def _await_listening(self, attempt: LauncherProcess, port: int) -> None:
        if self._listening:
            self._listening.cancel()
        if attempt is not self._attempt or attempt.launcher is None or self._ending:
            return
        if attempt.listens(port):
            message: ListeningMessage = {"k": "listening", "attempt": self._number}
            if (mpi := attempt.mpi) is not None:
                message["mpi"] = mpi
            self._send(message)
        else:
            self._listening = self._loop.after(_LISTENS, lambda: self._await_listening(attempt, port))

    def alarm(self, event: Alarm) -> None:
        """Record the beginning or end of an alarm on this host."""
        if event.get("over"):
            self._alarms.pop(event["text"], None)
        elif event["kind"] in watch.ALARMS:
            self._alarms[event["text"]] = watch.ALARMS[event["kind"]]

    def _look(self) -> None:
        if self._attempt is None:
            return
        self._attempt.look()
        now = time.monotonic()
        held = [
            watch.WatchFinding(rule=rule, rank=self._host.ranks[0], step=None, text=text[:300])
            for text, rule in self._alarms.items() if self._attempt.ranks.begun
        ]  # fmt: skip
        for found in [*self._attempt.ranks.watch.take(), *held]:
            # The leader accepts a rule once in this time; a script that invents times must not fill its queue.
            if not self._ending and now >= self._reported.get(found["rule"], now):
                self._reported[found["rule"]] = now + watch.AGAIN
                self._send({"k": "found", "attempt": self._number, **found})
        if self._attempt.well and not self._well and not self._ending:
            self._well = True
            self._send({"k": "done", "attempt": self._number, "left": [], **self._progress()})

    def _tell_signs(self) -> None:
        attempt = self._attempt
        if attempt and attempt.started and attempt.launcher and not self._ending:
            signs = attempt.ranks.signs.message(time.monotonic(), self.shows())
            self._send({**signs, "k": "signs", "attempt": self._number})

    def _fail(self, failure: FailureReport) -> None:
        if self._ending and failure["kind"] != "exception" and failure["at"] >= self._asked:
            return  # caused by ourselves
        if not self._ending and failure["kind"] == "signal" and cause.is_consequence(failure):
            # The launcher ends its ranks because one has failed, and is about to report which.
            self._held.append(failure)
            self._loop.after(1.0, self._tell_held)
        else:
            self._tell(failure)

    def _tell(self, failure: FailureReport) -> None:
        full = disk.fullness(self._host.folder)
        if full:
            failure = _blame_disk(failure, full)
        blamed = messages.clean_cause({"node": self._host.node, **failure})
        self._send({"k": "failed", "attempt": self._number, "cause": blamed, "port_in_use": False})

    def _tell_held(self) -> None:
        held, self._held = self._held, []
        for failure in held:
            if not self._ending:
                self._tell(failure)

    def _fail_launch(self, message: str) -> None:
        self._attempt = None
        self._fail(FailureReport(rank=None, kind="launch", type="", message=message, code=None, at=time.time()))

    def _start_ending(self, grace: float, ask: bool) -> None:
        attempt = self._attempt
        assert attempt is not None
        attempt.ranks.asked_to_end(grace)
        self._ending = Ending(
            attempt.members,
            attempt.gets_term,
            attempt.ranks.living,
            grace,
            ask,
            attempt.tagged,
            attempt.ranks.unexplained,
        )
        self._step()

    def _step(self) -> None:
        assert self._ending is not None
        wait = self._ending.step(time.monotonic())
        if wait is None and self._attempt and self._attempt.launcher and not self._ending.left:
            wait = 0.01  # wait for the launcher's end, which would be reported as a failure later
        if wait is not None:
            self._loop.after(wait, self._step)
            return
        self.left = self._ending.left
        attempt, pids = self._attempt, self._ending.seen
        removal = remove_container(self._host.spec.get("container"), self._host.run, self._host.node)
        if attempt:
            attempt.look(last=True)
            pids |= set(attempt.ranks.pids.values())
            attempt.ranks.close()
        self._verify(Leftover(pids, attempt.port if attempt else None, run=self._host.run), removal)

    def _verify(self, leftover: Leftover, removal: subprocess.Popen[bytes] | None) -> None:
        held = None if removal and removal.poll() is None else leftover.look()
        if held is None:
            self._loop.after(0.02, lambda: self._verify(leftover, removal))
            return
        self.held = held
        if self.left or held:
            self._say({"t": stamp(), "e": "left", "processes": self.left, **held})
        self._ending = None
        self._ended()

    def _ended(self) -> None:
        then, self._then = self._then, []
        made = self._progress()
        left = [one["pid"] for one in self.left[:1000]]
        for word in then:
            if word == "done":
                self._send({"k": "done", "attempt": self._number, "left": left, **made})
            else:
                self._send({"k": "ended", "attempt": self._number, "left": left, **made})
        queue, self._queue = self._queue, []
        for message in queue:
            self._obey(message)
        self._maybe_over(tried=bool(self.left))

    def _progress(self) -> AttemptProgress:
        made = self._attempt.progress() if self._attempt else AttemptProgress(begun=False, saved=False, step=None)
        made["step"] = messages.clean_step(made["step"])
        return made

    def _maybe_over(self, tried: bool = False) -> None:
        """Report the outcome once nothing runs any more, or what runs cannot be ended: `tried` means that was tried."""
        if self._verdict is None or self._ending:
            return
        if self.idle or tried:
            self._over(self._verdict)
        elif self._well and not self._lingers:
            # Seconds that a launcher has to end once the ranks of all hosts have succeeded
            self._lingers = self._loop.after(2.0, lambda: self.end("failure", True, []))
        else:
            self.end("failure", False, [])


def _blame_disk(failure: FailureReport, full: str) -> FailureReport:
    """Adjust a failure on a full disk: one that says only that a process ended is blamed on the disk."""
    if failure["kind"] in ("exit", "launch") or cause.is_consequence(failure):
        who = "" if failure["rank"] is None else f"rank {failure['rank']}: "
        message = f"{full}; {who}{failure['message']}"
        failure = {**failure, "rank": None, "kind": "launch", "type": "", "code": None, "message": message}
    return {**failure, "disk": full}


class Kept:
    """Keeps a shipped zip intact during a run: launchers and ranks start from it hours after it was verified."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._data = parcel.read(path)

    def restore(self) -> None:
        """Rewrite the zip if it was removed (by a cleaner of /tmp) or changed. Raises OSError."""
        if self._data is None or parcel.read(self._path) == self._data:
            return
        folder = os.path.dirname(self._path)
        problem = folders.weakness(folder, make=True) or folders.foreign(folder)
        if problem:
            raise OSError(errno.EPERM, problem, self._path)
        parcel.place(self._path, self._data)
