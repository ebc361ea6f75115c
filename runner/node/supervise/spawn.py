"""Starts a child in its own session; the kernel ends it when we die."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    command: list[bytes], environment: dict[bytes, bytes], cwd: bytes, umask: int, stdin: int, output: int, keep: int
) -> int:
    """Start a command and return its pid.

    The caller must have no other threads, and must wait for the child. `keep` is a descriptor that the child inherits
    under the same number.

    Raises:
        OSError: It cannot be started; `filename` is the folder or the program that caused it.
    """
    libc = ctypes.CDLL(None)
    report, problem = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        where = cwd
        try:
            os.setsid()
            if sys.platform == "linux":
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != parent:
                    os._exit(1)
            for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(stdin, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.umask(umask)
            os.set_inheritable(keep, True)
            os.chdir(cwd)
            where = command[0]
            os.execvpe(command[0], command, environment)  # noqa: S606
        except OSError as error:
            os.write(problem, f"{error.errno} ".encode() + where)
        finally:
            os._exit(127)
    os.close(problem)
    with os.fdopen(report, "rb") as pipe:
        trouble = pipe.read()
    if trouble:
        os.waitpid(pid, 0)
        code, _, name = trouble.partition(b" ")
        raise OSError(int(code), os.strerror(int(code)), os.fsdecode(name))
    return pid
