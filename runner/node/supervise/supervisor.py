"""The supervisor of one host: runs its part of the gang, on node 0 also the gang itself, and writes the run's files."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Mapping, cast

from ...protocol.cause import Cause
from ...protocol.events import Event, Listen, State, SupervisorBegins, Verdict
from ...protocol.gang import Order, Report
from ...protocol.gang import VerdictMessage as GangVerdict
from ...protocol.leases import what_of
from ...protocol.limits import MOST_DESCRIBED
from ...protocol.names import ENVIRONMENT
from ...protocol.summary import newest_metrics
from .. import journal, locks, ports, procs
from ..child import ask
from ..gang.follower import Follower
from ..gang.gang import Gang
from ..gang.leader import Leader
from ..gang.membership import of_host
from ..host import HostPart
from ..journal import Journal, note, stamp
from ..leases import HeldLease
from ..loop import Loop
from ..notify import Notifier
from ..probe import code, nics
from ..problem import Problem
from ..telemetry.sampling import Sampling
from .control import Control
from .line import Line
from .member import Member

if TYPE_CHECKING:
    from ...protocol.files import Exit, LeaderPlace, Queue

_REASON = 200
"""Characters of a stop's reason that are sent to the gang."""


class Who(procs.ProcessIdentity):
    """The content of supervisor.json."""

    hostname: str
    warden: procs.ProcessIdentity
    gang: LeaderPlace | None
    control: str


class Supervisor:
    """All work for one run on one host, in one thread (telemetry and stacks have their own)."""

    def __init__(
        self, host: HostPart, warden: procs.ProcessIdentity, lease: HeldLease | None = None, unleased: str = ""
    ) -> None:
        self._host = host
        self._warden = warden
        self._lease = lease
        self._unleased = unleased
        self._queue = host.spec.get("queue")
        self._line: Line | None = None
        self._code_has_changed = threading.Event()
        self._loop = Loop()
        self._events = Journal(host.path("events.jsonl"))
        targets = host.secrets.get("notify", [])
        hidden = list(host.secrets.get("env", {}).values())
        self._notices = Notifier(host.folder, host.spec, targets, hidden) if targets else None
        self._ended = False
        self._folder_gone = False
        self._stopped = False
        self._stopped_now = False
        self._lock: locks.Lock | None = None
        self._member = Member(host, self._loop, self._say, self._send_up, self._over)
        self._sampling = Sampling(host, lambda: self._member.pids)
        self._member.shows = self._sampling.shows
        self._gang: Gang | None = None
        self._leader: Leader | None = None
        self._follower: Follower | None = None

    @property
    def locked(self) -> bool:
        """Whether this is the only supervisor of the run."""
        return self._lock is not None

    def open(self) -> Who:
        """Take the run's lock and open its sockets; returns supervisor.json. Raises Problem or OSError."""
        self._lock = locks.take("run", self._host.folder)
        if self._lock is None:
            other = locks.holder("run", self._host.folder)
            raise Problem(f"{self._host.folder} already has a supervisor: {other}", "stop that run first")
        own = procs.identity(os.getpid())
        journal.prepare_exit(self._host.folder)
        self._say(
            SupervisorBegins(
                t=stamp(),
                e="supervisor",
                hostname=socket.gethostname(),
                python=sys.version.split()[0],
                pid=own["pid"],
                boot_id=own["boot_id"],
            )
        )
        if self._lease:
            try:
                self._lease.adopt(self._warden)
            except OSError as error:
                if not self._queue:  # otherwise it tries again while it waits
                    self._lose_lease(self._lease, error)
        elif self._unleased:
            self._say(note(self._unleased))
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._wakeup = (reader, writer)
        self._loop.watch(reader, self._signalled)
        control = Control(self._loop, self._asked)
        gang = None
        if len(self._host.spec["hosts"]) == 1:
            self._gang = self._new_gang([self._host.spec["master"] or "127.0.0.1"])
        elif self._host.node == 0:
            gang = self._open_gang()
        else:
            self._follower = self._new_follower()
        who: Who = {
            **procs.identity(os.getpid()), "hostname": os.uname().nodename, "warden": self._warden, "gang": gang,
            "control": control.address,
        }  # fmt: skip
        journal.write_json(self._host.path("supervisor.json"), who)
        return who

    def run(self) -> None:
        """Work until the run has ended and exit.json is written."""
        self._loop.soon(self._begin)
        self._loop.every(1.0, self._tick)
        self._loop.every(20.0, self._beat)  # seconds between two signs of life for machines that share the folder
        self._loop.every(86400.0, self._use_environment)
        self._loop.every(20.0, self._note_progress)  # seconds between two updates of the run's progress in its lease
        self._loop.run()
        self._sampling.close()
        if self._notices:
            self._notices.close()
        if procs.alive(self._warden):
            with suppress(OSError):
                os.kill(self._warden["pid"], signal.SIGCONT)  # a frozen warden would never end

    def _begin(self) -> None:
        if self._queue:
            assert self._lease is not None
            self._line = Line(self._loop, self._lease, self._tell_room)
            self._line.look()
        else:
            self._begin_work()
        self._tick()
        if self._gang:
            self._gang.start()
        if self._follower:
            self._follower.start()

    def _begin_work(self) -> None:
        self._member.warm(1)
        self._sampling.start()

    def _tell_room(self, room: bool, why: str) -> None:
        self._send_up({"k": "room", "room": room, "why": why[:1000]})  # longest reason in characters

    def _obey(self, message: Order) -> None:
        """Handle an order of the leader."""
        if message["k"] == "take":
            if self._line and message["take"]:
                self._send_up({"k": "took", "done": self._line.take()})
            elif self._line:
                self._line.give_back()
        elif message["k"] == "place":
            if self._line and self._queue:
                self._line.move(message["round"], message["order"])
        elif message["k"] == "warm" and self._queue:
            queue, self._queue = self._queue, None
            if self._line:
                self._line.close()
            if self._lease and queue["any_of"]:
                self._host.use_gpus(self._lease.text["gpus"] or [])
                self._say(note(f"uses {what_of(self._lease.text)}", "info"))
            self._begin_work()
            self._compare_code(queue)
        else:
            self._member.receive(message)

    def _lose_lease(self, lease: HeldLease, error: OSError) -> None:
        """Continue without a lease that cannot be written: half-written, it would keep others out for nothing."""
        self._say(note(f"this host's lease is lost ({lease.path}: {error.strerror}): others cannot see this run"))
        lease.release()

    def _compare_code(self, queue: Queue) -> None:
        """Check, while its ranks start, whether the job's code is the same as when the run was queued."""
        then, target = queue["code"], self._host.spec["target"]
        if then is None:
            return
        script, module = (target["value"] if target["kind"] == kind else "" for kind in ("script", "module"))
        command = [target["value"], *target["args"]] if target["kind"] == "command" else ()

        def compare() -> None:
            now = code.facts(self._host.workdir, script or None, module, command, git=False)
            if now and (now["script"], now["folder"]) != (then["script"], then["folder"]):
                self._code_has_changed.set()

        threading.Thread(target=compare, daemon=True).start()

    def _say_whether_code_has_changed(self) -> None:
        if self._code_has_changed.is_set():
            self._code_has_changed.clear()
            self._say(
                note(f"the code in {self._host.workdir} has changed since this run was queued; the new code runs")
            )

    def _open_gang(self) -> LeaderPlace:
        given = self._host.spec["master"]
        # With a master on loopback all hosts are this machine: nothing may listen on the network.
        alone = given if given in ("127.0.0.1", "::1") else None
        own = [] if alone else nics.reachable_addresses()
        addresses = [given, *(ip for ip in own if ip != given)] if given else own
        if not addresses:
            raise Problem("this host has no address that others can reach", "set launch.master")
        low, high = self._host.launch["ports"]
        port, server = ports.reserve((low, high), only=alone)
        self._gang = self._new_gang(addresses)
        self._leader = Leader(self._host, self._loop, server, self._gang, self._say)
        self._say(Listen(t=stamp(), e="listen", port=port, addresses=addresses))
        return {"port": port, "addresses": addresses}

    def _new_gang(self, addresses: list[str]) -> Gang:
        gang = Gang(self._host, self._loop, self._say, self._send_down, addresses)
        self._member.master_socket = gang.hand_over
        return gang

    def _new_follower(self) -> Follower:
        member = self._member
        return Follower(self._host, self._loop, self._say, self._obey, self._fence, lambda: member.rest, self._give_up)

    def _send_up(self, message: Report) -> None:
        if self._follower:
            self._follower.send(message)
        elif self._gang:
            gang = self._gang
            self._loop.soon(lambda: gang.receive(0, message))

    def _send_down(self, node: int, message: Order) -> None:
        if node == 0:
            self._loop.soon(lambda: self._obey(message))
        elif self._leader:
            self._leader.send(node, message)

    def _asked(self, request: Mapping[str, object]) -> None:
        if request.get("op") == "stop":
            self._stop(str(request.get("reason"))[:_REASON], bool(request.get("now")))
        elif request.get("op") == "move" and self._gang:
            self._gang.move(cast("int", request["round"]), cast("float", request["order"]))
        elif request.get("op") == "lead" and self._follower:
            self._follower.lead(cast("LeaderPlace", request["leader"]))

    def _stop(self, reason: str, now: bool) -> None:
        if self._ended or self._stopped_now or (self._stopped and not now):
            return
        self._stopped, self._stopped_now = True, now
        if self._gang:
            self._gang.stop(reason, now)
            return
        self._send_up({"k": "stop", "reason": reason, "now": now})
        self._member.stop(reason, now)
        # The leader completes the stop, and waits for disconnected hosts. Without a leader, this host ends alone.
        patience = self._follower.stop() if self._follower else 0.0
        # Seconds beyond `grace` that the leader may need to complete a stop
        late = 2 * patience + self._host.launch["grace"] + 10.0 if patience else 0.0
        self._loop.after(late, lambda: self._conclude_alone("stopped", 130, None))

    def _tick(self) -> None:
        self._events.flush()
        if not self._folder_gone and journal.is_gone(self._host.path("spec.json")):
            self._folder_gone = True
            self._member.lose_folder()
        self._say_whether_code_has_changed()
        for alarm in self._sampling.events():
            self._say(alarm)
            self._member.alarm(alarm)
        if self._gang:
            self._gang.rests(0, **self._member.rest)
        stop = journal.read_json(self._host.path("stop"))
        if isinstance(stop, dict):
            self._stop(str(stop.get("reason"))[:_REASON], bool(stop.get("now")))

    def _beat(self) -> None:
        with suppress(OSError):
            os.utime(self._host.path("supervisor.json"))

    def _use_environment(self) -> None:
        """Keep `job.environment` from being removed by another host that shares it."""
        found = ENVIRONMENT.search(self._host.spec["python"])
        if found:
            with suppress(OSError):
                os.utime(self._host.spec["python"][: -len("/env/bin/python")])

    def _note_progress(self) -> None:
        if self._lease and self._member.number:
            found = newest_metrics(self._host.path(f"attempt-{self._member.number}"))
            self._lease.note_progress(found.get("step"), found.get("steps"))

    def _fence(self) -> None:
        self._member.end("leader lost", False, [])

    def _give_up(self, kind: str, why: str, last: float | None) -> None:
        """End without the leader, which is lost or was never found."""
        self._say(note(why, "error"))
        stopped = os.path.exists(self._host.path("stop"))
        state: State = "stopped" if stopped else "failed" if kind == "join" else "lost"
        reason = "join timeout" if kind == "join" else "leader lost"
        self._member.end(reason, False, [])
        if self._notices and self._host.node == 1 and state == "lost":
            self._notices.end(stamp(), state, self._member.number, of_host(0, kind, why, last))
        self._conclude_alone(state, 130 if stopped else 1, None if stopped else of_host(0, kind, why, last))

    def _conclude_alone(self, state: State, code: int, blamed: Cause | None) -> None:
        attempt = self._member.number
        self._member.receive({"k": "verdict", "state": state, "code": code, "attempt": attempt, "cause": blamed})

    def _over(self, verdict: GangVerdict) -> None:
        if self._ended:
            return
        self._ended = True
        self._say_whether_code_has_changed()
        state, code, cause, attempt = verdict["state"], verdict["code"], verdict["cause"], verdict["attempt"]
        self._say(Verdict(t=stamp(), e="verdict", state=state, code=code, cause=cause, attempt=attempt))
        left = self._member.left
        pids = [one["pid"] for one in left]
        self._end: Exit = {
            "state": state, "code": code, "cause": cause, "attempt": attempt, "left": pids,
            "processes": left[:MOST_DESCRIBED],
        }  # fmt: skip
        if self._member.held:
            self._end["held"] = self._member.held
        if self._gang and state != "finished":
            self._end["unconfirmed"] = self._gang.unconfirmed
        self._deadline = time.monotonic() + 2.0  # seconds that the outcome may take to reach the others
        self._leave()

    def _leave(self) -> None:
        wire = self._leader or self._follower
        if wire and not wire.delivered() and time.monotonic() < self._deadline:
            self._loop.after(0.02, self._leave)
            return
        # exit.json is the last write: a mirror that has it has all of the telemetry.
        self._sampling.end()
        if self._lease:
            self._lease.release()
        try:
            if not self._folder_gone:
                journal.write_exit(self._host.folder, self._end)
        except OSError:
            self._folder_gone = journal.is_gone(self._host.folder)
            self._loop.after(1.0, self._leave)
            return
        self._loop.stop()

    def _signalled(self) -> None:
        for number in self._wakeup[0].recv(256):
            if number == signal.SIGTERM and self._outlasts_a_reboot():
                self._loop.stop()  # without an end: the next list of runs queues it again
                return
            if number in (signal.SIGTERM, signal.SIGINT):
                if "job" in self._host.spec and not self._stopped:
                    self._say(note("Slurm ends the job: cancelled, preempted, or at its time limit"))
                self._stop("signal", False)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._member.child_ended(pid, status)

    def _outlasts_a_reboot(self) -> bool:
        """Whether this run waits in the queue, can be queued again without its viewer, and the machine shuts down."""
        if self._stopped or self._member.number or not (self._queue and self._queue["lasts"]):
            return False
        try:
            return ask(["systemctl", "is-system-running"], 2.0).out.strip() == "stopping"
        except OSError:
            return False

    def _say(self, event: Event) -> None:
        if self._notices:
            self._notices.see(event)  # first: if this process is killed now, its warden sends the notification
        self._events.add(event)


def run(
    host: HostPart, warden: procs.ProcessIdentity, status_fd: int, lease: HeldLease | None = None, unleased: str = ""
) -> None:
    """Run the supervisor; it reports on `status_fd`, as one line of JSON, that it is up or why not.

    Args:
        warden: The process that ends the run if this one is killed.
        lease: The inherited lease of this host, or of the GPUs that the run uses.
        unleased: Why there is no lease.
    """
    supervisor = Supervisor(host, warden, lease, unleased)
    try:
        up = supervisor.open()
        answer: Mapping[str, object] = {"pid": up["pid"], "gang": up["gang"]}
    except (Problem, OSError) as error:
        what = error.what if isinstance(error, Problem) else f"{host.folder}: {error}"
        answer = {"error": what, "cure": getattr(error, "cure", "")}
        cause = of_host(host.node, "launch", what)
        try:
            if supervisor.locked:  # otherwise it would end another supervisor's run
                journal.write_exit(
                    host.folder, {"state": "failed", "code": 1, "cause": cause, "attempt": 0, "left": []}
                )
        except OSError:
            pass  # the requester of the start gets the error
    with suppress(BrokenPipeError):  # the viewer that requested the start is gone
        os.write(status_fd, json.dumps(answer).encode() + b"\n")
    os.dup2(os.open(os.devnull, os.O_RDWR), status_fd)
    if "error" not in answer:
        supervisor.run()
