"""One remote command over an SSH channel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from paramiko.channel import Channel
from paramiko.ssh_exception import SSHException

ERRORS_LIMIT = 64 * 1024
"""Bytes of standard error that are kept: the last ones."""
_SLICE = 0.25
"""Seconds after which a waiting reader looks whether standard error has to be drained."""
_PIECE = 32 * 1024
_HELPING = 2 * 1024 * 1024
_CLOSE_LIMIT = 2.0
_KILL = (
    "exec sh -c 'ps -o pid=,args= --ppid $PPID | while read -r pid words; do"
    ' case "$words" in *{pattern}*) kill -9 -$pid;; esac; done\''
)
"""The bracket in the pattern keeps it from finding itself."""


class SshStream:
    """A `Stream` over a paramiko channel.

    Both output streams share one flow-control window: unread standard error would, once it fills the window,
    stop standard output for ever. So a reader that waits for output reads standard error as well.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._closed = False
        self._errors = bytearray()
        self._drain_lock = threading.Lock()
        self._write_lock = threading.Lock()

    def read(self, size: int, timeout: float | None = None) -> bytes:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._drain()
            remaining = _SLICE if deadline is None else deadline - time.monotonic()
            # Writers share this setting; they take a timeout as a reason to look again, so it must not be 0.
            self._channel.settimeout(max(0.001, min(_SLICE, remaining)))
            try:
                data = self._channel.recv(size)
            except TimeoutError:
                if remaining <= 0:
                    raise TimeoutError(f"no output in {timeout:g} s") from None
                continue
            except (SSHException, EOFError, OSError) as error:
                raise ConnectionError(str(error) or "it has been closed") from None
            if not data and not self._ended():
                raise ConnectionError("the connection has ended")
            return data

    def write(self, data: bytes) -> None:
        with self._write_lock, memoryview(data) as view:
            sent = 0
            while sent < len(view):
                try:
                    step = self._channel.send(bytes(view[sent : sent + _PIECE]))
                except TimeoutError:
                    continue
                except (SSHException, EOFError, OSError) as error:
                    raise ConnectionError(str(error) or "it has been closed") from None
                if step == 0:
                    raise ConnectionError("the command takes no more input")
                sent += step

    def errors(self) -> str:
        self._drain()
        return bytes(self._errors).decode(errors="replace")

    def exit_status(self) -> int | None:
        # -1: ended by a signal, or the link broke.
        status = self._channel.exit_status
        return status if self._channel.exit_status_ready() and status >= 0 else None

    def kill(self, word: str) -> None:
        transport = self._channel.transport
        if transport is None or not transport.is_active():
            return

        def end() -> None:
            # OpenSSH passes no signal on for root, so a second command ends the first, and nothing else.
            with transport.open_session(timeout=_CLOSE_LIMIT) as channel:
                channel.exec_command(_KILL.format(pattern=f"{word[:-1]}[{word[-1]}]"))
                channel.recv_exit_status()

        in_time(end)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            in_time(self._channel.close)

    def _ended(self) -> bool:
        """Whether the end of the output is the command's doing or ours, not that of a broken link."""
        return self._closed or bool(self._channel.eof_received) or self._channel.exit_status >= 0

    def _drain(self) -> None:
        with self._drain_lock:
            # One read at a time: a flood of errors must not keep a reader from the output.
            if self._channel.recv_stderr_ready():
                with suppress(SSHException, EOFError, OSError):
                    self._errors += self._channel.recv_stderr(_HELPING)
            del self._errors[:-ERRORS_LIMIT]


def in_time(close: Callable[[], None]) -> None:
    """Run something that tells the other side of the end, but wait no longer than 2 s for it.

    A peer that takes no more bytes would block it for as long as the link is up.
    """

    def run() -> None:
        with suppress(Exception):
            close()

    thread = threading.Thread(target=run, name="good-bye", daemon=True)
    thread.start()
    thread.join(_CLOSE_LIMIT)
