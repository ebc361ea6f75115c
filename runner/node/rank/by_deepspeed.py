"""Runs DeepSpeed's launcher of one host in this process.

By itself it ends its ranks one after the other, each with its children, and waits up to 30 s for each: ranks that save
a checkpoint together on SIGTERM never finish. Here all of them are asked together, and their ends are recorded.
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
"""Seconds until a rank that was asked to end is killed, as DeepSpeed has it. `grace` of the run is mostly less."""


def prepare() -> Callable[[List[str], Optional[int]], None]:
    """Import it; returns what runs it with its arguments. Raises UnusableError."""
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
            error = "deepspeed refused its options" if refused else None
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
        """Start one, in the place of subprocess.Popen."""
        self.started.append(subprocess.Popen(command, **how))
        return self.started[-1]

    def end(self, pid: int) -> None:
        """Ask all of them to end, and wait for one; in the place of DeepSpeed's function for one."""
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
        """Those that have failed up to now."""
        return [
            {"local_rank": number, "pid": rank.pid, "code": rank.returncode, "t": time.time()}
            for number, rank in enumerate(self.started)
            if rank.poll()
        ]
