"""Waits for changes in folders: by inotify where it works, by polling elsewhere (NFS, macOS)."""

from __future__ import annotations

import os
import select
import sys
import time
from typing import Any

_MODIFY, _MOVED_TO, _CREATE = 0x2, 0x80, 0x100
_NONBLOCK = 0o4000
NAP = 0.02
"""Seconds between polls."""
GATHER = 0.002
"""Seconds to collect a burst of writes, so that it wakes the caller once."""


class Watch:
    """Watches folders for writes, new files and renames."""

    def __init__(self) -> None:
        self._libc: Any = None
        self._handle = -1
        if sys.platform == "linux":
            import ctypes

            self._libc = ctypes.CDLL(None, use_errno=True)
            self._handle = self._libc.inotify_init1(_NONBLOCK)

    def add(self, folder: str) -> None:
        """Watch one more folder."""
        if self._handle < 0:
            return
        if self._libc.inotify_add_watch(self._handle, os.fsencode(folder), _MODIFY | _MOVED_TO | _CREATE) < 0:
            # No inotify watch is left: poll.
            self.close()

    def wait(self, limit: float) -> None:
        """Return when something has changed, after `limit` seconds at the latest."""
        if self._handle < 0:
            time.sleep(min(NAP, limit))
            return
        if select.select([self._handle], [], [], limit)[0]:
            time.sleep(GATHER)
            try:
                os.read(self._handle, 65536)
            except BlockingIOError:
                pass

    def close(self) -> None:
        """Close the descriptor."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
