"""Waits for changes in folders: by inotify where it works, by polling elsewhere (NFS, macOS)."""

from __future__ import annotations

import os
import select
import time
from typing import Optional

from .. import changes

NAP = 0.02
"""Seconds between polls."""
GATHER = 0.002
"""Seconds to collect a burst of writes, so that it wakes the caller once."""


class Watch:
    """Watches folders for writes, new files and renames."""

    def __init__(self) -> None:
        self._handle: Optional[int] = changes.begin()

    def add(self, folder: str) -> None:
        """Watch one more folder."""
        wanted = changes.MODIFY | changes.MOVED_TO | changes.CREATE
        if self._handle is not None and not changes.add(self._handle, folder, wanted):
            self.close()  # it polls instead

    def wait(self, limit: float) -> None:
        """Return when something has changed, after `limit` seconds at the latest."""
        if self._handle is None:
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
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
