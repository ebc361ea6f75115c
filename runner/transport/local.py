"""Connection to this machine, without SSH."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from disttui.runner.errors import HostError

ERRORS_LIMIT = 64 * 1024
"""Most bytes of standard error that are kept, the last ones."""
_SLICE = 0.25
_PIECE = 64 * 1024


class LocalConnection:
    """Runs commands with /bin/sh in the user's home."""

    def __init__(self, name: str = "local") -> None:
        self._name = name
        self._streams: list[LocalStream] = []

    @property
    def name(self) -> str:
        return self._name

    def run(self, command: str) -> LocalStream:
        stream = LocalStream(start(self._name, ["/bin/sh", "-c", command]))
        self._streams.append(stream)
        return stream

    def attend(self, command: str) -> int | None:
        from disttui.runner.transport.terminal import lend_terminal  # noqa: PLC0415 - paramiko takes 0.1 s

        return lend_terminal(["/bin/sh", "-c", command])

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


class LocalStream:
    """A `Stream` over the pipes of a child process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._errors = bytearray()
        self._closed = False
        self._read_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._drain_lock = threading.Lock()
        self._draining = True
        for file in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(file.fileno(), False)

    def read(self, size: int, timeout: float | None = None) -> bytes:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._read_lock:
            while not self._closed:
                remaining = _SLICE if deadline is None else deadline - time.monotonic()
                watched = [self._stdout, self._stderr] if self._draining else [self._stdout]
                ready = _ready(watched, select.POLLIN, min(_SLICE, remaining))
                if self._stderr.fileno() in ready:
                    self._drain()
                if self._stdout.fileno() in ready:
                    data = self._stdout.read(size)
                    if data is not None:
                        return data
                elif remaining <= 0:
                    raise TimeoutError(f"no output in {timeout:g} s")
        return b""

    def write(self, data: bytes) -> None:
        with self._write_lock, memoryview(data) as view:
            sent = 0
            while sent < len(view):
                if self._closed:
                    raise ConnectionError("the stream is closed")
                if _ready([self._stdin], select.POLLOUT, _SLICE):
                    sent += self._stdin.write(view[sent : sent + _PIECE]) or 0

    def errors(self) -> str:
        self._drain()
        return bytes(self._errors).decode(errors="replace")

    def exit_status(self) -> int | None:
        code = self._process.poll()
        return code if code is not None and code >= 0 else None

    def kill(self, word: str) -> None:
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Each file is closed under its lock: its number may belong to another file a moment later.
        with self._write_lock, suppress(OSError):
            self._stdin.close()
        with self._read_lock, self._drain_lock:
            self._draining = False
            self._stdout.close()
            self._stderr.close()
        if threading.main_thread().is_alive():  # while a script ends, Python up to 3.11 cannot start a thread
            threading.Thread(target=self._process.wait, name="reaper", daemon=True).start()

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _drain(self) -> None:
        with self._drain_lock:
            if not self._draining:
                return
            data = self._stderr.read(_PIECE)
            self._draining = data != b""
            self._errors += data or b""
            del self._errors[:-ERRORS_LIMIT]


def start(name: str, words: list[str], environ: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a program in the user's home with pipes; `name` is the host's name in errors. Raises HostError."""
    try:
        # Its own session: the viewer's Ctrl-C must not reach it, and it must not prompt at the viewer's terminal.
        return subprocess.Popen(
            words,
            cwd=Path.home(),
            env=environ,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        what = f"{words[0]} cannot be started in {Path.home()}: {error.strerror}"
        raise HostError(name, what, "Set HOME to an accessible folder.") from None


def _ready(files: list[IO[bytes]], events: int, seconds: float) -> list[int]:
    poll = select.poll()
    for file in files:
        poll.register(file, events)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, seconds * 1000))]
