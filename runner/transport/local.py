"""This machine itself, without SSH."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from runner.errors import HostError

ERRORS_LIMIT = 64 * 1024
"""Bytes of standard error that are kept: the last ones."""
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
        try:
            # A session of its own: the viewer's Ctrl-C must not reach it.
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                cwd=Path.home(),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            what = f"/bin/sh cannot be started in {Path.home()}: {error.strerror}"
            raise HostError(self._name, what, "Set HOME to a folder that is there and may be entered.") from None
        stream = LocalStream(process)
        self._streams.append(stream)
        return stream

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
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

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
        threading.Thread(target=self._process.wait, name="reaper", daemon=True).start()

    def _drain(self) -> None:
        with self._drain_lock:
            if not self._draining:
                return
            data = self._stderr.read(_PIECE)
            self._draining = data != b""
            self._errors += data or b""
            del self._errors[:-ERRORS_LIMIT]


def _ready(files: list[IO[bytes]], events: int, seconds: float) -> list[int]:
    poll = select.poll()
    for file in files:
        poll.register(file, events)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, seconds * 1000))]
