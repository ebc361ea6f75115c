"""An app in a real terminal (a pty), and what it costs there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

SIZE = (160, 48)
_LONGEST = 200
"""Bytes that what is waited for may take."""


class Screen:
    """A child in a terminal."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str] | None = None, size: tuple[int, int] = SIZE
    ) -> None:
        self.terminal, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        colours = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        begun = time.monotonic()
        self._child = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env={**(environ or os.environ), **colours},
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.spawned = time.monotonic() - begun
        """Seconds that its start has taken before anything could be read."""

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self.terminal, keys.encode())

    def until(self, pattern: str, seconds: float = 120.0) -> float:
        """Wait until the app writes something that was not there before; return the seconds that it took."""
        begun, seen, wanted = time.monotonic(), b"", re.compile(pattern.encode())
        while not wanted.search(seen):
            left = begun + seconds - time.monotonic()
            assert select.select([self.terminal], [], [], max(0.0, left))[0], f"no {pattern!r}, but {seen[-300:]!r}"
            seen = seen[-_LONGEST:] + os.read(self.terminal, 65536)
        return time.monotonic() - begun

    def drain(self, seconds: float) -> int:
        """Let it write for a while; return how many bytes came. Raises OSError if it ends."""
        sent, end = 0, time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.terminal], [], [], left)[0]:
                sent += len(os.read(self.terminal, 65536))
        return sent

    @property
    def cpu(self) -> float:
        """Seconds of CPU that it has taken so far."""
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> tuple[float, float]:
        """MiB that are its own, and of files that it has mapped: those the kernel may take back."""
        said = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{self._child.pid}/status").read_text().splitlines()
            if ":" in line
        )
        own, mapped = (int(said[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile"))
        return own, mapped

    def close(self) -> None:
        """End it."""
        self._child.terminate()
        with suppress(OSError):
            self.drain(1.0)
        self._child.kill()
        self._child.wait()
        os.close(self.terminal)


@contextmanager
def screen(
    command: Sequence[str], environ: Mapping[str, str] | None = None, size: tuple[int, int] = SIZE
) -> Iterator[Screen]:
    """An app in a terminal until the end of the block."""
    opened = Screen(command, environ, size)
    try:
        yield opened
    finally:
        opened.close()
