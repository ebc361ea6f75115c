"""The hosts of a known run: connects to them, sends requests to all, updates the mirror."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from runner.errors import DisttuiError, HostError
from runner.hosts.link import Item, Link
from runner.hosts.survey import CONNECTS, HostsError, open_link
from runner.runs.registry import KnownHost, KnownRun
from runner.runs.store import HostStore, held, host_folder
from runner.transport import Connector
from runner.transport.gate import Gate

REACH = 30.0
"""Seconds after which a host that does not answer counts as unreachable."""
TAIL = 256 * 1024
"""Bytes at the end of every log that a late viewer begins with."""


@dataclass
class Reached:
    """Open links to the hosts of a run; closes them at the end of its block."""

    links: dict[int, Link] = field(default_factory=dict)
    errors: dict[int, DisttuiError] = field(default_factory=dict)

    def __enter__(self) -> Reached:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in self.links.values():
            link.close()

    def refuse_none(self) -> None:
        """Raise the errors if no host can be reached."""
        if self.errors and not self.links:
            raise _together(list(self.errors.values()))

    def refuse_some(self) -> None:
        """Raise the errors if any host cannot be reached."""
        if self.errors:
            raise _together(list(self.errors.values()))

    def ask(self, op: str, nodes: Sequence[int] | None = None, **arguments: Any) -> dict[int, Any]:
        """Send a request to the hosts concurrently; node → answer or DisttuiError."""
        chosen = [node for node in self.links if nodes is None or node in nodes]
        return self.answers({node: self.links[node].submit(op, node_rank=node, **arguments) for node in chosen})

    def answers(self, futures: Mapping[int, Future[Any]]) -> dict[int, Any]:
        """Wait for the answers to requests that were sent; node → answer or DisttuiError."""
        deadline = time.monotonic() + REACH
        return {node: _answer(future, self.links[node].host, deadline) for node, future in futures.items()}


def reach(
    run: KnownRun,
    connector: Connector,
    nodes: Sequence[int] | None = None,
    limit: float = REACH,
    at_once: Callable[[int, Link], object] | None = None,
) -> Reached:
    """Open a link to every host of a run (or to some), concurrently. Arguments as of `reach_hosts`."""
    chosen = range(len(run.hosts)) if nodes is None else nodes
    if run.gone:
        what = "a host of a sandbox lives only as long as its command"
        return Reached(errors={node: HostError(run.hosts[node].name, what) for node in chosen})
    return reach_hosts({node: run.hosts[node] for node in chosen}, connector, limit, at_once)


def reach_hosts(
    hosts: Mapping[int, KnownHost],
    connector: Connector,
    limit: float = REACH,
    at_once: Callable[[int, Link], object] | None = None,
) -> Reached:
    """Open a link to each of the hosts concurrently; one that takes longer than `limit` seconds is an error.

    Args:
        at_once: Takes each link when it is open, while others are still being opened; of several hosts that share a
            link, the first alone. Called from several threads.
    """
    reached, use = Reached(), at_once or _leave
    # The nodes of a job of Slurm are reached by one login node: one link serves them all.
    first: dict[tuple[object, ...], int] = {}
    for node, host in hosts.items():
        first.setdefault((host.host, host.user, host.port, host.python), node)
    others = {node: first[host.host, host.user, host.port, host.python] for node, host in hosts.items()}
    over = threading.Event()
    lock = threading.Lock()
    gate = Gate(CONNECTS)

    def one(node: int) -> None:
        try:
            with gate.turn():
                link = open_link(hosts[node].as_host(), connector)
        except DisttuiError as error:
            with lock:
                reached.errors.setdefault(node, error)
            return
        with lock:
            late = over.is_set()
            if not late:
                reached.links[node] = link
        if late:
            link.close()
        else:
            # Without the lock: a host that takes no bytes must not keep the others from being used.
            use(node, link)

    # Daemon threads: a host that hangs must not delay the end of the command.
    threads = [threading.Thread(target=one, args=(node,), daemon=True) for node in first.values()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    with lock:
        over.set()
        for node, by in others.items():
            if by in reached.links:
                reached.links[node] = reached.links[by]
            elif by in reached.errors:
                reached.errors[node] = reached.errors[by]
        for node, host in hosts.items():
            if node not in reached.links:
                late = HostError(host.name, f"cannot be reached: no answer in {limit:.0f} s", "See whether it is on.")
                reached.errors.setdefault(node, late)
    return reached


def _leave(node: int, link: Link) -> None:
    """Do nothing with a link yet."""


def missing(run: KnownRun, folder: Path) -> list[int]:
    """The nodes whose mirror is not complete yet."""
    return [node for node in range(len(run.hosts)) if "exit.json" not in held(host_folder(folder, node))]


def sync(run: KnownRun, folder: Path, reached: Reached, limit: float = REACH) -> dict[int, DisttuiError]:
    """Update the mirror: events and metrics completely, logs from their tails on. Links stay open.

    Returns:
        The errors, by node rank.
    """
    copies = {
        node: _Copy(run, node, HostStore(host_folder(folder, node)), link) for node, link in reached.links.items()
    }
    deadline = time.monotonic() + limit
    return {node: problem for node, copy in copies.items() if (problem := copy.finish(deadline))}


class _Copy:
    """Mirrors one host's present files."""

    def __init__(self, run: KnownRun, node: int, store: HostStore, link: Link) -> None:
        self._store = store
        self._link = link
        self._problem: DisttuiError | None = None
        self._done = threading.Event()
        request = {**run.request(), "node_rank": node, "tail": TAIL}
        self._stream = link.stream("mirror", self._take, have=store.have(), **request)
        self._stream.add_done_callback(lambda _: self._done.set())

    def finish(self, deadline: float) -> DisttuiError | None:
        """Wait until all has arrived; return the error, if any."""
        if not self._done.wait(max(0.0, deadline - time.monotonic())):
            self._problem = self._problem or HostError(self._link.host, "its files are still coming")
        self._link.cancel(self._stream)
        try:
            self._stream.result(5.0)
        except FutureTimeout:
            pass
        except DisttuiError as error:
            self._problem = self._problem or error
        self._store.close()
        return self._problem

    def _take(self, item: Item) -> None:
        try:
            if isinstance(item, tuple):
                self._store.write(item[0], item[2], item[3])
            elif "file" in item:
                self._store.announce(item)
            else:
                self._done.set()
        except DisttuiError as error:
            self._problem = error
            self._done.set()


def _answer(future: Future[Any], host: str, deadline: float) -> Any:
    try:
        return future.result(max(0.1, deadline - time.monotonic()))
    except FutureTimeout:
        return HostError(host, f"no answer in {REACH:.0f} s", "See what the host is busy with.")
    except DisttuiError as error:
        return error


def _together(errors: list[DisttuiError]) -> DisttuiError:
    return errors[0] if len(errors) == 1 else HostsError(errors)
