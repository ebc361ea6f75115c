"""Runs Open MPI's mpirun, or its daemon (orted) for one MPI world over all hosts, as a child of this process.

On its own mpirun ends all ranks two seconds after one has failed, and after a SIGTERM, whatever they still have to
save; and it reports only in prose which rank failed. So it must leave the others alone, a shell above each rank
records its exit code, and this process asks each rank to end once.

mpirun starts while the hosts still join. What ranks need from the join is in a file that their shells read: ranks of
one world start later, when the daemons of all hosts have connected; if each host is a world, they wait at a gate.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

from ...protocol import open_mpi
from .. import procs
from . import mpi_world
from .launcher import UnusableError, place, tell_end
from .parent import VARIABLE, die_with_parent

if TYPE_CHECKING:
    from ...protocol.files import LauncherFailure

CODES = "mpirun.codes"
"""The file with a line `local rank, exit code` for every rank that has ended."""
_EACH = f'"$@"; code=$?; echo "$OMPI_COMM_WORLD_LOCAL_RANK $code" >> "$DISTTUI_DIR/{CODES}"; exit $code'
_SETTINGS = {
    "OMPI_MCA_orte_enable_recovery": "1",
    # Inside a batch system's job, or with a site's hostfile, it would start ranks on other hosts.
    "OMPI_MCA_ras": "^slurm,tm,lsf,gridengine,alps,loadleveler",
    "OMPI_MCA_orte_default_hostfile": "none",
}
_ALONE = {"OMPI_MCA_plm": "isolated"}
_MEETING = 90.0
"""Seconds until each host has started a rank. Without this limit, mpirun waits for a daemon forever."""
_LATER = 15.0
"""Additional seconds for the first host: the host that cannot reach it knows the reason."""
_LINGER = 2.0
"""Seconds that mpirun has to end after the ranks of this host have ended."""
_LOOK = 0.1
"""Seconds between two checks for ranks that have ended."""
_MOST = 64 << 10
"""Largest size of that file in bytes."""
_SIGNALLED = 128
"""Added to a signal's number in a shell's exit code for a process that a signal ended."""


def prepare() -> Callable[[List[str], Optional[int]], None]:
    """Find mpirun; returns a function that runs it with arguments. Raises UnusableError."""
    program = shutil.which("mpirun")
    if program is None:
        raise UnusableError("mpirun is not in PATH; install Open MPI")
    try:
        said = subprocess.check_output([program, "--version"], stderr=subprocess.STDOUT, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise UnusableError("%s cannot be run: %s" % (program, error)) from None
    version = open_mpi.version_of(said.decode("utf-8", "replace"))
    if not open_mpi.is_open_mpi(version):
        raise UnusableError("%s is not Open MPI but %r" % (program, version[:200]))
    early = json.loads(os.environ.pop(mpi_world.EARLY, "null"))
    begun = None
    if early is not None:
        os.environ.update(early["env"])
        begun = _make(program, version, [*early["args"], *sys.argv[2:]])
        begun.start()

    def run(args: List[str], _listener: Optional[int]) -> None:
        # The ranks are not our own children, but those of their shells.
        os.environ.pop(VARIABLE, None)
        try:
            one = begun or _make(program, version, args)
            # mpirun starts any program, not only Python.
            one.run([sys.executable, "-u", *args[args.index(sys.argv[0]) :]])
        except UnusableError as problem:
            _refuse(str(problem))
        finally:
            mpi_world.remove_session(os.environ["DISTTUI_DIR"])

    return run


def _make(program: str, version: str, args: List[str]) -> "_Mpirun":
    try:
        os.environ.update(mpi_world.make_session())
        gate = None if args[0] in (mpi_world.LEADS, mpi_world.JOINS) else mpi_world.make_gate()
    except OSError as error:
        raise UnusableError("no folder for Open MPI's temporary files: %s" % error) from None
    at = args.index(sys.argv[0])
    own = mpi_world.own_settings()
    env = {**os.environ, **mpi_world.default_ports(own), **_SETTINGS}
    if gate is not None:
        return _Alone([program, *args[:at], "sh", "-c", mpi_world.WAIT + mpi_world.RANK], {**env, **_ALONE}, gate)
    if args[0] == mpi_world.LEADS:
        if not open_mpi.forms_worlds(version):
            why = "mpirun over several hosts needs Open MPI 4, but mpirun is %s" % version
            _refuse(why + ": set launch.launcher to mpirun-per-host")
        return _Leading([program, *args[1:at], "sh", "-c", mpi_world.RANK], {**env, **mpi_world.LEADER}, version)
    if version != args[1]:
        why = "mpirun is %s, but on the first host %s" % (version, args[1])
        _refuse(why + ": install the same, or set launch.launcher to mpirun-per-host")
    return _Joining([_orted(program)], {**env, **mpi_world.MEMBER, **mpi_world.daemon(args[2:at])}, args[4])


class _Mpirun:
    """The process of mpirun or orted, from start to end, with the ranks below it."""

    def __init__(self, command: List[str], env: Dict[str, str]) -> None:
        self._program = os.path.basename(command[0])
        self._command = command
        self._env = env
        self._stopped: Optional[int] = None
        self._failures: List[LauncherFailure] = []
        self._asked: "set[int]" = set()
        self._scan_at = 0.0
        self._well_at: Optional[float] = None
        self._pause = _LOOK
        self._started = False

    def start(self) -> None:
        self._started = True
        self._messages = Messages()
        self._child = subprocess.Popen(  # there is only one thread
            # If named with a slash, mpirun would put its own folder before all others in the ranks' PATH.
            [self._program, *self._command[1:]], executable=self._command[0], env=self._env,
            stdin=subprocess.DEVNULL, stderr=self._messages.writer, preexec_fn=die_with_parent,
        )  # fmt: skip
        os.close(self._messages.writer)

    def run(self, rank: Sequence[str]) -> None:
        """Have it run this host's ranks, each with the command `rank`; wait for its end, and exit."""
        signal.signal(signal.SIGTERM, self._stop)
        own = mpi_world.own_settings()
        new = {name: value for name, value in os.environ.items() if self._env.get(name) != value}
        mpi_world.write_rank({**own, **new}, rank, _EACH)
        if not self._started:
            self.start()
        self._let_go()
        while self._child.poll() is None:
            self._look()
            time.sleep(self._pause)
        self._look()
        self._messages.end()
        code = 1 if self._failures or self._stopped else self._code()
        code = code if code >= 0 else _SIGNALLED - code
        error = None
        if code == 0 and not _all_well():
            # It exits with 0 whatever its ranks have done; their codes are lost if the disk was full.
            code, error = 1, "mpirun ended, but not every rank's exit code is known"
        tell_end(code=code, error=error, signal=self._stopped, failures=self._failures)
        sys.exit(code)

    def _let_go(self) -> None:
        """Called when the ranks have all that they need."""

    def _code(self) -> int:
        """The exit code if no rank of this host has failed."""
        return 0 if _all_well() else self._child.returncode

    def _stop(self, number: int, _frame: object) -> None:
        # The signal may interrupt anything, even the start of mpirun: the loop handles it.
        self._stopped = number

    def _look(self) -> None:
        self._messages.pass_on()
        failures = _failures()
        if len(failures) > len(self._failures):
            self._failures = failures
            tell_end(code=1, signal=self._stopped, failures=failures)
        if (self._failures or self._stopped) and time.monotonic() >= self._scan_at:
            # Ask each rank once; mpirun only if it has not started any yet: it would also end ranks of other hosts.
            table = procs.table()
            shells = {pid for pid, proc in table.items() if proc.ppid == self._child.pid and not proc.dead}
            ranks = {pid for pid, proc in table.items() if proc.ppid in shells and not proc.dead}
            for pid in (ranks if shells or _ends() else {self._child.pid}) - self._asked:
                self._asked.add(pid)
                try:
                    os.kill(pid, signal.SIGTERM)
                except OSError:
                    pass
            # Seconds between two scans of all processes, for ranks that have not been asked to end
            self._scan_at = time.monotonic() + 1.0
        if self._well_at is None and _all_well():
            self._well_at = time.monotonic() + _LINGER
        if self._well_at is not None and time.monotonic() >= self._well_at:
            self._well_at = float("inf")
            self._linger()

    def _linger(self) -> None:
        """Handle an mpirun that still runs although all ranks succeeded: it waits forever without MPI_Finalize."""
        self._child.kill()


class _Alone(_Mpirun):
    """The mpirun of a host that is an MPI world of its own."""

    def __init__(self, command: List[str], env: Dict[str, str], gate: int) -> None:
        super().__init__(command, env)
        self._gate = gate

    def _let_go(self) -> None:
        mpi_world.open_gate(self._gate, int(os.environ["LOCAL_WORLD_SIZE"]))


class _OfWorld(_Mpirun):
    """This host's part of one MPI world. Each host is responsible for its own ranks."""

    def __init__(self, command: List[str], env: Dict[str, str]) -> None:
        super().__init__(command, env)
        self._patience = _MEETING
        self._late: Optional[float] = None

    def _let_go(self) -> None:
        self._late = time.monotonic() + self._patience

    def _look(self) -> None:
        super()._look()
        if self._late and time.monotonic() >= self._late:
            self._late = None
            if not _ends() and all(proc.ppid != self._child.pid for proc in procs.table().values()):
                self._no_rank()

    def _no_rank(self) -> None:
        """Handle that no rank of this host has started in time."""
        raise NotImplementedError

    def _give_up(self, why: str) -> NoReturn:
        self._child.kill()
        self._messages.end()
        _refuse(why)

    def _linger(self) -> None:
        tell_end(code=0)  # ranks of other hosts may still work: the gang knows

    def _code(self) -> int:
        if _all_well():
            return 0  # if mpirun fails, ranks of other hosts have failed
        code = self._child.returncode
        if code < 0:
            self._end_of_signal(-code, "%s was ended by %s" % (self._program, procs.signal_name(-code)))
        return code or 1

    def _end_of_signal(self, number: int, error: str) -> NoReturn:
        tell_end(code=-number, error=error)
        sys.exit(_SIGNALLED + number)


class _Leading(_OfWorld):
    """The mpirun of the first host."""

    def __init__(self, command: List[str], env: Dict[str, str], version: str) -> None:
        super().__init__(command, env)
        self._version = version
        self._asked_for = False
        self._pause = 0.01  # the others wait until mpirun asks for their daemons
        # A host that cannot reach this one reports that first.
        self._patience = _MEETING + _LATER

    def _look(self) -> None:
        super()._look()
        if not self._asked_for and (given := mpi_world.asked()):
            found = mpi_world.place_of(self._version, given)
            if not any(name in self._env for name in mpi_world.OF_DAEMONS):
                found["uri"] = mpi_world.only_at(found["uri"], os.environ["MASTER_ADDR"])
            wrong = mpi_world.wrong_field(found)
            if wrong:
                self._give_up("mpirun gives an invalid value for %s: %.200r" % wrong)
            self._asked_for, self._pause = True, _LOOK
            place(mpi_world.PLACE, found)

    def _no_rank(self) -> None:
        why = "mpirun did not request the daemons of the other hosts"
        if self._asked_for:
            why = "mpirun is waiting for another host's orted"
        self._give_up("mpirun started no rank in %.0f s: %s" % (_MEETING + _LATER, why))


class _Joining(_OfWorld):
    """The orted of another host."""

    def __init__(self, command: List[str], env: Dict[str, str], uri: str) -> None:
        super().__init__(command, env)
        self._uri = uri
        """Where the first host's mpirun listens."""

    def _no_rank(self) -> None:
        if mpi_world.reaches(self._uri):
            return  # it waits for another host, which reports that
        where = self._uri.partition(";")[2]
        self._give_up(
            "orted started no rank in %.0f s: this host cannot reach the first host's mpirun at %s; "
            "check for a firewall" % (_MEETING, where)
        )

    def _code(self) -> int:
        code = super()._code()
        until = time.monotonic() + _LINGER
        while code and time.monotonic() < until:
            if not mpi_world.reaches(self._uri):
                # Like a process that is asked to end because of another's failure.
                self._end_of_signal(signal.SIGTERM, "orted lost the first host's mpirun")
            time.sleep(_LOOK)
        return code


def _all_well() -> bool:
    """Whether all ranks of this host have ended with 0."""
    ends = _ends()
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return 0 < ranks <= len({rank for rank, _ in ends}) and not any(code for _, code in ends)


def _orted(mpirun: str) -> str:
    """The daemon that was installed with mpirun."""
    folders = (os.path.dirname(path) for path in (mpirun, os.path.realpath(mpirun)))
    found = next(filter(os.path.exists, (os.path.join(folder, "orted") for folder in folders)), None)
    return found or _refuse("no orted found beside %s: reinstall Open MPI" % mpirun)


def _refuse(text: str) -> NoReturn:
    tell_end(code=1, error=text)
    sys.stderr.write("disttui: %s\n" % text)
    raise SystemExit(1)


def _failures() -> List[LauncherFailure]:
    """The ranks that have failed so far, in the order in which they ended."""
    return [
        {"local_rank": rank, "pid": None, "code": _SIGNALLED - code if code > _SIGNALLED else code, "t": time.time()}
        for rank, code in _ends()
        if code
    ]


def _ends() -> List[Tuple[int, int]]:
    """Local rank and exit code of the ranks that have ended so far."""
    try:
        path = os.path.join(os.environ["DISTTUI_DIR"], CODES)
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            words = [line.split() for line in file.read(_MOST).splitlines()]
    except OSError:
        return []
    # The job's own code may also write there.
    pairs = [pair for pair in words if len(pair) == 2 and all(word.isdigit() and len(word) < 6 for word in pair)]
    return [(int(rank), int(code)) for rank, code in pairs]


_NOTHING = re.compile(rb"\[[^]\n]*\] PMIX ERROR: BAD-PARAM in file \S*/pmix_event_notification\.c at line \d+\n")
"""With recovery enabled, mpirun prints this error each time a rank fails; it has no meaning."""


class Messages:
    """Forwards a child's standard error from a pipe to our own."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._begun = b""

    def pass_on(self) -> None:
        """Write what has arrived since the last call."""
        for _ in range(16):  # pieces to read in one call: a flood must not block the caller
            try:
                piece = os.read(self._reader, (64 << 10))
            except BlockingIOError:
                return
            if not piece:
                return
            lines = (self._begun + piece).splitlines(keepends=True)
            # Longest incomplete line, in bytes, that is held back until its end arrives
            self._begun = b"" if lines[-1].endswith(b"\n") or len(lines[-1]) > 4096 else lines.pop()
            self._write(b"".join(line for line in lines if not _NOTHING.fullmatch(line)))

    def end(self) -> None:
        """Write the rest."""
        self.pass_on()
        self._write(self._begun)
        self._begun = b""

    def _write(self, text: bytes) -> None:
        with contextlib.suppress(OSError):  # the disk is full
            while text:
                text = text[os.write(2, text) :]
