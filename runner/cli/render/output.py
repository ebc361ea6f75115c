"""Writing to a reader that may go away, which must end nothing."""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO


def put(stream: TextIO, text: str) -> None:
    """Write and flush. When nobody reads any more (`| head`) the rest goes nowhere: the run and its logs go on.

    What cannot be written for another reason, such as a full disk, is told on standard error, once.
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
    """Why a stream cannot be written to, if so: what it holds is dropped then, and the rest goes nowhere."""
    try:
        # One more byte: a stream that has dropped what failed has nothing to flush.
        stream.write("\n")
        stream.flush()
    except OSError as error:
        _give_up(stream)
        return error
    return None


def _give_up(stream: TextIO) -> None:
    # The stream itself stays: what it still holds would fail again when the interpreter ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
