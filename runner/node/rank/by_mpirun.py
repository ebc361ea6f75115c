"""Runs Open MPI's mpirun for the ranks of this host, as a child of this process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Callable, List, Optional

from ...protocol.files import LauncherFailure
from .ends import UnusableError, tell_end
from .parent import VARIABLE, die_with_parent

_SIGNALLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on\s+signal (\d+)")
_EXITED = re.compile(r"Process name: \[(?:\[\d+,\d+\],|[^\s,]+,)(\d+)\]\s+Exit code:\s+(\d+)")
_TAIL = 8192
"""Bytes of its output that are searched for how its ranks have ended."""


def prepare() -> Callable[[List[str], Optional[int]], None]:
    """Find it; returns what runs it with its arguments. Raises UnusableError."""
    program = shutil.which("mpirun")
    if program is None:
        raise UnusableError("mpirun is not in PATH: install Open MPI")
    try:
        said = subprocess.check_output([program, "--version"], stderr=subprocess.STDOUT, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise UnusableError("%s cannot be run: %s" % (program, error)) from None
    version = said.decode("utf-8", "replace").strip().partition("\n")[0]
    if "Open MPI" not in version and "OpenRTE" not in version:
        raise UnusableError("%s is not that of Open MPI: it says %r" % (program, version[:200]))

    def run(args: List[str], _listener: Optional[int]) -> None:
        # Ranks are not our own children. Until they watch over their parent, the tag is what finds them.
        os.environ.pop(VARIABLE, None)
        command = [program, *_with_interpreter(args)]
        child = subprocess.Popen(command, preexec_fn=die_with_parent)  # there is one thread
        stopped: List[int] = []

        def hand_on(number: int, _frame: object) -> None:
            if not stopped:
                stopped.append(number)
                child.send_signal(number)

        signal.signal(signal.SIGTERM, hand_on)
        code = child.wait()
        failures = [] if code == 0 else _failures()
        tell_end(code=code, signal=stopped[0] if stopped else None, failures=failures)
        sys.exit(code if code >= 0 else 128 - code)

    return run


def _with_interpreter(args: List[str]) -> List[str]:
    """Put our interpreter in front of what each rank runs, this program: mpirun starts any program, not only Python."""
    at = args.index(sys.argv[0])
    return [*args[:at], sys.executable, "-u", *args[at:]]


def _failures() -> List[LauncherFailure]:
    """What mpirun has printed about ranks that failed; its numbers are those of this host."""
    try:
        with open(os.path.join(os.environ["DISTTUI_DIR"], "launcher.log"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    ends = {int(rank): -int(number) for rank, number in _SIGNALLED.findall(text)}
    ends.update((int(rank), int(code)) for rank, code in _EXITED.findall(text))
    return [{"local_rank": rank, "pid": None, "code": code, "t": time.time()} for rank, code in ends.items()]
