"""Writes to streams that may become unwritable, which must not end a run."""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
from typing import TextIO


def put(stream: TextIO, text: str) -> None:
    """Write and flush. Text that cannot be written, as on a full disk, is discarded; standard error reports it once.

    Raises:
        BrokenPipeError: The reader has gone (`| head`), which ends the command.
    """
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up(stream)
        if stream is not sys.stderr:
            why = f"standard output cannot be written: {error.strerror}; further output is discarded"
            put(sys.stderr, f"disttui: {why}\n")


def check_reader(stream: TextIO) -> None:
    """Raise BrokenPipeError if a pipe has no reader: a command following a quiet run would not notice."""
    if reader_gone(stream):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def reader_gone(stream: TextIO) -> bool:
    """Whether this is a pipe or socket without a reader."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        # Not a terminal: one that was closed sends SIGHUP, which the user may have chosen to ignore.
        return (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) and bool(poll.poll(0))
    except (OSError, ValueError):  # not a file, or closed
        return False


def failure(stream: TextIO) -> OSError | None:
    """The error of a stream that cannot be written, or None; then its buffer and later text are dropped."""
    try:
        # Write one more byte: a stream that has dropped its buffer after an error has nothing to flush.
        stream.write("\n")
        stream.flush()
    except OSError as error:
        _give_up(stream)
        return error
    return None


def _give_up(stream: TextIO) -> None:
    # Keep the stream object: its buffer would fail again when the process ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
