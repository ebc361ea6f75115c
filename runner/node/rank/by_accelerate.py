"""Runs `accelerate launch` in this process; for several ranks it uses torchrun's agent, for one a plain child."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from .by_torchrun import import_torchrun, report_end
from .ends import load, tell_end

if TYPE_CHECKING:
    from ...protocol.files import LauncherFailure


def prepare() -> Callable[[List[str], Optional[int]], None]:
    """Import it; returns what runs it with its arguments. Raises UnusableError."""
    import_torchrun()
    launch = load("accelerate.commands.launch")

    def run(args: List[str], _listener: Optional[int]) -> None:
        sys.argv = [launch.__file__, *args]
        try:
            report_end("accelerate launch", lambda: _launch(launch, args))
        except subprocess.CalledProcessError as error:
            # Of a single process; those of several ranks are noted as torchrun finds them.
            failure: LauncherFailure = {"local_rank": 0, "pid": None, "code": error.returncode, "t": time.time()}
            tell_end(code=1, failures=[failure])
            raise SystemExit(1) from None

    return run


def _launch(launch: Any, args: List[str]) -> None:
    launch.launch_command(launch.launch_command_parser().parse_args(args))
