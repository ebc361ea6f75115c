"""What the leader decides: when to go, when to end, whether to try again, and how the run ended."""

from __future__ import annotations

import time
from typing import Any, Callable

from .. import ports
from ..host import Host
from ..journal import event
from ..loop import Loop
from ..problem import Problem
from . import cause
from .health import Health

_WAITING = 5.0
_UNWATCHED_STEP = 60.0
_FENCE = 6.0
"""Seconds beyond `grace` that a host which fences itself may need for it."""


class Gang:
    """The state of the whole run, fed with messages of the hosts and with their silence.

    Args:
        say: Takes an event.
        send: Takes a node rank and a message for it; node 0 is this host.
        addresses: This host's own, best first.
    """

    def __init__(
        self,
        host: Host,
        loop: Loop,
        say: Callable[[dict[str, Any]], None],
        send: Callable[[int, dict[str, Any]], None],
        addresses: list[str],
    ) -> None:
        self._host = host
        self._loop = loop
        self._say = say
        self._send = send
        self._addresses = addresses
        self._nodes = range(len(host.spec["hosts"]))
        self._phase = "joining"
        self._present = {0}
        self._reached: dict[int, tuple[set[str], bool]] = {0: (set(addresses), False)}
        self._lost: set[int] = set()
        self._offsets: dict[int, float] = {0: 0.0}
        self._attempt = 1
        self._went = 0.0
        self._lasted = 0.0
        self._port: ports.Reserved | None = None
        self._failures: list[dict[str, Any]] = []
        self._done: set[int] = set()
        self._ended: dict[int, dict[str, Any]] = {}
        self._hopeless = False
        self._stop = False
        self._fenced = 0.0
        self._last_step: int | None = None
        self._health = Health(say, self._ask_stacks)
        loop.every(1.0, self._look_at_health)

    @property
    def open(self) -> bool:
        """Whether a host may still join for the first time."""
        return self._phase == "joining"

    @property
    def over(self) -> bool:
        """Whether the verdict is out: hosts that leave from now on are no loss."""
        return self._phase == "over"

    def start(self) -> None:
        """Begin to wait for the others."""
        self._say(event("join", node=0))
        self._wait_for_all()

    def join(self, node: int) -> None:
        """A host has connected, or is back."""
        if node not in self._present:
            self._present.add(node)
            self._say(event("join", node=node))
        self._maybe_go()

    def clock(self, node: int, offset: float) -> None:
        """A host's clock is `offset` seconds ahead of ours."""
        self._offsets[node] = offset

    def lose(self, node: int, gone: bool) -> None:
        """A host has been silent for too long, or its supervisor is known to be gone."""
        if self._phase == "joining" and node not in self._lost:
            self._present.discard(node)
            self._reached.pop(node, None)
            return
        if node in self._lost or self._phase == "over":
            return
        self._lost.add(node)
        name = self._host.spec["hosts"][node]
        why = "its supervisor has ended" if gone else f"not heard of for {self._host.launch['host_timeout']:g} s"
        self._fenced = 0.0 if gone else time.monotonic() + float(self._host.launch["grace"]) + _FENCE
        self._fail(_cause(node, "host lost", f"{name} is lost: {why}"), "host lost")
        self._hopeless |= gone
        self._maybe_settle()

    def found(self, node: int) -> None:
        """A lost host is heard of again."""
        self._lost.discard(node)
        self._maybe_go()

    def stop(self, reason: str, now: bool) -> None:
        """Stop the run, on every host."""
        if self._phase == "over":
            return
        self._stop = True
        self._phase = "ending"
        for node in self._nodes:
            if node in self._present:
                self._send(node, {"k": "stop", "reason": reason, "now": now})
        self._maybe_settle()

    def receive(self, node: int, message: dict[str, Any]) -> None:
        """Take a message of a host; those of older attempts are dropped."""
        if message.get("attempt", self._attempt) != self._attempt or self._phase == "over":
            return
        handler = getattr(self, "_on_" + str(message["k"]), None)
        if handler:
            handler(node, message)

    def _on_reached(self, node: int, message: dict[str, Any]) -> None:
        self._reached[node] = (set(message["addresses"]), bool(message["pending"]))
        self._maybe_go()

    def _on_stop(self, node: int, message: dict[str, Any]) -> None:
        self.stop(str(message["reason"]), bool(message["now"]))

    def _on_signs(self, node: int, message: dict[str, Any]) -> None:
        self._health.hear(node, message, time.monotonic())

    def _look_at_health(self) -> None:
        self._health.look(self._attempt if self._phase == "running" else 0, time.monotonic())

    def _ask_stacks(self, number: int) -> None:
        for node in self._nodes:
            self._send(node, {"k": "stacks", "attempt": self._attempt, "number": number})

    def _on_listening(self, node: int, message: dict[str, Any]) -> None:
        if self._phase == "starting":
            self._phase = "running"
            for other in self._nodes[1:]:
                self._send_go(other)

    def _on_failed(self, node: int, message: dict[str, Any]) -> None:
        alone = self._phase == "starting" or len(self._nodes) == 1
        if message["port_in_use"] and node == 0 and alone:
            self._go_on_next_port()
        elif message["port_in_use"]:
            self._fail(_cause(node, "launch", "the master port was taken by another program"), "failure")
        else:
            failure = message["cause"]
            # A launcher that was killed may have a better time with the next attempt.
            self._hopeless |= failure["kind"] in ("launch", "folder") and (failure["code"] or 0) >= 0
            self._fail({**failure, "at": failure["at"] - self._offsets.get(node, 0.0)}, "failure")

    def _on_done(self, node: int, message: dict[str, Any]) -> None:
        self._done.add(node)
        self._ended[node] = message
        if self._phase != "ending" and self._done >= set(self._nodes):
            self._conclude("finished", 0, None)

    def _on_ended(self, node: int, message: dict[str, Any]) -> None:
        if self._phase == "ending":
            self._ended[node] = message
            self._maybe_settle()

    def _wait_for_all(self) -> None:
        self._deadline = max(time.monotonic(), self._fenced) + float(self._host.launch["join_timeout"])
        self._since_waiting = time.monotonic()
        self._patience = self._loop.every(0.25, self._check_patience)
        self._maybe_go()

    def _check_patience(self) -> None:
        if self._phase not in ("joining", "regrouping"):
            self._patience.cancel()
            return
        now = time.monotonic()
        missing = [node for node in self._nodes if node not in self._present or node in self._lost]
        if missing and now - self._since_waiting >= _WAITING:
            self._since_waiting = now
            self._say(event("waiting", missing=missing))
        if now >= self._deadline:
            self._patience.cancel()
            self._fail(self._join_cause(missing), "join timeout")
            self._hopeless = True
            self._lost.update(missing)
            self._maybe_settle()
        else:
            self._maybe_go()

    def _join_cause(self, missing: list[int]) -> dict[str, Any]:
        names = self._host.spec["hosts"]
        limit = f"within {self._host.launch['join_timeout']:g} s"
        if missing:
            who = ", ".join(f"{names[node]} (node {node})" for node in missing)
            return _cause(missing[0], "join", f"{who} did not join {limit}")
        reached = "; ".join(
            f"{names[node]} reached {', '.join(sorted(found)) or 'none'}"
            for node, (found, _) in sorted(self._reached.items())
            if node
        )
        return _cause(0, "join", f"no address of {names[0]} was reached by all hosts {limit}: {reached}")

    def _master(self) -> str | None:
        common = [ip for ip in self._addresses if all(ip in found for found, _ in self._reached.values())]
        return common[0] if common and len(self._reached) == len(self._nodes) else None

    def _maybe_go(self) -> None:
        if self._phase not in ("joining", "regrouping") or self._lost or time.monotonic() < self._fenced:
            return
        if len(self._present) == len(self._nodes) and self._master():
            self._go_on_next_port()

    def _go_on_next_port(self) -> None:
        master = self._master() or self._addresses[0]
        last = self._port
        try:
            self._port = ports.reserve(tuple(self._host.launch["ports"]), last.port if last else 0)
        except Problem as problem:
            self._hopeless = True
            self._fail(_cause(0, "launch", problem.what), "failure")
            return
        if last:
            last.holder.close()
        self._went = time.monotonic()
        fields = {"master": master, "port": self._port.port, "world_size": self._host.world_size}
        self._say(event("attempt", attempt=self._attempt, **fields))
        self._go = {"k": "go", "attempt": self._attempt, "master": master, "port": self._port.port}
        self._phase = "starting" if len(self._nodes) > 1 else "running"
        self._send_go(0)

    def _send_go(self, node: int) -> None:
        self._send(node, self._go)

    def _fail(self, failure: dict[str, Any], reason: str) -> None:
        self._failures.append(failure)
        if self._phase not in ("ending", "over"):
            self._phase = "ending"
            self._lasted = time.monotonic() - self._went if self._went else 0.0
            message = {"k": "end", "attempt": self._attempt, "reason": reason, "now": False}
            for node in self._nodes:
                if node in self._present:
                    self._send(node, message)

    def _maybe_settle(self) -> None:
        if self._phase != "ending" or not self._present <= set(self._ended) | self._lost:
            return
        if self._stop:
            self._conclude("stopped", 130, None)
            return
        blamed = cause.root(self._failures)
        if self._may_retry():
            self._say(event("failed", attempt=self._attempt, cause=blamed))
            self._next_attempt()
        else:
            self._conclude("failed", 1, blamed)

    def _may_retry(self) -> bool:
        steps = [end["step"] for end in self._ended.values() if end.get("step") is not None]
        step = max(steps, default=None)
        made = any(end.get("made_step") for end in self._ended.values())
        unwatched = self._lasted > _UNWATCHED_STEP
        again = step is not None and step == self._last_step
        self._last_step = step
        left = self._attempt <= int(self._host.launch["restarts"])
        return left and (made or unwatched) and not again and not self._hopeless

    def _next_attempt(self) -> None:
        self._attempt += 1
        self._phase = "regrouping"
        self._failures, self._ended, self._done, self._went = [], {}, set(), 0.0
        self._say(event("note", level="warning", text=f"attempt {self._attempt} begins"))
        for node in self._nodes:
            self._send(node, {"k": "warm", "attempt": self._attempt})
        self._wait_for_all()

    def _conclude(self, state: str, code: int, blamed: dict[str, Any] | None) -> None:
        self._phase = "over"
        verdict = {"state": state, "code": code, "attempt": self._attempt, "cause": blamed}
        for node in self._nodes:
            if node in self._present:
                self._send(node, {"k": "verdict", **verdict})


def _cause(node: int, kind: str, message: str) -> dict[str, Any]:
    fields = {"type": "", "message": message, "code": None, "at": time.time()}
    return {"node": node, "rank": None, "kind": kind, **fields}
