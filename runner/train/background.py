"""Work beside the training, one piece at a time: checkpoints are written by it."""

from __future__ import annotations

import threading
from typing import Callable, Optional


class Background:
    """Runs a piece of work in a thread of its own; the next one waits for it.

    The thread is a daemon, so that a process whose peers are gone can end while it waits for them.
    """

    def __init__(self) -> None:
        self._thread: Optional[threading.Thread] = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin with `work`, once what was begun before is done."""
        self.wait()
        thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        thread.start()
        self._thread = thread

    def wait(self) -> None:
        """Wait until everything is done. Any thread may call it."""
        if self._thread is not None:
            self._thread.join()
