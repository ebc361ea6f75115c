"""One attempt on this host: its launcher from start to end, its start parameters, and the processes below it."""

from __future__ import annotations

import array
import ctypes
import ipaddress
import json
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple, cast

from ...protocol.cause import FailureReport
from ...protocol.events import Event, LaunchBegins, LauncherEnds
from ...protocol.gang import AttemptProgress, MpiPlace
from ...protocol.regular import last_text, regular
from .. import ports, procs
from ..gang.messages import is_mpi_place
from ..host import HostPart
from ..journal import note, read_json, stamp
from ..loop import Loop
from ..observe import harvest
from ..observe.harvest import Harvest
from ..observe.ranks import MESSAGE_LIMIT, Ranks
from ..observe.reports import launcher_end
from ..observe.scalar_files import ScalarFiles
from ..probe import nics
from ..rank import mpi_world
from ..rank.identity import FIRST_RANK
from ..rank.launcher import remove_parts
from ..rank.parent import PR_SET_PDEATHSIG
from . import stop

if TYPE_CHECKING:
    from ...protocol.files import LauncherEnd

_OWN_WORDS = "disttui: "


class LauncherProcess:
    """A launcher that waits for its start line, then runs this host's ranks.

    Raises OSError if it cannot be started.
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
        self._folder = host.attempt_folder(number)
        self.ranks = Ranks(host, number, loop, say, fail)
        files = ScalarFiles(host.workdir, time.time(), host.run, host.node)
        earlier = [host.attempt_folder(one) for one in range(1, number)]
        self._harvest = Harvest(
            self._folder, host.ranks, host.spec["metrics_pattern"], files, earlier, self.ranks.watch
        )
        self._started_at: float | None = None
        self._began: float | None = None
        self.well = False
        """Whether the ranks have succeeded, though the launcher has not ended."""
        self.port: int | None = None
        """The master port, on the first host; None on all others."""
        self._host = host
        self._interface = host.spec["interface"]
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for name in ("launcher.json", "launcher.ready"):
            if os.path.exists(self._path(name)):
                os.unlink(self._path(name))
        command = host.command(number)
        reader, self._word = os.pipe()
        # Not on standard input: shells behave differently if that is a socket.
        self._gift, gift = socket.socketpair()
        log = regular(self._path("launcher.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            cwd = os.fsencode(host.workdir)
            env = {**host.environment(number), **self._early()}
            self._pid = _start(command, env, cwd, host.umask, reader, log, gift.fileno())
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
    def started(self) -> bool:
        """Whether the launcher has received its start line."""
        return self._started_at is not None

    def go(self, master: str, port: int, server: socket.socket | None, mpi: MpiPlace | None = None) -> None:
        """Send the launcher its start line, and the listening socket of the port if there is one."""
        self._started_at, self._began = time.monotonic(), time.time()
        self.port = None if self._host.node else port
        args, env = start_line(self._host, self.number, master, port, mpi)
        interface = self._interface or interface_towards(master)
        if interface:
            env.update({"NCCL_SOCKET_IFNAME": "=" + interface, "GLOO_SOCKET_IFNAME": interface})
            if is_mpi_world(self._host):
                env.update(dict.fromkeys(mpi_world.INTERFACE, interface))
        env = self._not_the_profiles(env)
        # Earlier words may be the same: those of `activate` or `wrap`.
        at = self._shown.index(self._host.launcher, self._shown.index(self._host.node_zip)) + 1
        command = [*self._shown[:at], *args, *self._shown[at:]]
        self._say(
            LaunchBegins(
                t=stamp(), e="launch", attempt=self.number, pid=self._pid, command=command, interface=interface
            )
        )
        word: Dict[str, object] = {"args": args, "env": env}
        if server and not takes_socket(self._host):
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
        """Record the launcher's end; returns the content of launcher.json, with defaults for what is missing."""
        self.launcher = None
        if not self.started:
            os.close(self._word)
            self._gift.close()
        mpi_world.remove_session(self._folder)
        for name in ("launcher.json", "launcher.ready", mpi_world.PLACE, mpi_world.DAEMON):
            remove_parts(self._folder, name)
        code = procs.exit_code(status)
        end = self._end_so_far(code)
        self.ranks.poll()
        self._say(LauncherEnds(t=stamp(), e="launcher", attempt=self.number, code=end["code"], error=end["error"]))
        return end

    def launch_failure(self, end: LauncherEnd) -> FailureReport:
        """The failure to report if the launcher has failed and no rank has."""
        code = end["code"]
        if code < 0:
            # A killed launcher does not print its reason: its log ends with something else.
            words = end.get("error") or f"{self._host.launcher} was ended by {procs.signal_name(-code)}"
        else:
            last = last_text(self._path("launcher.log"), 2000).strip()
            words = end.get("error") or f"{self._host.launcher} ended with exit code {code}\n{last}".rstrip()
            began = os.path.exists(self._path("launcher.ready"))
            if not began and (own := last.rpartition("\n")[2]).startswith(_OWN_WORDS):
                words = own[len(_OWN_WORDS) :]  # it failed before the launcher began
        message = words[:MESSAGE_LIMIT]
        return FailureReport(rank=None, kind="launch", type="", message=message, code=code, at=time.time())

    def look(self, *, last: bool = False) -> None:
        """Process the ranks' reports, output and metrics since the last call.

        Args:
            last: Whether the ranks have ended.
        """
        self.ranks.poll()
        if self.launcher and is_mpi_world(self._host):
            # It lives until the ranks of all hosts have ended.
            end = self._end_so_far(0)
            self.ranks.launcher_says(end["failures"])
            self.well = end["code"] == 0 and os.path.exists(self._path("launcher.json"))
        self._harvest.poll(self.ranks.pids, last=last)
        for text in self._harvest.notes:
            self._say(note(text))
        self._harvest.notes.clear()
        self.ranks.poll_metrics()

    def progress(self) -> AttemptProgress:
        """What the leader considers before it starts another attempt (docs/formats.md, "The gang")."""
        asked = bool(self._host.launch["restarts"]) and self._began is not None
        saved = asked and harvest.since(self._host, self._began or 0.0)
        return {"begun": self.ranks.begun, "saved": saved, "step": self.ranks.step}

    @property
    def gets_term(self) -> int | None:
        """The process that gets the only SIGTERM: in a container the launcher, not the engine's client."""
        ready = read_json(self._path("launcher.ready")) if self._host.spec.get("container") else None
        inside = ready.get("pid") if isinstance(ready, dict) else None
        return inside if self.launcher and inside in self.members() else self.launcher

    def members(self) -> set[int]:
        """All living processes of this run on this host."""
        return stop.attempt_processes(self._host.run, self._host.node, os.getpid())

    def tagged(self, found: dict[int, procs.Proc]) -> set[int]:
        """The processes of `found` with the tag of this run on this host."""
        return procs.tagged(found, self._host.run, self._host.node)

    @property
    def mpi(self) -> MpiPlace | None:
        """Where this host's mpirun waits for the daemons of other hosts."""
        place = read_json(self._path(mpi_world.PLACE))
        return cast("MpiPlace", place) if is_mpi_place(place) else None

    def listens(self, port: int) -> bool:
        """Whether this attempt's launcher is ready for those of other hosts; most listen on a port then."""
        if is_mpi_world(self._host):
            return self.mpi is not None
        if not listens(self._host):
            return True  # launchers do not connect to each other, and the ranks wait for rank 0
        # Searching for its sockets would slow down its imports; before it is ready it has none.
        # Seconds after its start line until a launcher counts as ready without a report: its disk may be full
        late = self._started_at is not None and time.monotonic() - self._started_at > 5.0
        ready = late or os.path.exists(self._path("launcher.ready"))
        return ready and ports.is_listening(port, self._launchers)

    def _launchers(self) -> set[int]:
        # Processes in a container are not below its engine's client.
        below = procs.descendants(procs.table(), self._pid)
        return self.members() if self._host.spec.get("container") else {self._pid, *below}

    def _early(self) -> dict[bytes, bytes]:
        """The variables that mpirun needs to start before the hosts have connected."""
        words = early_words(self._host)
        if words is None:
            return {}
        master = self._host.spec["master"]
        # If the master is not known yet, mpirun listens on all interfaces, and names them all.
        interface = self._interface or (interface_towards(master) if master else None)
        env = dict.fromkeys(mpi_world.INTERFACE, interface) if interface and words else {}
        early = json.dumps({"args": words, "env": self._not_the_profiles(env)})
        return {mpi_world.EARLY.encode(): early.encode()}

    def _not_the_profiles(self, env: Dict[str, str]) -> Dict[str, str]:
        own = {**self._host.spec["env"], **self._host.secrets.get("env", {})}
        return {name: value for name, value in env.items() if name not in own}

    def _give(self, server: socket.socket) -> bool:
        """Pass a socket to the launcher; False if it has not inherited the descriptor for that."""
        with server:
            numbers = array.array("i", [server.fileno()])
            try:
                self._gift.sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
            except OSError:
                return False
        return True

    def _end_so_far(self, code: int) -> LauncherEnd:
        return launcher_end(read_json(self._path("launcher.json")), code, len(self._host.ranks))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def interface_towards(address: str) -> str | None:
    """The outgoing interface for packets to an address; for one of our own, the interface that has it."""
    try:
        target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(target[0], socket.SOCK_DGRAM) as probe:
            probe.connect(target[4])
            source = ipaddress.ip_address(probe.getsockname()[0])
    except OSError:
        return None
    for nic in nics.facts():
        if any(ipaddress.ip_address(text) == source for text in nic["addresses"]):
            return str(nic["name"])
    return None


def takes_socket(host: HostPart) -> bool:
    """Whether the launcher can serve torch's store on a given socket: `accelerate launch` wants a free port.

    A container's engine would not pass the socket on.
    """
    return host.launcher == "torchrun" and not host.spec.get("container")


def listens(host: HostPart) -> bool:
    """Whether the launcher itself listens on the master port; otherwise rank 0 does, once its script requests it."""
    return host.launcher == "torchrun" or (host.launcher == "accelerate-launch" and host.world_size > 1)


def is_mpi_world(host: HostPart) -> bool:
    """Whether mpirun of the first host starts the ranks of all hosts."""
    return host.launcher == "mpirun" and len(host.spec["hosts"]) > 1


def early_words(host: HostPart) -> Optional[List[str]]:
    """The words with which mpirun starts while the hosts still join, None if this launcher waits for the start line."""
    if is_mpi_world(host):
        return None if host.node else [mpi_world.LEADS]
    return [] if host.launcher in ("mpirun", "mpirun-per-host") else None


def start_line(
    host: HostPart, attempt: int, master: str, port: int, mpi: Optional[MpiPlace] = None
) -> Tuple[List[str], Dict[str, str]]:
    """The options that go before the others, and the variables.

    Args:
        mpi: Where mpirun waits for this host's daemon.
    """
    # If it has no folder of its own, torchrun leaves one in /tmp.
    folder = host.attempt_folder(attempt) + "/torchelastic"
    if host.launcher == "torchrun":
        args = ["--master-addr", master, "--master-port", str(port)]
        return [*args, "--rdzv-id", f"{host.run}-{attempt}-{port}", "--log-dir", folder], {}
    if host.launcher == "accelerate-launch":
        args = ["--main_process_ip", master, "--main_process_port", str(port), "--log_dir", folder]
        # It starts a single process without torchrun, and does not set its rank.
        return args, {} if host.world_size > 1 else _meeting(host, master, port, {"RANK": "0", "LOCAL_RANK": "0"})
    if host.launcher == "deepspeed":
        return [f"--master_addr={master}", f"--master_port={port}"], {}
    if not is_mpi_world(host):
        return [], _meeting(host, master, port, {FIRST_RANK: str(host.ranks.start)})
    words = [mpi_world.LEADS]
    if host.node:
        nowhere = MpiPlace(version="", job="", nodes="", uri="")
        words = mpi_world.start_words(mpi or nowhere, host.node, len(host.spec["hosts"]))
    # Ranks of two hosts on one machine would use the same names for their shared memory.
    apart = {"OMPI_MCA_btl": "self,tcp"} if master in ("127.0.0.1", "::1") else {}
    return words, _meeting(host, master, port, apart)


def _meeting(host: HostPart, master: str, port: int, more: Dict[str, str]) -> Dict[str, str]:
    return {
        "MASTER_ADDR": master,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(host.world_size),
        "LOCAL_WORLD_SIZE": str(len(host.ranks)),
        "GROUP_RANK": str(host.node),
        **more,
    }


def _start(
    command: list[bytes], environment: dict[bytes, bytes], cwd: bytes, umask: int, stdin: int, output: int, keep: int
) -> int:
    """Start a command in its own session and return its pid; the kernel ends it when we die.

    The caller must have no other threads, and must wait for the child. `keep` is a descriptor that the child inherits
    under the same number.

    Raises:
        OSError: The command cannot be started; `filename` is the folder or program that caused it.
    """
    libc = ctypes.CDLL(None)
    report, problem = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        where = cwd
        try:
            os.setsid()
            if sys.platform == "linux":
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != parent:
                    os._exit(1)
            for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(stdin, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.umask(umask)
            os.set_inheritable(keep, True)
            os.chdir(cwd)
            where = command[0]
            os.execvpe(command[0], command, environment)  # noqa: S606
        except OSError as error:
            os.write(problem, f"{error.errno} ".encode() + where)
        finally:
            os._exit(127)
    os.close(problem)
    with os.fdopen(report, "rb") as pipe:
        trouble = pipe.read()
    if trouble:
        os.waitpid(pid, 0)
        code, _, name = trouble.partition(b" ")
        raise OSError(int(code), os.strerror(int(code)), os.fsdecode(name))
    return pid
