"""Writes to streams whose reader may close them, which must not end the command."""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO


def put(stream: TextIO, text: str) -> None:
    """Write and flush. When the reader has closed the stream (`| head`) the rest is discarded; the run goes on.

    Another failure, such as a full disk, is reported on standard error, once.
    """
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        _give_up(stream)
        if error.errno != errno.EPIPE and stream is not sys.stderr:
            put(
                sys.stderr, f"disttui: {stream.name} cannot be written: {error.strerror}; the rest of it goes nowhere\n"
            )


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
    # Keep the stream object: its buffer would fail again at the interpreter's exit.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
