"""Runs the commands that precede a run, in a process that ends all of theirs when its `serve` has ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator, List, Mapping, NoReturn, Optional, Sequence

from ...protocol.regular import last_text, open_regular, regular
from .. import locks, procs
from ..disk import fullness
from ..problem import Problem
from . import stop

_POLL = 0.05
_DEAD = 90.0
"""Seconds without a sign of life after which another host's claim is void; NFS may show a file as it was 60 s ago."""
_LAST = 15
"""Lines of a failed command's output that are shown."""


class EndedError(Exception):
    """The start was cancelled, or the run was stopped."""


class CommandError(Exception):
    """A command failed; has its exit code, negative for a signal, and its last lines."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(code)
        self.code = code
        self.ended = f"was killed by {procs.signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        self.said = said


class Steps:
    """Runs one command after the other; everything they start carries a tag, and ends with the last of them.

    Args:
        log: The file for the output of all commands.
        run: The run in the tag.
        node: The node rank in the tag.
        environment: Environment variables of the commands.
        cwd: Working folder of the commands.
        tell: Called with the newest line of output from time to time.
        stopped: Returns whether to end early; so does the end of standard input.
    """

    def __init__(
        self,
        log: str,
        run: str,
        node: int,
        environment: Mapping[str, str],
        cwd: str,
        tell: Callable[[str], None],
        stopped: Callable[[], bool] = bool,
    ) -> None:
        self._log, self._run, self._node, self._cwd, self._tell = log, run, node, cwd, tell
        self._environment = {**environment, procs.TAG: _tag(run, node)}
        self._stopped = stopped
        self._reported = time.monotonic()

    def run(self, words: Sequence[str], shown: str = "") -> None:
        """Run a command to its end. Raises CommandError, EndedError, or OSError if it cannot be started."""
        with open(regular(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", 0) as log:
            log.write(b"$ %s\n" % os.fsencode(shown or " ".join(words)))
            begin = os.fstat(log.fileno()).st_size
            child = subprocess.Popen(
                list(words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._cwd, env=self._environment,
                start_new_session=True,
            )  # fmt: skip
        while child.poll() is None:
            self._report()
            if self.is_over():
                # Seconds between TERM and KILL
                ending = stop.Ending(self._members, child.pid, set, 5.0, ours=self._tagged)
                while (pause := ending.step(time.monotonic())) is not None:
                    time.sleep(pause)
                raise EndedError
        if child.returncode:
            if self.is_over(0):  # the stop has killed it before this process looked
                raise EndedError
            raise CommandError(child.returncode, _tail(self._log, begin))

    def is_over(self, pause: float = _POLL) -> bool:
        """Whether to give up; waits up to `pause` seconds for that."""
        return bool(select.select([0], [], [], pause)[0]) or self._stopped()

    def close(self) -> None:
        """End what the commands have left in the background."""
        stop.sweep(self._members, self._tagged)

    def _members(self) -> set[int]:
        return stop.attempt_processes(self._run, self._node, os.getpid(), everything=True)

    def _tagged(self, found: dict[int, procs.Proc]) -> set[int]:
        return procs.tagged(found, self._run, self._node)

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._reported > 0.5:  # seconds between two progress reports
            self._reported = now
            lines = last_text(self._log, 1000).replace("\r", "\n").strip().splitlines()
            self._tell(lines[-1] if lines else "")


def _tail(log: str, begin: int) -> str:
    with open_regular(log) as file:
        file.seek(max(begin, os.fstat(file.fileno()).st_size - 8000))
        return "\n".join(file.read().decode("utf-8", "replace").rstrip().splitlines()[-_LAST:])


@contextlib.contextmanager
def alone(folder: str, name: str, run: str, node: int, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock on what is created once per disk for a block, after ending what a killed holder has left.

    Args:
        run, node: The tag of the block's processes.

    Raises:
        EndedError: Standard input ended while another process held the lock.
        OSError: The folder cannot be written.
    """
    lock = locks.take(name, folder)
    if lock is None:
        tell("waiting for another start with the same step")
    while lock is None:
        if select.select([0], [], [], _POLL)[0]:
            raise EndedError
        lock = locks.take(name, folder)
    holder = os.path.join(folder, f"{name}.{procs.boot_id()[:8]}.holder")
    try:
        if before := last_text(holder, 200):

            def left(found: dict[int, procs.Proc]) -> set[int]:
                return {pid for pid in found if procs.owner(pid) == os.getuid() and procs.tag(pid) == before}

            stop.sweep(lambda: left({pid: one for pid, one in procs.table().items() if not one.dead}), left)
        with open(regular(holder, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(_tag(run, node).encode())
        with _claimed(os.path.join(folder, f"{name}.claim"), tell):
            yield
        _forget(holder)
    except (Problem, EndedError):  # everything has been ended
        _forget(holder)
        raise
    finally:
        lock.close()


@contextlib.contextmanager
def _claimed(path: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Let no other host with this disk do the same: hosts do not see each other's locks on a file server."""
    own = f"{os.uname().nodename}/{procs.boot_id()}"
    _claim(path, own, tell)
    try:
        with touched(path):
            yield
    finally:
        with contextlib.suppress(OSError):
            if os.readlink(path) == own:
                os.unlink(path)


def _claim(path: str, own: str, tell: Callable[[str], None]) -> None:
    """Raises EndedError if standard input ends while another host has the claim."""
    seen, since = ("", 0), time.monotonic()
    while True:
        with contextlib.suppress(FileNotFoundError):
            try:
                os.symlink(own, path)
                return
            except FileExistsError:
                pass
            except OSError:
                return  # a disk without links
            now = os.readlink(path), os.lstat(path).st_mtime_ns
            if now != seen:
                seen, since = now, time.monotonic()
                tell(f"waiting for the same step on {now[0].partition('/')[0]}")
            if now[0] == own or time.monotonic() - since > _DEAD:
                os.unlink(path)  # left by a process that was killed: this host's lock is ours
                continue
        if select.select([0], [], [], 1.0)[0]:
            raise EndedError


@contextlib.contextmanager
def touched(path: str) -> Iterator[None]:
    """Update the time of a file or link every 10 s for a block, which tells hosts with the same disk that it lasts."""
    over = threading.Event()

    def touch() -> None:
        while not over.wait(10.0):
            with contextlib.suppress(OSError):
                os.utime(path, follow_symlinks=False)

    thread = threading.Thread(target=touch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _forget(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # containers of one machine share its boot id, but not its locks
        os.unlink(path)


def _tag(run: str, node: int) -> str:
    return f"{run}/{node}/0"


def main(work: Callable[[Any, str, Callable[[str], None]], object], cache: str) -> NoReturn:
    """Do what precedes a run: request as a line of JSON on standard input, progress and result on standard output.

    Args:
        work: Called with the request, the cache folder, and a function that takes the newest line of output.
        cache: This user's cache folder of disttui.
    """
    procs.adopt_orphans()
    request = json.loads(sys.stdin.buffer.readline())

    def say(**message: object) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    try:
        say(ok=work(request, cache, lambda line: say(event={"line": line[:500]})))
    except EndedError:
        say(error={"what": "stopped", "cure": ""})
    except Problem as problem:
        say(error={"what": problem.what, "cure": problem.cure})
    except OSError as error:
        full = fullness(cache)
        say(error={"what": full or str(error), "cure": "free space there" if full else ""})
    sys.exit()


def in_process(
    part: str, request: Mapping[str, object], node_zip: str, tell: Callable[[Any], None], cancelled: Callable[[], bool]
) -> Any:
    """Do a part of the preparation in a separate process, which ends with this one. Raises Problem."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-X", "utf8", node_zip, part],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", start_new_session=True,
    )  # fmt: skip
    assert child.stdin and child.stdout
    try:
        child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.flush()
        for line in _lines(child.stdout.fileno(), cancelled):
            if line is None:
                child.stdin.close()
                continue
            answer = json.loads(line)
            if "event" in answer:
                tell(answer["event"])
            elif "error" in answer:
                raise Problem(answer["error"]["what"], answer["error"]["cure"])
            else:
                return answer["ok"]
    except BrokenPipeError:
        pass
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()
    raise Problem(f"the process for {part} ended (exit code {child.returncode})", "start the run again")


def _lines(source: int, cancelled: Callable[[], bool]) -> Iterator[Optional[bytes]]:
    """The lines of a pipe, and None once if the work is to end."""
    begun, notified = b"", False
    while True:
        if not notified and cancelled():
            notified = True
            yield None
        if not select.select([source], [], [], 0.2)[0]:
            continue
        data = os.read(source, 65536)
        if not data:
            return
        *lines, begun = (begun + data).split(b"\n")
        found: List[bytes] = lines
        yield from found
