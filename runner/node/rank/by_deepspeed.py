"""Runs DeepSpeed's per-host launcher in this process.

On its own it ends its ranks one after the other, each with its children, and waits up to 30 s for each: ranks that save
a checkpoint together on SIGTERM never finish. Here all ranks are asked at the same time, and their ends are recorded.
"""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from .launcher import load, tell_end

if TYPE_CHECKING:
    from ...protocol.files import LauncherFailure

_PATIENCE = 30
"""Seconds until a rank that was asked to end is killed, as in DeepSpeed. The run's `grace` is usually shorter."""


def prepare() -> Callable[[List[str], Optional[int]], None]:
    """Import DeepSpeed; returns a function that runs it with arguments. Raises UnusableError."""
    launch = load("deepspeed.launcher.launch")

    def run(args: List[str], _listener: Optional[int]) -> None:
        sys.argv = [launch.__file__, *args]
        ranks = _Ranks()
        launch.subprocess = SimpleNamespace(Popen=ranks.start)
        launch.terminate_process_tree = ranks.end
        try:
            launch.main()
        except SystemExit as end:
            failures = ranks.failures()
            refused = not ranks.started and end.code
            error = "deepspeed rejected its options" if refused else None
            tell_end(code=1 if end.code else 0, error=error, failures=failures)
            raise SystemExit(1 if end.code else 0) from None
        except BaseException as error:
            tell_end(code=1, error="%s: %s" % (type(error).__name__, error), failures=ranks.failures())
            raise
        tell_end(code=0)

    return run


class _Ranks:
    """The processes of this host's ranks."""

    def __init__(self) -> None:
        self.started: "List[subprocess.Popen[bytes]]" = []
        self._asked = False

    def start(self, command: List[str], **how: Any) -> "subprocess.Popen[bytes]":
        """Start one rank; replaces subprocess.Popen."""
        self.started.append(subprocess.Popen(command, **how))
        return self.started[-1]

    def end(self, pid: int) -> None:
        """Ask all ranks to end, and wait for one; replaces DeepSpeed's function for one rank."""
        if not self._asked:
            self._asked = True
            if failures := self.failures():
                tell_end(code=1, failures=failures)
            for rank in self.started:
                if rank.poll() is None:
                    rank.terminate()
        for rank in self.started:
            if rank.pid == pid:
                try:
                    rank.wait(_PATIENCE)
                except subprocess.TimeoutExpired:
                    rank.kill()

    def failures(self) -> List[LauncherFailure]:
        """The ranks that have failed so far."""
        return [
            {"local_rank": number, "pid": rank.pid, "code": rank.returncode, "t": time.time()}
            for number, rank in enumerate(self.started)
            if rank.poll()
        ]
