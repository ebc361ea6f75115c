"""Telemetry and leases of many hosts, each followed independently; no run is needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from disttui.runner.errors import DisttuiError, LinkLostError
from disttui.runner.hosts.facts import read_leases
from disttui.runner.hosts.link import SILENCE, Item, Link
from disttui.runner.hosts.load import Load, load_of
from disttui.runner.hosts.survey import CONNECTS, open_link
from disttui.runner.protocol.leases import Lease
from disttui.runner.runs.places import Destination
from disttui.runner.transport import Connector
from disttui.runner.transport.base import Gate

AGAIN = (2.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before the first, second, … attempt to reconnect to a lost host."""
LEASES = 3.0
"""Seconds between two queries of a host's leases."""
_MANY = 16
"""Number of hosts above which fewer processes of each are requested, to suit a slow link; also if reports are rare."""
_FEW = 12


@dataclass(frozen=True)
class HostNow:
    """The last known state of a host."""

    name: str
    state: str = "connecting"
    """connecting, seen, not seen, failed, or left (no longer followed)."""
    load: Load | None = None
    """Its last telemetry."""
    heard: float | None = None
    """When that arrived, unix time on this machine."""
    since: float = 0.0
    """When `state` began."""
    problem: str = ""
    cure: str = ""
    leases: tuple[Lease, ...] | None = None
    """Leases of the host and its GPUs as last reported; None if it has not reported yet."""


Tell = Callable[[], None]


class HostsWatch:
    """Follows each host in its own thread, until it is closed.

    A lost host is reconnected. A host that was never reached keeps its error until `retry`, since another attempt
    may ask for a password again.

    Args:
        connect: Returns the connector for an ssh configuration; called in the hosts' threads.
        changed: Called, in any thread, when the result of `now` has changed.
    """

    def __init__(
        self,
        places: Sequence[Destination],
        connect: Callable[[str | None], Connector],
        changed: Tell = lambda: None,
        interval: float = 1.0,
    ) -> None:
        self._connect = connect
        self._changed = changed
        self._interval = interval
        self._processes: bool | int = _FEW if len(places) > _MANY or interval > 1.0 else True
        self._gate = Gate(CONNECTS)
        self._lock = threading.Lock()
        begun = time.time()
        self._hosts = {place.name: HostNow(place.name, since=begun) for place in places}
        self._places = {place.name: place for place in places}
        self._wake = {name: threading.Event() for name in self._hosts}
        self._reached: set[str] = set()
        """The hosts that have let this viewer in: they are reconnected when they are lost."""
        self._closed = False

    def start(self) -> None:
        """Start to connect to the hosts."""
        for name in self._hosts:
            # Daemon threads: a host that hangs must not delay the end of the program.
            threading.Thread(target=self._follow, args=(name,), name=f"watch {name}", daemon=True).start()

    def now(self) -> tuple[HostNow, ...]:
        """Every host, in the order given, without those that were left."""
        with self._lock:
            return tuple(host for host in self._hosts.values() if host.state != "left")

    def leave(self, name: str) -> None:
        """Stop following a host, even if it does not answer."""
        self._set(name, state="left")
        self._wake[name].set()

    def retry(self) -> None:
        """Connect immediately to every unreachable host."""
        for host in self.now():
            if host.state == "failed":
                self._set(host.name, state="connecting", problem="", cure="")
            if host.state != "seen":
                self._wake[host.name].set()

    def close(self) -> None:
        """End everything, without waiting for hosts that do not answer."""
        self._closed = True
        for wake in self._wake.values():
            wake.set()

    def _over(self, name: str) -> bool:
        return self._closed or self._hosts[name].state == "left"

    def _follow(self, name: str) -> None:
        tries = 0
        while not self._over(name):
            self._wake[name].clear()
            try:
                if self._listen(name):
                    tries = 0
            except DisttuiError as error:
                what = error.reason
                if isinstance(error, LinkLostError):
                    self._reached.add(name)
                if not self._over(name):
                    state = "not seen" if name in self._reached else "failed"
                    self._set(name, state=state, problem=what, cure=error.cure)
            if self._over(name):
                return
            self._wake[name].wait(AGAIN[min(tries, len(AGAIN) - 1)] if name in self._reached else None)
            tries += 1

    def _listen(self, name: str) -> bool:
        """Follow a host until its link ends; returns whether it sent telemetry. Raises DisttuiError."""
        place = self._places[name]
        with self._gate.turn():
            if self._over(name):
                return False
            link = open_link(place.host, self._connect(place.ssh_config), any_python=True)
        self._reached.add(name)
        began = time.time()
        try:
            stream = link.stream(
                "telemetry", lambda event: self._take(name, event), interval=self._interval, processes=self._processes
            )
            asked, due = None, 0.0
            while not stream.done() and not self._over(name):
                self._note_silence(name, link)
                if asked is None and time.monotonic() >= due:
                    asked, due = link.submit("leases", gpus=False), time.monotonic() + max(LEASES, self._interval)
                    asked.add_done_callback(lambda answer: self._take_leases(name, answer))
                elif asked is not None and asked.done():
                    asked = None
                if self._wake[name].wait(min(1.0, self._interval)):
                    break  # reconnect
            if stream.done():
                stream.result()
        finally:
            link.close()
        return (self._hosts[name].heard or 0.0) >= began

    def _note_silence(self, name: str, link: Link) -> None:
        host = self._hosts[name]
        if host.state == "seen" and link.silence > SILENCE:
            self._set(name, state="not seen", problem=f"silent for {link.silence:.0f} s")

    def _take(self, name: str, event: Item) -> None:
        load = load_of(event) if isinstance(event, Mapping) else None
        if load is not None and not self._over(name):
            before = self._hosts[name].load
            if before is not None and not load.gpus and before.gpus and load.t - before.t < SILENCE:
                load = replace(load, gpus=before.gpus)  # the driver is slow to answer
            self._set(name, state="seen", load=load, heard=time.time(), problem="", cure="")

    def _take_leases(self, name: str, answer: Future[Any]) -> None:
        said = None if answer.cancelled() or answer.exception() else answer.result()
        if isinstance(said, Mapping) and not self._over(name):
            self._set(name, leases=read_leases(said.get("leases")))

    def _set(self, name: str, **changes: Any) -> None:
        with self._lock:
            host = self._hosts[name]
            if host.state == "left":
                return
            if changes.get("state", host.state) != host.state:
                changes["since"] = time.time()
            self._hosts[name] = replace(host, **changes)
        self._changed()
