"""Ends all processes of an attempt (SIGTERM, then SIGKILL in rounds until none remains), and reports what they hold."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Callable

from ...protocol.containers import container_name, removal_words
from ...protocol.events import Held, LeftProcess
from .. import ports, procs
from ..folders import user_name
from ..probe.gpu import has_device
from ..telemetry.gpu_nvml import LIBRARY, memory_by_process

if TYPE_CHECKING:
    import subprocess

_ROUND = 0.02
_REMOVAL = "20"
"""Seconds that a container engine has to remove a container without processes."""

Members = Callable[[], "set[int]"]
Tagged = Callable[["dict[int, procs.Proc]"], "set[int]"]


def attempt_processes(run: str, node: int, root: int | None, everything: bool = False) -> set[int]:
    """The living processes of a run on this host: by tag, and everything below `root` in other sessions.

    Helpers of `root` stay in its session; launchers get a new one, and their descendants can leave that only for a
    newer one. With `everything`, the helpers are included.
    """
    found = procs.table()
    members = procs.tagged(found, run, node)
    # What forks and ends faster than a table is read is not in any table, but among those that appeared since.
    new = {proc.pid: proc for proc in procs.newer(found)}
    found.update(new)
    members |= procs.tagged(new, run, node)
    if root is not None and root in found:
        own = found[root].session
        members |= {pid for pid in procs.descendants(found, root) if everything or found[pid].session != own}
    return {pid for pid in members if not found[pid].dead and pid != os.getpid()}


class Ending:
    """One termination of an attempt, advanced by `step`.

    Args:
        members: Finds the living processes.
        launcher: The process that gets the only TERM, since it forwards it; None if it has ended.
        ranks: Finds the ranks among the processes; processes that outlive launcher and ranks get no full grace.
        grace: Seconds until KILL.
        ask: Whether to send the TERM; False only waits for processes to end.
        ours: Finds those of the run among new processes. None if the users who set the tags are not trusted: then only
            children of killed processes are killed with them, and a pid that another process may have got since it was
            found is checked again.
        unexplained: Whether only the launcher can still report how a rank ended; then it is left to end on its own.
    """

    def __init__(
        self,
        members: Members,
        launcher: int | None,
        ranks: Members,
        grace: float,
        ask: bool = True,
        ours: Tagged | None = None,
        unexplained: Callable[[], bool] = lambda: False,
    ) -> None:
        self._members = members
        self._unexplained = unexplained
        self._ours = ours
        self._launcher = launcher
        self._ranks = ranks
        self._deadline = time.monotonic() + grace
        self._asked = ask
        self._empty = 0
        self._killing: float | None = None
        self._orphaned = False
        self.seen: set[int] = set()
        """All processes found so far."""
        self.left: list[LeftProcess] = []
        if ask and launcher is not None:
            _send(launcher, signal.SIGTERM)

    def hurry(self) -> None:
        """Kill now, without waiting for the rest of the grace."""
        self._deadline = 0.0

    def step(self, now: float) -> float | None:
        """Do one round; returns the seconds until the next is due, None when the ending is complete."""
        found = self._members()
        self.seen |= found
        if not found:
            self._empty += 1
            return None if self._empty >= 2 else _ROUND / 2
        self._empty = 0
        if now < self._deadline:
            self._wait_kindly(found, now)
            return _ROUND
        if self._killing is None:
            self._killing = now
        if now - self._killing > 5.0:
            self.left = [{"pid": pid, "command": procs.command(pid), "why": _why_left(pid)} for pid in sorted(found)]
            return None
        if self._ours is None:
            self._kill_these_alone(found)
            return _ROUND / 2
        # The launcher last: its death makes the kernel send its ranks another TERM.
        for pid in sorted(found, key=lambda pid: pid == self._launcher):
            _send(pid, signal.SIGKILL)
        _chase_all(found, self._ours)
        return _ROUND / 2

    def _kill_these_alone(self, found: set[int]) -> None:
        """Kill processes and their children, but no process that has taken over the pid of one that has just ended.

        Root does this for untrusted users, who may end a process so that another user's gets its pid.
        """
        begun = {pid: proc.start for pid in found if (proc := procs.read(pid))}
        still = self._members()
        family = {pid: start for pid, start in begun.items() if pid in still}
        for pid, start in family.items():
            _send_only(pid, start, signal.SIGKILL)

        def is_child(proc: procs.Proc) -> bool:
            parent = procs.read(proc.ppid) if proc.ppid in family else None
            if parent is None or parent.start != family[parent.pid]:
                return False
            family[proc.pid] = proc.start
            _send_only(proc.pid, proc.start, signal.SIGKILL)
            return True

        _chase(set(family), is_child)

    def _wait_kindly(self, found: set[int], now: float) -> None:
        if not self._asked:
            return
        if self._launcher in found and all(
            proc is None or proc.ppid != self._launcher for proc in map(procs.read, found)
        ):
            # Its ranks are gone: do not wait for the slow exit of a large interpreter.
            if not self._unexplained():
                _send(self._launcher, signal.SIGKILL)
        elif self._launcher not in found and not self._orphaned and not found & self._ranks():
            self._orphaned = True
            self._deadline = min(self._deadline, now + 0.5)


def _why_left(pid: int) -> str:
    """Why a process survives SIGKILL; "" if that is not known."""
    proc, owner = procs.read(pid), procs.owner(pid)
    if owner is not None and os.getuid() not in (0, owner):
        return f"it belongs to {user_name(owner)}"
    if proc and proc.state == "D":
        return "waiting in the kernel (state D) for a device or a file server"
    return "still being ended by the kernel" if proc and proc.dying else ""


def remove_container(container: object, run: str, node: int) -> subprocess.Popen[bytes] | None:
    """Begin to remove a run's container after its processes have ended; returns the process that does so, if needed.

    Args:
        container: The spec's container, or None.
    """
    words = removal_words(container.get("runtime"), container_name(run, node)) if isinstance(container, dict) else []
    if not words:
        return None
    import subprocess

    # An engine that was killed notices at its first attempt that the container had been stopped.
    words = ["timeout", "-k", "1", _REMOVAL, "sh", "-c", '"$@" || "$@"', "sh", *words]
    null = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        return subprocess.Popen(words, stdin=null, stdout=null, stderr=null)
    return None


def sweep(members: Members, ours: Tagged | None = None) -> list[LeftProcess]:
    """Kill all processes that `members` finds, until two rounds find none; returns those that could not be ended."""
    ending = Ending(members, None, set, 0.0, ours=ours)
    while True:
        wait = ending.step(time.monotonic())
        if wait is None:
            return ending.left
        time.sleep(wait)


def _chase_all(family: set[int], ours: Tagged) -> None:
    """Kill what a family starts while it is being killed, and all of `ours` that begin during that time."""
    family = set(family)

    def is_ours(proc: procs.Proc) -> bool:
        if proc.ppid not in family and not ours({proc.pid: proc}):
            return False
        _send(proc.pid, signal.SIGKILL)
        family.add(proc.pid)
        return True

    _chase(family, is_ours)


def _chase(family: set[int], kill: Callable[[procs.Proc], bool]) -> None:
    """Let `kill` judge new processes next to a family, the newest first, before they start others.

    A round that reads the whole table first is too late for processes that live for milliseconds.
    """
    known = {*family, os.getpid()}
    until, quiet = time.monotonic() + 0.25, 0  # seconds that a round follows processes that appear while it kills
    while quiet < 3 and time.monotonic() < until:
        quiet += 1
        for proc in procs.newer(known):
            known.add(proc.pid)
            if kill(proc):
                quiet = 0
        time.sleep(0.001)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def _send_only(pid: int, start: int, number: int) -> None:
    """Send a signal to the process that began at `start`, and to no later one with its pid.

    Python 3.8 sends it by pid, right after checking the start time.
    """
    fd = procs.pidfd(pid)
    try:
        proc = procs.read(pid)
        if proc is None or proc.start != start:
            return
        if fd is not None and hasattr(signal, "pidfd_send_signal"):  # novm
            signal.pidfd_send_signal(fd, number)  # novm
        else:
            os.kill(pid, number)
    except OSError:
        pass
    finally:
        if fd is not None:
            os.close(fd)


_PATIENCE = 3.0
"""Seconds that the kernel and the driver have to release resources."""
_MACHINE = "pid:[4026531836]"
"""The initial PID namespace (PROC_PID_INIT_INO of the kernel): drivers report its pids."""


class Leftover:
    """One check for held resources: call `look` until it returns a value; they have 3 s to be released.

    Args:
        pids: Processes that have ended.
        port: The port that one of them listened on, None if it was on another host.
        gpus: Whether to query the driver; this is done in a thread, since it may hang.
        run: The run of the processes: another run of this user may have got the port since.
    """

    def __init__(
        self, pids: set[int], port: int | None, gpus: bool | None = None, library: str = LIBRARY, run: str = ""
    ) -> None:
        self._run = run
        self._pids = pids
        self._port = port
        self._library = library
        self._deadline = time.monotonic() + _PATIENCE
        self._memory: dict[int, int] | None = None
        if has_device() and procs.pid_namespace() == _MACHINE if gpus is None else gpus:
            threading.Thread(target=self._ask, daemon=True).start()
        else:
            self._memory = {}

    def look(self) -> Held | None:
        """Return the `held` of exit.json (docs/formats.md), empty if nothing is held; None: call again in a moment."""
        holder = None if self._port is None else ports.own_listener(self._port)
        if holder and self._is_of_another_run(holder):
            holder = None
        memory = self._memory
        if (holder is not None or memory or memory is None) and time.monotonic() < self._deadline:
            return None
        held: Held = {}
        if holder is not None and self._port is not None:
            held["port"] = {"port": self._port, "pid": holder or None, "command": procs.command(holder)[:500]}
        if memory:
            held["gpu_memory"] = [{"pid": pid, "bytes": size} for pid, size in sorted(memory.items())]
        return held

    def _is_of_another_run(self, pid: int) -> bool:
        if tag := procs.tag(pid):
            return not tag.startswith(f"{self._run}/")
        *_, part, folder = ["", "", *procs.arguments(pid)]
        return part == "warden" and self._run not in folder

    def _ask(self) -> None:
        while time.monotonic() < self._deadline:
            try:
                found = memory_by_process(self._library)
            except OSError:
                found = {}
            # A pid that is alive has been reused.
            self._memory = {pid: found[pid] for pid in self._pids & set(found) if procs.read(pid) is None}
            if not self._memory:
                return
            time.sleep(0.1)
