"""Writing to whoever reads: a reader that has gone ends nothing."""

from __future__ import annotations

import os
from typing import TextIO


def put(stream: TextIO, text: str) -> None:
    """Write and flush. When nobody reads any more (`| head`) the rest goes nowhere: the run and its logs go on."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        # The stream itself stays: what it still holds would fail again when the interpreter ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
