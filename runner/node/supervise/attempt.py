"""One attempt on this host: its launcher from start to end, and the processes below it."""

from __future__ import annotations

import array
import json
import os
import socket
import time
from typing import TYPE_CHECKING, Callable, Dict, cast

from ...protocol.cause import FailureReport
from ...protocol.events import Event, LaunchBegins, LauncherEnds
from ...protocol.gang import AttemptProgress, MpiPlace
from ...protocol.regular import open_regular, regular
from .. import ports, procs
from ..gang.messages import is_mpi_place
from ..host import HostPart
from ..journal import note, read_json, stamp
from ..loop import Loop
from ..observe import saves
from ..observe.harvest import Harvest
from ..observe.ranks import MESSAGE_LIMIT, Ranks
from ..observe.reports import launcher_end
from ..observe.scalars.finding import ScalarFiles
from ..rank import mpi_session, mpi_world
from ..rank.ends import remove_parts
from . import routes, spawn, start_line, stop

if TYPE_CHECKING:
    from ...protocol.files import LauncherEnd

_LOG_TAIL = 2000
_OWN_WORDS = "disttui: "
_READY = 5.0
"""Seconds after its start line until a launcher counts as ready without a report: its disk may be full."""


class LauncherProcess:
    """A launcher that waits for its start line, then runs this host's ranks.

    Raises OSError where it cannot be started.
    """

    def __init__(
        self,
        host: HostPart,
        number: int,
        loop: Loop,
        say: Callable[[Event], None],
        fail: Callable[[FailureReport], None],
    ) -> None:
        self.number = number
        self.ranks = Ranks(host, number, loop, say, fail)
        files = ScalarFiles(host.workdir, time.time(), host.run, host.node)
        earlier = [host.attempt_folder(one) for one in range(1, number)]
        self._harvest = Harvest(host.attempt_folder(number), host.ranks, host.spec["metrics_pattern"], files, earlier)
        self._went: float | None = None
        self._began: float | None = None
        self.well = False
        """Whether the ranks have ended well, though the launcher has not."""
        self.port: int | None = None
        """The master port, on the first host; None on all others."""
        self._host = host
        self._interface = host.spec["interface"]
        self._folder = host.attempt_folder(number)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for name in ("launcher.json", "launcher.ready"):
            if os.path.exists(self._path(name)):
                os.unlink(self._path(name))
        command = host.command(number)
        reader, self._word = os.pipe()
        # Not on standard input: shells behave differently where that is a socket.
        self._gift, gift = socket.socketpair()
        log = regular(self._path("launcher.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            cwd = os.fsencode(host.workdir)
            env = {**host.environment(number), **self._early()}
            self._pid = spawn.start(command, env, cwd, host.umask, reader, log, gift.fileno())
        except OSError:
            os.close(self._word)
            self._gift.close()
            raise
        finally:
            self._gift_number = gift.fileno()
            gift.close()
            os.close(reader)
            os.close(log)
        self.launcher: int | None = self._pid
        self._shown = [word.decode("utf-8", "replace") for word in command]
        self._say = say

    @property
    def gone(self) -> bool:
        """Whether the launcher has its start line."""
        return self._went is not None

    def go(self, master: str, port: int, server: socket.socket | None, mpi: MpiPlace | None = None) -> None:
        """Send the launcher its start line, and the listening socket of the port if there is one."""
        self._went, self._began = time.monotonic(), time.time()
        self.port = None if self._host.node else port
        args, env = start_line.start_line(self._host, self.number, master, port, mpi)
        interface = self._interface or routes.interface_towards(master)
        if interface:
            env.update({"NCCL_SOCKET_IFNAME": "=" + interface, "GLOO_SOCKET_IFNAME": interface})
            if start_line.is_mpi_world(self._host):
                env.update(dict.fromkeys(mpi_world.INTERFACE, interface))
        env = self._not_the_profiles(env)
        # Other words before it may be the same: of `activate`, of `wrap`.
        at = self._shown.index(self._host.launcher, self._shown.index(self._host.node_zip)) + 1
        command = [*self._shown[:at], *args, *self._shown[at:]]
        self._say(
            LaunchBegins(
                t=stamp(), e="launch", attempt=self.number, pid=self._pid, command=command, interface=interface
            )
        )
        word: Dict[str, object] = {"args": args, "env": env}
        if server and not start_line.takes_socket(self._host):
            server.close()
        elif server and self._give(server):
            word["listener"] = self._gift_number
        self._gift.close()
        try:
            os.write(self._word, json.dumps(word).encode() + b"\n")
            os.close(self._word)
        except OSError:
            pass  # it has ended, which its parent learns in a moment

    def launcher_ended(self, status: int) -> LauncherEnd:
        """Note the launcher's end; returns the content of launcher.json, with defaults where it is missing."""
        self.launcher = None
        if not self.gone:
            os.close(self._word)
            self._gift.close()
        mpi_session.remove(self._folder)
        for name in ("launcher.json", "launcher.ready", mpi_world.PLACE, mpi_world.DAEMON):
            remove_parts(self._folder, name)
        code = procs.exit_code(status)
        end = self._end_so_far(code)
        self.ranks.poll()
        self._say(LauncherEnds(t=stamp(), e="launcher", attempt=self.number, code=end["code"], error=end["error"]))
        return end

    def launch_failure(self, end: LauncherEnd) -> FailureReport:
        """The failure to report when the launcher has failed and no rank has."""
        code = end["code"]
        if code < 0:
            # A killed launcher prints nothing about its end: its log ends with something else.
            words = end.get("error") or f"{self._host.launcher} was ended by {procs.signal_name(-code)}"
        else:
            last = self._last_words()
            words = end.get("error") or f"{self._host.launcher} ended with exit code {code}\n{last}".rstrip()
            began = os.path.exists(self._path("launcher.ready"))
            if not began and (own := last.rpartition("\n")[2]).startswith(_OWN_WORDS):
                words = own[len(_OWN_WORDS) :]  # it failed before the launcher began
        message = words[:MESSAGE_LIMIT]
        return FailureReport(rank=None, kind="launch", type="", message=message, code=code, at=time.time())

    def look(self, *, last: bool = False) -> None:
        """Process the ranks' reports, output and metrics since the last call.

        Args:
            last: The ranks have ended.
        """
        self.ranks.poll()
        if self.launcher and start_line.is_mpi_world(self._host):
            # It lives until the ranks of all hosts have ended.
            end = self._end_so_far(0)
            self.ranks.torchrun_says(end["failures"])
            self.well = end["code"] == 0 and os.path.exists(self._path("launcher.json"))
        self._harvest.poll(self.ranks.pids, last=last)
        for text in self._harvest.notes:
            self._say(note(text))
        self._harvest.notes.clear()
        self.ranks.poll_metrics()

    def progress(self) -> AttemptProgress:
        """What the leader considers before it starts another attempt (docs/formats.md, "The gang")."""
        asked = bool(self._host.launch["restarts"]) and self._began is not None
        saved = asked and saves.since(self._host, self._began or 0.0)
        return {"begun": self.ranks.begun, "saved": saved, "step": self.ranks.step}

    def members(self) -> set[int]:
        """All living processes of this run on this host."""
        return stop.attempt_processes(self._host.run, self._host.node, os.getpid())

    def tagged(self, found: dict[int, procs.Proc]) -> set[int]:
        """Those of `found` with the tag of this run on this host."""
        return procs.tagged(found, self._host.run, self._host.node)

    @property
    def mpi(self) -> MpiPlace | None:
        """Where mpirun of this host waits for the daemons of the others."""
        place = read_json(self._path(mpi_world.PLACE))
        return cast("MpiPlace", place) if is_mpi_place(place) else None

    def listens(self, port: int) -> bool:
        """Whether this attempt's launcher is ready for those of the other hosts; most listen on a port then."""
        if start_line.is_mpi_world(self._host):
            return self.mpi is not None
        if not start_line.listens(self._host):
            return True  # the launchers need nothing of each other, and the ranks wait for rank 0
        # Searching for sockets would slow down its imports; before it is ready it has none.
        late = self._went is not None and time.monotonic() - self._went > _READY
        ready = late or os.path.exists(self._path("launcher.ready"))
        return ready and ports.is_listening(port, lambda: {self._pid, *procs.descendants(procs.table(), self._pid)})

    def _early(self) -> dict[bytes, bytes]:
        """What mpirun needs to start before the hosts have met."""
        words = start_line.early_words(self._host)
        if words is None:
            return {}
        master = self._host.spec["master"]
        # Where the master is not known yet, mpirun listens on all interfaces, and names them all.
        interface = self._interface or (routes.interface_towards(master) if master else None)
        env = dict.fromkeys(mpi_world.INTERFACE, interface) if interface and words else {}
        early = json.dumps({"args": words, "env": self._not_the_profiles(env)})
        return {mpi_world.EARLY.encode(): early.encode()}

    def _not_the_profiles(self, env: Dict[str, str]) -> Dict[str, str]:
        own = {**self._host.spec["env"], **self._host.secrets.get("env", {})}
        return {name: value for name, value in env.items() if name not in own}

    def _give(self, server: socket.socket) -> bool:
        """Pass a socket to the launcher; False where it has not inherited the descriptor for that."""
        with server:
            numbers = array.array("i", [server.fileno()])
            try:
                self._gift.sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
            except OSError:
                return False
        return True

    def _end_so_far(self, code: int) -> LauncherEnd:
        return launcher_end(read_json(self._path("launcher.json")), code, len(self._host.ranks))

    def _last_words(self) -> str:
        try:
            with open_regular(self._path("launcher.log")) as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - _LOG_TAIL))
                return file.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)
