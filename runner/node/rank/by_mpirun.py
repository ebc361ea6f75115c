"""Runs Open MPI's mpirun for the ranks of this host, as a child of this process.

By itself mpirun ends all ranks two seconds after one has failed, and after a SIGTERM, whatever they still have to save;
and it says only in prose which rank failed. So it is asked to leave the others alone, a shell above each rank notes its
exit code, and this process asks the ranks to end, each once.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Callable, List, Optional

from ...protocol.files import LauncherFailure
from .. import procs
from .ends import UnusableError, tell_end
from .parent import VARIABLE, die_with_parent

CODES = "mpirun.codes"
"""The file with a line `local rank, exit code` for every rank that has ended."""
_EACH = f'"$@"; code=$?; echo "$OMPI_COMM_WORLD_LOCAL_RANK $code" >> "$DISTTUI_DIR/{CODES}"; exit $code'
_SETTINGS = {
    "OMPI_MCA_orte_enable_recovery": "1",
    # Inside of a job of a batch system, or with a hostfile of the site, it would start ranks on other hosts.
    "OMPI_MCA_plm": "isolated",
    "OMPI_MCA_ras": "^slurm,tm,lsf,gridengine,alps,loadleveler",
    "OMPI_MCA_orte_default_hostfile": "none",
}
_LOOK = 0.1
"""Seconds between two looks at what has ended."""
_SCAN = 1.0
"""Seconds between two scans of all processes, for ranks that have not been asked to end."""
_MOST = 64 << 10
"""Bytes of that file."""
_SIGNALLED = 128
"""A shell's exit code of a process that a signal has ended, less the signal's number."""


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
        # The ranks are not our own children: those of their shells.
        os.environ.pop(VARIABLE, None)
        os.environ.update(_SETTINGS)
        # mpirun starts any program, not only Python.
        at = args.index(sys.argv[0])
        command = [program, *args[:at], "sh", "-c", _EACH, "rank", sys.executable, "-u", *args[at:]]
        _Mpirun(command).run()

    return run


class _Mpirun:
    def __init__(self, command: List[str]) -> None:
        self._stopped: Optional[int] = None
        self._failures: List[LauncherFailure] = []
        self._asked: "set[int]" = set()
        self._scan_at = 0.0
        signal.signal(signal.SIGTERM, self._stop)
        self._child = subprocess.Popen(command, preexec_fn=die_with_parent)  # there is one thread

    def run(self) -> None:
        """Wait for its end, and exit."""
        while self._child.poll() is None:
            self._look()
            time.sleep(_LOOK)
        self._look()
        code = 1 if self._failures or self._stopped else self._child.returncode
        code = code if code >= 0 else _SIGNALLED - code
        tell_end(code=code, signal=self._stopped, failures=self._failures)
        sys.exit(code)

    def _stop(self, number: int, _frame: object) -> None:
        # The signal may interrupt anything, the start of mpirun included: the loop acts on it.
        self._stopped = number

    def _look(self) -> None:
        failures = _failures()
        if len(failures) > len(self._failures):
            self._failures = failures
            tell_end(code=1, signal=self._stopped, failures=failures)
        if (self._failures or self._stopped) and time.monotonic() >= self._scan_at:
            self._end_ranks()
            self._scan_at = time.monotonic() + _SCAN

    def _end_ranks(self) -> None:
        """Ask each rank once; mpirun itself where it has started none yet."""
        table = procs.table()
        shells = {pid for pid, proc in table.items() if proc.ppid == self._child.pid and not proc.dead}
        ranks = {pid for pid, proc in table.items() if proc.ppid in shells and not proc.dead}
        for pid in (ranks if shells else {self._child.pid}) - self._asked:
            self._asked.add(pid)
            try:
                os.kill(pid, signal.SIGTERM)
            except OSError:
                pass


def _failures() -> List[LauncherFailure]:
    """The ranks that have failed up to now, the first that ended first."""
    try:
        path = os.path.join(os.environ["DISTTUI_DIR"], CODES)
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            words = [line.split() for line in file.read(_MOST).splitlines()]
    except OSError:
        return []
    # The job's own code may write there, too.
    pairs = [pair for pair in words if len(pair) == 2 and all(word.isdigit() and len(word) < 6 for word in pair)]
    ends = [(int(rank), int(code)) for rank, code in pairs if int(code)]
    return [
        {"local_rank": rank, "pid": None, "code": _SIGNALLED - code if code > _SIGNALLED else code, "t": time.time()}
        for rank, code in ends
    ]
