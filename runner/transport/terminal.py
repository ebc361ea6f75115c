"""Lends the terminal of this process to a program."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from paramiko.channel import Channel
from paramiko.ssh_exception import SSHException

_LOOK = 0.2
"""Most seconds until a new terminal size is passed on."""
_PIECE = 32 * 1024
_STATUS = 10.0
"""Seconds to wait for the exit status after the output ends."""


def connect_terminal(channel: Channel, size: os.terminal_size) -> None:
    """Relay bytes in both directions until the channel's command ends. Raises ConnectionError if the link breaks."""
    keyboard, screen = sys.stdin.fileno(), sys.stdout.fileno()
    before = termios.tcgetattr(keyboard)
    typed = b""
    try:
        tty.setraw(keyboard, termios.TCSADRAIN)  # input typed ahead is kept for the program
        channel.settimeout(0.0)
        while True:
            # Unsent input waits while output is shown: the program may not read more until its output is taken.
            sources: list[int | Channel] = [channel] if typed else [channel, keyboard]
            ready = select.select(sources, [], [], 0.01 if typed else _LOOK)[0]
            if channel in ready:
                if not (data := channel.recv(_PIECE)):
                    break
                while data:
                    data = data[os.write(screen, data) :]
            if keyboard in ready and not (typed := os.read(keyboard, _PIECE)):
                break
            with suppress(SSHException, OSError):  # the command may have ended; its remaining output is still shown
                if typed and channel.send_ready():
                    typed = typed[channel.send(typed) :]
                if (now := shutil.get_terminal_size()) != size:
                    size = now
                    channel.resize_pty(size.columns, size.lines)
        if not channel.status_event.wait(_STATUS) or not (channel.eof_received or channel.exit_status >= 0):
            raise ConnectionError("the connection has ended")
    except (SSHException, EOFError, OSError) as error:
        raise ConnectionError(str(error) or "the connection was closed") from None
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def lend_terminal(words: Sequence[str]) -> int | None:
    """Run a program at this process's terminal; return its exit status, or None if a signal ended it."""
    # Ctrl-C is for the program. SIGTTOU: a killed program may still own the terminal when it is taken back.
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTTOU)}
    before = termios.tcgetattr(sys.stdin.fileno())
    try:
        code = subprocess.run(words, cwd=Path.home(), check=False, preexec_fn=_default_signals).returncode
    finally:
        with suppress(OSError):  # after `su -c` there is no controlling terminal
            os.tcsetpgrp(sys.stdin.fileno(), os.getpgrp())
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return code if code >= 0 else None


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTTOU):
        signal.signal(number, signal.SIG_DFL)
