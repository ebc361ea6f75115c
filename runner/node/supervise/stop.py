"""Ends all processes of an attempt: by SIGTERM first, then by SIGKILL in rounds until nothing is left."""

from __future__ import annotations

import os
import signal
import time
from typing import Callable

from ...protocol.events import LeftProcess
from .. import procs

_ROUND = 0.02
_GIVE_UP = 5.0
_STRAGGLERS = 0.5
_CHASE = 0.25
"""Seconds that a round follows those that come while it kills."""
_QUIET = 3

Members = Callable[[], "set[int]"]
Tagged = Callable[["dict[int, procs.Proc]"], "set[int]"]


def attempt_processes(run: str, node: int, root: int | None, everything: bool = False) -> set[int]:
    """The living processes of a run on this host: by tag, and everything below `root` in other sessions.

    Helpers of `root` stay in its session; launchers get a new one, and their descendants can leave that only for a
    newer one. With `everything`, the helpers count as well.
    """
    found = procs.table()
    members = procs.tagged(found, run, node)
    # What forks and ends faster than a table is read is in none, but among those that came meanwhile.
    new = {proc.pid: proc for proc in procs.newer(found)}
    found.update(new)
    members |= procs.tagged(new, run, node)
    if root is not None and root in found:
        own = found[root].session
        members |= {pid for pid in procs.descendants(found, root) if everything or found[pid].session != own}
    return {pid for pid in members if not found[pid].dead and pid != os.getpid()}


class Ending:
    """One ending, advanced by `step`.

    Args:
        members: Finds the living processes.
        launcher: Gets the only TERM, since it passes it on; None when it has ended.
        ranks: Finds the ranks among the processes; processes that outlive launcher and ranks get no full grace.
        grace: Seconds until KILL.
        ask: Whether to send the TERM; False waits for processes to end by themselves.
        ours: Finds those of the run among processes that have just begun. None where those who set the tags are not
            trusted: then what is killed takes along its own children alone, and a number that another process may
            have got since it was found is looked at once more.
    """

    def __init__(
        self,
        members: Members,
        launcher: int | None,
        ranks: Members,
        grace: float,
        ask: bool = True,
        ours: Tagged | None = None,
    ) -> None:
        self._members = members
        self._ours = ours
        self._launcher = launcher
        self._ranks = ranks
        self._deadline = time.monotonic() + grace
        self._asked = ask
        self._empty = 0
        self._killing: float | None = None
        self._orphaned = False
        self.seen: set[int] = set()
        """All processes that it has found."""
        self.left: list[LeftProcess] = []
        if ask and launcher is not None:
            _send(launcher, signal.SIGTERM)

    def hurry(self) -> None:
        """Kill now, without waiting for the rest of the grace."""
        self._deadline = 0.0

    def step(self, now: float) -> float | None:
        """Do one round; returns the seconds until the next is due, None when it is over."""
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
        if now - self._killing > _GIVE_UP:
            self.left = [{"pid": pid, "command": procs.command(pid)} for pid in sorted(found)]
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
        """Kill them and their children, and nobody who has got the number of one that has just ended.

        Root does this for users whom nobody trusts: they end a process and give its number to another user's.
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
            _send(self._launcher, signal.SIGKILL)
        elif self._launcher not in found and not self._orphaned and not found & self._ranks():
            self._orphaned = True
            self._deadline = min(self._deadline, now + _STRAGGLERS)


def sweep(members: Members, ours: Tagged | None = None) -> list[LeftProcess]:
    """Kill all processes that `members` finds, until two rounds find none; returns those that could not be ended."""
    ending = Ending(members, None, set, 0.0, ours=ours)
    while True:
        wait = ending.step(time.monotonic())
        if wait is None:
            return ending.left
        time.sleep(wait)


def _chase_all(family: set[int], ours: Tagged) -> None:
    """Kill what a family starts while it is killed, and all of `ours` that begins meanwhile."""
    family = set(family)

    def is_ours(proc: procs.Proc) -> bool:
        if proc.ppid not in family and not ours({proc.pid: proc}):
            return False
        _send(proc.pid, signal.SIGKILL)
        family.add(proc.pid)
        return True

    _chase(family, is_ours)


def _chase(family: set[int], kill: Callable[[procs.Proc], bool]) -> None:
    """Let `kill` judge what has come beside a family, the newest first: before that starts another.

    A round that reads the whole table first is too late for processes that live for milliseconds.
    """
    known = {*family, os.getpid()}
    until, quiet = time.monotonic() + _CHASE, 0
    while quiet < _QUIET and time.monotonic() < until:
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
    """Send a signal to the process that began then, and to no later one with its number.

    Python 3.8 sends it by the number, right after the look at the start.
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
