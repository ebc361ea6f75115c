"""The leader's decisions: when to start, when to end, whether to retry, and how the run ended."""

from __future__ import annotations

import socket
import time
from enum import Enum
from typing import Any, Callable

from ...protocol import cause
from ...protocol.cause import Cause
from ...protocol.events import (
    QUEUED_FOR,
    Alarm,
    AttemptBegins,
    Event,
    Failed,
    Join,
    Note,
    State,
    Unhandled,
    Waiting,
    stall_text,
)
from ...protocol.gang import (
    AttemptProgress,
    DoneMessage,
    EndedMessage,
    EndMessage,
    FailedMessage,
    GoMessage,
    ListeningMessage,
    Order,
    Report,
    VerdictMessage,
    WarmMessage,
    attempt_of,
)
from ...protocol.watch import AGAIN, ALARMS, WatchRule
from .. import ports
from ..host import HostPart
from ..journal import note, stamp
from ..loop import Loop
from ..problem import Problem
from .health import Health
from .membership import Membership, Resume, of_host
from .turn import Turn, TurnOrder

_OFTEN, _RAREST = 0.25, 300.0
"""Seconds between the first two notes on what a queued run waits for, and the longest pause between later ones."""
FENCE = 6.0
"""Seconds beyond `grace` that a host may need to fence itself."""


def awaited(name: str, seconds: float) -> Note:
    """The note for a stop that waits for a silent host, with the longest wait in seconds."""
    latest = f"it ends its ranks within {max(0.0, seconds):.0f} s"
    text = f"waiting for {name} to stop (no heartbeat): {latest}"
    return {**note(text), "stop": True}


class Phase(Enum):
    """The phases of a gang.

        JOINING ── all have joined ──▶ STARTING ── node 0 listens ──▶ RUNNING ── all are done ──▶ OVER
           │                            ▲    │                           │                         ▲
           │ join_timeout      all back │    │ failed, lost              │ failed, lost            │
           ▼                            │    ▼                           ▼                         │
        ENDING ◀────────────────────────│────┴───────────────────────────┘                         │
         │ ▲ └── another attempt ──▶ REGROUPING                                                    │
         │ └──── rejoin_timeout, lost ──┘                                                          │
         └────── stopped, or no further attempt ───────────────────────────────────────────────────┘

    If the master port is taken, STARTING begins again with the next port.
    A run on one host has no other host to wait for, and skips STARTING.
    A stop leads from every phase but OVER to ENDING. OVER is final.
    """

    JOINING = "joining"
    """Hosts join for the first time."""
    STARTING = "starting"
    """Node 0 has been sent `go`; the other hosts get it once torch's store listens there."""
    RUNNING = "running"
    """Every host has been sent `go`."""
    ENDING = "ending"
    """The hosts end their ranks; the phase ends when each has reported that, or is lost."""
    REGROUPING = "regrouping"
    """An attempt is over, and the next one waits for lost hosts to come back."""
    OVER = "over"
    """The outcome is decided."""


class Gang:
    """The state of the whole run, updated by the hosts' messages and their silence.

    `Phase` shows its phases and transitions.

    Args:
        say: Called with an event.
        send: Called with a node rank and a message for it; node 0 is this host.
        addresses: This host's own addresses, best first.
    """

    def __init__(
        self,
        host: HostPart,
        loop: Loop,
        say: Callable[[Event], None],
        send: Callable[[int, Order], None],
        addresses: list[str],
    ) -> None:
        self._host = host
        self._loop = loop
        self._say = say
        self._send = send
        self._members = Membership(host.spec["hosts"], addresses)
        self._phase = Phase.JOINING
        queue = host.spec.get("queue")
        self._turn = Turn(queue["turns"]) if queue else None
        self._waits_for = ""
        self._says_again, self._pace = 0.0, _OFTEN
        self._offsets: dict[int, float] = {0: 0.0}
        self._attempt = 1
        self._started_at = 0.0
        self._lasted = 0.0
        self._port = 0
        self._master_socket: socket.socket | None = None
        self._refused: set[int] = set()
        """Ports on which torch could not listen in this attempt."""
        self._failures: list[Cause] = []
        self._done: set[int] = set()
        self._idle: dict[int, float] = {}
        """Hosts without a process of the running attempt → since when (monotonic seconds)."""
        self._ended: dict[int, AttemptProgress] = {}
        self._fired: dict[str, float] = {}
        """Rules of `watch` that have fired → time until which findings of other ranks count as the same."""
        self._before: int | None = None
        """The step before which the next attempt resumes."""
        self._hopeless = False
        self._stop = False
        self._fenced = 0.0
        self._deadline = 0.0
        self._last_end: tuple[Any, ...] | None = None
        self._rules: dict[str, WatchRule] = {rule["rule"]: rule for rule in host.spec.get("watch") or []}
        patience = self._rules["stall"].get("seconds") if "stall" in self._rules else None
        self._health = Health(self._hear_health, self._ask_stacks, patience)
        self._resume = Resume(say)
        loop.every(1.0, self._look_at_health)

    @property
    def open(self) -> bool:
        """Whether a host may still join for the first time."""
        return self._phase is Phase.JOINING

    @property
    def over(self) -> bool:
        """Whether the outcome is decided: hosts that leave from now on are not lost."""
        return self._phase is Phase.OVER

    def start(self) -> None:
        """Start to wait for the other hosts."""
        self._say(Join(t=stamp(), e="join", node=0))
        self._wait_for_all()

    def join(self, node: int) -> None:
        """Note that a host has connected or reconnected."""
        if node not in self._members.present:
            self._members.present.add(node)
            self._say(Join(t=stamp(), e="join", node=node))
        self._maybe_go()

    def clock(self, node: int, offset: float) -> None:
        """Note that a host's clock is `offset` seconds ahead of ours."""
        self._offsets[node] = offset

    def lose(self, node: int, last: float, gone: bool) -> None:
        """Note that a host has been silent for too long, or that its supervisor is known to have ended.

        Args:
            last: Unix time of the host's last sign of life.
        """
        if self._phase is Phase.JOINING:
            self._members.strike(node)
            if self._turn is not None:  # it may have been queued for hours, and gets its time to come back
                self._deadline = time.monotonic() + float(self._host.launch["join_timeout"])
            return
        if node in self._members.lost or self._phase is Phase.OVER:
            return
        self._members.lost[node] = last
        why = f"no heartbeat for {self._host.launch['host_timeout']:g} s"
        if gone:
            why = "its supervisor died, or the host was rebooted"
            self._hopeless = True
        else:
            self._fenced = time.monotonic() + float(self._host.launch["grace"]) + FENCE
        if self._phase is Phase.REGROUPING and not gone:
            self._deadline = max(self._deadline, self._fenced + self._return)
            return
        self._fail(of_host(node, "host lost", why, last), "host lost")
        self._maybe_settle()

    def unstopped(self, node: int) -> bool:
        """Whether a stop waits for this host."""
        return self._stop and not self.over and node in self._members.present and node not in self._ended

    @property
    def unconfirmed(self) -> list[int]:
        """The node ranks of hosts that have not confirmed that their ranks have ended."""
        return [node for node in self._members.nodes if node not in self._ended]

    def found(self, node: int) -> None:
        """Note that a lost host has sent something again."""
        self._members.lost.pop(node, None)
        self._maybe_go()

    def hand_over(self) -> socket.socket | None:
        """Return the socket that listens at the master port, once; None if this host's launcher must listen itself."""
        given, self._master_socket = self._master_socket, None
        if given and self._refused:
            # A launcher that did not listen on the last socket may not inherit it: a wrapping command can close it.
            given.close()
            return None
        return given

    def rests(self, node: int, attempt: int, idle: bool) -> None:
        """Handle a report, from a host that has received all our messages, whether an attempt has processes there.

        An attempt that no longer runs on a host is over, even if the host's report of its end was lost.
        """
        begun = self._phase in (Phase.RUNNING, Phase.ENDING) or (self._phase is Phase.STARTING and node == 0)
        if not idle or not begun or node in self._ended or attempt > self._attempt:
            self._idle.pop(node, None)
            return
        # Seconds without any process of an attempt on a host that has reported neither `done` nor `failed`
        if time.monotonic() - self._idle.setdefault(node, time.monotonic()) < 3.0:
            return
        if self._phase is Phase.ENDING:
            self._ended[node] = {"begun": False, "saved": False, "step": None}
            self._maybe_settle()
        else:
            why = f"attempt {self._attempt} ended there; cause unknown"
            self._fail(of_host(node, "launch", why), "failure")

    def stop(self, reason: str, now: bool) -> None:
        """Stop the run on every host."""
        if self._phase is Phase.OVER:
            return
        self._stop = True
        self._phase = Phase.ENDING
        for node in self._members.nodes:
            if node in self._members.present:
                self._send(node, {"k": "stop", "reason": reason, "now": now})
        self._maybe_settle()

    def move(self, round_number: int, order: float) -> None:
        """Move to another place in the queue, on every host; a disconnected host does so when it reconnects."""
        if self._turn is not None and self._phase is Phase.JOINING:
            for node in self._members.nodes:
                self._send(node, {"k": "place", "round": round_number, "order": order})

    def receive(self, node: int, message: Report) -> None:
        """Handle a message of a host; messages of older attempts are dropped."""
        if attempt_of(message, self._attempt) != self._attempt or self._phase is Phase.OVER:
            return
        if message["k"] == "reached":
            self._members.reach(node, message["addresses"])
            self._maybe_go()
        elif message["k"] == "room":
            self._on_turn(lambda turn: turn.hear(node, message["room"], message["why"]))
        elif message["k"] == "took":
            self._on_turn(lambda turn: turn.took(node, message["done"]))
        elif message["k"] == "listening":
            self._on_listening(message)
        elif message["k"] == "failed":
            self._on_failed(node, message)
        elif message["k"] == "done":
            self._on_done(node, message)
        elif message["k"] == "ended":
            self._on_ended(node, message)
        elif message["k"] == "signs":
            self._health.hear(node, message, time.monotonic())
            self._resume.hear(message["attempt"], message)
        elif message["k"] == "found":
            rank = None if message["rule"] in ALARMS.values() else message["rank"]
            self._act(message["rule"], node, rank, message["step"], message["text"])
        elif message["k"] == "stop":
            self.stop(message["reason"], message["now"])
        else:
            raise Unhandled(message)

    def _on_turn(self, happen: Callable[[Turn], list[TurnOrder]]) -> None:
        if self._turn is None or self._phase is not Phase.JOINING:
            return
        for order in happen(self._turn):
            self._send(order.node, {"k": "take", "take": order.take})
        self._say_what_it_waits_for(self._turn)
        if self._turn.granted:
            for node in self._members.nodes:
                self._send(node, {"k": "warm", "attempt": self._attempt})
            self._maybe_go()

    def _say_what_it_waits_for(self, turn: Turn) -> None:
        """Report a change, each time after a longer pause: otherwise other users could fill the disk with notes."""
        now, names = time.monotonic(), self._host.spec["hosts"]
        why = "; ".join(f"{names[node]}: {why}" for node, why in sorted(turn.why.items()))[:2000]
        if not why or why == self._waits_for or now < self._says_again:
            return
        self._waits_for = why
        self._says_again, self._pace = now + self._pace, min(2 * self._pace, _RAREST)
        self._say(note(f"{QUEUED_FOR}{why}", "info"))

    def _hear_health(self, event: Event) -> None:
        self._say(event)
        if event["e"] == "stall" and not event.get("over"):
            self._act("stall", 0, None, None, stall_text(event))

    def _act(self, name: str, node: int, rank: int | None, step: int | None, text: str) -> None:
        """Perform the action of a `watch` rule. `rank` is None if it concerns the host or the whole run."""
        rule = self._rules.get(name)
        now = time.monotonic()
        if rule is None or self._phase is not Phase.RUNNING or now < self._fired.get(name, now):
            return  # other ranks find the same
        self._fired[name] = now + AGAIN
        if rule["do"] == "notify" and rank is None:
            return  # that event already sends a notification
        where = self._host.spec["hosts"][node] if rank is None else f"rank {rank} on {self._host.spec['hosts'][node]}"
        self._say(Alarm(t=stamp(), e="alarm", kind="watch", text=f"{where}: {text} ({name})", value=None))
        why = f"watch.{name}: {text}"
        if rule["do"] == "stop":
            self.stop(why[:200], False)
        elif rule["do"] == "stacks":
            if name != "stall":  # stacks of a stall are stored anyway
                self._health.ask()
        elif rule["do"] == "snapshot":
            for other in self._members.nodes:
                self._send(other, {"k": "snapshot", "attempt": self._attempt})
        elif rule["do"] != "notify":
            self._before = step if rule["do"] == "rollback" else None
            cause = Cause(node=node, rank=rank, kind="watch", type="", message=why, code=None, at=time.time())
            self._fail(cause, "failure")

    def _look_at_health(self) -> None:
        begun = self._phase in (Phase.STARTING, Phase.RUNNING)  # the first host's ranks may hang before they listen
        self._health.look(self._attempt if begun else 0, time.monotonic())

    def _ask_stacks(self, number: int) -> None:
        for node in self._members.nodes:
            self._send(node, {"k": "stacks", "attempt": self._attempt, "number": number})

    def _on_listening(self, message: ListeningMessage) -> None:
        if self._phase is Phase.STARTING:
            self._phase = Phase.RUNNING
            if "mpi" in message:
                self._go["mpi"] = message["mpi"]
            for other in self._members.nodes[1:]:
                self._send_go(other)

    def _on_failed(self, node: int, message: FailedMessage) -> None:
        alone = self._phase is Phase.STARTING or len(self._members.nodes) == 1
        if message["port_in_use"] and node == 0 and alone:
            self._refused.add(self._port)
            self._go_on_next_port()
        elif message["port_in_use"]:
            self._fail(of_host(node, "launch", "the master port was taken by another program"), "failure")
        elif message["cause"]:
            # A host reports failures of its own only: `node` is the sender, whatever the message contains.
            reported = message["cause"]
            full = reported.get("disk")
            if full and not self._hopeless and int(self._host.launch["restarts"]):
                self._say(note(f"no further attempt: {full}"))
            self._hopeless |= bool(full)
            # A launcher that was killed by a signal may succeed in the next attempt.
            self._hopeless |= reported["kind"] in ("launch", "folder") and (reported["code"] or 0) >= 0
            failure = Cause(
                node=node,
                rank=reported["rank"],
                kind=reported["kind"],
                type=reported["type"],
                message=reported["message"],
                code=reported["code"],
                at=reported["at"] - self._offsets.get(node, 0.0),
            )
            if "last" in reported:
                failure["last"] = reported["last"]
            self._fail(failure, "failure")

    def _on_done(self, node: int, message: DoneMessage) -> None:
        self._done.add(node)
        self._ended[node] = message
        if self._phase is not Phase.ENDING and self._done >= set(self._members.nodes):
            self._conclude("finished", 0, None)

    def _on_ended(self, node: int, message: EndedMessage) -> None:
        if self._phase is Phase.ENDING:
            self._ended[node] = message
            self._maybe_settle()

    @property
    def _return(self) -> float:
        """Seconds that a lost host has to reconnect, counted from the time by which it must have ended its ranks."""
        return float(self._host.launch["rejoin_timeout"])

    def _wait_for_all(self) -> None:
        patience = self._return if self._members.lost else float(self._host.launch["join_timeout"])
        self._deadline = max(time.monotonic(), self._fenced) + patience
        self._since_waiting = time.monotonic()
        self._patience = self._loop.every(0.25, self._check_patience)
        self._maybe_go()

    def _check_patience(self) -> None:
        if self._phase not in (Phase.JOINING, Phase.REGROUPING):
            self._patience.cancel()
            return
        now = time.monotonic()
        missing = self._members.missing
        if missing and now - self._since_waiting >= 5.0:
            self._since_waiting = now
            self._say(Waiting(t=stamp(), e="waiting", missing=missing))
        if self._turn is not None:
            self._say_what_it_waits_for(self._turn)
        in_line = self._turn is not None and not missing and bool(self._members.master)
        if now >= self._deadline and not in_line:
            self._patience.cancel()
            self._hopeless = True
            if self._members.lost:
                why = f"not back within {self._return:g} s (launch.rejoin_timeout)"
                self._fail(self._members.host_lost(why), "host lost")
            else:
                self._fail(self._members.not_joined(float(self._host.launch["join_timeout"])), "join timeout")
            self._maybe_settle()
        else:
            self._maybe_go()

    def _maybe_go(self) -> None:
        if self._phase not in (Phase.JOINING, Phase.REGROUPING) or time.monotonic() < self._fenced:
            return
        if not self._members.missing and self._members.master and (self._turn is None or self._turn.granted):
            self._go_on_next_port()

    def _go_on_next_port(self) -> None:
        master = self._members.master
        # With a master on loopback all hosts are this machine: torch's store, which has no authentication, need not be
        # reachable over the network.
        only = master if master in ("127.0.0.1", "::1") else None
        if self._master_socket:
            self._master_socket.close()
        low, high = self._host.launch["ports"]
        try:
            self._port, self._master_socket = ports.reserve((low, high), self._port, only, self._refused)
        except Problem as problem:
            self._hopeless = True
            self._fail(of_host(0, "launch", problem.what), "failure")
            return
        self._started_at = time.monotonic()
        assert master is not None
        attempt, size = self._attempt, self._host.world_size
        self._say(
            AttemptBegins(t=stamp(), e="attempt", attempt=attempt, master=master, port=self._port, world_size=size)
        )
        self._go = GoMessage(k="go", attempt=self._attempt, master=master, port=self._port)
        self._phase = Phase.STARTING if len(self._members.nodes) > 1 else Phase.RUNNING
        self._send_go(0)

    def _send_go(self, node: int) -> None:
        self._send(node, self._go)

    def _fail(self, failure: Cause, reason: str) -> None:
        self._failures.append(failure)
        if self._phase not in (Phase.ENDING, Phase.OVER):
            self._phase = Phase.ENDING
            self._lasted = time.monotonic() - self._started_at if self._started_at else 0.0
            message = EndMessage(k="end", attempt=self._attempt, reason=reason, now=False)
            for node in self._members.nodes:
                if node in self._members.present:
                    self._send(node, message)

    def _maybe_settle(self) -> None:
        if self._phase is not Phase.ENDING or not self._members.present <= {*self._ended, *self._members.lost}:
            return
        if self._stop:
            # By then a lost host has ended its ranks; one that reconnects earlier is stopped like the others.
            unsure = not self._members.lost.keys() <= self._ended.keys()
            if unsure and time.monotonic() < self._fenced:
                self._loop.after(self._fenced - time.monotonic(), self._maybe_settle)
            else:
                self._conclude("stopped", 130, None)
            return
        blamed = cause.root(self._failures)
        if self._may_retry(blamed):
            self._say(Failed(t=stamp(), e="failed", attempt=self._attempt, cause=blamed))
            self._next_attempt()
        else:
            self._conclude("failed", 1, blamed)

    def _may_retry(self, blamed: Cause | None) -> bool:
        ends = list(self._ended.values())
        end, before = _how_it_ended(ends, blamed), self._last_end
        self._last_end = end
        lost = self._members.lost and not self._return
        if self._attempt > int(self._host.launch["restarts"]) or self._hopeless or lost:
            return False
        if any(failure["kind"] == "host lost" for failure in self._failures):
            return True  # a connection may break at any time: how far the attempt got says nothing about the job
        # Seconds after which an attempt counts as begun, whatever its ranks report
        if self._lasted <= 60.0 and not any(one.get("begun") for one in ends):
            why = f"this attempt ended {self._lasted:.0f} s after its start, without any sign of training"
        elif end is not None and end == before and not any(one.get("saved") for one in ends):
            # A script that logs seldom may get further than that: then it saves something, or fails in another way.
            step, type_, _ = end
            why = f"two attempts in a row ended with the same {type_} at step {step} of the log, and saved nothing"
        else:
            return True
        self._say(note(f"no further attempt: {why}"))
        return False

    def _next_attempt(self) -> None:
        self._attempt += 1
        self._phase = Phase.REGROUPING
        self._failures, self._ended, self._done, self._started_at = [], {}, set(), 0.0
        self._fired.clear()
        self._refused.clear()
        self._idle.clear()
        self._say(note(f"attempt {self._attempt} begins"))
        warm = WarmMessage(k="warm", attempt=self._attempt)
        if self._before is not None:
            warm["before"], self._before = self._before, None
        for node in self._members.nodes:
            self._send(node, warm)
        self._wait_for_all()

    def _conclude(self, state: State, code: int, blamed: Cause | None) -> None:
        self._phase = Phase.OVER
        verdict = VerdictMessage(k="verdict", state=state, code=code, attempt=self._attempt, cause=blamed)
        for node in self._members.nodes:
            if node in self._members.present:
                self._send(node, verdict)


def _how_it_ended(ends: list[AttemptProgress], blamed: Cause | None) -> tuple[Any, ...] | None:
    """What two attempts that fail for the same reason have in common; None if that is not known."""
    step = max((step for end in ends if (step := end["step"]) is not None), default=None)
    # Ranks that were killed, or lost a connection, may succeed in the next attempt.
    if step is None or blamed is None or blamed["kind"] != "exception" or cause.is_consequence(blamed):
        return None
    return step, blamed["type"], blamed["message"]
