"""`disttui` as a process of its own, forked where its imports are done: they are nearly all of its CPU time, 0.2 s.

What is tested is what it says and does. Its streams are files, its process inherits nothing else of the tests. How
it starts, and what its streams and terminals do to it, is tested with the installed program (test_cli_process.py).
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

PATIENCE = 200.0
"""Seconds that a command may take: then it is killed, and has ended with -9."""
_GRACE = 10.0
"""Seconds more for the word of its end, and for the end of the process that forks."""


def disttui(
    *words: str, env: Mapping[str, str] | None = None, cwd: Path | str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a session of its own, where no terminal is, to its end."""
    asked = {"words": words, "env": dict(os.environ if env is None else env), "cwd": str(cwd or Path.cwd())}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        code = _ask(json.dumps(asked).encode(), out.fileno(), err.fileno())
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


def ran(
    words: Sequence[str | Path] | str, *, check: bool = False, timeout: float = PATIENCE, **options: Any
) -> subprocess.CompletedProcess[str]:
    """What any other program prints, and how it ends; it has nothing to read but `input`."""
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(words, capture_output=True, text=True, check=check, timeout=timeout, **options)


@contextmanager
def running(words: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Any other program, which is killed at the end."""
    with subprocess.Popen(words, **options) as child:
        try:
            yield child
        finally:
            child.kill()


def _ask(request: bytes, out: int, err: int) -> int:
    """The exit code of a command. Raises RuntimeError where the process that forks has ended; the next call starts it
    again."""
    ours, theirs = socket.socketpair()
    with ours, suppress(ConnectionError):
        with theirs:
            socket.send_fds(_forker(), [b"."], [theirs.fileno(), out, err])
        ours.sendall(request)
        ours.shutdown(socket.SHUT_WR)
        ours.settimeout(PATIENCE + _GRACE)
        if code := ours.recv(16):
            return int(code)
    _forker.cache_clear()
    raise RuntimeError("the forker has ended")


@cache
def _forker() -> socket.socket:
    """Start the process that imports and forks; it ends with this one, whose end of the line it reads."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[1])

    def end() -> None:
        ours.close()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    atexit.register(end)
    return ours


def _import_all(*packages: str) -> None:
    for package in packages:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
            importlib.import_module(found.name)


def _serve(line: socket.socket) -> dict[str, Any]:
    """Fork for each command; returns in the child, with what it is to do."""
    while fds := socket.recv_fds(line, 1, 3)[1]:
        with socket.socket(fileno=fds[0]) as caller:
            request = b"".join(iter(lambda: caller.recv(1 << 16), b""))
            child = os.fork()
            if child == 0:
                line.close()
                for fd, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *fds[1:])):
                    os.dup2(stream, fd)
                    os.close(stream)
                return dict(json.loads(request))
            for fd in fds[1:]:
                os.close(fd)
            code = _end_of(child, PATIENCE)
            with suppress(ConnectionError):
                caller.sendall(str(code).encode())
    raise SystemExit


def _end_of(child: int, limit: float) -> int:
    """Wait for a process that leads a session, and return its exit code; after `limit` seconds, kill its group."""
    until = time.monotonic() + limit
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        time.sleep(0.005)


def _become(words: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = ["disttui", *words]


def _run(main: Callable[[], None]) -> NoReturn:
    """End as Python does, but for modules and their objects, which it would free one by one."""
    code: Any = 1
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    from disttui.runner.cli import main

    _import_all("disttui.runner.cli", "disttui.runner.api", "disttui.runner.transport")
    gc.collect()
    gc.freeze()
    _become(**_serve(socket.socket(fileno=int(sys.argv[1]))))
    _run(main)
